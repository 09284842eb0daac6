"""MTEB evaluations, a kind of work: each part is one task with one record. mteb is only imported to measure a task."""

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from functools import lru_cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from neobert.data.mteb_tasks import EmbeddingTask
from neobert.data.preparation import open_specified, require_origin
from neobert.data.sources import Source
from neobert.embeddings.encoders import NamedEncoder, load_encoder
from neobert.external import read_model_file
from neobert.identity import plain
from neobert.kinds.mteb import EmbeddingConfig, EmbeddingEvaluation, EmbeddingScores, TaskOnData
from neobert.kinds.pretraining import EXTERNAL_PREFIX
from neobert.processes import StopRequest
from neobert.runs.claims import Claim, ClaimLost
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record, timed_provenance, utc_now
from neobert.runs.run_file import RunFile, read_checked_run_file
from neobert.runs.work import Part
from neobert.training.distributed import choose_kernels, default_device

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


ORGANISATION = "neobert"
"""Organisation for models without one in their name, because mteb requires one."""

UNFIT = re.compile(r"[^\w.-]+")
"""Characters not allowed in a model's name."""


def load_named_encoder(layout: Layout, run_file: RunFile, device: torch.device) -> NamedEncoder:
    """Load the encoder of an evaluation. Raises MissingData or DamagedFile if its files are missing or other ones."""
    measured = run_file.specification(EmbeddingEvaluation).encoder
    if measured.pretraining.startswith(EXTERNAL_PREFIX):
        name = read_model_file(layout, measured.pretraining).name
        name = name if "/" in name else f"{ORGANISATION}/{UNFIT.sub('-', name)}"
    else:
        variants = UNFIT.sub("-", "-".join(map(str, run_file.labels.get("variants", ()))))
        name = f"{ORGANISATION}/{variants or 'encoder'}"
    encoder = load_encoder(layout, measured.weights, device, measured.precision, measured.context)
    return NamedEncoder(name, measured.revision, encoder)


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Measure one task of an evaluation, or read its score from mteb's cache, then publish the record."""
    started_at = utc_now()
    choose_kernels(deterministic=False)
    evaluation = run_file.specification(EmbeddingEvaluation)
    encoder, task = next((run.encoder, run.task) for run in evaluation.runs() if run.id == part.id)
    named, source = _open_evaluation(layout, run_file.id)
    require_origin(f"task {task.name} of {source.label}", task.origin, source.embedding_task_origin(task.name))
    score = measure_task(named, task, source, layout.embedding_results, task.prompts, stop)
    claim.check()
    config = EmbeddingConfig(
        task=task.name,
        category=task.category,
        suite=task.suite,
        protocol=encoder.protocol,
        metric=task.metric,
        split=task.split,
        revision=score.revision,
    )
    record = {
        "kind": "mteb",
        "id": part.id,
        "state": "done",
        "inputs": {
            "pretraining": encoder.pretraining,
            "weights": encoder.weights,
            "evaluation": run_file.id,
            "task": task.origin,
            "tokenizer": encoder.tokenizer_origin,
        },
        "config": plain(config),
        "labels": run_file.labels,
        "scores": plain(EmbeddingScores(score=score.score, metrics=score.metrics)),
        "seed": encoder.seed,
        "prompts": task.prompts,
        "pooling": named.encoder.pooling,
        "normalized": named.encoder.normalized,
        "precision": encoder.precision,
        "context": encoder.context,
        "parameters": named.encoder.parameters,
        "texts": asdict(score.counts),
        "seconds": round(score.seconds, 3),
        "threads": torch.get_num_threads(),
        "device": default_device().type,
        **timed_provenance(started_at),
    }
    if not publish_record(part.record, record):
        raise ClaimLost(f"task {part.id} was recorded by another process; this result is dropped")


@lru_cache(maxsize=1)
def _open_evaluation(layout: Layout, evaluation_id: str) -> tuple[NamedEncoder, Source]:
    """Open the encoder and the data source of an evaluation, once per process for all of its tasks."""
    run_file = read_checked_run_file(layout.embedding_evaluation(evaluation_id))
    return load_named_encoder(layout, run_file, default_device()), open_specified(run_file.source)
