"""What run.py prints: the ladder, and what came out."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from ablations.embedding_outcome import embedding_outcome, print_embeddings
from ablations.plan import PlannedUnit, Row
from neobert.console import output, table
from neobert.errors import DamagedFile
from neobert.runs.index import State, read_selection, selection_path, state_of
from neobert.runs.layout import Layout
from neobert.runs.records import is_published, read_record
from neobert.runs.specifications import GlueStudy, PretrainingRun, run_folder

WORST_FIRST: tuple[State, ...] = ("failed", "running", "waiting", "missing", "done")


def state_of_units(units: Sequence[PlannedUnit]) -> State:
    """One word for several units: done only when all are, failed when any is."""
    states = {unit.state for unit in units}
    if "done" in states and len(states) > 1 and "failed" not in states:
        return "running" if "running" in states else "waiting"
    return next((state for state in WORST_FIRST if state in states), "missing")


def change_text(path: str, change: Sequence[Any]) -> str:
    """A changed leaf as people read it; what a new stage brings has no value before."""
    name = path.removeprefix("pretraining.")
    before, after = change
    return f"{name} = {after}" if before is None else f"{name}: {before} → {after}"


def print_ladder(rows: Sequence[Row], *, as_json: bool) -> None:
    """The ladder with lineage, source and state."""
    entries = [_ladder_entry(row) for row in rows]
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    cells = [
        (
            entry["name"] + _standing(entry),
            entry["parent"],
            escape(entry["title"]),
            escape("\n".join(change_text(path, change) for path, change in entry["delta"].items())),
            escape(entry["source"]),
            f"{entry['glue_grid']} points",
            entry["state"],
        )
        for entry in entries
    ]
    columns = ("variant", "parent", "title", "delta", "source", "GLUE grid", "state")
    output().print(table(f"The ladder at {rows[0].scale} scale", columns, cells))


def _standing(entry: Mapping[str, Any]) -> str:
    if entry["kept"]:
        return ""
    return " (another reading)" if "@" in entry["name"] else " (discarded)"


def _ladder_entry(row: Row) -> dict[str, Any]:
    variant = row.variant
    trained = [unit for unit in row.units if isinstance(unit.run, PretrainingRun)]
    return {
        "name": variant.name,
        "parent": variant.parent.name if variant.parent else None,
        "kept": variant.kept,
        "title": row.title,
        "source": variant.source,
        "delta": {path: list(change) for path, change in row.delta.items()},
        "pretraining_id": trained[-1].run.id,
        "stages": len(trained),
        "glue_grid": len(row.recipe.grid.points()),
        "state": state_of_units(row.units),
    }


def print_outcome(layout: Layout, rows: Sequence[Row], *, as_json: bool) -> None:
    """Held-out loss, best GLUE scores and those of embeddings of each variant and checkpoint, as far as they exist."""
    outcomes = [outcome for row in rows for outcome in _outcomes(layout, row)]
    if as_json:
        print(json.dumps(outcomes, indent=1))
        return
    tasks = list(dict.fromkeys(task for outcome in outcomes for task in outcome["glue"]))
    columns = ("variant", "seed", "context", "held-out loss", *tasks)
    cells = [
        (
            outcome["variant"],
            outcome["seed"],
            outcome["context"],
            _number(outcome["heldout_loss"], 3),
            *(_number(outcome["glue"].get(task), 1, 100) for task in tasks),
        )
        for outcome in outcomes
    ]
    output().print(table("Best of grid on the validation sets, ×100", columns, cells))
    print_embeddings(outcomes)


def _number(value: float | None, digits: int, factor: float = 1) -> str | None:
    return None if value is None else f"{value * factor:.{digits}f}"


def _outcomes(layout: Layout, row: Row) -> list[dict[str, Any]]:
    outcomes = []
    for unit in row.units:
        if not isinstance(unit.run, PretrainingRun):
            continue
        studies = [
            other.run for other in row.units if isinstance(other.run, GlueStudy) and other.run.weights == unit.run.id
        ]
        outcomes.append(
            {
                "variant": row.variant.name,
                "seed": row.seed,
                "context": unit.run.recipe.stages[-1].context,
                "pretraining": unit.run.id,
                "state": state_of(layout, unit.run),
                "heldout_loss": _heldout_loss(layout, unit.run),
                "glue": {study.task: _best_score(layout, study) for study in studies if study.weights == unit.run.id},
                **embedding_outcome(layout, row, unit.run),
            }
        )
    return outcomes


def _heldout_loss(layout: Layout, run: PretrainingRun) -> float | None:
    path = run_folder(layout, run) / "done.json"
    if not is_published(path):
        return None
    losses: dict[str, float] = read_record(path)["scores"]["heldout_loss"]
    return losses[run.recipe.data.corpus]


def _best_score(layout: Layout, study: GlueStudy) -> float | None:
    path = selection_path(layout, study)
    try:
        score: float | None = read_selection(path)["score"] if path.exists() else None
    except DamagedFile:
        return None
    return score
