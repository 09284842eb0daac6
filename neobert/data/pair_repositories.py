"""The nineteen data sets of pairs of contrastive fine-tuning: where the hub has them, how their rows become pairs, and
what the encoder is told. Torch-free.

Names and instructions are those of the paper (App. D.2, Table 7). Repositories, columns, hard negatives and how many
texts a pair counts for are the released code's (src/neobert/contrastive/datasets.py), which lacks AG-News, MedMCQA, NPR
and Yahoo! Answers: for these `released` is False, and which files the paper used is not published. All files are those
that the hub itself converted to parquet. Revisions are unknown until prefetch asks for them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.data.pairs import Pair, checked
from neobert.data.parquet import rows_of
from neobert.data.repositories import Repository

CONVERTED = "refs/convert/parquet"

Row = Mapping[str, Any]
Reader = Callable[[Sequence[Path]], Iterator[Pair]]


@dataclass(frozen=True)
class DeclaredSet:
    """A published data set of pairs. `files` are patterns of its repository's files, `reader` makes pairs of them.

    texts_per_pair: as how many texts of a step the released code counts a pair; None where it has no such set.
    """

    title: str
    hub_name: str
    files: tuple[str, ...]
    reader: Reader
    instruction: str
    texts_per_pair: int | None

    @property
    def released(self) -> bool:
        """Whether the released code reads this set."""
        return self.texts_per_pair is not None

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


def _by_row(make: Callable[[Row], Pair], *needed: str) -> Reader:
    def read(files: Sequence[Path]) -> Iterator[Pair]:
        for path in files:
            yield from map(make, rows_of(path, needed))

    return read


def _columns(query: str, document: str, *negatives: str) -> Reader:
    """Texts in columns, each negative in one of its own."""
    return _by_row(
        lambda row: Pair(row[query] or "", row[document] or "", tuple(row[name] for name in negatives if row[name])),
        *(query, document, *negatives),
    )


def _text_lists(query: str, documents: str, negatives: str | None = None) -> Reader:
    """The first of a list of documents, and a list of negatives."""
    return _by_row(
        lambda row: Pair(row[query] or "", _first(row[documents]), tuple(row[negatives] or ()) if negatives else ()),
        *(query, documents, *([negatives] if negatives else [])),
    )


def _first(texts: Sequence[str] | None) -> str:
    return texts[0] if texts else ""


def _similar(row: Row) -> bool:
    """Released code: a pair of a similarity task counts above 4 of 5."""
    return float(row["score"]) > 4


def _similarity(files: Sequence[Path]) -> Iterator[Pair]:
    for path in files:
        rows = rows_of(path, ("sentence1", "sentence2", "score"))
        yield from (Pair(row["sentence1"], row["sentence2"]) for row in rows if _similar(row))


def _paragraphs(row: Row) -> Pair:
    negatives = tuple(paragraph["text"] for paragraph in row["neg_paras"] or ())
    return Pair(row["question"], _first([paragraph["text"] for paragraph in row["pos_paras"] or ()]), negatives)


def _set_of_triplet(row: Row) -> Pair:
    return Pair(row["set"]["query"], _first(row["set"]["pos"]), tuple(row["set"]["neg"] or ()))


def _judged(files: Sequence[Path]) -> Iterator[Pair]:
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


def _stack_exchange(files: Sequence[Path]) -> Iterator[Pair]:
    for path in files:
        kind = "body" if "body-body-pair" in path.parts else "post"
        yield from _columns(f"{kind}1", f"{kind}2")([path])


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"negative_{number}" for number in range(1, count + 1))


_TRAIN = ("default/train/*.parquet",)
_JUDGED = ("default/train/*.parquet", "queries/queries/*.parquet", "corpus/corpus/*.parquet")

DECLARED_SETS: Mapping[str, DeclaredSet] = {
    "AGNEWS": DeclaredSet(
        "AG-News",
        "sentence-transformers/agnews",
        ("pair/train/*.parquet",),
        _columns("title", "description"),
        "Given a news title, retrieve relevant articles.",
        None,
    ),
    "ALLNLI": DeclaredSet(
        "All-NLI",
        "sentence-transformers/all-nli",
        ("triplet/train/*.parquet",),
        _columns("anchor", "positive", "negative"),
        "Given a premise, retrieve a hypothesis that is entailed by the premise.",
        2,
    ),
    "AMAZONQA": DeclaredSet(
        "AmazonQA",
        "embedding-data/Amazon-QA",
        _TRAIN,
        _text_lists("query", "pos"),
        "Given a question, retrieve Amazon posts that answer the question.",
        2,
    ),
    "CONCURRENTQA": DeclaredSet(
        "ConcurrentQA",
        "stanfordnlp/concurrentqa-retrieval",
        _TRAIN,
        _by_row(_paragraphs, "question", "pos_paras", "neg_paras"),
        "Given a multi-hop question, retrieve documents that can help answer the question.",
        21,
    ),
    "FEVER": DeclaredSet(
        "FEVER",
        "mteb/fever",
        _JUDGED,
        _judged,
        "Given a claim, retrieve documents that support or refute the claim.",
        2,
    ),
    "GITHUBISSUE": DeclaredSet(
        "GitHub Issues",
        "WhereIsAI/github-issue-similarity",
        ("positive/train/*.parquet",),
        _columns("anchor", "positive"),
        "Given a question, retrieve questions from Github that are duplicates to the given question.",
        2,
    ),
    "GOOAQ": DeclaredSet(
        "GooAQ",
        "tomaarsen/gooaq-hard-negatives",
        ("triplet-5/train/*.parquet",),
        _columns("question", "answer", *_numbered(5)),
        "Given a question, retrieve relevant documents that best answer the question.",
        7,
    ),
    "MEDMCQA": DeclaredSet(
        "MedMCQA",
        "openlifescienceai/medmcqa",
        _TRAIN,
        _columns("question", "exp"),
        "Given a medical question, retrieve relevant passages that answer the question.",
        None,
    ),
    "MSMARCO": DeclaredSet(
        "MS MARCO",
        "mteb/msmarco",
        _JUDGED,
        _judged,
        "Given a web search query, retrieve relevant passages that answer the query.",
        2,
    ),
    "NPR": DeclaredSet(
        "NPR",
        "sentence-transformers/npr",
        ("pair/train/*.parquet",),
        _columns("title", "body"),
        "Given a news title, retrieve relevant articles.",
        None,
    ),
    "PUBMEDQA": DeclaredSet(
        "PubMedQA",
        "sentence-transformers/pubmedqa",
        ("triplet-20/train/*.parquet",),
        _columns("anchor", "positive", *_numbered(20)),
        "Given a medical question, retrieve documents that best answer the question.",
        22,
    ),
    "SENTENCECOMP": DeclaredSet(
        "SentenceCompression",
        "embedding-data/sentence-compression",
        _TRAIN,
        _by_row(lambda row: Pair(row["set"][1], row["set"][0]), "set"),
        "Given a sentence, retrieve semantically equivalent summaries.",
        2,
    ),
    "STACKEXCHANGE": DeclaredSet(
        "StackExchange",
        "sentence-transformers/stackexchange-duplicates",
        ("body-body-pair/train/*.parquet", "post-post-pair/train/*.parquet"),
        _stack_exchange,
        "Given a Stack Exchange post, retrieve posts that are duplicates to the given post.",
        2,
    ),
    "STACKOVERFLOW": DeclaredSet(
        "StackOverflowDupQuestions",
        "mteb/stackoverflowdupquestions-reranking",
        _TRAIN,
        _text_lists("query", "positive", "negative"),
        "Retrieve duplicate questions from StackOverflow forum.",
        50,
    ),
    "STS12": DeclaredSet("STS12", "mteb/sts12-sts", _TRAIN, _similarity, "Retrieve semantically similar text.", 2),
    "STSBENCHMARK": DeclaredSet(
        "STSBenchmark", "mteb/stsbenchmark-sts", _TRAIN, _similarity, "Retrieve semantically similar text.", 2
    ),
    "TRIVIAQA": DeclaredSet(
        "TriviaQA",
        "sentence-transformers/trivia-qa-triplet",
        ("triplet/train/*.parquet",),
        _columns("anchor", "positive", "negative"),
        "Given a question, retrieve documents that answer the question.",
        3,
    ),
    "WIKIHOW": DeclaredSet(
        "WikiHow",
        "sentence-transformers/wikihow",
        _TRAIN,
        _columns("text", "summary"),
        "Given a Wikihow post, retrieve titles that best summarize the post.",
        2,
    ),
    "YAHOO": DeclaredSet(
        "Yahoo! Answers",
        "sentence-transformers/yahoo-answers",
        ("title-answer-pair/train/*.parquet",),
        _columns("title", "answer"),
        "Identify the main topic of Yahoo posts based on their titles and answers.",
        None,
    ),
}
