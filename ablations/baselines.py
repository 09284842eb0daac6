"""Models from elsewhere under the variants' protocols and grids, so that the baselines of Tables 3 and 4 can be run
again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ablations.contrastive import contrastive_run_of, pair_sets
from ablations.plan import PlannedUnit
from ablations.protocol import GLUE_PROTOCOL
from ablations.runs import Checkpoint, glue_studies
from ablations.scales import Scale, scaled_measurement
from neobert.data.corpora import Source
from neobert.external import ExternalModel, write_model_file
from neobert.layout import Layout
from neobert.progress import state_of
from neobert.recipe import FineTuning, Grid, Pruning
from neobert.specifications import Execution, run_folder, write_run_file
from neobert.specifications import Source as SourceSpecification


@dataclass(frozen=True)
class Baseline:
    """The studies or contrastive runs of one external model; `skipped` names tasks without data and why."""

    model: ExternalModel
    scale: Scale
    units: tuple[PlannedUnit, ...]
    skipped: dict[str, str]

    def write(self, layout: Layout, source: Source, specification: SourceSpecification, execution: Execution) -> None:
        """Write model.json and every run.json, before anything starts."""
        write_model_file(layout, self.model)
        for unit in self.units:
            write_run_file(layout, unit.run, specification, execution, self._labels(source))

    def _labels(self, source: Source) -> dict[str, Any]:
        model = self.model
        named = {"model": model.name, "model_type": model.model_type, "parameters": model.parameters}
        return {
            **named,
            "origin": model.origin,
            "scale": self.scale,
            "data": source.label,
            "unavailable_tasks": self.skipped,
        }


def plan_baseline(
    model: ExternalModel,
    grid: Grid,
    scale: Scale,
    seeds: Sequence[int],
    source: Source,
    layout: Layout,
    pruning: Pruning | None = None,
) -> Baseline:
    """Every study of a model that the source has data for, MNLI before those that start from it."""
    protocol, points = scaled_measurement(GLUE_PROTOCOL, grid, scale)
    studies = [
        study
        for seed in dict.fromkeys(seeds)
        for study in glue_studies(_checkpoint(model, protocol, points, seed), source, pruning)
    ]
    units = tuple(PlannedUnit(study, run_folder(layout, study), state_of(layout, study)) for study in studies)
    return Baseline(model, scale, units, {task: reason for task, reason in source.tasks().items() if reason})


def plan_contrastive(
    model: ExternalModel,
    scale: Scale,
    seeds: Sequence[int],
    source: Source,
    layout: Layout,
    pair_names: Sequence[str] | None = None,
) -> Baseline:
    """Contrastive fine-tuning of a model on `pair_names`, or on all data sets of pairs that the source has.

    Raises:
        MissingData, ValueError: one of them is not there, or there is none.
    """
    sets = pair_sets(source, pair_names)
    runs = [contrastive_run_of(model, scale, seed, sets) for seed in dict.fromkeys(seeds)]
    units = tuple(PlannedUnit(run, run_folder(layout, run), state_of(layout, run)) for run in runs)
    return Baseline(model, scale, units, {})


def _checkpoint(model: ExternalModel, protocol: FineTuning, grid: Grid, seed: int) -> Checkpoint:
    """The model as the plan sees it; it reads no more tokens than its position table holds."""
    context = model.context or protocol.max_tokens
    return Checkpoint(
        weights=model.id,
        stage=0,
        context=context,
        tokenizer_origin=model.tokenizer_origin,
        protocol=protocol.model_copy(update={"max_tokens": min(protocol.max_tokens, context)}),
        points=grid.points(),
        seed=seed,
    )
