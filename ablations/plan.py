"""The plan: variants or an external model × seeds × stages → runs with ids, folders and states.

Planning only reads the folder of runs and the names of the source; it writes nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ablations.ladders import Ladder
from ablations.names import at_scale
from ablations.recipe_runs import (
    EVERYTHING,
    PLANNERS,
    EmbeddingChoice,
    EncoderWeights,
    Planning,
    embedding_runs,
    glue_studies,
    missing_readouts,
    missing_tasks,
    pretraining_runs,
)
from ablations.scales import Scale
from ablations.scaling import scaled, scaled_variant, unrepresented, vocabulary_of
from ablations.variant import EmbeddingProtocol, Recipe, Variant, change_label
from neobert.data.sources import Source
from neobert.errors import MissingData
from neobert.execution import Execution
from neobert.executors.external import write_model_file
from neobert.external import ExternalModel
from neobert.identity import difference
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.size import parameter_count
from neobert.recipe import Grid
from neobert.runs.index import Index, State
from neobert.runs.kinds import Run
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, write_run_file
from neobert.search.space import Search

STAGES = ("pretraining", "glue")
EMBEDDING_FIELDS: Mapping[str, frozenset[str]] = {
    "contrastive": frozenset({"contrastive", "pairs"}),
    "mteb contrastive": frozenset(EmbeddingProtocol.model_fields),
    "mteb zero_shot": frozenset({"precision"}),
}
"""The fields of the embedding protocol that determine a run, by the title of the run."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan with its folder and state."""

    run: Run
    folder: Path
    state: State

    def decisive(self, embedding: EmbeddingProtocol) -> dict[str, Any]:
        """Return the fields of an embedding protocol that determine the run.

        Variants with the same pre-training and the same values of these fields share the run.
        """
        return embedding.model_dump(include=set(EMBEDDING_FIELDS.get(self.run.title, ())))


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """The planned runs on one encoder at a scale.

    `name` is the name in jobs and messages: the variant's name or the model's id. `heading` is the heading of tables.
    `data_of` is the variant of `ladder` whose data it reads, for prefetch. `skipped` maps tasks without data to the
    reason.
    """

    ladder: Ladder
    name: str
    heading: str
    data_of: str
    scale: Scale
    planned: tuple[PlannedRun, ...]
    skipped: Mapping[str, str]

    @property
    def runs(self) -> list[Run]:
        return [planned.run for planned in self.planned]

    def labels(self, planned: PlannedRun, source: Source) -> dict[str, Any]:
        """Return the entries of a run's run.json other than its specification."""
        common = {"scale": self.scale, "data": source.label, "unavailable_tasks": self.skipped}
        return common | self.ladder.labels

    def write_subject(self, layout: Layout) -> None:
        """Write what the runs are about besides recipes; nothing for a variant."""

    def write(
        self,
        layout: Layout,
        source: Source,
        specification: SourceSpecification,
        execution: Execution,
        kept: Collection[str] = (),
    ) -> None:
        """Write the run.json of every run, before anything starts; `kept` as for `write_run_file`."""
        self.write_subject(layout)
        for run, labels in self.run_files(source):
            write_run_file(layout, run, specification, execution, labels, kept)

    def run_files(self, source: Source) -> list[tuple[Run, dict[str, Any]]]:
        """Return the runs that have a run.json, each with its labels."""
        return [(planned.run, self.labels(planned, source)) for planned in self.planned]


@dataclass(frozen=True, kw_only=True)
class VariantRow(PlanRow):
    """One variant with one seed. Recipes are scaled; `stages` are its pre-training runs, planned or not."""

    variant: Variant
    seed: int
    recipe: Recipe
    parent_recipe: Recipe | None
    stages: tuple[PretrainingRun, ...]
    vocabulary: Literal["trained", "published"]

    @property
    def title(self) -> str:
        """The title of the variant at this scale and on these data."""
        origins = {"corpus": self.stages[0].corpus_origin, "tokenizer": self.stages[0].tokenizer_origin}
        return change_label(self.variant, self.recipe, self.parent_recipe, origins)

    @property
    def parameters(self) -> int:
        """The number of parameters of the pre-training model."""
        return parameter_count(self.recipe.pretraining.model, self.recipe.pretraining.longest_context).total

    @property
    def delta(self) -> dict[str, tuple[Any, Any]]:
        """The differences from the parent at this scale: {dotted path: (before, after)}."""
        return {} if self.parent_recipe is None else difference(self.parent_recipe, self.recipe)

    @property
    def unrepresented(self) -> tuple[str, ...]:
        """The fields that the variant changes and that equal its parent's at this scale."""
        return unrepresented(self.ladder, self.variant, self.scale, self.vocabulary)

    @cached_property
    def _twins(self) -> dict[str, Recipe]:
        """The ladder's variants with the same pre-training at this scale, such as those that differ in the grid."""
        found = {}
        for name, variant in self.ladder.variants.items():
            with suppress(ValueError):  # a variant that is impossible here is refused where it is planned
                found[name] = scaled(self.ladder, variant.recipe, self.scale, self.vocabulary)
        return {name: recipe for name, recipe in found.items() if recipe.pretraining == self.recipe.pretraining}

    def labels(self, planned: PlannedRun, source: Source) -> dict[str, Any]:
        """Return the variants that share the run; for pre-training also the parent and changes of the first one."""
        wanted = planned.decisive(self.recipe.embedding)
        names = [name for name, twin in self._twins.items() if planned.decisive(twin.embedding) == wanted]
        names += [self.name] if self.name not in names else []
        labels = {"variants": names} | super().labels(planned, source)
        if planned.run.kind != "pretraining":
            return labels
        variant = self.ladder.variants.get(names[0], self.variant)
        recipe, parent = scaled_variant(self.ladder, variant, self.scale, self.vocabulary)
        if variant.parent is None or parent is None:
            return labels | {"parent": None, "delta": {}}
        changes = difference(parent.pretraining, recipe.pretraining)
        delta = {path: list(change) for path, change in changes.items()}
        return labels | {"parent": variant.parent.name, "delta": delta}


@dataclass(frozen=True, kw_only=True)
class ModelRow(PlanRow):
    """An external model with all seeds, measured like the variants, for the baselines of Tables 3 and 4."""

    model: ExternalModel

    def labels(self, planned: PlannedRun, source: Source) -> dict[str, Any]:
        model = self.model
        named = {"model": model.name, "model_type": model.model_type, "parameters": model.parameters}
        return named | {"origin": model.origin} | super().labels(planned, source)

    def write_subject(self, layout: Layout) -> None:
        write_model_file(layout, self.model)


def plan(
    ladder: Ladder,
    chosen: Sequence[Variant],
    seeds: Sequence[int],
    scale: Scale,
    source: Source,
    layout: Layout,
    stages: Collection[str] = STAGES,
    finetuning_seeds: Sequence[int] | None = None,
    choice: EmbeddingChoice = EVERYTHING,
) -> list[VariantRow]:
    """Return one row per variant and seed. Data may be missing, except what `choice` names and what mteb reads.

    `finetuning_seeds` are the seeds of fine-tuning; None means the seed of pre-training. A variant
    with a number in its name that it has at the scale anyway is replaced by the variant without it.

    Raises:
        MissingData, ValueError: as `embedding_runs`; a variant is impossible at the scale.
    """
    rows = []
    vocabulary, index = vocabulary_of(source), Index(layout)
    for variant in {each.name: each for each in (at_scale(ladder, each, scale) for each in chosen)}.values():
        recipe, parent = scaled_variant(ladder, variant, scale, vocabulary)
        for seed in dict.fromkeys(seeds):
            trained = pretraining_runs(recipe.pretraining, seed, source)
            runs: list[Run] = [*trained]
            skipped: dict[str, str] = {}
            tuning_seeds = finetuning_seeds or [seed]
            if "glue" in stages:
                skipped |= missing_tasks(ladder, source)
            skipped |= missing_readouts(source, stages)
            planning = Planning(ladder, recipe, trained, tuning_seeds, scale, source)
            runs += [run for stage, planned in PLANNERS.items() if stage in stages for run in planned(planning)]
            encoder = EncoderWeights.of_stage(trained[-1])
            tuned, reasons = embedding_runs(encoder, recipe.embedding, tuning_seeds, source, stages, choice)
            row = VariantRow(
                ladder=ladder,
                name=variant.name,
                heading=f"{variant.name}, seed {seed}, {scale} scale",
                data_of=variant.name,
                scale=scale,
                planned=_planned(index, [*{run.reference: run for run in runs}.values(), *tuned]),
                skipped=skipped | reasons,
                variant=variant,
                seed=seed,
                recipe=recipe,
                parent_recipe=parent,
                stages=tuple(trained),
                vocabulary=vocabulary,
            )
            rows.append(row)
    return rows


def plan_model(
    ladder: Ladder,
    model: ExternalModel,
    seeds: Sequence[int],
    scale: Scale,
    source: Source,
    layout: Layout,
    stages: Collection[str],
    *,
    grid: Grid | None = None,
    choice: EmbeddingChoice = EVERYTHING,
) -> ModelRow:
    """Return the row of an external model: GLUE studies on `grid`, contrastive fine-tuning and evaluations per seed.

    None means the ladder's grid.

    Raises:
        MissingData, ValueError: as `embedding_runs`; there is nothing to run.
    """
    seeds, encoder = list(dict.fromkeys(seeds)), EncoderWeights.of_model(model)
    usual = ladder.root.recipe
    recipe = scaled(ladder, usual.model_copy(update={"grid": grid or usual.grid}), scale, vocabulary_of(source))
    runs: list[Run] = []
    skipped: dict[str, str] = {}
    if "glue" in stages:
        skipped |= missing_tasks(ladder, source)
        points = recipe.grid.points()
        runs += [
            study for seed in seeds for study in glue_studies(ladder, encoder, recipe.finetuning, points, seed, source)
        ]
    tuned, reasons = embedding_runs(encoder, recipe.embedding, seeds, source, stages, choice)
    runs += tuned
    if reasons and not runs:
        raise MissingData("; ".join(reasons.values()))
    return ModelRow(
        ladder=ladder,
        name=model.id,
        heading=f"{model.name} ({model.id}), {scale} scale",
        data_of=ladder.full_variant.name,
        scale=scale,
        planned=_planned(Index(layout), runs),
        skipped=skipped,
        model=model,
    )


def _planned(index: Index, runs: Iterable[Run]) -> tuple[PlannedRun, ...]:
    return tuple(PlannedRun(run, index.layout.root / run.folder, index.progress(run).state) for run in runs)


def unfinished(rows: Sequence[PlanRow]) -> list[Run]:
    """Return each run that was not done when planned, once; costly pre-training first, so that workers end together."""
    open_runs = {planned.run.id: planned.run for row in rows for planned in row.planned if planned.state != "done"}
    stages = sorted(
        PretrainingRun.among(open_runs.values()),
        key=lambda run: parameter_count(run.recipe.model, run.context).body * run.recipe.stages[-1].tokens,
        reverse=True,
    )
    return [*stages, *(run for run in open_runs.values() if run.kind != "pretraining")]


def with_tasks(row: PlanRow, tasks: Collection[str]) -> PlanRow:
    """Return the row with only these tasks' GLUE studies, the studies they start from, and other unfinished runs."""
    studies = GlueStudy.among(row.runs)
    wanted = {study.id for study in studies if study.task in tasks}
    started_from: set[str | None] = set()
    for study in reversed(studies):  # each comes after the study that it starts from
        if study.id in wanted | started_from:
            started_from.add(study.starts_from.study)
    started_from -= wanted
    others = {run.id for run in unfinished([row])} - {study.id for study in studies}
    ordered = [planned for ids in (others, started_from, wanted) for planned in row.planned if planned.run.id in ids]
    return replace(row, planned=tuple(ordered))


def with_search(row: PlanRow, search: Search, layout: Layout) -> PlanRow:
    """Return the row with one search of each task in the place of its grids. Its trials have all seeds of the search;
    tasks that start from another one start from that task's search."""
    index = Index(layout)
    searches: dict[str | None, GlueStudy] = {}
    for study in GlueStudy.among(row.runs):
        if study.seed == search.seeds[0]:
            before = searches.get(study.starts_from.study)
            start = study.starts_from.model_copy(update={} if before is None else {"study": before.id})
            of_grid = search.sampler == "grid"
            own = search.model_copy(update={"trials": len(study.points)}) if of_grid else search
            changes = {"search": own, "points": study.points if of_grid else (), "starts_from": start}
            searches[study.id] = study.model_copy(update=changes)
    others = [planned for planned in row.planned if planned.run.kind != "glue"]
    return replace(row, planned=(*others, *_planned(index, searches.values())))
