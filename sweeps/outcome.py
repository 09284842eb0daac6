"""What a sweep prints: every point with its state, then the best of each grid beside its nested score."""

import json
from collections.abc import Sequence
from typing import Any

from neobert.console import logs, output, table
from neobert.data.sources import Source
from neobert.files import read_json
from neobert.identity import plain
from neobert.runs.claims import is_claimed
from neobert.runs.index import TrialFiles, trial_files
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.specifications import GlueStudy

POINT_COLUMNS = ("task", "context", "seed", "batch_size", "learning_rate", "weight_decay", "trial", "state", "score")
SCORE_COLUMNS = frozenset({"score", "mean", "sd", "nested"})
BEST_COLUMNS = ("task", "context", "batch_size", "learning_rate", "weight_decay", "seeds", "mean", "sd", "nested")


def print_outcome(layout: Layout, title: str, studies: Sequence[GlueStudy], source: Source, *, as_json: bool) -> None:
    """All points of the studies of what `title` names. In JSON the best point of each grid carries `best`, the others
    null there."""
    grids = _grids(studies)
    entries = [entry for studies in grids for entry in _entries(layout, studies, source)]
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    title = f"{title}: scores on the validation sets, ×100"
    output().print(table(title, POINT_COLUMNS, [_in_points(entry, POINT_COLUMNS) for entry in entries]))
    best = {(e["task"], e["context"]): e | e["best"] for e in entries if e["best"] is not None}
    if best:
        title = "best of the grid, ×100 (nested: chosen on one half of the validation examples, reported on the other)"
        output().print(table(title, BEST_COLUMNS, [_in_points(entry, BEST_COLUMNS) for entry in best.values()]))


def _in_points(entry: dict[str, Any], columns: Sequence[str]) -> list[object]:
    """The cells of an entry with its scores ×100."""
    return [
        f"{100 * entry[column]:.1f}" if column in SCORE_COLUMNS and entry[column] is not None else entry[column]
        for column in columns
    ]


def _grids(studies: Sequence[GlueStudy]) -> list[list[GlueStudy]]:
    """Studies that differ in nothing but the seed, together."""
    grids: dict[tuple[str, str], list[GlueStudy]] = {}
    for study in studies:
        grids.setdefault((study.task, study.weights), []).append(study)
    return list(grids.values())


def _entries(layout: Layout, studies: Sequence[GlueStudy], source: Source) -> list[dict[str, Any]]:
    pairs = [(study, files) for study in studies for files in trial_files(layout, study)]
    best = _best(layout, studies, source) if any(files.is_recorded for _, files in pairs) else None
    entries = []
    for study, files in pairs:
        is_best = best is not None and plain(files.point).items() <= best.items()
        named = {"task": study.task, "context": study.context, "seed": study.seed, **plain(files.point)}
        entries.append({**named, "trial": files.id, **_state(files), "best": best if is_best else None})
    return entries


def _state(files: TrialFiles) -> dict[str, Any]:
    record = read_record(files.record) if files.is_recorded else None
    error = read_json(files.error)["error"] if record is None and files.error.exists() else None
    if record is not None:
        return {"state": record["state"], "score": _rounded(record["scores"]["score"]), "error": None}
    claimed = is_claimed(files.layout.claims(files.id))
    return {"state": "running" if claimed else "failed" if error else "missing", "score": None, "error": error}


def _best(layout: Layout, studies: Sequence[GlueStudy], source: Source) -> dict[str, Any] | None:
    import numpy as np

    from neobert.data.preparation import require_origin
    from neobert.glue.selection import best_of_grid, redo_damaged
    from neobert.glue.tasks import task_named

    if True in [redo_damaged(layout, study) for study in studies]:
        logs().print("run the same command again: it makes what was set aside anew", markup=False)
    task = task_named(studies[0].task)
    require_origin(f"GLUE task {task.name}", studies[0].task_origin, source.task_origin(task.name))
    labels = {split: np.asarray(source.task_examples(task.name, split)["label"]) for split in task.validation_splits}
    best = best_of_grid(layout, studies, labels)
    if best is None:
        return None
    numbers = {"mean": _rounded(best.mean), "sd": _rounded(best.spread), "nested": _rounded(best.nested)}
    return {**plain(best.point), "seeds": sorted(best.by_seed), **numbers}


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(score, 4)
