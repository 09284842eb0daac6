"""What a plan is missing, cut into pieces of work that follow each other: corpora, stages, grids. Torch-free."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ablations.plan import Row
from ablations.protocol import TRANSFER_TASK
from neobert.data.preparation import is_tokenized
from neobert.embeddings.specification import ContrastiveRun
from neobert.launching.profile import JobKind, Profile
from neobert.layout import Layout
from neobert.progress import state_of, trial_files
from neobert.specifications import GlueStudy, PretrainingRun, Run, run_folder

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
    stages: dict[str, tuple[str, PretrainingRun]] = {}
    studies: dict[tuple[str, int], dict[str, GlueStudy]] = {}
    contrastive: dict[str, tuple[str, ContrastiveRun]] = {}
    names: dict[str, str] = {}
    for name, run in named:
        if isinstance(run, ContrastiveRun):
            contrastive.setdefault(run.id, (name, run))
        elif isinstance(run, PretrainingRun):
            stages.setdefault(run.id, (name, run))
        else:
            names.setdefault(run.weights, name)
            studies.setdefault((run.weights, run.seed), {}).setdefault(run.id, run)
    pieces = list(_pretraining_pieces(layout, [each for each in stages.values() if _is_open(layout, each[1])]))
    for (weights, _), group in studies.items():
        left = [study for study in group.values() if _is_open(layout, study)]
        if left:
            pieces.extend(_grid_pieces(layout, names[weights], left, profile.glue.points_per_worker))
    for name, run in contrastive.values():
        if _is_open(layout, run):
            needs = () if run.is_external else (f"pretraining/{run.weights}",)
            pieces.append(Piece("pretrain", f"{name}-contrastive-{run.id}", (f"contrastive/{run.id}",), needs, 1))
    return pieces


def runs_of(rows: Sequence[Row]) -> list[NamedRun]:
    """The runs of a plan under the names of their variants."""
    return [(row.variant.name, unit.run) for row in rows for unit in row.units]


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
    return sum(files.published is None for study in studies for files in trial_files(layout, study))
