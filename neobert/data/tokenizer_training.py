"""Train a WordPiece and a byte-fallback BPE tokenizer; equal texts give equal bytes in every process. Torch-free."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from neobert.data.tokenizers import BERT_SPECIALS, ROBERTA_SPECIALS, TextTokenizer, adopt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PREFIX = "##"
_BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
_BPE_SPECIALS = ("<unk>", "<s>", "</s>")
"""LLaMA's order; <pad> and <mask> come last, as `adopt` adds them."""


def train_wordpiece(texts: Sequence[str], size: int) -> TextTokenizer:
    """A lower-casing WordPiece tokenizer as BERT's with at most `size` tokens, fewer where the texts hold no more.

    Raises:
        ValueError: `size` is too small for the characters of the texts, or there is no text.
    """
    from tokenizers import trainers

    tokenizer = _empty_wordpiece({BERT_SPECIALS.unk: 0})
    continuations = _continuations(texts, tokenizer)
    # The trainer numbers "##x" in the order of a hash map that differs between processes, and ties between merges
    # follow these numbers; as special tokens they are numbered beforehand.
    reserved = [*BERT_SPECIALS.names, *continuations]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=reserved, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = _numbered(tokenizer, first=BERT_SPECIALS.names)
    _require_room(vocabulary, size, "WordPiece")
    trained = _empty_wordpiece(vocabulary)
    trained.add_special_tokens(list(BERT_SPECIALS.names))
    return adopt(trained, "the trained WordPiece tokenizer")


def train_bpe(texts: Sequence[str], size: int) -> TextTokenizer:
    """A case-keeping BPE tokenizer with byte fallback as LLaMA-2's with at most `size` tokens: digits stand alone,
    merges never cross a word or punctuation, unknown characters become bytes.

    Raises:
        ValueError: `size` is too small for 256 bytes and the characters of the texts, or there is no text.
    """
    from tokenizers import trainers

    tokenizer = _empty_bpe({}, [])
    reserved = [*_BPE_SPECIALS, *_BYTES]
    # <pad> and <mask> are added afterwards and count.
    trainer = trainers.BpeTrainer(vocab_size=size - 2, special_tokens=reserved, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = _numbered(tokenizer, first=reserved)
    _require_room(vocabulary, size - 2, "BPE")
    trained = _empty_bpe(vocabulary, _merges(tokenizer))
    trained.add_special_tokens([*_BPE_SPECIALS, ROBERTA_SPECIALS.pad, ROBERTA_SPECIALS.mask])
    return adopt(trained, "the trained BPE tokenizer")


def with_frequent_characters(texts: Sequence[str], most: int) -> list[str]:
    """The texts without all but their `most` frequent characters, so that rare ones take no room of a vocabulary."""
    counts = Counter(character for text in texts for character in text)
    frequent = {character for character, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]}
    rare = str.maketrans(dict.fromkeys((character for character in counts if character not in frequent), " "))
    return [text.translate(rare) for text in texts]


def _empty_wordpiece(vocabulary: dict[str, int]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    model = models.WordPiece(vocab=vocabulary, unk_token=BERT_SPECIALS.unk, max_input_chars_per_word=100)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=_PREFIX)
    return tokenizer


def _empty_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    unk = ROBERTA_SPECIALS.unk
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token=unk, byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _continuations(texts: Iterable[str], tokenizer: "Tokenizer") -> list[str]:
    """Every "##x" that occurs inside a word of the texts, sorted."""
    words: set[str] = set()
    for text in texts:
        words.update(text.split(" "))
    characters: set[str] = set()
    for word in words:
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(word)):
            characters.update(piece[1:])
    return [_PREFIX + character for character in sorted(characters)]


def _model(tokenizer: "Tokenizer") -> dict[str, Any]:
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def _numbered(tokenizer: "Tokenizer", first: Sequence[str]) -> dict[str, int]:
    """The trained vocabulary with new ids: `first`, then characters, then merges, each as they were learned."""
    trained = _model(tokenizer)["vocab"]
    rest = sorted(trained.keys() - set(first), key=lambda token: (len(token.removeprefix(_PREFIX)) > 1, trained[token]))
    return {token: number for number, token in enumerate([*first, *rest])}


def _merges(tokenizer: "Tokenizer") -> list[tuple[str, str]]:
    return [(left, right) for left, right in _model(tokenizer)["merges"]]


def _require_room(vocabulary: dict[str, int], size: int, name: str) -> None:
    if len(vocabulary) > size:
        raise ValueError(
            f"a {name} vocabulary of {size} tokens has no room for the {len(vocabulary)} characters and special "
            f"tokens of the texts: choose at least {len(vocabulary)}"
        )
