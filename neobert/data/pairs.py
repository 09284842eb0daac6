"""Pairs of texts that belong together, with hard negatives: user-provided and published data sets.

A user's file has the columns `query`, `document` and optionally `negative` or `negatives`, each a text or a list of
texts. pairs.toml declares the published data sets.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from neobert.data.catalog import Repository
from neobert.data.reading import read_rows
from neobert.errors import DamagedFile
from neobert.files import read_json

INSTRUCTIONS_FILE = "instructions.json"
NEGATIVE_COLUMNS = ("negative", "negatives")
CONVERTED = "refs/convert/parquet"

Mix = Literal["paper", "code"]
"""Training data sets: those of App. D.2, or those that the released code reads."""


class Pair(NamedTuple):
    """A query, a matching document, and hard negatives: documents that seem to match and do not. `similarity` (0..5) is
    the human rating of query and document, if the data set has one."""

    query: str
    document: str
    negatives: tuple[str, ...] = ()
    similarity: float | None = None


def own_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a user's file in order; missing texts are empty.

    Raises:
        DamagedFile: the file is not readable.
        ValueError: a column is missing, or a value is not a text.
    """
    for number, row in enumerate(read_rows(path, ("query", "document"))):
        negatives = tuple(text for column in NEGATIVE_COLUMNS for text in _listed(row.get(column)))
        pair = Pair(row.get("query") or "", row.get("document") or "", negatives)
        yield _checked(pair, f"{path}, row {number}")


def read_words(path: Path, form: str) -> dict[str, str]:
    """Read a user's JSON object of texts; return an empty one if there is no file. Raises DamagedFile, with the
    expected `form`, if it is something else."""
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
    """Paths of a pair's texts in the rows of a file; see pairs.toml."""

    query: str
    document: str
    negatives: Sequence[str] = ()
    similarity: str | None = None

    def pair_of(self, row: Mapping[str, Any]) -> Pair:
        """Return the pair of one row. Of a list of documents the first is used, of a list of negatives all."""
        documents = _at(row, self.document)
        if isinstance(documents, list):
            documents = documents[0] if documents else ""
        negatives = tuple(text for path in self.negatives for text in _listed(_at(row, path) or None))
        similarity = None if self.similarity is None else float(_at(row, self.similarity))
        return Pair(_at(row, self.query) or "", documents or "", negatives, similarity)

    @property
    def needed(self) -> tuple[str, ...]:
        """Required columns of the file."""
        paths = (self.query, self.document, *self.negatives, *([self.similarity] if self.similarity else []))
        return tuple(dict.fromkeys(path.partition(".")[0] for path in paths))


def _at(value: Any, path: str) -> Any:
    """Return the value at a path like "a.b" (of each member, if a is a list) or "a.0"."""
    for key in path.split("."):
        if isinstance(value, list):
            value = value[int(key)] if key.isdigit() else [member[key] for member in value]
        else:
            value = value[key] if value is not None else None
    return value


@dataclass(frozen=True)
class DeclaredSet:
    """A published data set of pairs, declared in pairs.toml by either `files`, patterns of the repository's files with
    their columns, or `retrieval`, patterns of "judgements", "queries" and "documents", which are joined by id.

    texts_per_pair: texts per pair in a step of the released code; None if the code does not use the set.
    in_paper: whether App. D.2 names it.
    """

    title: str
    repository: str
    instruction: str
    files: Mapping[str, PairColumns] = field(default_factory=dict)
    retrieval: Mapping[str, str] = field(default_factory=dict)
    texts_per_pair: int | None = None
    in_paper: bool = True

    @property
    def repositories(self) -> tuple[Repository, ...]:
        """The repository, one entry per pattern."""
        patterns = (*self.files, *self.retrieval.values())
        return tuple(Repository(self.repository, pattern, branch=CONVERTED) for pattern in patterns)

    def read(self, files: Sequence[Path]) -> Iterator[Pair]:
        """Yield the pairs of files stored as on the hub, with scores for similarity tasks. Raises as `own_pairs`."""
        pairs = self._joined(files) if self.retrieval else self._rows(files)
        for number, pair in enumerate(pairs):
            yield _checked(pair, f"{self.title}, pair {number}")

    def _rows(self, files: Sequence[Path]) -> Iterator[Pair]:
        for path in files:
            fitting = (columns for pattern, columns in self.files.items() if path.match(pattern))
            columns = next(fitting, next(iter(self.files.values())))
            for number, row in enumerate(read_rows(path, columns.needed)):
                try:
                    pair = columns.pair_of(row)
                except (LookupError, TypeError, ValueError) as error:
                    raise ValueError(f"{path}, row {number} is not as pairs.toml declares it ({error!r})") from error
                yield pair

    def _joined(self, files: Sequence[Path]) -> Iterator[Pair]:
        """Join the queries and documents that were judged relevant, stored as retrieval tasks of MTEB."""
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
    """Return the names of a mix's data sets."""
    if mix == "paper":
        return tuple(name for name, declared in DECLARED_SETS.items() if declared.in_paper)
    return tuple(name for name, declared in DECLARED_SETS.items() if declared.texts_per_pair is not None)
