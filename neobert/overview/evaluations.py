"""The row of an evaluation: tasks of embeddings on one encoder."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from neobert.embeddings.suite_specification import EmbeddingEvaluation, EmbeddingRun
from neobert.overview.row import Row
from neobert.overview.tree import Tree
from neobert.overview.units import failure_at, heartbeat_of, owners_of, workers_of
from neobert.specifications import EXTERNAL_PREFIX


def evaluation_row(tree: Tree, row: Row, content: dict[str, Any]) -> Row:
    """The row of an evaluation whose run.json holds `content`.

    Raises:
        KeyError, TypeError, ValueError: run.json lacks something.
    """
    evaluation = EmbeddingEvaluation.read(content["mteb"])
    encoder, total = evaluation.encoder, len(evaluation.tasks)
    row = replace(row, seed=encoder.seed, weights=encoder.weights, total=total, task=encoder.protocol)
    if evaluation.id != row.id:
        return replace(row, state="waiting", note="named by another numerics version: its tasks are not known here")
    pending = [run for run in evaluation.runs() if f"{run.id}.json" not in tree.names(_folder(tree, run))]
    if not pending:
        return replace(row, state="done", done=total)
    return _unfinished(tree, replace(row, done=total - len(pending)), evaluation, pending)


def _unfinished(tree: Tree, row: Row, evaluation: EmbeddingEvaluation, pending: list[EmbeddingRun]) -> Row:
    owners = owners_of(tree, [run.id for run in pending])
    workers = workers_of(owners)
    failures = [failure_at(_folder(tree, run) / "errors" / f"{run.id}.json", run.id) for run in pending]
    known = tuple(failure for failure in failures if failure is not None)
    is_live = any(worker.is_live for worker in workers)
    return replace(
        row,
        state="running" if is_live else "failed" if known else "waiting",
        note=_waits_for(tree, evaluation),
        workers=workers,
        heartbeat_at=heartbeat_of(tree, owners),
        errors=known,
    )


def _folder(tree: Tree, run: EmbeddingRun) -> Path:
    return tree.layout.embedding_task(run.task.name, run.id).parent


def _waits_for(tree: Tree, evaluation: EmbeddingEvaluation) -> str:
    weights, is_tuned = evaluation.weights, evaluation.encoder.protocol == "contrastive"
    if not is_tuned and weights.startswith(EXTERNAL_PREFIX):
        return ""
    kind = "contrastive" if is_tuned else "pretraining"
    return "" if "done.json" in tree.names(tree.layout.root / kind / weights) else f"after {kind} {weights}"
