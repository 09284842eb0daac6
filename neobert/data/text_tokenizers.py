"""Tokenizers trained on the text of a folder that brings none. Torch-free."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

from neobert.data.corpora import CORPORA
from neobert.data.parquet import texts_of
from neobert.data.tokenizer_training import train_bpe, train_wordpiece, with_frequent_characters
from neobert.data.tokenizers import TextTokenizer, kept_tokenizer
from neobert.errors import MissingData

TEXTS_OF_A_FILE = 2000
CHARACTERS_OF_A_TEXT = 2000
"""A trainer sees the beginnings of the first texts of every file, so that no file outweighs the others by far."""

CHARACTER_SHARE = 8
"""At most one in so many tokens of a vocabulary stands for a single character."""


class Folder(Protocol):
    """What training a tokenizer asks of a folder."""

    def corpus_files(self, corpus: str) -> list[Path]:
        """The files of a corpus; MissingData where there is none."""

    def corpus_origin(self, corpus: str) -> str:
        """What identifies the bytes of a corpus."""

    def text_column(self, path: Path) -> str:
        """The column of a file that holds its texts."""


def trained_origin(folder: Folder, tokenizer: str, vocabulary_size: int) -> str:
    """What identifies a tokenizer that is trained here: the texts, and how many of them a trainer sees."""
    origins = " ".join(folder.corpus_origin(corpus) for corpus in _corpora(folder))
    texts = hashlib.sha256(f"{origins} {TEXTS_OF_A_FILE} {CHARACTERS_OF_A_TEXT} {CHARACTER_SHARE}".encode())
    return f"trained:{texts.hexdigest()[:12]}:{tokenizer}:vocabulary={vocabulary_size}"


def trained_tokenizer(folder: Folder, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
    """The tokenizer, from `cache` or trained now on all corpora of the folder.

    Raises:
        MissingData: the folder has no corpus.
        ValueError: the vocabulary is too small.
    """
    train = {"wordpiece": train_wordpiece, "bpe": train_bpe}[tokenizer]

    def trained() -> TextTokenizer:
        texts = with_frequent_characters(list(_texts(folder)), vocabulary_size // CHARACTER_SHARE)
        return train(texts, vocabulary_size)

    return kept_tokenizer(cache / trained_origin(folder, tokenizer, vocabulary_size).replace(":", "-"), trained)


def _corpora(folder: Folder) -> list[str]:
    """The corpora that are there.

    Raises:
        MissingData: there is none.
    """
    found = [corpus for corpus in CORPORA if _has(folder, corpus)]
    if not found:
        folder.corpus_files(CORPORA[0])
    return found


def _has(folder: Folder, corpus: str) -> bool:
    try:
        return bool(folder.corpus_files(corpus))
    except MissingData:
        return False


def _texts(folder: Folder) -> Iterator[str]:
    for corpus in _corpora(folder):
        for path in folder.corpus_files(corpus):
            first = islice(texts_of({path: folder.text_column(path)}), TEXTS_OF_A_FILE)
            yield from (text[:CHARACTERS_OF_A_TEXT] for text in first)
