"""Five real tasks of semantic similarity, what an encoder scores on them, and which texts they hold."""

import unicodedata
from collections.abc import Iterator

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import spearmanr

from neobert.embeddings.encoders import TextEncoder
from tests.support.small_corpora import REAL_DATA

FOLDER = REAL_DATA / "mteb" / "STS"
TASKS = ("STS12", "STS13", "STS16", "STSBenchmark", "SICK-R")


def similarity_rows(task: str) -> tuple[list[str], list[str], list[float]]:
    """First sentences, second sentences and how similar people found them."""
    (path,) = (FOLDER / task).glob("*.parquet")
    columns = pq.read_table(path, columns=["sentence1", "sentence2", "score"]).to_pydict()
    return columns["sentence1"], columns["sentence2"], columns["score"]


def similarity_scores(encoder: TextEncoder) -> dict[str, float]:
    """100 × Spearman's correlation of cosines with people's scores, for each task."""
    return {task: _score(encoder, *similarity_rows(task)) for task in TASKS}


def _score(encoder: TextEncoder, first: list[str], second: list[str], scores: list[float]) -> float:
    vectors = encoder.encode([*first, *second])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = np.sum(vectors[: len(first)] * vectors[len(first) :], axis=1)
    return 100 * float(spearmanr(cosines, scores).statistic)


def measured_texts() -> Iterator[str]:
    """Every sentence of the five tasks."""
    for task in TASKS:
        first, second, _ = similarity_rows(task)
        yield from (*first, *second)


def plain_words(text: str) -> str:
    """The text in lower case, without punctuation and symbols, with single spaces."""
    kept = (" " if unicodedata.category(letter)[0] in "PSZC" else letter for letter in text.lower())
    return " ".join("".join(kept).split())
