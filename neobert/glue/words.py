"""Words and the pieces that a tokenizer makes of them, for labels of words.

The words of a sentence are joined by spaces and tokenised as one text, as in pre-training: whatever a tokenizer does
with a space before a word, it does here too. Each word is then read at its first piece.
"""

from bisect import bisect_right
from collections.abc import Sequence

from neobert.data.tokenizers import Framed, Framing, Offsets

UNREAD = 0
"""Place at which a word without a piece is read: that of [CLS]."""


def join_words(words: Sequence[str]) -> tuple[str, list[Offsets]]:
    """Return the words joined by spaces, and the character range (begin, end) of each."""
    spans, begin = [], 0
    for word in words:
        spans.append((begin, begin + len(word)))
        begin += len(word) + 1
    return " ".join(words), spans


def first_pieces(text: str, spans: Sequence[Offsets], offsets: Sequence[Offsets]) -> list[int]:
    """Return the index of the first piece of each word.

    A piece belongs to the word of its first character that is no space, because pieces of many tokenizers include the
    space before a word; one that is a space alone belongs to the word after it. A word has no piece, and is `UNREAD`,
    if the tokenizer drops its characters, if a piece of the word before covers it, or if the text is cut before it.

    Args:
        text: words joined by spaces.
        spans: character range of each word, in ascending order.
        offsets: character range of each piece; empty ones belong to no word.
    """
    places: dict[int, int] = {}
    begins = [begin for begin, _ in spans]
    for place, (begin, end) in enumerate(offsets):
        character = end - len(text[begin:end].lstrip())
        word = bisect_right(begins, character) - 1
        if begin < end and character < spans[word][1]:
            places.setdefault(word, place)
    return [places.get(word, UNREAD) for word in range(len(spans))]


def frame_words(
    sentences: Sequence[Sequence[str]], tokenizer: Framing, max_tokens: int
) -> tuple[list[Framed], list[list[int]]]:
    """Tokenise sentences, cut to `max_tokens`; return the place of each word's first piece too."""
    joined = [join_words(words) for words in sentences]
    framed = tokenizer.frame_with_offsets([text for text, _ in joined], max_tokens=max_tokens)
    places = [first_pieces(*one, offsets) for one, (_, offsets) in zip(joined, framed, strict=True)]
    return [tokens for tokens, _ in framed], places
