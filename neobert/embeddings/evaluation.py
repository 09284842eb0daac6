"""Scores of an encoder on embedding tasks. mteb is only imported to measure a task."""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from neobert.data.mteb_tasks import EmbeddingTask, TaskOnData
from neobert.data.sources import Source
from neobert.embeddings.encoders import NamedEncoder
from neobert.processes import StopRequest

if TYPE_CHECKING:
    from neobert.embeddings.mteb import TaskScore

NO_PROMPTS: Mapping[str, str] = {}


def measure_task(
    named: NamedEncoder,
    task: EmbeddingTask | TaskOnData,
    source: Source,
    results: Path,
    prompts: Mapping[str, str] = NO_PROMPTS,
    stop: StopRequest | None = None,
) -> "TaskScore":
    """Measure one task, or read an earlier result with the same weights, data and prompts.

    `results` is a folder in the layout of mteb's ResultCache. `prompts` are the instructions before texts, by "query"
    (also for tasks without documents) and "document"; `task_prompts` returns those of a task.

    Raises:
        MissingData, DamagedFile, ValueError: the task's data are missing or not as expected, or mteb is not installed.
        RunFailed: a score is not a number in −1..1.
        Stopped: a stop was requested.
    """
    if find_spec("mteb") is None:
        raise ValueError("tasks of embeddings need mteb: install the extra with pip install -e '.[eval]'")
    with _quietly(results):
        from neobert.embeddings.mteb import measure_with_mteb

        return measure_with_mteb(named, task, source, results, prompts, stop or StopRequest())


@contextmanager
def _quietly(results: Path) -> Iterator[None]:
    """Silence mteb's progress bars and its warnings about its own tasks (regressions of few steps, newer versions).
    mteb creates a folder of results when imported, so MTEB_CACHE is set to `results`."""
    os.environ.setdefault("MTEB_CACHE", str(results))
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield
