"""Tokenizers of the study: WordPiece as in BERT, and BPE with byte fallback as in LLaMA-2.

Both are `tokenizers.Tokenizer` files. For a model, they differ in their ids and in the special tokens around a text.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from neobert.errors import DamagedFile, MissingData
from neobert.files import (
    checksummed,
    is_file,
    is_there,
    json_bytes,
    read_checksummed,
    replace_file,
    require_digest,
    set_aside,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer


TOKENIZER_FILE = "tokenizer.json"
DIGEST_FILE = "sha256.json"
"""Checksum of a tokenizer trained on local data, stored next to it and written before it."""

TOKENIZER_FOLDERS = {"wordpiece": "bert-base-uncased", "bpe": "llama-2"}
"""Folder below tokenizers/ of each tokenizer of the recipes."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens, and the range of ids of real text.

    Random replacements are drawn from `first_text_id` (inclusive) to `end_text_id` (exclusive), a range without
    specials or [unusedN].
    """

    pad: int
    cls: int
    sep: int
    mask: int
    unk: int
    first_text_id: int
    end_text_id: int

    @property
    def never_predicted(self) -> tuple[int, ...]:
        """Ids that are never targets of masked language modelling."""
        return (self.pad, self.cls, self.sep, self.mask, self.unk)


@dataclass(frozen=True)
class Specials:
    """Names of a tokenizer's special tokens, and whether the second text of a pair also starts with `cls`."""

    pad: str
    cls: str
    sep: str
    mask: str
    unk: str
    opens_second: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (self.pad, self.unk, self.cls, self.sep, self.mask)


BERT_SPECIALS = Specials(pad="[PAD]", cls="[CLS]", sep="[SEP]", mask="[MASK]", unk="[UNK]", opens_second=False)
ROBERTA_SPECIALS = Specials(pad="<pad>", cls="<s>", sep="</s>", mask="<mask>", unk="<unk>", opens_second=True)
"""Special tokens that the released code adds to any tokenizer other than BERT's (tokenizer.py of the authors'
repository)."""


class Framed(NamedTuple):
    """Ids of one or two texts with special tokens. `token_types`: the index of the text of each id, for models that
    read it; `is_cut`: whether the texts were too long."""

    token_ids: list[int]
    token_types: list[int] | None
    is_cut: bool = False


class Framing(Protocol):
    """A tokenizer that adds special tokens to texts, or to pairs of two columns."""

    def frame_all(self, columns: Sequence[Sequence[str]], *, max_tokens: int) -> list[Framed]:
        """Frame the text or pair of each row of `columns`, cut to `max_tokens`."""


Array = np.ndarray[Any, np.dtype[Any]]
Text = tuple[Array, Array]
"""Token ids and token types of one text, specials included."""


@dataclass(frozen=True, eq=False)
class FramedTexts:
    """Concatenated texts or pairs: `token_ids` (tokens) int32, `offsets` (texts + 1) int64, and `token_types` (tokens)
    int8, all 0 if the tokenizer has none."""

    token_ids: Array
    offsets: Array
    token_types: Array

    @classmethod
    def of(cls, framed: Sequence[Framed]) -> "FramedTexts":
        """Concatenate the result of `Framing.frame_all`."""
        offsets = np.cumsum([0, *(len(text.token_ids) for text in framed)], dtype=np.int64)
        token_ids = np.fromiter(chain.from_iterable(text.token_ids for text in framed), np.int32, offsets[-1])
        if not framed or framed[0].token_types is None:
            return cls(token_ids, offsets, np.zeros(len(token_ids), np.int8))
        types = chain.from_iterable(text.token_types or () for text in framed)
        return cls(token_ids, offsets, np.fromiter(types, np.int8, offsets[-1]))

    @classmethod
    def concatenate(cls, parts: Sequence["FramedTexts"]) -> "FramedTexts":
        lengths = [np.empty(0, np.int64), *(part.lengths for part in parts)]
        return cls(
            np.concatenate([np.empty(0, np.int32), *(part.token_ids for part in parts)]),
            np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64),
            np.concatenate([np.empty(0, np.int8), *(part.token_types for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Text:
        tokens = slice(self.offsets[number], self.offsets[number + 1])
        return self.token_ids[tokens], self.token_types[tokens]

    def __iter__(self) -> Iterator[Text]:
        return map(self.__getitem__, range(len(self)))

    @property
    def lengths(self) -> Array:
        """Number of tokens of each text, (texts) int64."""
        return np.diff(self.offsets)


def frame_texts(
    texts: Sequence[str], tokenizer: Framing, instruction: str | None, max_tokens: int
) -> tuple[FramedTexts, Array]:
    """Tokenise texts, with the instruction as the first text of a pair, and cut them to `max_tokens`. Also return which
    texts were cut, (texts) bool.

    The instruction gets the same token type as its text, as in the released wrapper, so that a plain prompt gives the
    same tokens.
    """
    before = [] if instruction is None else [[instruction] * len(texts)]
    framed = tokenizer.frame_all([*before, texts], max_tokens=max_tokens) if texts else []
    is_cut = np.array([text.is_cut for text in framed], bool)
    return FramedTexts.of([text._replace(token_types=None) for text in framed] if before else framed), is_cut


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer that never reads special tokens from text: "[MASK]" in a document is encoded as ordinary text.

    `is_changed`: whether the tokenizer's file would read them from text, so that ids differ from those of the file.
    """

    tokenizer: "Tokenizer"
    ids: SpecialIds
    opens_second: bool
    is_changed: bool = False

    @property
    def vocabulary_size(self) -> int:
        """Rows that an embedding needs: 1 more than the largest id, special tokens included. It exceeds the number of
        tokens if some ids have none."""
        return 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens or truncation."""
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def frame(self, first: Sequence[int], second: Sequence[int] | None = None, *, max_tokens: int) -> list[int]:
        """Add special tokens and cut to `max_tokens`: [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. In RoBERTa's format the
        second text also starts with <s>. The longer text of a pair is cut first.

        Raises:
            ValueError: `max_tokens` has no room for a token beside the specials.
        """
        opening = [self.ids.cls] if self.opens_second else []
        specials = self._specials(1 if second is None else 2)
        if max_tokens <= specials:
            raise ValueError(f"max_tokens {max_tokens} has no room beside {specials} special tokens: raise it")
        if second is None:
            return [self.ids.cls, *first[: max_tokens - specials], self.ids.sep]
        kept_first, kept_second = longest_first(len(first), len(second), max_tokens - specials)
        head = [self.ids.cls, *first[:kept_first], self.ids.sep]
        return [*head, *opening, *second[:kept_second], self.ids.sep]

    def frame_all(self, columns: Sequence[Sequence[str]], *, max_tokens: int) -> list[Framed]:
        """Apply `encode` and `frame` to texts, or to pairs of two columns; without token types."""
        most = max_tokens - self._specials(len(columns))
        rows = zip(*(self._encode_column(column) for column in columns), strict=True)
        return [Framed(self.frame(*row, max_tokens=max_tokens), None, sum(map(len, row)) > most) for row in rows]

    def _encode_column(self, texts: Sequence[str]) -> list[list[int]]:
        """Like `encode`; a text that is the same in all rows, such as an instruction, is encoded once."""
        return self.encode(texts[:1]) * len(texts) if len(set(texts)) == 1 else self.encode(texts)

    def _specials(self, texts: int) -> int:
        return 2 if texts == 1 else 3 + self.opens_second

    def require_rows(self, vocabulary_size: int, what: str = "the tokenizer") -> None:
        """Raise ValueError, which names the tokenizer as `what`, if an embedding of `vocabulary_size` rows lacks a row
        for some id."""
        if self.vocabulary_size > vocabulary_size:
            raise ValueError(
                f"{what} has ids up to {self.vocabulary_size - 1} but the recipe's model.vocabulary_size is "
                f"{vocabulary_size}: raise it to at least {self.vocabulary_size}"
            )

    @property
    def content(self) -> bytes:
        """The bytes of tokenizer.json; equal tokenizers give equal bytes."""
        return self.tokenizer.to_str(pretty=True).encode()

    def save(self, folder: Path) -> None:
        """Write tokenizer.json."""
        replace_file(folder / TOKENIZER_FILE, self.content)


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """Return how many tokens of each text of a pair to keep, cutting the longer one first (as `tokenizers` does)."""
    if first + second <= budget:
        return first, second
    shorter = min(first, second, budget // 2)
    longer = budget - shorter
    return (longer, shorter) if first > second else (shorter, longer)


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Load the tokenizer.json of a folder; <pad> and <mask> are added to LLaMA's.

    Raises:
        MissingData: there is no tokenizer.json.
        DamagedFile: it is no tokenizer that the package can read.
        ValueError: its special tokens are neither BERT's nor LLaMA's.
    """
    from tokenizers import Tokenizer

    path = folder / TOKENIZER_FILE
    if not is_file(path):
        raise MissingData(f"there is no tokenizer at {path}: put the published tokenizer.json there")
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))
    except Exception as error:  # the Rust side raises bare Exception
        raise DamagedFile(
            f"{path} is not readable as a tokenizer ({error}): fetch it again, or update the package tokenizers"
        ) from error
    return wrap_tokenizer(tokenizer, str(path))


def open_kept_tokenizer(folder: Path) -> TextTokenizer:
    """Load a trained tokenizer; raise MissingData if it is not there, DamagedFile if it is damaged."""
    if is_there(folder / DIGEST_FILE):
        require_digest(folder / TOKENIZER_FILE, str(read_checksummed(folder / DIGEST_FILE).get(TOKENIZER_FILE)))
    return load_tokenizer(folder)


def kept_tokenizer(folder: Path, train: Callable[[], TextTokenizer]) -> TextTokenizer:
    """Load a trained tokenizer from its folder, or train it and store it there. A damaged one is set aside.

    The caller must hold its claim.
    """
    path = folder / TOKENIZER_FILE
    try:
        return open_kept_tokenizer(folder)
    except MissingData:
        pass
    except DamagedFile as error:
        if is_there(path):
            set_aside(path, str(error))
    trained = train()
    sha256 = hashlib.sha256(trained.content).hexdigest()
    replace_file(folder / DIGEST_FILE, json_bytes(checksummed({TOKENIZER_FILE: sha256})))
    trained.save(folder)
    return load_tokenizer(folder)


def wrap_tokenizer(tokenizer: "Tokenizer", name: str) -> TextTokenizer:
    """Wrap a tokenizer: find its special tokens (in RoBERTa's format, add missing ones) and disable truncation and
    padding. Raises ValueError if the special tokens are neither BERT's nor LLaMA's, or there is no other token."""
    known = tokenizer.get_vocab(with_added_tokens=True)
    if all(token in known for token in BERT_SPECIALS.names):
        specials = BERT_SPECIALS
    elif all(token in known for token in ("<s>", "</s>", "<unk>")):
        specials = ROBERTA_SPECIALS
        tokenizer.add_special_tokens([token for token in ("<pad>", "<mask>") if token not in known])
    else:
        raise ValueError(f"{name} has neither [CLS], [SEP], [PAD], [MASK], [UNK] nor <s>, </s>, <unk>: use another one")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    is_changed = _hide_specials(tokenizer, specials)
    return TextTokenizer(tokenizer, _special_ids(tokenizer, specials, name), specials.opens_second, is_changed)


def _hide_specials(tokenizer: "Tokenizer", specials: Specials) -> bool:
    """Keep a tokenizer from reading its special tokens from text; return whether it would have.

    Added tokens are found in a text, whatever is around them, unless they are flagged as special. Others are read if
    the pre-tokenizer leaves their names whole; a space in the normalised text then divides these.
    """
    from tokenizers import normalizers

    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    if unflagged := [name for name in specials.names if name in added and not added[name].special]:
        tokenizer.add_special_tokens(unflagged)
    whole = [name for name in specials.names if name != specials.unk and _is_read(tokenizer, name)]
    if whole:
        before = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        divided = [normalizers.Replace(name, f"{name[0]} {name[1:]}") for name in whole]
        tokenizer.normalizer = normalizers.Sequence([*before, *divided])
    return bool(unflagged or whole)


def _is_read(tokenizer: "Tokenizer", name: str) -> bool:
    found = tokenizer.encode(f"{name} a {name} b", add_special_tokens=False)
    return tokenizer.token_to_id(name) in found.ids


def _special_ids(tokenizer: "Tokenizer", specials: Specials, name: str) -> SpecialIds:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    texts = sorted(
        number
        for token, number in vocabulary.items()
        if token not in specials.names and not (token.startswith("[unused") and token.endswith("]"))
    )
    if not texts:
        raise ValueError(f"{name} has special tokens alone: use another one")
    edges = [0, *(place for place, (one, next_) in enumerate(pairwise(texts), 1) if next_ > one + 1), len(texts)]
    begin, end = max(pairwise(edges), key=lambda edge: edge[1] - edge[0])  # the longest run of ids that are of text
    return SpecialIds(
        pad=vocabulary[specials.pad],
        cls=vocabulary[specials.cls],
        sep=vocabulary[specials.sep],
        mask=vocabulary[specials.mask],
        unk=vocabulary[specials.unk],
        first_text_id=texts[begin],
        end_text_id=texts[end - 1] + 1,
    )


_PREFIX = "##"
_BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
_BPE_SPECIALS = ("<unk>", "<s>", "</s>")
"""Special tokens in LLaMA's order; `wrap_tokenizer` adds <pad> and <mask> at the end."""


def train_wordpiece(texts: Sequence[str], size: int) -> TextTokenizer:
    """Train a lower-casing WordPiece tokenizer like BERT's, with at most `size` tokens, fewer if the texts are too
    short. Raises ValueError if `size` is too small for the characters of the texts, or there is no text."""
    from tokenizers import trainers

    tokenizer = _empty_wordpiece({BERT_SPECIALS.unk: 0})
    continuations = _continuations(texts, tokenizer)
    # The trainer numbers "##x" in the order of a hash map, which differs between processes, and breaks ties between
    # merges by these numbers. As special tokens they get fixed numbers.
    reserved = [*BERT_SPECIALS.names, *continuations]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=reserved, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = _numbered(tokenizer, first=BERT_SPECIALS.names)
    _require_room(vocabulary, size, "WordPiece")
    trained = _empty_wordpiece(vocabulary)
    trained.add_special_tokens(list(BERT_SPECIALS.names))
    return wrap_tokenizer(trained, "the trained WordPiece tokenizer")


def train_bpe(texts: Sequence[str], size: int) -> TextTokenizer:
    """Train a cased BPE tokenizer with byte fallback like LLaMA-2's, with at most `size` tokens. Digits are single
    tokens, merges never cross words or punctuation, and unknown characters become bytes.

    Raises:
        ValueError: `size` is too small for 256 bytes and the characters of the texts, or there is no text.
    """
    from tokenizers import trainers

    tokenizer = _empty_bpe({}, [])
    reserved = [*_BPE_SPECIALS, *_BYTES]
    # <pad> and <mask> are added later and count towards `size`.
    trainer = trainers.BpeTrainer(vocab_size=size - 2, special_tokens=reserved, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = _numbered(tokenizer, first=reserved)
    _require_room(vocabulary, size - 2, "BPE")
    trained = _empty_bpe(vocabulary, [(left, right) for left, right in _model(tokenizer)["merges"]])
    trained.add_special_tokens([*_BPE_SPECIALS, ROBERTA_SPECIALS.pad, ROBERTA_SPECIALS.mask])
    return wrap_tokenizer(trained, "the trained BPE tokenizer")


TRAINERS: Mapping[str, Callable[[Sequence[str], int], TextTokenizer]] = {
    "wordpiece": train_wordpiece,
    "bpe": train_bpe,
}
"""Training functions by the recipe's name of the tokenizer."""


def with_frequent_characters(texts: list[str], most: int) -> list[str]:
    """Replace all but the `most` frequent characters of the texts by spaces, so that rare ones do not fill the
    vocabulary. The list itself is changed and returned: its texts may take gigabytes."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    frequent = {character for character, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]}
    rare = str.maketrans(dict.fromkeys((character for character in counts if character not in frequent), " "))
    for number, text in enumerate(texts):
        texts[number] = text.translate(rare)
    return texts


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
    """Return every "##x" that occurs inside a word of the texts, sorted."""
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
    """Renumber the trained vocabulary: `first`, then characters, then merges, each in the order they were learned."""
    trained = _model(tokenizer)["vocab"]
    rest = sorted(trained.keys() - set(first), key=lambda token: (len(token.removeprefix(_PREFIX)) > 1, trained[token]))
    return {token: number for number, token in enumerate([*first, *rest])}


def _require_room(vocabulary: dict[str, int], size: int, name: str) -> None:
    if len(vocabulary) > size:
        raise ValueError(
            f"a {name} vocabulary of {size} tokens has no room for the {len(vocabulary)} characters and special "
            f"tokens of the texts: choose at least {len(vocabulary)}"
        )
