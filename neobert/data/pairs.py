"""Pairs of texts that belong together, with texts that do not: what they are and how parquet files hold them.

Torch-free. A file of a person's own has the columns `query`, `document` and, where there are any, `negative` or
`negatives`, each a text or a list of texts. Files of the hub are read by their declaration (`pair_repositories`).
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from neobert.data.manifest import Repository
from neobert.data.reading import rows_of
from neobert.errors import DamagedFile, MissingData
from neobert.files import sha256_of

INSTRUCTIONS_FILE = "instructions.json"
NEGATIVE_COLUMNS = ("negative", "negatives")


class Pair(NamedTuple):
    """A query, a document that belongs to it, and hard negatives: documents that seem to and do not. `similarity`
    (0..5) is how alike people found query and document, where a data set says it."""

    query: str
    document: str
    negatives: tuple[str, ...] = ()
    similarity: float | None = None


def own_pairs(path: Path) -> Iterator[Pair]:
    """The pairs of a person's own file, in its order; a missing text counts as an empty one.

    Raises:
        DamagedFile: it cannot be read.
        ValueError: it lacks a column, or a text is none.
    """
    for number, row in enumerate(rows_of(path, ("query", "document"))):
        negatives = tuple(text for column in NEGATIVE_COLUMNS for text in _texts(row.get(column)))
        yield checked(Pair(row["query"] or "", row["document"] or "", negatives), f"{path}, row {number}")


def checked(pair: Pair, where: str) -> Pair:
    """The pair itself, if all of it is text.

    Raises:
        ValueError: it is not.
    """
    for text in (pair.query, pair.document, *pair.negatives):
        if not isinstance(text, str):
            raise ValueError(f"{where}: {text!r} is not a text")
    return pair


def _texts(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def own_instructions(folder: Path) -> dict[str, str]:
    """The instruction of each data set that `instructions.json` in a folder of pairs names; none without the file.

    Raises:
        DamagedFile: it is no JSON object of texts.
    """
    path = folder / INSTRUCTIONS_FILE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is not readable as JSON ({error}): write {{name: instruction}}") from error
    if not isinstance(content, dict) or not all(isinstance(text, str) for text in content.values()):
        raise DamagedFile(f"{path} is no JSON object of texts: write {{name: instruction}}")
    return content


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


CONVERTED = "refs/convert/parquet"

Mix = Literal["paper", "code"]
"""Which data sets are trained on: those of App. D.2, or those that the released code reads."""


@dataclass(frozen=True)
class DeclaredSet:
    """A published data set of pairs. `files` are patterns of its repository's files, `reader` makes pairs of them.

    texts_per_pair: as how many texts of a step the released code counts a pair; None where it has no such set.
    in_paper: whether App. D.2 names it.
    """

    title: str
    hub_name: str
    files: tuple[str, ...]
    reader: Reader
    instruction: str
    texts_per_pair: int | None
    in_paper: bool = True

    def belongs_to(self, mix: Mix) -> bool:
        """Whether the set is one of a mix."""
        return self.in_paper if mix == "paper" else self.texts_per_pair is not None

    @property
    def repositories(self) -> tuple[Repository, ...]:
        """The repository, once a pattern."""
        return tuple(Repository(self.hub_name, files, branch=CONVERTED) for files in self.files)

    def read(self, files: Sequence[Path]) -> Iterator[Pair]:
        """The pairs of files that lie as on the hub.

        Raises:
            DamagedFile, ValueError: a file cannot be read, lacks a column, or a text is none.
        """
        for number, pair in enumerate(self.reader(files)):
            yield checked(pair, f"{self.title}, pair {number}")


_TRAIN = ("default/train/*.parquet",)
_JUDGED = ("default/train/*.parquet", "queries/queries/*.parquet", "corpus/corpus/*.parquet")

DECLARED_SETS: Mapping[str, DeclaredSet] = {
    "AGNEWS": DeclaredSet(
        "AG-News",
        "sentence-transformers/agnews",
        ("pair/train/*.parquet",),
        columns("title", "description"),
        "Given a news title, retrieve relevant articles.",
        None,
    ),
    "ALLNLI": DeclaredSet(
        "All-NLI",
        "sentence-transformers/all-nli",
        ("triplet/train/*.parquet",),
        columns("anchor", "positive", "negative"),
        "Given a premise, retrieve a hypothesis that is entailed by the premise.",
        2,
    ),
    "AMAZONQA": DeclaredSet(
        "AmazonQA",
        "embedding-data/Amazon-QA",
        _TRAIN,
        text_lists("query", "pos"),
        "Given a question, retrieve Amazon posts that answer the question.",
        2,
    ),
    "CONCURRENTQA": DeclaredSet(
        "ConcurrentQA",
        "stanfordnlp/concurrentqa-retrieval",
        _TRAIN,
        by_row(paragraphs, "question", "pos_paras", "neg_paras"),
        "Given a multi-hop question, retrieve documents that can help answer the question.",
        21,
    ),
    "FEVER": DeclaredSet(
        "FEVER",
        "mteb/fever",
        _JUDGED,
        judged,
        "Given a claim, retrieve documents that support or refute the claim.",
        2,
    ),
    "GITHUBISSUE": DeclaredSet(
        "GitHub Issues",
        "WhereIsAI/github-issue-similarity",
        ("positive/train/*.parquet",),
        columns("anchor", "positive"),
        "Given a question, retrieve questions from Github that are duplicates to the given question.",
        2,
    ),
    "GOOAQ": DeclaredSet(
        "GooAQ",
        "tomaarsen/gooaq-hard-negatives",
        ("triplet-5/train/*.parquet",),
        columns("question", "answer", *numbered(5)),
        "Given a question, retrieve relevant documents that best answer the question.",
        7,
    ),
    "MEDMCQA": DeclaredSet(
        "MedMCQA",
        "openlifescienceai/medmcqa",
        _TRAIN,
        columns("question", "exp"),
        "Given a medical question, retrieve relevant passages that answer the question.",
        None,
    ),
    "MSMARCO": DeclaredSet(
        "MS MARCO",
        "mteb/msmarco",
        _JUDGED,
        judged,
        "Given a web search query, retrieve relevant passages that answer the query.",
        2,
    ),
    "NPR": DeclaredSet(
        "NPR",
        "sentence-transformers/npr",
        ("pair/train/*.parquet",),
        columns("title", "body"),
        "Given a news title, retrieve relevant articles.",
        None,
    ),
    "PAQ": DeclaredSet(
        "PAQ",
        "embedding-data/PAQ_pairs",
        _TRAIN,
        by_row(lambda row: Pair(row["set"][0], row["set"][1]), "set"),
        "Given a question, retrieve Wikipedia passages that answer the question.",
        2,
        in_paper=False,
    ),
    "PUBMEDQA": DeclaredSet(
        "PubMedQA",
        "sentence-transformers/pubmedqa",
        ("triplet-20/train/*.parquet",),
        columns("anchor", "positive", *numbered(20)),
        "Given a medical question, retrieve documents that best answer the question.",
        22,
    ),
    "QQP": DeclaredSet(
        "Quora Question Pairs",
        "embedding-data/QQP_triplets",
        _TRAIN,
        by_row(question_triplets, "set"),
        "Given a question, retrieve questions from Quora forum that are semantically equivalent to the given question.",
        50,
        in_paper=False,
    ),
    "SENTENCECOMP": DeclaredSet(
        "SentenceCompression",
        "embedding-data/sentence-compression",
        _TRAIN,
        by_row(lambda row: Pair(row["set"][1], row["set"][0]), "set"),
        "Given a sentence, retrieve semantically equivalent summaries.",
        2,
    ),
    "STACKEXCHANGE": DeclaredSet(
        "StackExchange",
        "sentence-transformers/stackexchange-duplicates",
        ("body-body-pair/train/*.parquet", "post-post-pair/train/*.parquet"),
        stack_exchange,
        "Given a Stack Exchange post, retrieve posts that are duplicates to the given post.",
        2,
    ),
    "STACKOVERFLOW": DeclaredSet(
        "StackOverflowDupQuestions",
        "mteb/stackoverflowdupquestions-reranking",
        _TRAIN,
        text_lists("query", "positive", "negative"),
        "Retrieve duplicate questions from StackOverflow forum.",
        50,
    ),
    "STS12": DeclaredSet("STS12", "mteb/sts12-sts", _TRAIN, similarity, "Retrieve semantically similar text.", 2),
    "STSBENCHMARK": DeclaredSet(
        "STSBenchmark", "mteb/stsbenchmark-sts", _TRAIN, similarity, "Retrieve semantically similar text.", 2
    ),
    "TRIVIAQA": DeclaredSet(
        "TriviaQA",
        "sentence-transformers/trivia-qa-triplet",
        ("triplet/train/*.parquet",),
        columns("anchor", "positive", "negative"),
        "Given a question, retrieve documents that answer the question.",
        3,
    ),
    "WIKIHOW": DeclaredSet(
        "WikiHow",
        "sentence-transformers/wikihow",
        _TRAIN,
        columns("text", "summary"),
        "Given a Wikihow post, retrieve titles that best summarize the post.",
        2,
    ),
    "YAHOO": DeclaredSet(
        "Yahoo! Answers",
        "sentence-transformers/yahoo-answers",
        ("title-answer-pair/train/*.parquet",),
        columns("title", "answer"),
        "Identify the main topic of Yahoo posts based on their titles and answers.",
        None,
    ),
}


def sets_of(mix: Mix) -> tuple[str, ...]:
    """The names of a mix's data sets."""
    return tuple(name for name, declared in DECLARED_SETS.items() if declared.belongs_to(mix))


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
        return frozenset(filter(None, map(normalized, _unseen_texts(values))))

    def shares(self, pair: Pair) -> bool:
        """Whether one of a pair's texts is among them."""
        return any(normalized(text) in self.texts for text in (pair.query, pair.document, *pair.negatives))


def _unseen_texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | dict):
            yield from _unseen_texts(value.values() if isinstance(value, dict) else value)
