"""What a plan is missing, cut into pieces of work that follow each other: corpora, stages, grids, tasks. Torch-free."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ablations.protocol import TRANSFER_TASK
from neobert.data.preparation import is_tokenized
from neobert.runs.index import state_of, task_files, trial_files
from neobert.runs.layout import Layout
from neobert.runs.specifications import (
    EXTERNAL_PREFIX,
    ContrastiveRun,
    EmbeddingEvaluation,
    GlueStudy,
    PretrainingRun,
    Run,
    run_folder,
)
from neobert.slurm.profile import JobKind, Profile

NamedRun = tuple[str, Run]


@dataclass(frozen=True)
class Piece:
    """Work that one job (or array) does: references, those that must be over before it, and how many workers."""

    kind: JobKind
    label: str
    references: tuple[str, ...]
    needs: tuple[str, ...]
    workers: int


def pieces_of(layout: Layout, named: Iterable[NamedRun], profile: Profile) -> list[Piece]:
    """What the runs still miss, in an order in which nothing comes before what it needs; equal runs count once."""
    runs: dict[str, NamedRun] = {}
    for name, run in named:
        runs.setdefault(run.id, (name, run))
    missing = [each for each in runs.values() if _is_open(layout, each[1])]
    return [
        *_pretraining_pieces(layout, [(name, run) for name, run in missing if isinstance(run, PretrainingRun)]),
        *_glue_pieces(layout, list(runs.values()), profile.glue.points_per_worker),
        *(_contrastive_piece(name, run) for name, run in missing if isinstance(run, ContrastiveRun)),
        *(_embedding_piece(layout, name, run) for name, run in missing if isinstance(run, EmbeddingEvaluation)),
    ]


def _is_open(layout: Layout, run: Run) -> bool:
    return state_of(layout, run) != "done"


def _pretraining_pieces(layout: Layout, stages: Sequence[tuple[str, PretrainingRun]]) -> Iterator[Piece]:
    corpora: set[str] = set()
    for name, run in stages:
        label = f"{name}-{run.id}"
        needs = [] if run.previous is None else [f"pretraining/{run.previous}"]
        if not is_tokenized(layout, run):
            corpus = f"corpus/{run.data_id}/{run.id}"
            if run.data_id not in corpora:
                corpora.add(run.data_id)
                yield Piece("prepare", f"{run.recipe.data.corpus}-{run.data_id}", (corpus,), (), 1)
            needs.append(corpus)
        yield Piece("pretrain", label, (f"pretraining/{run.id}",), tuple(needs), 1)


def _contrastive_piece(name: str, run: ContrastiveRun) -> Piece:
    return Piece("pretrain", f"{name}-contrastive-{run.id}", (f"contrastive/{run.id}",), _weights(run.weights), 1)


def _embedding_piece(layout: Layout, name: str, evaluation: EmbeddingEvaluation) -> Piece:
    """An array with an element for each task that is left: tasks differ in size a thousandfold."""
    is_tuned = evaluation.encoder.protocol == "contrastive"
    needs = (f"contrastive/{evaluation.weights}",) if is_tuned else _weights(evaluation.weights)
    left = sum(not files.is_recorded for files in task_files(layout, evaluation))
    reference = str(run_folder(layout, evaluation).relative_to(layout.root))
    return Piece("mteb", f"{name}-{evaluation.weights}", (reference,), needs, max(1, left))


def _weights(run_id: str) -> tuple[str, ...]:
    """The work behind weights; nobody works on a model from elsewhere."""
    return () if run_id.startswith(EXTERNAL_PREFIX) else (f"pretraining/{run_id}",)


def _glue_pieces(layout: Layout, named: Sequence[NamedRun], points_per_worker: int) -> Iterator[Piece]:
    """The arrays of every model and seed, under the name that the model came with first."""
    names: dict[str, str] = {}
    grids: dict[tuple[str, int], list[GlueStudy]] = {}
    for name, run in named:
        if isinstance(run, GlueStudy):
            names.setdefault(run.weights, name)
            grids.setdefault((run.weights, run.seed), []).append(run)
    for (weights, _), group in grids.items():
        left = [study for study in group if _is_open(layout, study)]
        if left:
            yield from _grid_pieces(layout, names[weights], left, points_per_worker)


def _grid_pieces(layout: Layout, name: str, studies: Sequence[GlueStudy], points_per_worker: int) -> Iterator[Piece]:
    """One array for the tasks that start from pre-training, another behind it for those that start from a study."""
    first = [study for study in studies if study.starts_from.study is None]
    second = [study for study in studies if study.starts_from.study is not None]
    needs = [f"pretraining/{studies[0].weights}"]
    for suffix, group in (("", first), ("-transfer", second)):
        if group:
            label = f"{name}-{group[0].weights}{suffix}"
            workers = math.ceil(_open_points(layout, group) / points_per_worker)
            references = tuple(str(run_folder(layout, study).relative_to(layout.root)) for study in group)
            yield Piece("glue", label, references, tuple(needs), max(1, workers))
            needs.extend(reference for reference in references if reference.split("/")[1] == TRANSFER_TASK)


def _open_points(layout: Layout, studies: Sequence[GlueStudy]) -> int:
    return sum(not files.is_recorded for study in studies for files in trial_files(layout, study))
