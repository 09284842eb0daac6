"""Results of a plan: held-out losses, best scores of grids, contrastive runs, embedding tasks, readouts."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ablations.plan import ModelRow, VariantRow
from neobert.console import output, table
from neobert.data.mteb_tasks import (
    BENCHMARKS,
    CATEGORIES,
    Category,
    EmbeddingTask,
    TaskOnData,
    count_by_category,
    suites_of,
)
from neobert.files import read_json
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.glue import GlueStudy
from neobert.kinds.mteb import EmbeddingEvaluation
from neobert.kinds.pretraining import PretrainingRun
from neobert.kinds.readouts import ReadoutEvaluation
from neobert.runs.claims import is_claimed
from neobert.runs.index import state_of
from neobert.runs.kinds import Run
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.work import Part

Entry = Mapping[str, Any]


def print_outcome(layout: Layout, rows: Sequence[VariantRow], *, as_json: bool) -> None:
    """Print held-out loss, best GLUE scores and embedding scores of each variant and checkpoint, if they exist."""
    outcomes = [_outcome(layout, row, stage) for row in rows for stage in PretrainingRun.among(row.runs)]
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
            _number(outcome["heldout_loss"]),
            *(in_points(outcome["glue"].get(task)) for task in tasks),
        )
        for outcome in outcomes
    ]
    scores = "; tasks: best of grid on the validation sets, ×100" if tasks else ""
    output().print(table(f"Held-out loss in nats per token{scores}", columns, cells))
    others = [
        (outcome["variant"], entry["seed"], kind, entry["id"], entry["state"], _in_words(entry))
        for outcome in outcomes
        for kind in SUMMARIES
        for entry in outcome.get(kind, ())
    ]
    if others:
        output().print(table("Other results", ("variant", "seed", "kind", "run", "state", "results"), others))


def _outcome(layout: Layout, row: VariantRow, stage: PretrainingRun) -> dict[str, Any]:
    """Return the results of a checkpoint; kinds of work but GLUE have an entry only if they are planned."""
    own = [run for run in row.runs if run.pretrained == stage.id]
    others: dict[str, list[dict[str, Any]]] = {}
    for run in own:
        if run.kind != "glue":
            entry = {"id": run.id, "seed": run.seed, "state": state_of(layout, run)}
            if run.kind in SUMMARIES:
                entry |= SUMMARIES[run.kind](layout, run)
            others.setdefault(run.kind, []).append(entry)
    return {
        "variant": row.name,
        "seed": row.seed,
        "context": stage.recipe.stages[-1].context,
        "pretraining": stage.id,
        "state": state_of(layout, stage),
        "heldout_loss": _result(layout, stage).get("heldout_loss"),
        "glue": {study.task: _result(layout, study).get("score") for study in GlueStudy.among(own)},
        **others,
    }


def _result(layout: Layout, run: Run) -> Mapping[str, Any]:
    """Return the result in the closing record of a run; empty if there is none yet or it is damaged."""
    closing = run.closing(layout)
    return run.result(closing.read(closing.record)) if closing is not None and closing.is_done else {}


def _heldout(layout: Layout, run: ContrastiveRun) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """Return loss and accuracy on held-out pairs by data set; None if there is no record yet."""
    part = run.closing(layout)
    scores = read_record(part.record)["scores"] if part.is_done else {}
    return scores.get("heldout_loss"), scores.get("heldout_accuracy")


def _mean(by_set: Mapping[str, float] | None) -> float | None:
    return statistics.fmean(by_set.values()) if by_set else None


def _tuned(layout: Layout, run: ContrastiveRun) -> dict[str, Any]:
    loss, accuracy = map(_mean, _heldout(layout, run))
    return {"heldout_loss": loss, "heldout_accuracy": accuracy}


def _in_words(entry: Entry) -> str | None:
    """Return the numbers of a run that is not of GLUE: losses in nats, others as shares."""
    numbers = {"held-out loss": entry.get("heldout_loss"), "partner found first": entry.get("heldout_accuracy")}
    for readout, by_corpus in entry.get("scores", {}).items():
        numbers |= {f"{readout} {corpus}": value for corpus, value in by_corpus.items()}
    numbers |= {f"{mean['suite']} {mean['category'] or 'all tasks'}": mean["score"] for mean in entry.get("means", ())}
    return ", ".join(f"{name} {value:.3f}" for name, value in numbers.items() if value is not None) or None


def _measured(layout: Layout, evaluation: EmbeddingEvaluation) -> dict[str, Any]:
    means = means_of(task_entries(layout, evaluation), evaluation.tasks)
    return {"protocol": evaluation.encoder.protocol, "means": means}


def _read_out(layout: Layout, evaluation: ReadoutEvaluation) -> dict[str, Any]:
    """Return the value of each readout that has a record, by readout and corpus."""
    parts = zip(evaluation.readouts, evaluation.parts(layout), strict=True)
    records = {readout: read_record(part.record)["scores"] for readout, part in parts if part.is_done}
    values = {name: {corpus: score["value"] for corpus, score in scores.items()} for name, scores in records.items()}
    return {"scores": values}


SUMMARIES: Mapping[str, Callable[[Layout, Any], dict[str, Any]]] = {
    "contrastive": _tuned,
    "mteb": _measured,
    "readouts": _read_out,
}
"""For each kind of work, the entries of a run besides its id, seed and state."""


def print_model_outcome(layout: Layout, row: ModelRow, *, as_json: bool) -> None:
    """Print each contrastive run of an external model with its state and, if done, its scores on held-out pairs."""
    columns = ("model", "seed", "run", "state", "heldout_loss", "heldout_accuracy")
    entries: list[dict[str, Any]] = []
    for run in ContrastiveRun.among(row.runs):
        loss, accuracy = _heldout(layout, run)
        entries.append(
            {
                "model": row.model.name,
                "weights": row.model.id,
                "seed": run.seed,
                "run": run.id,
                "state": state_of(layout, run),
                "folder": str(layout.root / run.folder),
                "heldout_loss": loss,
                "heldout_accuracy": accuracy,
            }
        )
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    cells = [
        [*(entry[name] for name in columns[:4]), *(_number(_mean(entry[name])) for name in columns[4:])]
        for entry in entries
    ]
    output().print(table(f"Contrastive fine-tuning of {row.heading}", columns, cells))


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def in_points(score: float | None) -> str | None:
    """Format a score for tables, ×100."""
    return None if score is None else f"{100 * score:.1f}"


def part_entry(layout: Layout, part: Part) -> dict[str, Any]:
    """Return state, score and error of a part (a trial or a task). The score is None if there is no record yet."""
    if part.is_done:
        record = read_record(part.record)
        return {"state": record["state"], "score": record["scores"].get("score"), "error": None}
    error = read_json(part.error)["error"] if part.error.exists() else None
    state = "running" if is_claimed(layout.claims(part.id)) else "failed" if error else "missing"
    return {"state": state, "score": None, "error": error}


# Embedding tasks


def task_entries(layout: Layout, evaluation: EmbeddingEvaluation) -> list[dict[str, Any]]:
    """Return one entry per task; scores are −1..1, None if there is no record yet."""
    encoder, entries = evaluation.encoder, []
    for task, part in zip(evaluation.tasks, evaluation.parts(layout), strict=True):
        texts = read_record(part.record)["texts"] if part.is_done else {}
        entries.append(
            {
                "weights": encoder.weights,
                "protocol": encoder.protocol,
                "seed": encoder.seed,
                "task": task.name,
                "category": task.category,
                "suite": task.suite,
                "metric": task.metric,
                "id": part.id,
                **{name: texts.get(name) for name in ("texts", "empty", "cut")},
                **part_entry(layout, part),
            }
        )
    return entries


def means_of(
    entries: Sequence[dict[str, Any]], available: Sequence[EmbeddingTask | TaskOnData]
) -> list[dict[str, Any]]:
    """Return the flat mean of main scores, −1..1, of each category and each suite of one evaluation.

    A task counts in all of its suites. In each entry `tasks` is the number of scored tasks out of `expected`; the
    category None is the whole suite, whose mean is None if a task is missing. Of mteb's benchmarks the tasks are those
    published, of other suites the `available` ones.
    """
    means = []
    for suite in dict.fromkeys(suite for task in available for suite in suites_of(task.name, task.suite)):
        scored = [
            entry
            for entry in entries
            if suite in suites_of(entry["task"], entry["suite"]) and entry["score"] is not None
        ]
        expected = count_by_category(BENCHMARKS.get(suite) or (task for task in available if task.suite == suite))
        by_category: list[tuple[Category | None, int]] = [
            (name, expected[name]) for name in CATEGORIES if name in expected
        ]
        for category, count in [*by_category, (None, sum(expected.values()))]:
            scores = [entry["score"] for entry in scored if category in (None, entry["category"])]
            is_known = bool(scores) and (category is not None or len(scores) == count)
            mean = statistics.fmean(scores) if is_known else None
            means.append({"suite": suite, "category": category, "score": mean, "tasks": len(scores), "expected": count})
    return means
