"""The data sets of pairs of contrastive fine-tuning: where the hub has them, how their rows become pairs, and what the
encoder is told. Torch-free.

Names and instructions are those of the paper: nineteen sets in App. D.2, and PAQ and QQP, which Table 7 and the
released code have. Repositories, columns, hard negatives and how many texts a pair counts for are the released code's
(src/neobert/contrastive/datasets.py), which lacks AG-News, MedMCQA, NPR and Yahoo! Answers: which files the paper used
of these is not published, nor what its MEDMCQACLUST and YAHOOCLUST of Table 7 are; Yahoo's pairs get the instruction of
the latter. All files are those that the hub itself converted to parquet. Revisions are unknown until prefetch asks for
them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from neobert.data.pair_readers import (
    Reader,
    by_row,
    columns,
    judged,
    numbered,
    paragraphs,
    question_triplets,
    similarity,
    stack_exchange,
    text_lists,
)
from neobert.data.pairs import Pair, checked
from neobert.data.repositories import Repository

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
