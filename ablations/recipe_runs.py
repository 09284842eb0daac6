"""Specifications of the runs of a recipe, or of an external model measured with one: pre-training, GLUE studies,
readouts, contrastive fine-tuning and tasks of MTEB."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, get_args

from ablations.ladders import Ladder
from ablations.scales import Scale
from ablations.scaling import rules_of, shortest_context
from ablations.variant import EmbeddingProtocol, Recipe
from neobert.data.mteb_tasks import EmbeddingTask, TaskOnData, chosen_tasks, task_prompts
from neobert.data.pairs import DECLARED_SETS, Mix, sets_of
from neobert.data.sources import NoCorpus, Source
from neobert.data.task_files import PAIRS_OF_A_PARADIGM
from neobert.errors import MissingData
from neobert.external import MODULES, ExternalModel
from neobert.glue.task_data import data_origin, missing_data
from neobert.glue.tasks import SELECTION_RULES, Task
from neobert.identity import neutral_values
from neobert.kinds.contrastive import ContrastiveRun, PairSet
from neobert.kinds.glue import GlueStudy, TrialStart
from neobert.kinds.mteb import EmbeddingEvaluation, MeasuredEncoder
from neobert.kinds.pretraining import PretrainingRun
from neobert.kinds.readouts import BLIMP, ReadoutEvaluation, ReadoutName
from neobert.recipe import FineTuning, Point, Pretraining
from neobert.runs.kinds import Run


@dataclass(frozen=True)
class EmbeddingChoice:
    """Names of the data that the stages contrastive and mteb read.

    None means everything that the source has, except tasks that are only in MTEB(eng, v2). `zero_shot` measures the
    pre-trained encoder without contrastive fine-tuning.
    """

    pairs: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    benchmarks: Sequence[str] | None = None
    zero_shot: bool = False


EVERYTHING = EmbeddingChoice()


@dataclass(frozen=True)
class EncoderWeights:
    """Weights that later stages start from: those of a pre-training stage or of an external model.

    `context` is the context of the stage, `most_tokens` the longest input of the encoder, both in tokens; None means
    unbounded.
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
        """Return the final weights of a pre-training stage."""
        recipe = run.recipe
        context = recipe.stages[-1].context
        return cls(run.id, run.stage, context, recipe.longest_context, run.tokenizer_origin, recipe.seed)

    @classmethod
    def of_model(cls, model: ExternalModel) -> Self:
        """Return the weights of an external model."""
        return cls(model.id, 0, model.context, model.context, model.tokenizer_origin, 0, model)


# Pre-training and GLUE


def missing_tasks(ladder: Ladder, source: Source) -> dict[str, str]:
    """Return the tasks of GLUE among the ladder's that cannot be fine-tuned with a source, and why.

    Raises:
        MissingData: files of one of the ladder's own tasks are not there.
    """
    tasks = ladder.tasks
    missing = missing_data(list(tasks.values()), source)
    for name in filter(lambda each: tasks[each].is_own, missing):
        place = Path(tasks[name].folder).parent
        raise MissingData(f"task {missing[name]} of {place}: put the files there, or take the task out of TASKS")
    return missing


def pretraining_runs(recipe: Pretraining, seed: int, source: Source) -> list[PretrainingRun]:
    """Return one run per stage; each names its predecessor by id."""
    runs: list[PretrainingRun] = []
    for count in range(1, len(recipe.stages) + 1):
        run = PretrainingRun(
            recipe=recipe.model_copy(update={"stages": recipe.stages[:count], "seed": seed}),
            previous=runs[-1].id if runs else None,
            position_table=None if recipe.model.positions == "rotary" else recipe.longest_context,
            corpus_origin=source.corpus_origin(recipe.data.corpus),
            tokenizer_origin=source.tokenizer_origin(recipe.data.tokenizer, recipe.model.vocabulary_size),
        )
        runs.append(run)
    return runs


def variant_studies(
    ladder: Ladder, recipe: Recipe, trained: Sequence[PretrainingRun], seed: int, source: Source
) -> list[GlueStudy]:
    """Return the studies of every checkpoint that a recipe measures; `trained` are its stages."""
    measured = trained if recipe.checkpoints == "every_stage" else trained[-1:]
    points = recipe.grid.points()
    return [
        study
        for run in measured
        for study in glue_studies(ladder, EncoderWeights.of_stage(run), recipe.finetuning, points, seed, source)
    ]


def glue_studies(
    ladder: Ladder, encoder: EncoderWeights, protocol: FineTuning, points: tuple[Point, ...], seed: int, source: Source
) -> list[GlueStudy]:
    """Return one study per task of the ladder that has data, MNLI before the tasks that start from it."""
    context = encoder.context or protocol.max_tokens
    protocol = protocol.model_copy(update={"max_tokens": min(protocol.max_tokens, context)})
    missing = missing_tasks(ladder, source)
    studies: dict[str, GlueStudy] = {}
    for task in _in_order(ladder):
        if task in missing:
            continue
        about = ladder.tasks[task]
        start = TrialStart(kind="pretraining", task=None, study=None, rule=None, reason=None)
        before = about.starts_from
        if before is not None and before in studies:
            study = studies[before]
            rule = SELECTION_RULES[study.protocol.decisive_metric]
            start = TrialStart(kind="study", task=before, study=study.id, rule=rule, reason=None)
        elif before is not None:
            reason = missing.get(before, f"{before} is none of the ladder's tasks")
            start = start.model_copy(update={"reason": reason})
        studies[task] = GlueStudy(
            task=task,
            weights=encoder.id,
            stage=encoder.stage,
            context=context,
            protocol=protocol_on(about, protocol, transfers=start.study is not None),
            points=points,
            seed=seed,
            starts_from=start,
            task_origin=data_origin(about, source),
            tokenizer_origin=encoder.tokenizer_origin,
            own_task=about if about.is_own else None,
        )
    return list(studies.values())


def _in_order(own: Ladder) -> list[str]:
    """Return the tasks of a ladder, those that others start from first."""
    befores = [task.starts_from for task in own.tasks.values()]

    def depth(task: str) -> int:
        before = own.tasks[task].starts_from if task in own.tasks else None
        return 0 if before is None else 1 + depth(before)

    return sorted(own.tasks, key=lambda task: depth(task) if task in befores else len(befores))


def protocol_on(task: Task, protocol: FineTuning, *, transfers: bool) -> FineTuning:
    """Return the protocol with neutral values for the fields that have no effect on a task.

    Variants therefore share trials that only differ in such fields. `transfers` is True if the task starts from
    another one.
    """
    scores_once = len(task.metrics) == len(task.validation_splits) == 1
    idle = [*([] if transfers else ["transferred"]), *(["decisive_metric"] if scores_once else [])]
    return protocol.model_copy(update={name: neutral_values(FineTuning)[name] for name in idle})


PAIRS_PER_PARADIGM = 40
"""Number of pairs of each paradigm of BLiMP that small scales read, the first of its file; others read all."""

PERPLEXITY: tuple[ReadoutName, ...] = ("perplexity",)
"""The readout of the stage `perplexity`, at lengths of its own."""
LENGTHS_OF_CONTEXT = 4
"""Pseudo-perplexity is measured up to so many times the context of the stage, unless positions are learned."""


def readout_evaluations(ladder: Ladder, run: PretrainingRun, scale: Scale, source: Source) -> list[ReadoutEvaluation]:
    """Return the readouts of a pre-training stage in the shortest context of a scale, all but pseudo-perplexity; BLiMP
    only if the source has it. Each has an evaluation of its own, so that adding one changes no id."""
    context, rules = shortest_context(ladder, scale), rules_of(ladder, scale)
    of_text = [name for name in get_args(ReadoutName) if name not in (*PERPLEXITY, BLIMP)]
    evaluations = [_evaluation(run, (name,), context, _corpora(source)) for name in of_text]
    with suppress(NoCorpus):
        blimp = {str(BLIMP): source.blimp_origin()}
        pairs = PAIRS_OF_A_PARADIGM if rules is None or rules.large else PAIRS_PER_PARADIGM
        evaluations.append(_evaluation(run, (BLIMP,), context, blimp, pairs))
    return evaluations


def perplexity_evaluations(trained: Sequence[PretrainingRun], source: Source) -> list[ReadoutEvaluation]:
    """Return the pseudo-perplexity of each stage of pre-training by length of the text."""
    longest = [run.position_table or LENGTHS_OF_CONTEXT * run.recipe.stages[-1].context for run in trained]
    corpora = _corpora(source)
    return [_evaluation(run, PERPLEXITY, context, corpora) for run, context in zip(trained, longest, strict=True)]


def missing_readouts(source: Source, stages: Collection[str]) -> dict[str, str]:
    """Return the readouts of some stages of a command that cannot be measured with a source, and why."""
    if "readouts" in stages:
        try:
            source.blimp_origin()
        except NoCorpus as error:
            return {BLIMP: str(error)}
    return {}


def _corpora(source: Source) -> dict[str, str]:
    corpora = {}
    for corpus in source.corpora:
        with suppress(MissingData):
            corpora[corpus] = source.corpus_origin(corpus)
    return corpora


def _evaluation(
    run: PretrainingRun,
    readouts: tuple[ReadoutName, ...],
    context: int,
    corpora: dict[str, str],
    pairs_per_paradigm: int | None = None,
) -> ReadoutEvaluation:
    """Return readouts of a pre-training stage."""
    return ReadoutEvaluation(
        readouts=readouts,
        weights=run.id,
        stage=run.stage,
        context=context,
        corpora=corpora,
        tokenizer_origin=run.tokenizer_origin,
        pairs_per_paradigm=pairs_per_paradigm,
        seed=run.seed,
    )


@dataclass(frozen=True)
class Planning:
    """What the runs after pre-training are planned from. `seeds` are those of fine-tuning."""

    ladder: Ladder
    recipe: Recipe
    trained: Sequence[PretrainingRun]
    seeds: Sequence[int]
    scale: Scale
    source: Source


PLANNERS: Mapping[str, Callable[[Planning], Sequence[Run]]] = {
    "glue": lambda its: [
        study for seed in its.seeds for study in variant_studies(its.ladder, its.recipe, its.trained, seed, its.source)
    ],
    "readouts": lambda its: readout_evaluations(its.ladder, its.trained[-1], its.scale, its.source),
    "perplexity": lambda its: perplexity_evaluations(its.trained, its.source),
}
"""For each stage of a command, the runs of a variant. `embedding_runs` plans contrastive and mteb, which belong
together."""


# Contrastive fine-tuning and MTEB


def embedding_runs(
    encoder: EncoderWeights,
    embedding: EmbeddingProtocol,
    seeds: Sequence[int],
    source: Source,
    stages: Collection[str],
    choice: EmbeddingChoice,
) -> tuple[list[ContrastiveRun | EmbeddingEvaluation], dict[str, str]]:
    """Return the contrastive runs of an encoder, one per seed, and the evaluations after them.

    The second value says why there is no fine-tuning if its data are missing. `embedding` is the protocol at the
    scale.

    Raises:
        MissingData: named pairs, or data that an evaluation needs, are not there.
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
    """Return the named data sets, or all that the source has; of published ones only those of the mix.

    Raises:
        MissingData: one is not there, or there is none at all.
        ValueError: the source has no data set of this name.
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
    """Return the chosen tasks of the source.

    Raises:
        MissingData: the source has no tasks, or lacks one that is named.
        ValueError: a name is unknown.
    """
    available = source.embedding_tasks()
    if not available:
        raise MissingData(f"{source.label} holds no tasks of embeddings: prefetch them (--stages mteb)")
    return chosen_tasks(available, choice.tasks, choice.benchmarks)


def evaluation_after(
    run: ContrastiveRun, embedding: EmbeddingProtocol, tasks: Sequence[EmbeddingTask], source: Source
) -> EmbeddingEvaluation:
    """Return the evaluation after contrastive fine-tuning, with instructions as in training. Raises MissingData if a
    task's data are not there."""
    encoder = MeasuredEncoder(
        weights=run.id,
        pretraining=run.weights,
        protocol="contrastive",
        context=run.max_tokens,
        tokenizer_origin=run.tokenizer_origin,
        seed=run.protocol.seed,
        precision=embedding.precision,
    )
    prompts = {task.name: task_prompts(task, run.instructed, embedding.instructions) for task in tasks}
    return EmbeddingEvaluation(encoder=encoder, tasks=_on_data(tasks, source, prompts))


def zero_shot_evaluation(
    encoder: EncoderWeights, embedding: EmbeddingProtocol, tasks: Sequence[EmbeddingTask], source: Source
) -> EmbeddingEvaluation:
    """Return the evaluation of an encoder as it was pre-trained.

    Texts have the same maximum length as after contrastive fine-tuning. An encoder that was never trained with
    instructions gets none.

    Raises:
        MissingData: a task's data are not there.
        ValueError: sentence-transformers makes the model's vectors.
    """
    if encoder.model and (Path(encoder.model.folder) / MODULES).is_file():
        raise ValueError(
            f"{encoder.model.name} has a {MODULES}: measure it by mteb's own command, or leave that file out of a copy "
            "to measure the mean of its hidden states"
        )
    bounds = [embedding.contrastive.max_tokens, encoder.most_tokens]
    measured = MeasuredEncoder(
        weights=encoder.id,
        pretraining=encoder.id,
        protocol="zero_shot",
        context=min(bound for bound in bounds if bound),
        tokenizer_origin=encoder.tokenizer_origin,
        seed=encoder.seed,
        precision=embedding.precision,
    )
    return EmbeddingEvaluation(encoder=measured, tasks=_on_data(tasks, source, {}))


def _on_data(
    tasks: Sequence[EmbeddingTask], source: Source, prompts: Mapping[str, dict[str, str]]
) -> tuple[TaskOnData, ...]:
    return tuple(
        TaskOnData(
            **{name: value for name, value in vars(task).items() if name in TaskOnData.model_fields},
            origin=source.embedding_task_origin(task.name),
            prompts=prompts.get(task.name, {}),
        )
        for task in tasks
    )
