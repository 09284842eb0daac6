"""What run.py prints of contrastive fine-tuning and of tasks of embeddings, behind each checkpoint. Torch-free."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ablations.embedding_listing import in_points, means_of, task_entries
from ablations.plan import Row
from neobert.console import output, table
from neobert.runs.index import state_of
from neobert.runs.layout import Layout
from neobert.runs.records import is_published, read_record
from neobert.runs.specifications import ContrastiveRun, EmbeddingEvaluation, PretrainingRun

TUNING_COLUMNS = ("variant", "seed", "run", "state", "held-out loss", "partner found first, %")
SUITE_COLUMNS = ("variant", "seed", "protocol", "suite", "state")


def embedding_outcome(layout: Layout, row: Row, run: PretrainingRun) -> dict[str, list[dict[str, Any]]]:
    """What became of a checkpoint's vectors; empty where the plan has nothing of the kind."""
    runs = [unit.run for unit in row.units]
    tuned = [each for each in runs if isinstance(each, ContrastiveRun) and each.weights == run.id]
    measured = [each for each in runs if isinstance(each, EmbeddingEvaluation) and each.encoder.pretraining == run.id]
    return {
        **({"contrastive": [_tuned(layout, each) for each in tuned]} if tuned else {}),
        **({"mteb": [_measured(layout, each) for each in measured]} if measured else {}),
    }


def _tuned(layout: Layout, run: ContrastiveRun) -> dict[str, Any]:
    """Held-out loss and accuracy are means over data sets of pairs."""
    path = layout.contrastive(run.id) / "done.json"
    scores = read_record(path)["scores"] if is_published(path) else {}
    losses, accuracies = (scores.get(name, {}).values() for name in ("heldout_loss", "heldout_accuracy"))
    return {
        "id": run.id,
        "seed": run.protocol.seed,
        "state": state_of(layout, run),
        "heldout_loss": statistics.fmean(losses) if losses else None,
        "heldout_accuracy": statistics.fmean(accuracies) if accuracies else None,
    }


def _measured(layout: Layout, evaluation: EmbeddingEvaluation) -> dict[str, Any]:
    means = means_of(task_entries(layout, evaluation), evaluation.tasks)
    return {
        "id": evaluation.id,
        "seed": evaluation.encoder.seed,
        "protocol": evaluation.encoder.protocol,
        "state": state_of(layout, evaluation),
        "means": [mean.summary() for mean in means],
    }


def print_embeddings(outcomes: Sequence[Mapping[str, Any]]) -> None:
    """A table of contrastive fine-tuning and one of means over tasks, where there are any."""
    tuned = [(outcome, entry) for outcome in outcomes for entry in outcome.get("contrastive", ())]
    if tuned:
        rows = [_tuning_cells(outcome, entry) for outcome, entry in tuned]
        output().print(table("Contrastive fine-tuning, on held-out pairs", TUNING_COLUMNS, rows))
    measured = [(outcome, entry) for outcome in outcomes for entry in outcome.get("mteb", ())]
    if measured:
        names = list(dict.fromkeys(mean["category"] for _, entry in measured for mean in entry["means"]))
        columns = (*SUITE_COLUMNS, *(name or "all tasks" for name in names))
        rows = [cells for outcome, entry in measured for cells in _suite_cells(outcome, entry, names)]
        output().print(table("Tasks of embeddings: means of main scores, ×100 (tasks)", columns, rows))


def _tuning_cells(outcome: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[Any, ...]:
    loss = entry["heldout_loss"]
    cells = (entry["id"], entry["state"], None if loss is None else f"{loss:.3f}", in_points(entry["heldout_accuracy"]))
    return outcome["variant"], entry["seed"], *cells


def _suite_cells(
    outcome: Mapping[str, Any], entry: Mapping[str, Any], names: Sequence[str | None]
) -> list[tuple[Any, ...]]:
    """A row of cells for each suite of an evaluation."""
    rows = []
    for suite in dict.fromkeys(mean["suite"] for mean in entry["means"]):
        means = {mean["category"]: mean for mean in entry["means"] if mean["suite"] == suite}
        shown = [
            f"{in_points(mean['score']) or '—'} ({mean['tasks']} of {mean['expected']})" for mean in means.values()
        ]
        by_name = dict(zip(means, shown, strict=True))
        cells = (outcome["variant"], entry["seed"], entry["protocol"], suite, entry["state"])
        rows.append((*cells, *(by_name.get(name) for name in names)))
    return rows
