"""Records of models that were pre-trained elsewhere → a row each: Table 3's baselines under this study's protocol."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neobert.recipe import Point
from neobert.runs.specifications import GlueStudy
from reports.cells import Estimate, Scored, cells_of
from reports.trials import Trial


@dataclass(frozen=True)
class BaselineRow(Scored):
    """One model from elsewhere on the largest grid that was begun on it; `losses` and `run_ids` are empty, as nothing
    was pre-trained."""

    id: str
    name: str
    losses: Mapping[str, Estimate]
    notes: tuple[str, ...]
    run_ids: tuple[str, ...] = ()


def baseline_rows(trials: Sequence[Trial], studies: Mapping[str, GlueStudy]) -> tuple[BaselineRow, ...]:
    """A row for each external model that has trials, by name. Equal names of different bytes are told apart by id."""
    by_model: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.model is not None:
            by_model[trial.run_id].append(trial)
    names = [str(own[0].model) for own in by_model.values()]
    rows = []
    for model_id, own in by_model.items():
        name = str(own[0].model)
        rows.append(_row(model_id, name if names.count(name) == 1 else f"{name} {model_id}", own, studies))
    return tuple(sorted(rows, key=lambda row: (row.name, row.id)))


def _row(model_id: str, name: str, trials: Sequence[Trial], studies: Mapping[str, GlueStudy]) -> BaselineRow:
    grids = [study.points for study in studies.values() if study.weights == model_id]
    grid = max(grids, key=len, default=tuple(dict.fromkeys(trial.point for trial in trials)))
    fitting = [(0, trial) for trial in trials if trial.point in grid and _starts_from_grid(trial, grid, studies)]
    cells, notes = cells_of(grid, fitting)
    return BaselineRow(cells=cells, id=model_id, name=name, losses={}, notes=tuple(notes))


def _starts_from_grid(trial: Trial, grid: Sequence[Point], studies: Mapping[str, GlueStudy]) -> bool:
    """Whether a transfer trial starts from a study of the same grid, as those of variants must."""
    start = studies.get(trial.start) if trial.start is not None else None
    return trial.start is None or start is None or frozenset(start.points) == frozenset(grid)
