"""The rows of runs that train a model: stages of pre-training, and contrastive fine-tuning."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from neobert.errors import DamagedFile
from neobert.files import read_json
from neobert.overview.row import Row, RowState
from neobert.overview.tree import Tree
from neobert.overview.units import failure_at, heartbeat_of, owners_of, workers_of
from neobert.progress import newest_step_line
from neobert.records import read_record
from neobert.specifications import EXTERNAL_PREFIX


def pretraining_row(tree: Tree, row: Row, content: dict[str, Any]) -> Row:
    """The row of a run whose run.json holds `content`.

    Raises:
        DamagedFile: the record is torn or of another version.
        KeyError, TypeError, ValueError: run.json lacks something.
    """
    run = content["pretraining"]
    stages = run["recipe"]["stages"]
    row = replace(row, stage=len(stages), seed=run["recipe"]["seed"], total=stages[-1]["steps"])
    return _trained(tree, row, run["previous"], run["recipe"]["data"]["corpus"])


def contrastive_row(tree: Tree, row: Row, content: dict[str, Any]) -> Row:
    """The row of contrastive fine-tuning; an encoder from elsewhere needs no other run.

    Raises:
        DamagedFile, KeyError, TypeError, ValueError: as `pretraining_row`.
    """
    run = content["contrastive"]
    row = replace(row, seed=run["protocol"]["seed"], total=run["protocol"]["steps"])
    encoder = None if run["weights"].startswith(EXTERNAL_PREFIX) else run["weights"]
    return _trained(tree, row, encoder, None)


def _trained(tree: Tree, row: Row, previous: str | None, corpus: str | None) -> Row:
    folder = tree.layout.root / row.folder
    owners = owners_of(tree, [row.id]) if not (folder / "done.json").exists() else {}
    if (folder / "done.json").exists():  # asked again: the record may have come while the claim was read
        return _finished(row, read_record(folder / "done.json"), corpus)
    failure = failure_at(folder / "error.json", row.id)
    workers = workers_of(owners)
    live = [worker for worker in workers if worker.is_live]
    state: RowState = "running" if live else "failed" if failure else "waiting"
    is_ready = previous is None or (tree.layout.pretraining(previous) / "done.json").exists()
    row = replace(
        row,
        state=state,
        note="" if is_ready else f"after pretraining {previous}",
        workers=workers,
        heartbeat_at=heartbeat_of(tree, owners),
        errors=() if failure is None else (failure,),
    )
    return _with_progress(row, folder, _gpus(tree, row))


def _finished(row: Row, record: dict[str, Any], corpus: str | None) -> Row:
    """The row of a run with a record; the held-out loss is that on a corpus, or the mean over data sets of pairs."""
    losses = record["scores"]["heldout_loss"]
    seconds = record["seconds"]
    return replace(
        row,
        state="done",
        done=record["steps"],
        tokens_per_second=record["real_tokens"] / seconds if seconds else None,
        heldout_loss=losses.get(corpus) if corpus is not None else sum(losses.values()) / len(losses),
        seconds=seconds,
        gpu_hours=record["gpu_hours"],
    )


def _gpus(tree: Tree, row: Row) -> int | None:
    """How many GPUs work on the run, from its owner's job; None where no job tells."""
    job = next((worker.job for worker in row.workers), None)
    submission = tree.submission_of(job) or tree.newest_submission.get(row.folder)
    return None if submission is None else submission.gpus


def _with_progress(row: Row, folder: Path, gpus: int | None) -> Row:
    """Steps, rate, loss and costs of an unfinished run: what its newest checkpoint counted, and steps since."""
    line = newest_step_line(folder)
    done, seconds = _checkpointed(folder)
    if line is not None:
        seconds += max(0, line["step"] - done) * line["seconds"]
        done = line["step"]
    row = replace(row, done=done, seconds=round(seconds, 1), gpu_hours=None if gpus is None else seconds / 3600 * gpus)
    if line is None:
        return row
    rate = line["real_tokens"] / line["seconds"] if line["seconds"] else None
    return replace(row, tokens_per_second=rate, loss=line["loss"])


def _checkpointed(folder: Path) -> tuple[int, float]:
    """Steps and seconds of computing up to the newest checkpoint that says so."""
    steps = sorted((path for path in (folder / "checkpoints").glob("step-*") if path.name[5:].isdigit()), reverse=True)
    for path in steps:
        try:
            return int(path.name[5:]), float(read_json(path / "state.json")["totals"]["seconds"])
        except (DamagedFile, OSError, KeyError, TypeError, ValueError):
            continue
    return 0, 0.0
