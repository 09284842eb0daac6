"""The row of a GLUE study."""

from dataclasses import replace
from typing import Any

from neobert.overview.row import Row
from neobert.overview.tree import Tree
from neobert.overview.units import failure_at, heartbeat_of, owners_of, workers_of
from neobert.progress import read_selection
from neobert.specifications import GlueStudy


def study_row(tree: Tree, row: Row, content: dict[str, Any]) -> Row:
    """The row of a study whose run.json holds `content`.

    Raises:
        DamagedFile: the selection is torn, or was changed.
        KeyError, TypeError, ValueError: run.json lacks something.
    """
    study = content["study"]
    total = len(study["points"])
    row = replace(row, stage=study["stage"] + 1, seed=study["seed"], weights=study["weights"], total=total)
    selection = tree.layout.root / row.folder / "selection.json"
    if selection.exists():
        return replace(row, state="done", done=total, score=read_selection(selection)["score"])
    if "done.json" not in tree.names(tree.layout.pretraining(study["weights"])):  # before that no trial begins
        return replace(row, state="waiting", note=f"after pretraining {row.weights}", done=0)
    parsed = GlueStudy.read(study)
    if parsed.id != row.id:
        return replace(row, state="waiting", note="named by another numerics version: its points are not known here")
    unfinished = _unfinished(tree, row, parsed)
    return replace(unfinished, state="done", done=total) if selection.exists() else unfinished


def _unfinished(tree: Tree, row: Row, study: GlueStudy) -> Row:
    folder = tree.layout.root / "glue" / study.task
    names, errors = tree.names(folder), tree.names(folder / "errors")
    trials = trial_ids(study)
    pending = [trial for trial in trials if f"{trial}.json" not in names]
    owners = owners_of(tree, pending)
    workers = workers_of(owners)
    failures = [
        failure_at(folder / "errors" / f"{trial}.json", trial) for trial in pending if f"{trial}.json" in errors
    ]
    failures.append(failure_at(tree.layout.root / row.folder / "error.json", f"{study.id}-selection"))
    known = tuple(failure for failure in failures if failure is not None)
    is_live = any(worker.is_live for worker in workers)
    return replace(
        row,
        state="running" if is_live else "failed" if known else "waiting",
        note=_waits_for(tree, study),
        done=len(trials) - len(pending),
        workers=workers,
        heartbeat_at=heartbeat_of(tree, owners),
        errors=known,
    )


def _waits_for(tree: Tree, study: GlueStudy) -> str:
    start = study.starts_from
    if start.task is None or start.study is None:
        return ""
    is_closed = "selection.json" in tree.names(tree.layout.study(start.task, start.study))
    return "" if is_closed else f"after glue {start.task} {start.study}"


def trial_ids(study: GlueStudy) -> list[str]:
    """The names of a study's trials. A trial's name does not depend on the other points, so they are left out of what
    is hashed for each: sixty times sixty points would be most of an overview's time."""
    alone = study.model_copy(update={"points": ()})
    return [alone.trial_id(point) for point in study.points]
