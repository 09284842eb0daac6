"""MTEB evaluations as a kind of work: each part is one task with one record."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from functools import lru_cache
from io import StringIO
from pathlib import Path

import torch

from neobert.data.sources import Source
from neobert.embeddings.encoders import NamedEncoder
from neobert.execution import utc_now
from neobert.executors.encoders import load_named_encoder
from neobert.executors.preparation import open_specified, require_origin
from neobert.identity import plain
from neobert.kinds.mteb import EmbeddingConfig, EmbeddingEvaluation, EmbeddingScores
from neobert.processes import StopRequest
from neobert.runs.claims import Claim, ClaimLost
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record, timed_provenance
from neobert.runs.run_file import RunFile, read_checked_run_file
from neobert.runs.work import Part
from neobert.training.distributed import choose_kernels, default_device


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Measure one task of an evaluation, then publish the record."""
    started_at = utc_now()
    choose_kernels(deterministic=False)
    evaluation = run_file.specification(EmbeddingEvaluation)
    encoder, task = next((run.encoder, run.task) for run in evaluation.runs() if run.id == part.id)
    named, source = _open_evaluation(layout, run_file.id)
    require_origin(f"task {task.name} of {source.label}", task.origin, source.embedding_task_origin(task.name))
    with _quietly(layout.embedding_results):
        from neobert.embeddings.mteb import measure_task

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
        "pooling": "mean",
        "normalized": False,
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


@contextmanager
def _quietly(results: Path) -> Iterator[None]:
    """Silence mteb's progress bars and its warnings about its own tasks (regressions of few steps, newer versions).
    mteb creates a folder of results when imported, so MTEB_CACHE is set to `results`."""
    os.environ.setdefault("MTEB_CACHE", str(results))
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield


@lru_cache(maxsize=1)
def _open_evaluation(layout: Layout, evaluation_id: str) -> tuple[NamedEncoder, Source]:
    """Open the encoder and the data source of an evaluation, once per process for all of its tasks."""
    run_file = read_checked_run_file(layout.embedding_evaluation(evaluation_id))
    return load_named_encoder(layout, run_file, default_device()), open_specified(run_file.source)
