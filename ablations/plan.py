"""The plan of a selection of variants: every unit with its id, folder and state. Reads only; needs no torch."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablations.designs import known_names, named
from ablations.ladder import (
    EMBEDDING_PROTOCOL,
    GLUE_PROTOCOL,
    TRANSFER_TASK,
    TRANSFERRED_TASKS,
    variants,
)
from ablations.scales import (
    Scale,
    Vocabulary,
    scaled,
    scaled_embedding,
    scaled_measurement,
    scaled_variant,
    vocabulary_of,
)
from ablations.variant import Embedding, Recipe, Variant, change_label
from neobert.data.mteb_tasks import EmbeddingTask, Wording, chosen_tasks, task_prompts
from neobert.data.pairs import DECLARED_SETS, Mix, sets_of
from neobert.data.sources import Source
from neobert.embeddings.sentence_modules import read_sentence_modules
from neobert.errors import MissingData, did_you_mean
from neobert.external import ExternalModel, write_model_file
from neobert.glue.tasks import SELECTION_RULES, TASKS
from neobert.identity import difference, neutral_values
from neobert.model.size import parameter_count, training_flops_per_token
from neobert.recipe import Contrastive, FineTuning, Grid, Instructed, Point, Pretraining
from neobert.runs.index import State, state_of
from neobert.runs.layout import Layout
from neobert.runs.specifications import (
    ContrastiveRun,
    EmbeddingEvaluation,
    Execution,
    GlueStudy,
    MeasuredEncoder,
    PairSet,
    PretrainingRun,
    Run,
    Start,
    TaskOnData,
    run_folder,
    write_run_file,
)
from neobert.runs.specifications import Source as SourceSpecification


@dataclass(frozen=True)
class Checkpoint:
    """Pre-trained weights that are to be measured: their name, what they were trained on at last (`stage`, `context`
    in tokens), and by which protocol, at which points and with which seed."""

    weights: str
    stage: int
    context: int
    tokenizer_origin: str
    protocol: FineTuning
    points: tuple[Point, ...]
    seed: int


def pretraining_runs(recipe: Pretraining, seed: int, source: Source) -> list[PretrainingRun]:
    """One run a stage; each knows its predecessor by id."""
    runs: list[PretrainingRun] = []
    model, data = recipe.model, recipe.data
    for count in range(1, len(recipe.stages) + 1):
        runs.append(
            PretrainingRun(
                recipe=recipe.model_copy(update={"stages": recipe.stages[:count], "seed": seed}),
                previous=runs[-1].id if runs else None,
                position_table=recipe.longest_context if model.positions == "learned" else None,
                corpus_origin=source.corpus_origin(data.corpus),
                tokenizer_origin=source.tokenizer_origin(data.tokenizer, model.vocabulary_size),
            )
        )
    return runs


def measured_checkpoints(recipe: Recipe, runs: list[PretrainingRun], seed: int) -> list[Checkpoint]:
    """The checkpoints that the variant's GLUE grid runs on."""
    chosen = runs if recipe.checkpoints == "every_stage" else runs[-1:]
    return [
        Checkpoint(
            weights=run.id,
            stage=run.stage,
            context=run.recipe.stages[-1].context,
            tokenizer_origin=run.tokenizer_origin,
            protocol=recipe.finetuning,
            points=recipe.grid.points(),
            seed=seed,
        )
        for run in chosen
    ]


def glue_studies(checkpoint: Checkpoint, source: Source) -> list[GlueStudy]:
    """One study a task that the source can fine-tune, MNLI before those that start from it."""
    missing = {task: reason for task, reason in source.tasks().items() if reason is not None}
    pretrained = Start(kind="pretraining", task=None, study=None, rule=None, reason=None)
    studies: dict[str, GlueStudy] = {}
    for task in sorted(TASKS, key=lambda name: name != TRANSFER_TASK):
        if task in missing:
            continue
        start = pretrained
        if task in TRANSFERRED_TASKS and TRANSFER_TASK in studies:
            study = studies[TRANSFER_TASK]
            rule = SELECTION_RULES[study.protocol.decisive_metric]
            start = Start(kind="study", task=TRANSFER_TASK, study=study.id, rule=rule, reason=None)
        elif task in TRANSFERRED_TASKS:
            start = pretrained.model_copy(update={"reason": missing[TRANSFER_TASK]})
        studies[task] = _study(checkpoint, task, start, source)
    return list(studies.values())


def protocol_on(task: str, protocol: FineTuning, *, transfers: bool) -> FineTuning:
    """A protocol as far as it decides anything on a task, which starts from another one or not: what cannot matter
    there is neutral, so that variants share the trials in which they agree."""
    scores_once = len(TASKS[task].metrics) == len(TASKS[task].validation_splits) == 1
    idle = [*(["transferred"] if not transfers else []), *(["decisive_metric"] if scores_once else [])]
    return protocol.model_copy(update={name: neutral_values(FineTuning)[name] for name in idle})


def _study(checkpoint: Checkpoint, task: str, start: Start, source: Source) -> GlueStudy:
    return GlueStudy(
        task=task,
        weights=checkpoint.weights,
        stage=checkpoint.stage,
        context=checkpoint.context,
        protocol=protocol_on(task, checkpoint.protocol, transfers=start.study is not None),
        points=checkpoint.points,
        seed=checkpoint.seed,
        starts_from=start,
        task_origin=source.task_origin(task),
        tokenizer_origin=checkpoint.tokenizer_origin,
    )


Encoder = PretrainingRun | ExternalModel


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


def context_of(encoder: Encoder, most_tokens: int) -> int:
    """Tokens that an encoder reads: as many as its pre-training taught, or those of a model from elsewhere, which may
    bound nothing: then `most_tokens`."""
    if isinstance(encoder, PretrainingRun):
        return encoder.recipe.longest_context
    return encoder.context or most_tokens


def contrastive_run(encoder: Encoder, protocol: Contrastive, seed: int, sets: Sequence[PairSet]) -> ContrastiveRun:
    """Contrastive fine-tuning of what a stage of pre-training ends with, or of a model from elsewhere."""
    return ContrastiveRun(
        weights=encoder.id,
        context=context_of(encoder, protocol.max_tokens),
        protocol=protocol.model_copy(update={"seed": seed}),
        sets=tuple(sets),
        tokenizer_origin=encoder.tokenizer_origin,
    )


@dataclass(frozen=True)
class EmbeddingChoice:
    """What the stages contrastive and mteb read, by names; None stands for all that the source has. `zero_shot`
    measures what pre-training ends with, without contrastive fine-tuning."""

    pairs: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    categories: Sequence[str] | None = None
    zero_shot: bool = False


EVERYTHING = EmbeddingChoice()


def embedding_runs(
    encoder: Encoder,
    embedding: Embedding,
    seeds: Sequence[int],
    source: Source,
    parts: Collection[str],
    choice: EmbeddingChoice,
) -> tuple[list[ContrastiveRun | EmbeddingEvaluation], dict[str, str]]:
    """Contrastive fine-tuning of an encoder, once a seed, and the evaluations behind it; and why there is none of it
    where the data for it are missing. `embedding` is the protocol at the wanted scale.

    Raises:
        MissingData: pairs that are named are not there, or data that an evaluation needs.
        ValueError: a name is nobody's.
    """
    is_measured = "mteb" in parts
    is_tuned = "contrastive" in parts or (is_measured and not choice.zero_shot)
    sets, reason = _pair_sets(source, choice.pairs, embedding.pairs) if is_tuned else ((), "")
    tuned = [contrastive_run(encoder, embedding.contrastive, seed, sets) for seed in seeds if sets]
    skipped = {"contrastive": reason} if reason else {}
    if not is_measured:
        return [*tuned], skipped
    if reason and not choice.zero_shot:
        raise MissingData(f"{reason}; mteb measures what contrastive fine-tuning ends with (--zero-shot: without it)")
    tasks = wanted_tasks(source, choice.tasks, choice.categories)
    if choice.zero_shot:
        return [*tuned, zero_shot_evaluation(encoder, embedding, tasks, source)], skipped
    return [*tuned, *(evaluation_after(run, embedding, tasks, source) for run in tuned)], skipped


def _pair_sets(source: Source, names: Sequence[str] | None, mix: Mix) -> tuple[tuple[PairSet, ...], str]:
    """The data sets of pairs, or why there are none; one that is named must be there."""
    try:
        return pair_sets(source, names, mix), ""
    except MissingData as error:
        if names is not None:
            raise
        return (), str(error)


def wanted_tasks(
    source: Source, names: Sequence[str] | None, categories: Sequence[str] | None
) -> tuple[EmbeddingTask, ...]:
    """The tasks of a source that are asked for; None stands for all.

    Raises:
        MissingData: the source has none, or not one that is named.
        ValueError: a name is nobody's.
    """
    available = source.embedding_tasks()
    if not available:
        raise MissingData(f"{source.label} holds no tasks of embeddings: put their data into its folder mteb/")
    return chosen_tasks(available, names, categories)


def evaluation_after(
    run: ContrastiveRun, embedding: Embedding, tasks: Sequence[EmbeddingTask], source: Source
) -> EmbeddingEvaluation:
    """Tasks on what contrastive fine-tuning ends with; it is told what it was told in training, nothing where no data
    set of pairs had an instruction.

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
    prompted = _on_data(tasks, source, run.instructed, embedding.instructions)
    return EmbeddingEvaluation(encoder=measured, tasks=prompted)


def zero_shot_evaluation(
    encoder: Encoder, embedding: Embedding, tasks: Sequence[EmbeddingTask], source: Source
) -> EmbeddingEvaluation:
    """Tasks on what a stage of pre-training ends with, or on a model from elsewhere.

    Texts are as long as after contrastive fine-tuning; an encoder that never saw an instruction is told none. A model
    of sentence-transformers is measured as its modules.json describes it, with its own prompts.

    Raises:
        MissingData: a task's data are not there.
        ValueError: its modules are not read here.
    """
    modules = read_sentence_modules(Path(encoder.folder), encoder.name) if isinstance(encoder, ExternalModel) else None
    most_tokens = embedding.contrastive.max_tokens
    if modules and modules.max_tokens:
        most_tokens = min(most_tokens, modules.max_tokens)
    measured = MeasuredEncoder(
        weights=encoder.id,
        pretraining=encoder.id,
        protocol="zero_shot",
        context=min(context_of(encoder, most_tokens), most_tokens),
        tokenizer_origin=encoder.tokenizer_origin,
        seed=encoder.recipe.seed if isinstance(encoder, PretrainingRun) else 0,
        precision=embedding.precision,
    )
    told = _on_data(tasks, source, "nothing", embedding.instructions)
    if modules:
        told = tuple(
            task.model_copy(update={"prompts": modules.task_prompts(task.name, task.category)}) for task in told
        )
    return EmbeddingEvaluation(encoder=measured, tasks=told)


def _on_data(
    tasks: Sequence[EmbeddingTask], source: Source, instructed: Instructed, wording: Wording
) -> tuple[TaskOnData, ...]:
    return tuple(
        TaskOnData(
            name=task.name,
            category=task.category,
            suite=task.suite,
            metric=task.metric,
            split=task.split,
            members=task.members,
            origin=source.embedding_task_origin(task.name),
            prompts=task_prompts(task, instructed, wording),
        )
        for task in tasks
    )


NamedRun = tuple[str, Run]
Part = Literal["pretrain", "glue", "contrastive", "mteb", "perplexity"]
PARTS: tuple[Part, ...] = ("pretrain", "glue")


@dataclass(frozen=True)
class PlannedUnit:
    """A stage of pre-training, a GLUE study, a run of contrastive fine-tuning or an evaluation on tasks of embeddings,
    where it lies and how far it is."""

    run: Run
    folder: Path
    state: State

    @property
    def kind(self) -> str:
        """The word for it in listings."""
        if isinstance(self.run, GlueStudy):
            return f"glue {self.run.task}"
        if isinstance(self.run, ContrastiveRun):
            return "contrastive"
        if isinstance(self.run, EmbeddingEvaluation):
            return f"mteb {self.run.encoder.protocol}"
        return f"pretraining stage {self.run.stage + 1}"


@dataclass(frozen=True)
class Row:
    """One variant with one seed. Recipes are scaled; `skipped` names tasks without data and why."""

    variant: Variant
    seed: int
    scale: Scale
    recipe: Recipe
    parent_recipe: Recipe | None
    units: tuple[PlannedUnit, ...]
    skipped: dict[str, str]

    @property
    def title(self) -> str:
        """What the variant changes at this scale and on these data."""
        trained = [unit.run for unit in self.units if isinstance(unit.run, PretrainingRun)]
        origins = {"corpus": trained[0].corpus_origin, "tokenizer": trained[0].tokenizer_origin} if trained else {}
        return change_label(self.variant, self.recipe, self.parent_recipe, origins)

    @property
    def parameters(self) -> int:
        """Parameters of the pre-training model."""
        return parameter_count(self.recipe.pretraining.model, self.recipe.pretraining.longest_context).total

    @property
    def flops(self) -> float:
        """Floating-point operations of pre-training, if every slot held a token."""
        model, rate = self.recipe.pretraining.model, self.recipe.pretraining.masking.rate
        stages = self.recipe.pretraining.stages
        return float(sum(training_flops_per_token(model, stage.context, rate) * stage.tokens for stage in stages))

    @property
    def delta(self) -> dict[str, tuple[Any, Any]]:
        """What differs from the parent at this scale: {dotted path: (before, after)}."""
        return {} if self.parent_recipe is None else difference(self.parent_recipe, self.recipe)

    def summary(self) -> dict[str, Any]:
        """The row of `--dry-run --json`."""
        return {
            "variant": self.variant.name,
            "seed": self.seed,
            "scale": self.scale,
            "parameters": self.parameters,
            "tokens": self.recipe.pretraining.tokens,
            "flops": self.flops,
            "delta": {path: list(change) for path, change in self.delta.items()},
            "stages": [
                {"kind": unit.kind, "id": unit.run.id, "state": unit.state, "folder": str(unit.folder)}
                for unit in self.units
            ],
            "skipped": self.skipped,
        }


def chosen_variants(names: Sequence[str]) -> list[Variant]:
    """Variants by name, `all` (the ladder) or a range such as M0..M5, each once, in the order of the ladder; those of
    designs (M9-norm, F:positions+norm) behind them.

    Raises:
        ValueError: a name is unknown.
    """
    known = variants()
    on_ladder = [name for name in known if "@" not in name]
    chosen: set[str] = set()
    of_designs: dict[str, Variant] = {}
    for name in names:
        first, dots, last = name.partition("..")
        if name == "all":
            chosen.update(on_ladder)
        elif dots:
            ends = [on_ladder.index(_known(end, on_ladder)) for end in (first, last)]
            if ends[0] > ends[1]:
                raise ValueError(
                    f"{name} names no variant, as {last} comes before {first}: did you mean {last}..{first}?"
                )
            chosen.update(on_ladder[ends[0] : ends[1] + 1])
        elif name not in known and (variant := named(name)):
            of_designs[name] = variant
        else:
            chosen.add(_known(name, [*known, *known_names()]))
    return [*(variant for name, variant in known.items() if name in chosen), *of_designs.values()]


def _known(name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ValueError(f"there is no variant {name!r}: {did_you_mean(name, names)} (all: run.py --list)")
    return name


def plan(
    chosen: Sequence[Variant],
    seeds: Sequence[int],
    scale: Scale,
    source: Source,
    layout: Layout,
    parts: Sequence[Part] = PARTS,
    finetuning_seeds: Sequence[int] | None = None,
    choice: EmbeddingChoice = EVERYTHING,
) -> list[Row]:
    """One row a variant and seed. Never fails for missing data but of what `choice` names and of what mteb reads.

    `finetuning_seeds` are those of fine-tuning; None stands for the seed of pre-training.
    `choice` says which pairs and tasks of embeddings.

    Raises:
        MissingData, ValueError: as `embedding_runs`.
    """
    rows = []
    for variant in chosen:
        recipe, parent = scaled_variant(variant, scale, vocabulary_of(source))
        for seed in seeds:
            runs = pretraining_runs(recipe.pretraining, seed, source)
            units: list[Run] = [*runs]
            skipped: dict[str, str] = {}
            if "glue" in parts:
                skipped.update({task: reason for task, reason in source.tasks().items() if reason})
                for finetuning_seed in finetuning_seeds or [seed]:
                    checkpoints = measured_checkpoints(recipe, runs, finetuning_seed)
                    units += [study for each in checkpoints for study in glue_studies(each, source)]
            embedded, reasons = embedding_runs(
                runs[-1], recipe.embedding, finetuning_seeds or [seed], source, parts, choice
            )
            units += embedded
            skipped |= reasons
            planned = tuple(PlannedUnit(run, run_folder(layout, run), state_of(layout, run)) for run in units)
            rows.append(Row(variant, seed, scale, recipe, parent, planned, skipped))
    return rows


def sharing(recipe: Recipe, scale: Scale, vocabulary: Vocabulary, run: Run | None = None) -> list[str]:
    """The ladder's variants with the same pre-training at a scale, as M9 and M10 share their weights; those of a run of
    embeddings also have its protocol."""
    others = ((name, scaled(variant.recipe, scale, vocabulary)) for name, variant in variants().items())
    wanted = decisive_for(run, recipe.embedding)
    return [
        name
        for name, other in others
        if other.pretraining == recipe.pretraining and decisive_for(run, other.embedding) == wanted
    ]


def decisive_for(run: Run | None, protocol: Embedding) -> tuple[Any, ...]:
    """What a run takes from a protocol of embeddings."""
    if isinstance(run, ContrastiveRun):
        return protocol.contrastive, protocol.pairs
    if isinstance(run, EmbeddingEvaluation) and run.encoder.protocol == "contrastive":
        return (protocol,)
    return (protocol.precision,) if isinstance(run, EmbeddingEvaluation) else ()


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
        from ablations.checks import require_data_of_model

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
