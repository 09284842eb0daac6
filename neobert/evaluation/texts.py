"""Texts for pseudo-perplexity: beginnings of held-out documents or of a user's files. Torch-free."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from neobert.data.preparation import open_specified, prepare_once, text_tokenizer
from neobert.data.reading import read_texts, require_columns
from neobert.data.shards import FRAME_TOKENS, Documents, Integers, TokenizedCorpus, open_shards, prepare
from neobert.errors import DamagedFile, MissingData
from neobert.files import set_aside, sha256_of
from neobert.identity import NUMERICS, identity
from neobert.processes import StopRequest
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile
from neobert.runs.specifications import PretrainingRun

COLUMN = "text"
SUFFIXES = (".parquet", ".txt")


@dataclass(frozen=True, eq=False)
class Passage:
    """The beginning of a text between [CLS] and [SEP].

    token_ids: (tokens,) int64. positions: (positions,) int64, ascending, the tokens to mask one at a time. text_hash:
    the hash of the whole text.
    """

    token_ids: Integers
    positions: Integers
    text_hash: int


def choose_documents(
    documents: Documents, lengths: Sequence[int], most: int, least: int
) -> tuple[Documents, tuple[int, ...]]:
    """Choose up to `most` distinct texts to read at every length, and the lengths that at least `least` texts reach.

    Each text reaches the longest of these lengths, specials included, and has a token to mask within the shortest. The
    texts with the smallest hashes are chosen, so that all models read the same ones.
    """
    _, first = np.unique(documents.corpus.text_hashes[documents.numbers], return_index=True)
    never, shortest = documents.corpus.ids.never_predicted, min(lengths)
    for longest in sorted(lengths, reverse=True):
        long_enough = first[documents.framed(first) >= longest]
        chosen = list(islice((index for index in long_enough if _has_text(documents, index, shortest, never)), most))
        if len(chosen) >= least:
            return documents.at(np.array(chosen)), tuple(tokens for tokens in lengths if tokens <= longest)
    return documents.at(first[:0]), ()


def _has_text(documents: Documents, index: np.int64, tokens: int, never: Sequence[int]) -> bool:
    return not np.isin(_framed(documents.corpus, int(documents.numbers[index]), tokens), never).all()


def cut_passages(documents: Documents, tokens: int, sampled: int | None, seed: int) -> list[Passage]:
    """Return the distinct texts of at least `tokens` tokens, specials included, cut to exactly that length.

    Passages are ordered by hash. `sampled` positions of each are drawn without replacement from `seed` and hash; None,
    or more than there are, takes all. Special and unknown tokens are never masked, and texts without other tokens are
    skipped.

    Raises:
        ValueError: the length has no room for a token besides the specials.
    """
    cut = documents.truncated(tokens)
    numbers, corpus = cut.numbers[cut.framed_lengths == tokens], documents.corpus
    hashes, first = np.unique(corpus.text_hashes[numbers], return_index=True)
    passages = []
    for number, text_hash in zip(numbers[first].tolist(), hashes.tolist(), strict=True):
        token_ids = _framed(corpus, number, tokens)
        positions = np.flatnonzero(~np.isin(token_ids, corpus.ids.never_predicted)).astype(np.int64)
        if sampled is not None and sampled < len(positions):
            draw = np.random.default_rng([seed, text_hash, tokens])
            positions = np.sort(draw.choice(positions, sampled, replace=False))
        if len(positions):
            passages.append(Passage(token_ids, positions, text_hash))
    return passages


def _framed(corpus: TokenizedCorpus, number: int, tokens: int) -> Integers:
    token_ids = np.empty(tokens, dtype=np.int64)
    token_ids[0], token_ids[-1] = corpus.ids.cls, corpus.ids.sep
    corpus.copy(corpus.starts[[number]], np.array([tokens - FRAME_TOKENS]), token_ids, np.array([1]))
    return token_ids


@dataclass(frozen=True)
class TextFiles:
    """Documents of a file or folder: the rows of parquet files with a column `text`, and each .txt file as a whole.
    `name` is that of the file or folder, and `content` the hash of all bytes."""

    name: str
    content: str
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.name}@{self.content}"

    def documents(self) -> Iterator[str]:
        """Yield the texts, file by file.

        Raises:
            ValueError: a .txt file is not UTF-8.
        """
        for path in self.paths:
            yield from read_texts(path, COLUMN) if path.suffix == ".parquet" else [_read_utf8(path)]


def _read_utf8(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}): convert it or take it away") from error


def find_files(place: Path) -> tuple[Path, ...]:
    """Return the files of texts in a file or folder.

    Raises:
        MissingData: there are no such files.
    """
    found = sorted(place.rglob("*")) if place.is_dir() else [place]
    paths = tuple(path for path in found if path.suffix in SUFFIXES and path.is_file())
    if not paths:
        raise MissingData(f"{place} holds no text: name a file or folder of {' or '.join(SUFFIXES)} files")
    return paths


def open_files(place: Path) -> TextFiles:
    """Open the documents of a file or folder.

    Raises:
        MissingData: there are no such files.
        ValueError: a parquet file has no column `text`.
        DamagedFile: a parquet file cannot be read.
    """
    paths = find_files(place)
    for path in paths:
        if path.suffix == ".parquet":
            require_columns(path, (COLUMN,))
    return TextFiles(place.resolve().name, identity(sorted(map(sha256_of, paths))), paths)


def tokenize_files(layout: Layout, run_file: RunFile, text: TextFiles) -> TokenizedCorpus:
    """Return the text tokenised as in a run, from disk or made now; damaged files are made again."""
    run = run_file.specification(PretrainingRun)
    origins = {"corpus": str(text), "tokenizer": run.tokenizer_origin}
    size = run.recipe.model.vocabulary_size
    folder = layout.data(identity([text.content, run.tokenizer_origin, size, NUMERICS["tokenization"]]))

    def make(damage: DamagedFile | None, claim: Claim) -> None:
        if damage is not None:
            set_aside(folder, str(damage))
        tokenizer = text_tokenizer(layout, run, open_specified(run_file.source))
        prepare(text.documents(), tokenizer, folder, origins=origins, check=claim.check)

    claims = layout.claims(f"data-{folder.name}")
    return prepare_once(claims, f"the tokens of {text}", StopRequest(), lambda: open_shards(folder), make)
