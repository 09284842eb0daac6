"""One task of embeddings on one encoder: measured by mteb, kept in the layout of mteb's own cache of results.

The one door to mteb, with its siblings. mteb is imported when something is measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from neobert.data.corpora import Source
from neobert.embeddings.encoding import TextCounts
from neobert.embeddings.tasks import EmbeddingTask

Array = np.ndarray[Any, np.dtype[Any]]

NO_PROMPTS: Mapping[str, str] = {}


class SupportsEncode(Protocol):
    """A function from texts to vectors (texts, width); `counts` adds up what it was given."""

    counts: TextCounts

    def encode(self, texts: Sequence[str], *, instruction: str | None = None) -> Array: ...


@dataclass(frozen=True)
class EncoderIdentity:
    """Which encoder is measured. `revision` is the id of its weights, so that no other's scores are taken for its own.

    width: of its vectors; context: tokens that it reads; parameters: all of its weights.
    """

    name: str
    revision: str
    width: int
    context: int
    parameters: int


@dataclass(frozen=True)
class Measured:
    """A task's main score and all metrics, −1..1. `revision` identifies the data; `counts` is what was encoded and
    `seconds` what it took, where it was measured now."""

    score: float
    metrics: dict[str, float]
    split: str
    revision: str | None
    counts: TextCounts
    seconds: float


def measure_task(
    encoder: SupportsEncode,
    identity: EncoderIdentity,
    task: EmbeddingTask,
    source: Source,
    results: Path,
    prompts: Mapping[str, str] = NO_PROMPTS,
) -> Measured:
    """Measure one task, or read what was measured of it before with the same weights, data and prompts.

    `results` is a folder in the layout of mteb's ResultCache. `prompts` has what an encoder is told of texts, by
    "query" (also where a task has no documents) and "document"; `task_prompts` gives a task's own.

    Raises:
        MissingData, DamagedFile, ValueError: the task's data are not there, or not what they should be.
        RunFailed: a score is not a number of −1..1.
    """
    raise NotImplementedError
