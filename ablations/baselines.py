"""Models from elsewhere under the variants' protocol and grids, so that baselines of Tables 3 and 4 run again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ablations.contrastive import scaled_embedding
from ablations.embeddings import EmbeddingChoice, embedding_runs
from ablations.needs import require_data_of_model
from ablations.pieces import NamedRun
from ablations.plan import PlannedUnit, chosen_variants, decisive_for
from ablations.protocol import EMBEDDING_PROTOCOL, GLUE_PROTOCOL
from ablations.runs import Checkpoint, glue_studies
from ablations.scales import Scale, scaled_measurement
from ablations.variant import Variant
from neobert.data.sources import Source
from neobert.errors import MissingData
from neobert.external import ExternalModel, write_model_file
from neobert.recipe import FineTuning, Grid
from neobert.runs.index import state_of
from neobert.runs.layout import Layout
from neobert.runs.specifications import Execution, Run, run_folder, write_run_file
from neobert.runs.specifications import Source as SourceSpecification


@dataclass(frozen=True)
class Baseline:
    """The runs and evaluations of one external model; `skipped` names tasks without data and why. `protocol` is the
    variant whose protocol of embeddings they have, None where it is the ladder's."""

    model: ExternalModel
    scale: Scale
    units: tuple[PlannedUnit, ...]
    skipped: dict[str, str]
    protocol: Variant | None = None

    def unfinished(self, layout: Layout) -> list[Run]:
        """Every run that was not done when the plan was made."""
        return [unit.run for unit in self.units if unit.state != "done"]

    def named_runs(self) -> list[NamedRun]:
        """The runs under the model's id."""
        return [(self.model.id, unit.run) for unit in self.units]

    def write(self, layout: Layout, source: Source, specification: SourceSpecification, execution: Execution) -> None:
        """Write model.json and every run.json, before anything starts.

        Raises:
            MissingData: tasks of embeddings, or the pairs before them, are on the hub alone.
        """
        require_data_of_model([unit.run for unit in self.units], self.scale, source)
        write_model_file(layout, self.model)
        for unit in self.units:
            write_run_file(layout, unit.run, specification, execution, self._labels(source, unit.run))

    def _labels(self, source: Source, run: Run) -> dict[str, Any]:
        """A run of another protocol than the ladder's has it in its name, so that reports tell the two apart."""
        model, name = self.model, self.model.name
        if self.protocol is not None:
            usual, own = scaled_embedding(self.scale), scaled_embedding(self.scale, self.protocol.recipe.embedding)
            name += f", {self.protocol.name}" if decisive_for(run, usual) != decisive_for(run, own) else ""
        named = {"model": name, "model_type": model.model_type, "parameters": model.parameters}
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
) -> Baseline:
    """Every study of a model that the source has data for, MNLI before those that start from it."""
    protocol, points = scaled_measurement(GLUE_PROTOCOL, grid, scale)
    studies = [
        study
        for seed in dict.fromkeys(seeds)
        for study in glue_studies(_checkpoint(model, protocol, points, seed), source)
    ]
    units = tuple(PlannedUnit(study, run_folder(layout, study), state_of(layout, study)) for study in studies)
    return Baseline(model, scale, units, {task: reason for task, reason in source.tasks().items() if reason})


def plan_embeddings_of(
    model: ExternalModel,
    scale: Scale,
    seeds: Sequence[int],
    source: Source,
    layout: Layout,
    choice: EmbeddingChoice,
    parts: Sequence[str] = ("mteb",),
    protocol: str | None = None,
) -> Baseline:
    """Contrastive fine-tuning of a model, once a seed, and its evaluations; with `choice.zero_shot` one evaluation.
    `protocol` names the variant whose protocol it gets; None stands for the ladder's.

    Raises:
        MissingData, ValueError: as `embedding_runs`, there are no pairs, or no such variant.
    """
    variant = None if protocol is None else chosen_variants([protocol])[0]
    embedding = scaled_embedding(scale, variant.recipe.embedding if variant else EMBEDDING_PROTOCOL)
    runs, skipped = embedding_runs(model, embedding, list(dict.fromkeys(seeds)), source, parts, choice)
    if not runs:
        raise MissingData("; ".join(skipped.values()))
    units = tuple(PlannedUnit(run, run_folder(layout, run), state_of(layout, run)) for run in runs)
    return Baseline(model, scale, units, {}, variant)


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
