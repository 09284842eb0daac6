"""Made-up records of embeddings, pseudo-perplexity, throughput and readouts for the tests of reports."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.identity import identity
from neobert.runs.layout import Layout
from neobert.runs.records import (
    ENGLISH_SUITE,
    TASKS_IN_SUITE,
    Category,
    ReadoutName,
    ReadoutScore,
    pack_numbers,
    publish_record,
)
from tests.reports.made_up_study import Study

Numbers = NDArray[np.float64]


def suite_tasks() -> Iterator[tuple[str, Category]]:
    """Names for the 56 tasks."""
    for category, count in TASKS_IN_SUITE.items():
        yield from ((f"{category}-{number}", category) for number in range(count))


def embed(
    study: Study,
    name: str,
    task: str,
    category: str,
    score: float | None,
    *,
    seed: int = 0,
    suite: str = ENGLISH_SUITE,
    protocol: str = "contrastive",
    **changes: Any,
) -> Path:
    """Publish an embedding record on a variant's last checkpoint; None for one that failed."""
    run = study.runs(name, seed)[-1]
    decisive = [run.id, task, suite, protocol, seed]
    config = {"task": task, "category": category, "suite": suite, "protocol": protocol}
    record = {
        "kind": "mteb",
        "id": identity(["mteb", *decisive]),
        "state": "failed" if score is None else "done",
        "inputs": {"pretraining": run.id, "weights": identity(decisive)},
        "config": config | {"metric": "main", "split": "test", "revision": None},
        "labels": {"variants": [name], "scale": study.scale, "data": study.data},
        "scores": {} if score is None else {"score": score, "metrics": {"main": score}},
        "seed": seed,
    } | changes
    path = Layout(study.root).embedding_task(task, str(record["id"]))
    publish_record(path, record)
    return path


def embed_all(study: Study, name: str, level: float, *, seed: int = 0, **kwargs: Any) -> None:
    """All 56 tasks; the score grows with a task's place among them."""
    for place, (task, category) in enumerate(suite_tasks()):
        embed(study, name, task, category, level + place / 1000, seed=seed, **kwargs)


def perplexity(study: Study, name: str, values: Sequence[float], *, seed: int = 0, **changes: Any) -> Path:
    """Publish a pseudo-perplexity record over 64, 128, … tokens."""
    run = study.runs(name, seed)[-1]
    lengths = [
        {
            "tokens": 64 * 2**place,
            "pseudo_perplexity": value,
            "low": value * 0.95,
            "high": value * 1.05,
            "positions": 640,
            "documents": 40,
        }
        for place, value in enumerate(values)
    ]
    record = {
        "kind": "pseudo_perplexity",
        "id": identity(["pseudo_perplexity", run.id]),
        "state": "done",
        "inputs": {"pretraining": run.id},
        "config": {"stage": run.stage, "text": "held-out web", "sampled_positions": 16},
        "labels": {"variants": [name], "scale": study.scale, "data": study.data},
        "scores": {"lengths": lengths},
        "seed": seed,
    } | changes
    path = Layout(study.root).pseudo_perplexity(str(record["id"]))
    publish_record(path, record)
    return path


def throughput(study: Study, model: str, tokens: int, rate: float, **changes: Any) -> Path:
    """Publish a throughput record."""
    record = {
        "kind": "throughput",
        "id": identity(["throughput", model, tokens, rate]),
        "state": "done",
        "inputs": {},
        "config": {
            "model": model,
            "parameters": 221_700_000,
            "sequence_tokens": tokens,
            "batch_size": 8,
            "precision": "bf16",
            "compiled": True,
            "steps": 100,
        },
        "labels": {},
        "device": "Imaginary 9000",
        "date": "2026-01-31",
        "scores": {"tokens_per_second": rate, "spread": rate / 50},
        "seed": 0,
    } | changes
    path = Layout(study.root).throughput(str(record["id"]))
    publish_record(path, record)
    return path


def answer(above: Numbers, below: Numbers | None = None) -> ReadoutScore:
    """Made-up answers of a model: numerators, and denominators where units do not count alike."""
    total = len(above) if below is None else below.sum()
    return ReadoutScore(
        value=float(above.sum() / total),
        units=len(above),
        numerators=pack_numbers(above, "<f4"),
        denominators=None if below is None else pack_numbers(below, "<i4"),
        groups={},
    )


def ask(
    study: Study, name: str, seed: int, readout: ReadoutName, own: ReadoutScore, items: str = "0123456789ab"
) -> None:
    """Publish the record of a readout on web."""
    run = study.runs(name, seed)[-1]
    record = {
        "kind": "readout",
        "id": identity([run.id, readout, items]),
        "state": "done",
        "inputs": {"pretraining": run.id},
        "config": {"readout": readout, "stage": run.stage, "context": 64, "items": items},
        "labels": study.labels(name),
        "scores": {"web": own.model_dump()},
        "seed": seed,
    }
    publish_record(Layout(study.root).readout(readout, str(record["id"])), record)
