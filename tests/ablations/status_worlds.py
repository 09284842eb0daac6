"""Folders of runs in the real formats without any computing: for tests of what reads them."""

import json
import os
import time
from pathlib import Path
from typing import Any

from neobert.execution import Execution
from neobert.files import checksummed, json_bytes
from neobert.identity import NUMERICS, plain
from neobert.kinds.glue import GlueStudy, TrialStart
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.layout import Layout
from neobert.runs.records import sealed
from neobert.runs.run_file import RunFile
from tests.glue.glue_worlds import point, protocol
from tests.support.tiny_runs import SOURCE

Run = PretrainingRun | GlueStudy
EXECUTION = Execution(threads=1, processes=1, micro_batch_tokens=128, checkpoint_interval_steps=5)
PRETRAINED = TrialStart(kind="pretraining", task=None, study=None, rule=None, reason=None)


def write(path: Path, content: Any) -> Path:
    """A JSON file; nothing is flushed, so that thousands cost nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(json_bytes(content))
    return path


def study_of(run: PretrainingRun, task: str = "cola", points: int = 2, start: TrialStart = PRETRAINED) -> GlueStudy:
    """A study of a run with a grid over rates."""
    return GlueStudy(
        task=task,
        weights=run.id,
        stage=run.stage,
        context=run.recipe.stages[-1].context,
        protocol=protocol(),
        points=tuple(point(learning_rate=1e-3 * (1 + number)) for number in range(points)),
        seed=run.recipe.seed,
        starts_from=start,
        task_origin=f"tests:{task}",
        tokenizer_origin=run.tokenizer_origin,
    )


def declare(layout: Layout, run: Run, variants: tuple[str, ...] = ("M7",), **labels: str) -> Path:
    """run.json as `write_run_file` writes it; returns its folder."""
    content = RunFile(
        id=run.id,
        numerics=NUMERICS,
        run=run,
        source=SOURCE,
        execution=EXECUTION,
        labels={"variants": list(variants), "scale": "smoke", "data": "synthetic", "unavailable_tasks": {}, **labels},
    )
    folder = layout.root / run.folder
    seal(folder / "run.json", {**plain(content), "provenance": {}})
    return folder


def finish_pretraining(layout: Layout, run: PretrainingRun, **fields: Any) -> Path:
    """A record with the fields that others read."""
    record = {
        "kind": "pretraining",
        "id": run.id,
        "state": "done",
        "inputs": {"data": run.data_id, "previous": run.previous},
        "scores": {"heldout_loss": {run.recipe.data.corpus: 2.5}, "training_loss": 2.4},
        "steps": run.recipe.stages[-1].steps,
        "real_tokens": 7200,
        "seconds": 3.6,
        "gpu_hours": 0.5,
    }
    return seal(layout.root / run.folder / "done.json", record | fields)


def record_trial(layout: Layout, study: GlueStudy, number: int, score: float = 0.5) -> Path:
    """Record and weights of a trial; returns the weights' path."""
    files = study.trials(layout)[number]
    content = {"kind": "glue", "id": files.id, "state": "done", "scores": {"score": score}}
    seal(files.record, content)
    files.predictions.touch()
    files.weights.write_bytes(b"weights")
    return files.weights


def finish_study(layout: Layout, study: GlueStudy, best: int = 0) -> Path:
    """All trials and the selection."""
    for number in range(len(study.points)):
        record_trial(layout, study, number, score=0.9 if number == best else 0.5)
    chosen = study.trials(layout)[best]
    content = {"study": study.id, "trial": chosen.id, "point": plain(chosen.point), "score": 0.9}
    return seal(layout.root / study.folder / "selection.json", content)


def seal(path: Path, content: dict[str, Any]) -> Path:
    """Write a record or run file as the harness does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sealed(content))
    return path


def claim(
    layout: Layout, unit: str, *, silent_seconds: float = 1.0, job: str | None = None, released: bool = False
) -> Path:
    """A claim of an owner on another machine."""
    folder = layout.claims(unit)
    number = 1 + sum(name.isdigit() for name in os.listdir(folder)) if folder.exists() else 1  # noqa: PTH208
    path = write(folder / str(number), {"host": "node2", "pid": 7, "birth": "1", "job": job})
    if released:
        (folder / f"{number}.released").touch()
    return aged(path, silent_seconds)


def aged(path: Path, seconds: float) -> Path:
    """The same file, last written some time ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def fail(path: Path, unit: str, error: str, name: str | None = None) -> Path:
    """An error file as a worker leaves it."""
    content = {"part": unit, "name": name or unit, "claim": 1, "error": error, "exit_code": 1}
    return write(path, content | {"traceback": f"Traceback of {unit}\n{error}"})


def metrics_line(step: int, loss: float = 3.0) -> str:
    """A line of metrics.jsonl: 500 tokens in half a second."""
    return json.dumps({"step": step, "loss": loss, "real_tokens": 500, "seconds": 0.5}) + "\n"


def progress(layout: Layout, run: PretrainingRun, steps: int, attempt: str = "000001", torn: str = "") -> Path:
    """Metrics of an attempt up to a step, perhaps with a torn last line."""
    path = layout.root / run.folder / "attempts" / attempt / "metrics.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(metrics_line(step) for step in range(1, steps + 1)) + torn)
    return path


def checkpoint(layout: Layout, run: PretrainingRun, step: int, seconds: float = 0.0) -> Path:
    """A checkpoint's folder with its state."""
    folder = layout.root / run.folder / "checkpoints" / f"step-{step:08d}"
    write(folder / "state.json", {"step": step, "totals": {"real_tokens": 0, "seconds": seconds}})
    (folder / "model.safetensors").write_bytes(b"0" * 100)
    return folder


def submit(layout: Layout, job: str, *runs: Run, ago_seconds: float = 60.0, **fields: Any) -> Path:
    """What a launcher writes of a job that it submitted; returns the announcement."""
    logs = layout.root / "jobs" / f"pretrain-{job}"
    content = {
        "job": "",
        "name": logs.name,
        "kind": "pretrain",
        "references": [run.folder for run in runs],
        "after": [],
        "elements": None,
        "logs": f"jobs/{job}",
        "snapshot": "snapshots/0123456789ab",
        "resources": {"nodes": 2, "gpus_per_node": 4},
        "at": time.time() - ago_seconds,
    }
    path = write(logs / "submission.json", checksummed(content | fields))
    (logs / f"{job}_submitted.pkl").touch()
    return path


def encode(layout: Layout, study: GlueStudy) -> Path:
    """The encoded task of a study."""
    path = study.encoded_task(layout)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"tokens")
    return path


def tokenize(layout: Layout, data_id: str) -> Path:
    """A tokenised corpus."""
    folder = layout.data(data_id)
    write(folder / "manifest.json", {"schema": 1})
    (folder / "tokens-00000.bin").write_bytes(b"12" * 10)
    return folder
