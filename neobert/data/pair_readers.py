"""How rows of published data sets become pairs, as in the released code (contrastive/datasets.py). Torch-free."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neobert.data.pairs import Pair
from neobert.data.parquet import rows_of

Row = Mapping[str, Any]
Reader = Callable[[Sequence[Path]], Iterator[Pair]]


def by_row(make: Callable[[Row], Pair], *needed: str) -> Reader:
    """Pairs made of single rows that have the columns `needed`."""

    def read(files: Sequence[Path]) -> Iterator[Pair]:
        for path in files:
            yield from map(make, rows_of(path, needed))

    return read


def columns(query: str, document: str, *negatives: str) -> Reader:
    """Texts in columns, each negative in one of its own."""
    return by_row(
        lambda row: Pair(row[query] or "", row[document] or "", tuple(row[name] for name in negatives if row[name])),
        *(query, document, *negatives),
    )


def text_lists(query: str, documents: str, negatives: str | None = None) -> Reader:
    """The first of a list of documents, and a list of negatives."""
    return by_row(
        lambda row: Pair(row[query] or "", _first(row[documents]), tuple(row[negatives] or ()) if negatives else ()),
        *(query, documents, *([negatives] if negatives else [])),
    )


def _first(texts: Sequence[str] | None) -> str:
    return texts[0] if texts else ""


def similarity(files: Sequence[Path]) -> Iterator[Pair]:
    """All pairs of a similarity task with their scores, 0..5; a protocol says which of them count as pairs."""
    for path in files:
        for row in rows_of(path, ("sentence1", "sentence2", "score")):
            yield Pair(row["sentence1"], row["sentence2"], similarity=float(row["score"]))


def question_triplets(row: Row) -> Pair:
    """A question with lists of its duplicates and of others."""
    found = row["set"]
    return Pair(found["query"], _first(found["pos"]), tuple(found["neg"] or ()))


def paragraphs(row: Row) -> Pair:
    """A question with lists of paragraphs."""
    negatives = tuple(paragraph["text"] for paragraph in row["neg_paras"] or ())
    return Pair(row["question"], _first([paragraph["text"] for paragraph in row["pos_paras"] or ()]), negatives)


def judged(files: Sequence[Path]) -> Iterator[Pair]:
    """Queries and documents by id, as retrieval tasks of MTEB lie: default/train, queries/queries, corpus/corpus."""
    parts = {name: [path for path in files if name in path.parts] for name in ("default", "queries", "corpus")}
    judged = [
        (str(row["query-id"]), str(row["corpus-id"]))
        for row in _rows(parts["default"], "query-id", "corpus-id")
        if row.get("score", 1) > 0
    ]
    queries = _texts_by_id(parts["queries"], {query for query, _ in judged})
    documents = _texts_by_id(parts["corpus"], {document for _, document in judged})
    for query, document in judged:
        if query in queries and document in documents:
            yield Pair(queries[query], documents[document])


def _texts_by_id(files: Iterable[Path], wanted: set[str]) -> dict[str, str]:
    return {str(row["_id"]): row["text"] or "" for row in _rows(files, "_id", "text") if str(row["_id"]) in wanted}


def _rows(files: Iterable[Path], *needed: str) -> Iterator[Row]:
    for path in files:
        yield from rows_of(path, needed)


def stack_exchange(files: Sequence[Path]) -> Iterator[Pair]:
    """Duplicate posts, as bodies alone and as whole posts."""
    for path in files:
        kind = "body" if "body-body-pair" in path.parts else "post"
        yield from columns(f"{kind}1", f"{kind}2")([path])


def numbered(count: int) -> tuple[str, ...]:
    """The names of columns of negatives."""
    return tuple(f"negative_{number}" for number in range(1, count + 1))
