"""Made-up records of embeddings, pseudo-perplexity, throughput and readouts for the tests of reports."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.mteb_tasks import ENGLISH_SUITE, Category
from neobert.identity import identity
from neobert.kinds.mteb import TASKS_IN_SUITE
from neobert.kinds.readouts import BLIMP, ReadoutName, ReadoutScore
from neobert.runs.layout import Layout
from neobert.runs.records import pack_numbers, publish_record
from tests.reports.made_up_study import MadeUpStudy

Numbers = NDArray[np.float64]


def suite_tasks() -> Iterator[tuple[str, Category]]:
    """Names for the 56 tasks."""
    for category, count in TASKS_IN_SUITE.items():
        yield from ((f"{category}-{number}", category) for number in range(count))


def embed(
    study: MadeUpStudy,
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
    record = record_on(study, name, seed, "mteb", *decisive) | {
        "state": "failed" if score is None else "done",
        "inputs": {"pretraining": run.id, "weights": identity(decisive)},
        "config": config | {"metric": "main", "split": "test", "revision": None},
        "scores": {} if score is None else {"score": score, "metrics": {"main": score}},
    }
    record |= changes
    return publish(Layout(study.root).embedding_task(task, str(record["id"])), record)


def record_on(study: MadeUpStudy, name: str, seed: int, kind: str, *decisive: Any) -> dict[str, Any]:
    """What every record of a measurement on a variant's last checkpoint has; `decisive` is what names it."""
    return {
        "kind": kind,
        "id": identity([kind, *decisive]),
        "state": "done",
        "inputs": {"pretraining": study.runs(name, seed)[-1].id},
        "labels": {"variants": [name], "scale": study.scale, "data": study.data},
        "seed": seed,
    }


def publish(path: Path, record: dict[str, Any]) -> Path:
    publish_record(path, record)
    return path


def embed_all(study: MadeUpStudy, name: str, level: float, *, seed: int = 0, **kwargs: Any) -> None:
    """All 56 tasks; the score grows with a task's place among them."""
    for place, (task, category) in enumerate(suite_tasks()):
        embed(study, name, task, category, level + place / 1000, seed=seed, **kwargs)


def perplexity(study: MadeUpStudy, name: str, values: Sequence[float], *, seed: int = 0) -> Path:
    """Publish a readout of pseudo-perplexity on web over 64, 128, … tokens, on 40 documents with 16 positions each."""
    losses = np.log(np.repeat(values, 40)) + np.tile([-0.1, 0.1], 20 * len(values))
    own = answer(16 * losses, np.full(len(losses), 16))
    groups = {str(64 << place): math.log(value) for place, value in enumerate(values)}
    return ask(study, name, seed, "perplexity", own.model_copy(update={"groups": groups}))


def throughput(study: MadeUpStudy, model: str, tokens: int, rate: float, *, date: str = "2026-01-31") -> Path:
    """Publish a throughput record."""
    of_model = {"model": model, "parameters": 221_700_000, "precision": "bf16", "compiled": True}
    record = {
        "kind": "throughput",
        "id": identity(["throughput", model, tokens, rate]),
        "state": "done",
        "config": of_model | {"sequence_tokens": tokens, "batch_size": 8, "steps": 100},
        "device": "Imaginary 9000",
        "date": date,
        "scores": {"tokens_per_second": rate, "spread": rate / 50},
        "seed": 0,
    }
    return publish(Layout(study.root).throughput(str(record["id"])), record)


def answer(above: Numbers, below: Numbers | None = None, groups: dict[str, float] | None = None) -> ReadoutScore:
    """Made-up answers of a model: numerators, and denominators where units do not count alike."""
    total = len(above) if below is None else below.sum()
    return ReadoutScore(
        value=float(above.sum() / total),
        units=len(above),
        numerators=pack_numbers(above, "<f4"),
        denominators=None if below is None else pack_numbers(below, "<i4"),
        groups={} if groups is None else groups,
        ties=None,
    )


def ask(
    study: MadeUpStudy, name: str, seed: int, readout: ReadoutName, own: ReadoutScore, items: str = "0123456789ab"
) -> Path:
    """Publish the record of a readout on web, or on BLiMP."""
    run = study.runs(name, seed)[-1]
    record = record_on(study, name, seed, "readouts", run.id, readout, items) | {
        "config": {"readout": readout, "stage": run.stage, "context": 64, "items": items},
        "labels": study.labels(name),
        "scores": {BLIMP if readout == BLIMP else "web": own.model_dump()},
    }
    return publish(Layout(study.root).readout(readout, str(record["id"])), record)
