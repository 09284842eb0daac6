"""Texts that training must not see, because encoders are measured on them. Torch-free."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from neobert.data.pairs import Pair
from neobert.data.parquet import rows_of
from neobert.errors import MissingData
from neobert.files import sha256_of

DIGITS = 12
_BETWEEN_WORDS = re.compile(r"[\W_]+")


def normalized(text: str) -> str:
    """The words of a text: neither case nor punctuation nor spaces make another text of it."""
    return _BETWEEN_WORDS.sub(" ", text.casefold()).strip()


@dataclass(frozen=True)
class UnseenTexts:
    """Every text in the parquet files at `places`, folders or files; nothing is read before it is asked for."""

    places: tuple[Path, ...]

    @classmethod
    def at(cls, places: Iterable[Path]) -> "UnseenTexts":
        """Those at some places.

        Raises:
            MissingData: a place is not there, or holds no parquet files.
        """
        found = cls(tuple(places))
        assert found.files
        return found

    @property
    def files(self) -> list[Path]:
        """The files, each once.

        Raises:
            MissingData: a place is not there, or holds none.
        """
        found: dict[Path, None] = {}
        for place in self.places:
            files = sorted(place.rglob("*.parquet")) if place.is_dir() else [place]
            if not files or not files[0].is_file():
                raise MissingData(f"{place} holds no parquet files: name the texts that training must not see")
            found.update(dict.fromkeys(files))
        return list(found)

    @cached_property
    def origin(self) -> str:
        """What identifies the bytes, wherever they lie."""
        digests = sorted({sha256_of(path) for path in self.files})
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:DIGITS]

    @cached_property
    def texts(self) -> frozenset[str]:
        """The texts, normalised; what holds no word is none."""
        values = (value for path in self.files for row in rows_of(path, ()) for value in row.values())
        return frozenset(filter(None, map(normalized, _texts(values))))

    def shares(self, pair: Pair) -> bool:
        """Whether one of a pair's texts is among them."""
        return any(normalized(text) in self.texts for text in (pair.query, pair.document, *pair.negatives))


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            yield from _texts(value.values() if isinstance(value, dict) else value)
