"""Pairs of texts that belong together, with texts that only seem to: a person's own, and published ones.

A file of one's own has the columns `query`, `document` and, where there are any, `negative` or `negatives`, each a text
or a list of texts. pairs.toml declares the published data sets.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from neobert.data.catalog import Repository
from neobert.data.manifest import ORIGIN_DIGITS
from neobert.data.reading import data_files, read_rows
from neobert.errors import DamagedFile, MissingData
from neobert.files import read_json, sha256_of

INSTRUCTIONS_FILE = "instructions.json"
NEGATIVE_COLUMNS = ("negative", "negatives")
CONVERTED = "refs/convert/parquet"

Mix = Literal["paper", "code"]
"""Which data sets are trained on: those of App. D.2, or those that the released code reads."""


class Pair(NamedTuple):
    """A query, a document that belongs to it, and hard negatives: documents that seem to and do not. `similarity`
    (0..5) is how alike people found query and document, where a data set says it."""

    query: str
    document: str
    negatives: tuple[str, ...] = ()
    similarity: float | None = None


def own_pairs(path: Path) -> Iterator[Pair]:
    """The pairs of a person's own file, in its order; a missing text counts as an empty one. DamagedFile where it
    cannot be read, ValueError where it lacks a column, or a text is none."""
    for number, row in enumerate(read_rows(path, ("query", "document"))):
        negatives = tuple(text for column in NEGATIVE_COLUMNS for text in _listed(row.get(column)))
        yield _checked(Pair(row["query"] or "", row["document"] or "", negatives), f"{path}, row {number}")


def read_words(path: Path, form: str) -> dict[str, str]:
    """A JSON object of texts that a person wrote; an empty one where there is no file. `form` shows what to write where
    it is something else, which is a DamagedFile."""
    content = read_json(path, f"write {form}") if path.is_file() else {}
    if not isinstance(content, dict) or not all(isinstance(text, str) for text in content.values()):
        raise DamagedFile(f"{path} is no JSON object of texts: write {form}")
    return content


def _checked(pair: Pair, where: str) -> Pair:
    for text in (pair.query, pair.document, *pair.negatives):
        if not isinstance(text, str):
            raise ValueError(f"{where}: {text!r} is not a text")
    return pair


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


@dataclass(frozen=True)
class PairColumns:
    """Where the rows of a file have the texts of a pair, as paths: see pairs.toml."""

    query: str
    document: str
    negatives: Sequence[str] = ()
    similarity: str | None = None

    def pair_of(self, row: Mapping[str, Any]) -> Pair:
        """The pair of one row. The first document of a list is taken, and every negative of one."""
        documents = _at(row, self.document)
        if isinstance(documents, list):
            documents = documents[0] if documents else ""
        negatives = tuple(text for path in self.negatives for text in _listed(_at(row, path) or None))
        similarity = None if self.similarity is None else float(_at(row, self.similarity))
        return Pair(_at(row, self.query) or "", documents or "", negatives, similarity)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that a file must have."""
        paths = (self.query, self.document, *self.negatives, *([self.similarity] if self.similarity else []))
        return tuple(dict.fromkeys(path.partition(".")[0] for path in paths))


def _at(value: Any, path: str) -> Any:
    """What lies at "a.b" (of each member, where a is a list) or "a.0"."""
    for key in path.split("."):
        if isinstance(value, list):
            value = value[int(key)] if key.isdigit() else [member[key] for member in value]
        else:
            value = value[key] if value is not None else None
    return value


@dataclass(frozen=True)
class DeclaredSet:
    """A published data set of pairs, as pairs.toml declares it: either `files`, patterns of its repository's files with
    their columns, or `retrieval`, the patterns of "judgements", "queries" and "documents", which are joined by id.

    texts_per_pair: as how many texts of a step the released code counts a pair; None where it has no such set.
    in_paper: whether App. D.2 names it.
    """

    title: str
    repository: str
    instruction: str
    files: Mapping[str, PairColumns] = field(default_factory=dict)
    retrieval: Mapping[str, str] = field(default_factory=dict)
    texts_per_pair: int | None = None
    in_paper: bool = True

    def belongs_to(self, mix: Mix) -> bool:
        """Whether the set is one of a mix."""
        return self.in_paper if mix == "paper" else self.texts_per_pair is not None

    @property
    def repositories(self) -> tuple[Repository, ...]:
        """The repository, once a pattern."""
        patterns = (*self.files, *self.retrieval.values())
        return tuple(Repository(self.repository, pattern, branch=CONVERTED) for pattern in patterns)

    def read(self, files: Sequence[Path]) -> Iterator[Pair]:
        """The pairs of files that lie as on the hub. Those of a similarity task come with their scores. Raises as
        `own_pairs`."""
        pairs = self._joined(files) if self.retrieval else self._rows(files)
        for number, pair in enumerate(pairs):
            yield _checked(pair, f"{self.title}, pair {number}")

    def _rows(self, files: Sequence[Path]) -> Iterator[Pair]:
        for path in files:
            fitting = (columns for pattern, columns in self.files.items() if path.match(pattern))
            columns = next(fitting, next(iter(self.files.values())))
            yield from map(columns.pair_of, read_rows(path, columns.needed))

    def _joined(self, files: Sequence[Path]) -> Iterator[Pair]:
        """Queries and documents that were judged to belong together, as retrieval tasks of MTEB lie."""
        parts = {part: [path for path in files if path.match(pattern)] for part, pattern in self.retrieval.items()}
        judged = [
            (str(row["query-id"]), str(row["corpus-id"]))
            for row in _rows_of(parts["judgements"], "query-id", "corpus-id")
            if row.get("score", 1) > 0
        ]
        queries = _texts_by_id(parts["queries"], {query for query, _ in judged})
        documents = _texts_by_id(parts["documents"], {document for _, document in judged})
        for query, document in judged:
            if query in queries and document in documents:
                yield Pair(queries[query], documents[document])


def _rows_of(files: Iterable[Path], *needed: str) -> Iterator[dict[str, Any]]:
    for path in files:
        yield from read_rows(path, needed)


def _texts_by_id(files: Iterable[Path], wanted: set[str]) -> dict[str, str]:
    return {str(row["_id"]): row["text"] or "" for row in _rows_of(files, "_id", "text") if str(row["_id"]) in wanted}


DECLARED_SETS: Mapping[str, DeclaredSet] = TypeAdapter(dict[str, DeclaredSet]).validate_python(
    tomllib.loads(Path(__file__).with_name("pairs.toml").read_text(encoding="utf-8"))
)


def sets_of(mix: Mix) -> tuple[str, ...]:
    """The names of a mix's data sets."""
    return tuple(name for name, declared in DECLARED_SETS.items() if declared.belongs_to(mix))


_TABLES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".csv", ".tsv")
_BETWEEN_WORDS = re.compile(r"[\W_]+")


def normalize_text(text: str) -> str:
    """The words of a text: neither case nor punctuation nor spaces make another text of it."""
    return _BETWEEN_WORDS.sub(" ", text.casefold()).strip()


@dataclass(frozen=True)
class Decontamination:
    """Pairs must share no text with the files at `places`, folders or files: encoders are measured on them.

    Nothing is read before it is asked for.
    """

    places: tuple[Path, ...]

    @property
    def files(self) -> list[Path]:
        """The files, each once; MissingData where a place is not there, or holds none that can be read."""
        found: dict[Path, None] = {}
        for place in self.places:
            files = data_files(place, _TABLES) if place.is_dir() else [place]
            if not files or not files[0].is_file():
                raise MissingData(f"{place} holds no tables: name the texts that training must not see")
            found.update(dict.fromkeys(files))
        return list(found)

    @cached_property
    def origin(self) -> str:
        """What identifies the bytes, wherever they lie."""
        digests = sorted({sha256_of(path) for path in self.files})
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:ORIGIN_DIGITS]

    @cached_property
    def texts(self) -> frozenset[str]:
        """The texts, normalised; what holds no word is none."""
        values = (value for path in self.files for row in read_rows(path) for value in row.values())
        return frozenset(filter(None, map(normalize_text, _texts_in(values))))

    def removes(self, pair: Pair) -> bool:
        """Whether one of a pair's texts is among them."""
        return any(normalize_text(text) in self.texts for text in (pair.query, pair.document, *pair.negatives))


def _texts_in(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            yield from _texts_in(value.values() if isinstance(value, dict) else value)
