"""All runs of a folder as rows. The order of trust: records, then claims, then errors; submissions only explain."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neobert.errors import DamagedFile, MissingData
from neobert.files import TEMPORARY_MARK
from neobert.grid.claims import LEASE_SECONDS
from neobert.layout import Layout
from neobert.overview.corpora import corpus_row
from neobert.overview.evaluations import evaluation_row
from neobert.overview.pretraining import contrastive_row, pretraining_row
from neobert.overview.row import Row, RowState, Worker, age
from neobert.overview.studies import study_row
from neobert.overview.tree import Submitted, Tree
from neobert.records import read_sealed

UNREADABLE = (DamagedFile, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True)
class Overview:
    """Every run, and one sentence for each file that could not be read and belongs to no row."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...]


def read_overview(layout: Layout) -> Overview:
    """Every run below a folder, worst files included.

    Raises:
        MissingData: there is no such folder.
    """
    if not layout.root.is_dir():
        raise MissingData(f"there is no folder {layout.root}: name the folder of runs with --runs")
    tree = Tree(layout)
    rows = [row_at(tree, folder) for folder in _row_folders(tree)]
    return Overview(tuple(rows), tuple(tree.problems))


def _row_folders(tree: Tree) -> list[str]:
    """Where every run lies that has a folder or was submitted, relative to the folder of runs."""
    found = [f"pretraining/{name}" for name in sorted(tree.names(tree.layout.root / "pretraining"))]
    found += [f"contrastive/{name}" for name in sorted(tree.names(tree.layout.root / "contrastive"))]
    for task in sorted(tree.names(tree.layout.root / "glue")):
        studies = sorted(tree.names(tree.layout.root / "glue" / task / "studies"))
        found += [f"glue/{task}/studies/{name}" for name in studies]
    evaluations = sorted(tree.names(tree.layout.root / "mteb" / "evaluations"))
    found += [f"mteb/evaluations/{name}" for name in evaluations]
    return list(dict.fromkeys([*(name for name in found if TEMPORARY_MARK not in name), *tree.newest_submission]))


def row_at(tree: Tree, folder: str) -> Row:
    """The row of one run; what makes it unreadable is its note."""
    match folder.split("/"):
        case ["pretraining", run_id]:
            return _told(tree, Row("pretraining", run_id, folder, "unreadable"), pretraining_row)
        case ["contrastive", run_id]:
            return _told(tree, Row("contrastive", run_id, folder, "unreadable"), contrastive_row)
        case ["glue", task, "studies", run_id]:
            return _told(tree, Row("glue", run_id, folder, "unreadable", task=task, counted="points"), study_row)
        case ["mteb", "evaluations", run_id]:
            return _told(tree, Row("mteb", run_id, folder, "unreadable", counted="tasks"), evaluation_row)
        case ["data", data_id]:
            return explained(tree, corpus_row(tree, Row("corpus", data_id, folder, "missing", counted="shards")))
    return Row("pretraining", folder, folder, "unreadable", note="a job was submitted for no known unit")


def _told(tree: Tree, row: Row, read: Callable[[Tree, Row, dict[str, Any]], Row]) -> Row:
    folder = tree.layout.root / row.folder
    try:
        content = read_sealed(folder / "run.json")
        return explained(tree, read(tree, labelled(row, content["labels"]), content))
    except FileNotFoundError as error:
        if Path(str(error.filename)).name != "run.json":
            return replace(row, note=f"{error.filename} vanished while it was read")
    except UNREADABLE as error:
        return replace(row, note=f"not readable: {type(error).__name__}: {error}")
    note = "no run.json: half-written, or removed" if folder.exists() else "no folder: half-written, or removed"
    return explained(tree, replace(row, state="missing", note=note))


def labelled(row: Row, labels: dict[str, Any]) -> Row:
    """The row with what run.json says for people."""
    variants = tuple(str(name) for name in labels.get("variants", ()))
    return replace(row, variants=variants, scale=labels.get("scale"), data=labels.get("data"))


def explained(tree: Tree, row: Row) -> Row:
    """The row with its submission, logs and lost owners; a job never changes what the records say of finished work."""
    newest = tree.newest_submission.get(row.folder)
    if row.state == "done":
        return replace(row, **_of_submission(newest), logs=tree.logs(newest, None))
    lost = [worker for worker in row.workers if not worker.is_live]
    notes = [row.note, *(_lost(worker) for worker in lost)]
    state: RowState = row.state
    if newest is not None and not _begun_since(row, newest):
        state = "submitted" if state in ("waiting", "missing") else state
        notes.append(f"job {newest.job} submitted {age(tree.now - newest.at)} ago, not begun as far as files tell")
    job = next((worker.job for worker in row.workers if worker.job is not None), None)
    logs = tree.logs(tree.submission_of(job) or newest, job or (newest.job if newest else None))
    return replace(row, state=state, note="; ".join(filter(None, notes)), **_of_submission(newest), logs=logs)


def _of_submission(submission: Submitted | None) -> dict[str, Any]:
    return {} if submission is None else {"job": submission.job, "submitted_at": submission.at}


def _begun_since(row: Row, submission: Submitted) -> bool:
    """Whether anybody worked on a unit of the run since its newest submission."""
    return row.state == "running" or (row.heartbeat_at is not None and row.heartbeat_at >= submission.at)


def _lost(worker: Worker) -> str:
    job = "" if worker.job is None else f" (job {worker.job})"
    gone = f"silent for {age(worker.heartbeat_seconds)}" if worker.heartbeat_seconds >= LEASE_SECONDS else "gone"
    return f"owner on {worker.host}{job} {gone}"
