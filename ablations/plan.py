"""The plan: variants or an external model × seeds × stages → runs with ids, folders and states.

Planning reads the folder of runs and the source's names; it writes nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, Self, get_args

from ablations.designs import chosen_variants
from ablations.ladders import current, variants
from ablations.rates import at_scale
from ablations.scales import (
    Scale,
    scaled,
    scaled_embedding,
    scaled_measurement,
    scaled_variant,
    shortest_context,
    vocabulary_of,
)
from ablations.variant import EmbeddingProtocol, Recipe, Variant, change_label
from neobert.data.catalog import CORPORA
from neobert.data.mteb_tasks import EmbeddingTask, chosen_tasks, task_prompts
from neobert.data.pairs import DECLARED_SETS, Mix, sets_of
from neobert.data.sources import Source
from neobert.embeddings.sentence_modules import read_sentence_modules
from neobert.errors import MissingData
from neobert.external import ExternalModel, write_model_file
from neobert.glue.tasks import SELECTION_RULES, TASKS
from neobert.identity import difference, neutral_values
from neobert.model.size import parameter_count
from neobert.recipe import FineTuning, Grid, Point, Pretraining
from neobert.runs.index import Index, State
from neobert.runs.layout import Layout
from neobert.runs.records import ReadoutName
from neobert.runs.run_file import Execution, SourceSpecification, write_run_file
from neobert.runs.specifications import (
    ContrastiveRun,
    EmbeddingEvaluation,
    GlueStudy,
    MeasuredEncoder,
    PairSet,
    PretrainingRun,
    ReadoutEvaluation,
    Run,
    Start,
    TaskOnData,
    only,
)

StageName = Literal["pretrain", "glue", "contrastive", "mteb", "readouts", "perplexity"]
STAGES: tuple[StageName, ...] = ("pretrain", "glue")
EMBEDDING_FIELDS: Mapping[str, frozenset[str]] = {
    "contrastive": frozenset({"contrastive", "pairs"}),
    "mteb contrastive": frozenset(EmbeddingProtocol.model_fields),
    "mteb zero_shot": frozenset({"precision"}),
}
"""By the title of a run: the fields of the embedding protocol that decide it."""


@dataclass(frozen=True)
class EmbeddingChoice:
    """What the stages contrastive and mteb read, by name; None stands for all that the source has, tasks of
    MTEB(eng, v2) alone aside. `zero_shot` measures what pre-training ends with, without contrastive fine-tuning."""

    pairs: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    categories: Sequence[str] | None = None
    benchmarks: Sequence[str] | None = None
    zero_shot: bool = False


EVERYTHING = EmbeddingChoice()


@dataclass(frozen=True)
class EncoderWeights:
    """Weights that later stages start from: those of a stage of pre-training, or of an external model.

    `context` is that of the stage, `most_tokens` what the encoder reads at most, both in tokens; None where nothing
    bounds them.
    """

    id: str
    stage: int
    context: int | None
    most_tokens: int | None
    tokenizer_origin: str
    seed: int
    model: ExternalModel | None = None

    @classmethod
    def of_stage(cls, run: PretrainingRun) -> Self:
        """What a stage of pre-training ends with."""
        recipe = run.recipe
        context = recipe.stages[-1].context
        return cls(run.id, run.stage, context, recipe.longest_context, run.tokenizer_origin, recipe.seed)

    @classmethod
    def of_model(cls, model: ExternalModel) -> Self:
        """An external model."""
        return cls(model.id, 0, model.context, model.context, model.tokenizer_origin, 0, model)


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan, where it lies and how far it is."""

    run: Run
    folder: Path
    state: State

    def decisive(self, embedding: EmbeddingProtocol) -> dict[str, Any]:
        """What of an embedding protocol decides the run: variants with the same pre-training that agree in it share the
        run."""
        return embedding.model_dump(include=set(EMBEDDING_FIELDS.get(self.run.title, ())))


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """The planned runs on one encoder at a scale.

    `name` is what jobs and messages call it: the variant's, or the model's id. `heading` stands above tables. `data_of`
    is the variant whose data it reads, for prefetch. `skipped` names tasks without data and why.
    """

    name: str
    heading: str
    data_of: str
    scale: Scale
    planned: tuple[PlannedRun, ...]
    skipped: Mapping[str, str]

    @property
    def runs(self) -> list[Run]:
        """The specifications of all runs."""
        return [planned.run for planned in self.planned]

    def labels(self, planned: PlannedRun, source: Source) -> dict[str, Any]:
        """What run.json says of a run beside its specification."""
        common = {"scale": self.scale, "data": source.label, "unavailable_tasks": self.skipped}
        return common | current().labels

    def write(self, layout: Layout, source: Source, specification: SourceSpecification, execution: Execution) -> None:
        """Write the run.json of every run, before anything starts."""
        for planned in self.planned:
            write_run_file(layout, planned.run, specification, execution, self.labels(planned, source))


@dataclass(frozen=True, kw_only=True)
class VariantRow(PlanRow):
    """One variant with one seed. Recipes are scaled; `stages` are its runs of pre-training, planned or not."""

    variant: Variant
    seed: int
    recipe: Recipe
    parent_recipe: Recipe | None
    stages: tuple[PretrainingRun, ...]
    vocabulary: Literal["trained", "published"]

    @property
    def title(self) -> str:
        """What the variant changes at this scale and on these data."""
        origins = {"corpus": self.stages[0].corpus_origin, "tokenizer": self.stages[0].tokenizer_origin}
        return change_label(self.variant, self.recipe, self.parent_recipe, origins)

    @property
    def parameters(self) -> int:
        """Parameters of the pre-training model."""
        return parameter_count(self.recipe.pretraining.model, self.recipe.pretraining.longest_context).total

    @property
    def delta(self) -> dict[str, tuple[Any, Any]]:
        """What differs from the parent at this scale: {dotted path: (before, after)}."""
        return {} if self.parent_recipe is None else difference(self.parent_recipe, self.recipe)

    @cached_property
    def _twins(self) -> dict[str, Recipe]:
        """The ladder's variants with the same pre-training at this scale, such as those that differ in the grid."""
        recipes = {name: scaled(variant.recipe, self.scale, self.vocabulary) for name, variant in variants().items()}
        return {name: recipe for name, recipe in recipes.items() if recipe.pretraining == self.recipe.pretraining}

    def labels(self, planned: PlannedRun, source: Source) -> dict[str, Any]:
        """The variants that share the run, and of a stage of pre-training also the first one's parent and changes."""
        wanted = planned.decisive(self.recipe.embedding)
        names = [name for name, twin in self._twins.items() if planned.decisive(twin.embedding) == wanted]
        names += [self.name] if self.name not in names else []
        labels = {"variants": names} | super().labels(planned, source)
        if planned.run.kind != "pretraining":
            return labels
        variant = variants().get(names[0], self.variant)
        recipe, parent = scaled_variant(variant, self.scale, self.vocabulary)
        if variant.parent is None or parent is None:
            return labels | {"parent": None, "delta": {}}
        changes = difference(parent.pretraining, recipe.pretraining)
        delta = {path: list(change) for path, change in changes.items()}
        return labels | {"parent": variant.parent.name, "delta": delta}


@dataclass(frozen=True, kw_only=True)
class ModelRow(PlanRow):
    """An external model with all seeds. `protocol` is the variant whose embedding protocol it gets, None the ladder's.

    Measured like the variants, so that baselines of Tables 3 and 4 can be run again.
    """

    model: ExternalModel
    protocol: Variant | None = None

    def labels(self, planned: PlannedRun, source: Source) -> dict[str, Any]:
        """The name ends in the protocol where another than the ladder's decides the run."""
        model, name = self.model, self.model.name
        if self.protocol is not None:
            protocols = current().root.recipe.embedding, self.protocol.recipe.embedding
            usual, own = (scaled_embedding(self.scale, protocol) for protocol in protocols)
            name += f", {self.protocol.name}" if planned.decisive(usual) != planned.decisive(own) else ""
        named = {"model": name, "model_type": model.model_type, "parameters": model.parameters, "origin": model.origin}
        return named | super().labels(planned, source)

    def write(self, layout: Layout, source: Source, specification: SourceSpecification, execution: Execution) -> None:
        write_model_file(layout, self.model)
        super().write(layout, source, specification, execution)


def plan(
    chosen: Sequence[Variant],
    seeds: Sequence[int],
    scale: Scale,
    source: Source,
    layout: Layout,
    stages: Collection[StageName] = STAGES,
    finetuning_seeds: Sequence[int] | None = None,
    choice: EmbeddingChoice = EVERYTHING,
) -> list[VariantRow]:
    """One row a variant and seed. Data may be missing, except what `choice` names and what mteb reads.

    `finetuning_seeds` are those of fine-tuning; None stands for the seed of pre-training. A variant at a rate that it
    has at the scale anyway is the variant itself.

    Raises:
        MissingData, ValueError: as `embedding_runs`; the scale replaces the rate of a variant's name.
    """
    rows = []
    vocabulary, index = vocabulary_of(source), Index(layout)
    for variant in {each.name: each for each in (at_scale(each, scale) for each in chosen)}.values():
        recipe, parent = scaled_variant(variant, scale, vocabulary)
        for seed in dict.fromkeys(seeds):
            trained = pretraining_runs(recipe.pretraining, seed, source)
            runs: list[Run] = [*trained]
            skipped: dict[str, str] = {}
            tuning_seeds = finetuning_seeds or [seed]
            if "glue" in stages:
                skipped |= _missing_tasks(source)
                runs += [study for each in tuning_seeds for study in variant_studies(recipe, trained, each, source)]
            encoder = EncoderWeights.of_stage(trained[-1])
            if "readouts" in stages:
                runs.append(readout_evaluation(trained[-1], scale, source))
            tuned, reasons = embedding_runs(encoder, recipe.embedding, tuning_seeds, source, stages, choice)
            row = VariantRow(
                name=variant.name,
                heading=f"{variant.name}, seed {seed}, {scale} scale",
                data_of=variant.name,
                scale=scale,
                planned=_planned(index, [*runs, *tuned]),
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
    model: ExternalModel,
    seeds: Sequence[int],
    scale: Scale,
    source: Source,
    layout: Layout,
    stages: Collection[StageName],
    *,
    grid: Grid | None = None,
    choice: EmbeddingChoice = EVERYTHING,
    protocol: str | None = None,
) -> ModelRow:
    """The row of an external model: GLUE studies on `grid`, contrastive fine-tuning and evaluations, once a seed.

    `protocol` names the variant whose embedding protocol it gets; None stands for the ladder's, as that of the grid.

    Raises:
        MissingData, ValueError: as `embedding_runs`; there is nothing to run, or no such variant.
    """
    seeds, encoder = list(dict.fromkeys(seeds)), EncoderWeights.of_model(model)
    variant = None if protocol is None else chosen_variants([protocol])[0]
    usual = current().root.recipe
    runs: list[Run] = []
    skipped: dict[str, str] = {}
    if "glue" in stages:
        skipped |= _missing_tasks(source)
        finetuning, scaled_grid = scaled_measurement(usual.finetuning, grid or usual.grid, scale)
        points = scaled_grid.points()
        runs += [study for seed in seeds for study in glue_studies(encoder, finetuning, points, seed, source)]
    embedding = scaled_embedding(scale, variant.recipe.embedding if variant else usual.embedding)
    tuned, reasons = embedding_runs(encoder, embedding, seeds, source, stages, choice)
    runs += tuned
    if reasons and not runs:
        raise MissingData("; ".join(reasons.values()))
    return ModelRow(
        name=model.id,
        heading=f"{model.name} ({model.id}), {scale} scale",
        data_of=(variant or current().whole).name,
        scale=scale,
        planned=_planned(Index(layout), runs),
        skipped=skipped,
        model=model,
        protocol=variant,
    )


def _planned(index: Index, runs: Iterable[Run]) -> tuple[PlannedRun, ...]:
    return tuple(PlannedRun(run, index.layout.root / run.folder, index.progress(run).state) for run in runs)


def _missing_tasks(source: Source) -> dict[str, str]:
    return {task: reason for task, reason in source.tasks().items() if reason}


def unfinished(rows: Sequence[PlanRow]) -> list[Run]:
    """Every run once that was not done when it was planned; costly pre-training first, so that workers end together."""
    open_runs = {planned.run.id: planned.run for row in rows for planned in row.planned if planned.state != "done"}
    stages = sorted(
        only(open_runs.values(), PretrainingRun),
        key=lambda run: parameter_count(run.recipe.model, run.context).body * run.recipe.stages[-1].tokens,
        reverse=True,
    )
    return [*stages, *(run for run in open_runs.values() if run.kind != "pretraining")]


def with_tasks(row: PlanRow, tasks: Collection[str]) -> PlanRow:
    """A row with the GLUE studies of some tasks, the studies that they start from, and what else is not done."""
    studies = only(row.runs, GlueStudy)
    wanted = {study.id for study in studies if study.task in tasks}
    started_from = {study.starts_from.study for study in studies if study.id in wanted} - wanted
    others = {run.id for run in unfinished([row])} - {study.id for study in studies}
    ordered = [planned for ids in (others, started_from, wanted) for planned in row.planned if planned.run.id in ids]
    return replace(row, planned=tuple(ordered))


# Pre-training and GLUE


def pretraining_runs(recipe: Pretraining, seed: int, source: Source) -> list[PretrainingRun]:
    """One run a stage; each knows its predecessor by id."""
    runs: list[PretrainingRun] = []
    for count in range(1, len(recipe.stages) + 1):
        run = PretrainingRun(
            recipe=recipe.model_copy(update={"stages": recipe.stages[:count], "seed": seed}),
            previous=runs[-1].id if runs else None,
            position_table=recipe.longest_context if recipe.model.positions == "learned" else None,
            corpus_origin=source.corpus_origin(recipe.data.corpus),
            tokenizer_origin=source.tokenizer_origin(recipe.data.tokenizer, recipe.model.vocabulary_size),
        )
        runs.append(run)
    return runs


def variant_studies(recipe: Recipe, trained: Sequence[PretrainingRun], seed: int, source: Source) -> list[GlueStudy]:
    """The studies of every checkpoint that a recipe measures; `trained` are its stages."""
    measured = trained if recipe.checkpoints == "every_stage" else trained[-1:]
    points = recipe.grid.points()
    return [
        study
        for run in measured
        for study in glue_studies(EncoderWeights.of_stage(run), recipe.finetuning, points, seed, source)
    ]


def glue_studies(
    encoder: EncoderWeights, protocol: FineTuning, points: tuple[Point, ...], seed: int, source: Source
) -> list[GlueStudy]:
    """One study a task that the source can fine-tune, MNLI before those that start from it."""
    context = encoder.context or protocol.max_tokens
    transfer_task, transferred = current().transfer_task, current().transferred_tasks
    protocol = protocol.model_copy(update={"max_tokens": min(protocol.max_tokens, context)})
    missing = _missing_tasks(source)
    studies: dict[str, GlueStudy] = {}
    for task in sorted(TASKS, key=lambda name: name != transfer_task):
        if task in missing:
            continue
        start = Start(kind="pretraining", task=None, study=None, rule=None, reason=None)
        if task in transferred and transfer_task in studies:
            study = studies[transfer_task]
            rule = SELECTION_RULES[study.protocol.decisive_metric]
            start = Start(kind="study", task=transfer_task, study=study.id, rule=rule, reason=None)
        elif task in transferred:
            start = start.model_copy(update={"reason": missing[transfer_task]})
        studies[task] = GlueStudy(
            task=task,
            weights=encoder.id,
            stage=encoder.stage,
            context=context,
            protocol=protocol_on(task, protocol, transfers=start.study is not None),
            points=points,
            seed=seed,
            starts_from=start,
            task_origin=source.task_origin(task),
            tokenizer_origin=encoder.tokenizer_origin,
        )
    return list(studies.values())


def protocol_on(task: str, protocol: FineTuning, *, transfers: bool) -> FineTuning:
    """A protocol as far as it decides anything on a task, which starts from another one or not: what cannot matter
    there is neutral, so that variants share the trials in which they agree."""
    scores_once = len(TASKS[task].metrics) == len(TASKS[task].validation_splits) == 1
    idle = [*(["transferred"] if not transfers else []), *(["decisive_metric"] if scores_once else [])]
    return protocol.model_copy(update={name: neutral_values(FineTuning)[name] for name in idle})


def readout_evaluation(run: PretrainingRun, scale: Scale, source: Source) -> ReadoutEvaluation:
    """All readouts of a stage of pre-training, on every corpus of the source, in the context that all variants have."""
    corpora = {}
    for corpus in CORPORA:
        with suppress(MissingData):
            corpora[corpus] = source.corpus_origin(corpus)
    return ReadoutEvaluation(
        readouts=get_args(ReadoutName),
        weights=run.id,
        stage=run.stage,
        context=shortest_context(scale),
        corpora=corpora,
        tokenizer_origin=run.tokenizer_origin,
        seed=run.seed,
    )


# Contrastive fine-tuning and MTEB


def embedding_runs(
    encoder: EncoderWeights,
    embedding: EmbeddingProtocol,
    seeds: Sequence[int],
    source: Source,
    stages: Collection[str],
    choice: EmbeddingChoice,
) -> tuple[list[ContrastiveRun | EmbeddingEvaluation], dict[str, str]]:
    """Contrastive fine-tuning of an encoder, once a seed, and the evaluations behind it; and why there is no
    fine-tuning where its data are missing.

    `embedding` is the protocol at the wanted scale.

    Raises:
        MissingData: pairs that are named are not there, or data that an evaluation needs.
        ValueError: a name is unknown.
    """
    is_measured = "mteb" in stages
    is_tuned = "contrastive" in stages or (is_measured and not choice.zero_shot)
    sets: tuple[PairSet, ...] = ()
    skipped: dict[str, str] = {}
    if is_tuned:
        try:
            sets = pair_sets(source, choice.pairs, embedding.pairs)
        except MissingData as error:
            if choice.pairs is not None:
                raise
            skipped["contrastive"] = str(error)
    tuned = [
        ContrastiveRun(
            weights=encoder.id,
            context=encoder.most_tokens or embedding.contrastive.max_tokens,
            protocol=embedding.contrastive.model_copy(update={"seed": seed}),
            sets=sets,
            tokenizer_origin=encoder.tokenizer_origin,
        )
        for seed in seeds
        if sets
    ]
    if not is_measured:
        return [*tuned], skipped
    if skipped and not choice.zero_shot:
        reason = skipped["contrastive"]
        raise MissingData(f"{reason}; mteb measures what contrastive fine-tuning ends with (--zero-shot: without it)")
    tasks = wanted_tasks(source, choice)
    if choice.zero_shot:
        return [*tuned, zero_shot_evaluation(encoder, embedding, tasks, source)], skipped
    return [*tuned, *(evaluation_after(run, embedding, tasks, source) for run in tuned)], skipped


def pair_sets(source: Source, names: Sequence[str] | None, mix: Mix = "paper") -> tuple[PairSet, ...]:
    """The data sets that are asked for, or all that the source has; of published ones those of the mix.

    Raises:
        MissingData: one is not there, or there is none at all.
        ValueError: the source knows no such name.
    """
    if names is None:
        others = DECLARED_SETS.keys() - set(sets_of(mix))
        names = [name for name in source.pair_sets() if name not in others]
    chosen = tuple(dict.fromkeys(names))
    if not chosen:
        raise MissingData(f"{source.label} holds no data sets of pairs: put parquet files into its folder pairs/")
    return tuple(
        PairSet(
            name=name,
            origin=source.pair_origin(name),
            instruction=source.pair_instruction(name),
            texts_per_pair=DECLARED_SETS[name].texts_per_pair if name in DECLARED_SETS else None,
        )
        for name in chosen
    )


def wanted_tasks(source: Source, choice: EmbeddingChoice) -> tuple[EmbeddingTask, ...]:
    """The source's tasks that are chosen.

    Raises:
        MissingData: the source has none, or not one that is named.
        ValueError: a name is unknown.
    """
    available = source.embedding_tasks()
    if not available:
        raise MissingData(f"{source.label} holds no tasks of embeddings: put their data into its folder mteb/")
    return chosen_tasks(available, choice.tasks, choice.categories, choice.benchmarks)


def evaluation_after(
    run: ContrastiveRun, embedding: EmbeddingProtocol, tasks: Sequence[EmbeddingTask], source: Source
) -> EmbeddingEvaluation:
    """Tasks after contrastive fine-tuning, with the instructions that were trained with.

    Raises:
        MissingData: a task's data are not there.
    """
    measured = MeasuredEncoder(
        weights=run.id,
        pretraining=run.weights,
        protocol="contrastive",
        context=run.max_tokens,
        tokenizer_origin=run.tokenizer_origin,
        seed=run.protocol.seed,
        precision=embedding.precision,
    )
    prompts = (task_prompts(task, run.instructed, embedding.instructions) for task in tasks)
    return EmbeddingEvaluation(encoder=measured, tasks=tuple(map(_on_data, tasks, repeat(source), prompts)))


def zero_shot_evaluation(
    encoder: EncoderWeights, embedding: EmbeddingProtocol, tasks: Sequence[EmbeddingTask], source: Source
) -> EmbeddingEvaluation:
    """Tasks on an encoder as it was pre-trained.

    Texts are as long as after contrastive fine-tuning; an encoder that was never trained with instructions gets none. A
    model of sentence-transformers is measured as its modules.json describes it, with its own prompts.

    Raises:
        MissingData: a task's data are not there.
        ValueError: modules.json describes something that is not supported.
    """
    modules = read_sentence_modules(Path(encoder.model.folder), encoder.model.name) if encoder.model else None
    bounds = [embedding.contrastive.max_tokens, encoder.most_tokens, modules.max_tokens if modules else None]
    measured = MeasuredEncoder(
        weights=encoder.id,
        pretraining=encoder.id,
        protocol="zero_shot",
        context=min(bound for bound in bounds if bound),
        tokenizer_origin=encoder.tokenizer_origin,
        seed=encoder.seed,
        precision=embedding.precision,
    )
    prompts = (modules.task_prompts(task.name, task.category) if modules else {} for task in tasks)
    return EmbeddingEvaluation(encoder=measured, tasks=tuple(map(_on_data, tasks, repeat(source), prompts)))


def _on_data(task: EmbeddingTask, source: Source, prompts: dict[str, str]) -> TaskOnData:
    shared = {name: value for name, value in vars(task).items() if name in TaskOnData.model_fields}
    return TaskOnData(**shared, origin=source.embedding_task_origin(task.name), prompts=prompts)
