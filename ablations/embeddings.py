"""From an encoder to its evaluation on a source's tasks of embeddings, after contrastive fine-tuning or zero-shot."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ablations.contrastive import contrastive_run, pair_sets, scaled_contrastive
from ablations.scales import Scale
from neobert.data.corpora import Source
from neobert.embeddings.specification import ContrastiveRun, PairSet
from neobert.embeddings.suite_specification import EmbeddingEvaluation, MeasuredEncoder, TaskOnData
from neobert.embeddings.tasks import EmbeddingTask, Instructed, chosen_tasks, task_prompts
from neobert.errors import MissingData
from neobert.external import ExternalModel
from neobert.specifications import PretrainingRun


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
    run: PretrainingRun,
    scale: Scale,
    seeds: Sequence[int],
    source: Source,
    parts: Collection[str],
    choice: EmbeddingChoice,
) -> tuple[list[ContrastiveRun | EmbeddingEvaluation], dict[str, str]]:
    """Contrastive fine-tuning of what a stage ends with, once a seed, and the evaluations behind it; and why there is
    no fine-tuning where the data for it are missing.

    Raises:
        MissingData: pairs that are named are not there, or data that an evaluation needs.
        ValueError: a name is nobody's.
    """
    is_measured = "mteb" in parts
    if "contrastive" not in parts and (choice.zero_shot or not is_measured):
        tuned, reason = [], ""
    else:
        sets, reason = _pair_sets(source, choice.pairs)
        tuned = [contrastive_run(run, scale, seed, sets) for seed in seeds if sets]
    if not is_measured:
        return [*tuned], {"contrastive": reason} if reason else {}
    tasks = wanted_tasks(source, choice.tasks, choice.categories)
    if choice.zero_shot:
        return [*tuned, zero_shot_evaluation(run, scale, tasks, source)], {"contrastive": reason} if reason else {}
    if reason:
        raise MissingData(f"{reason}; mteb measures what contrastive fine-tuning ends with (--zero-shot: without it)")
    return [*tuned, *(evaluation_after(each, tasks, source) for each in tuned)], {}


def _pair_sets(source: Source, names: Sequence[str] | None) -> tuple[tuple[PairSet, ...], str]:
    """The data sets of pairs, or why there are none; one that is named must be there."""
    try:
        return pair_sets(source, names), ""
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


def evaluation_after(run: ContrastiveRun, tasks: Sequence[EmbeddingTask], source: Source) -> EmbeddingEvaluation:
    """Tasks on what contrastive fine-tuning ends with, told as it was told in training.

    Raises:
        MissingData: a task's data are not there.
    """
    encoder = MeasuredEncoder(
        weights=run.id,
        pretraining=run.weights,
        protocol="contrastive",
        context=run.max_tokens,
        tokenizer_origin=run.tokenizer_origin,
        seed=run.protocol.seed,
    )
    return EmbeddingEvaluation(encoder=encoder, tasks=_on_data(tasks, source, run.protocol.instructed))


def zero_shot_evaluation(
    run: PretrainingRun, scale: Scale, tasks: Sequence[EmbeddingTask], source: Source
) -> EmbeddingEvaluation:
    """Tasks on what a stage of pre-training ends with.

    Texts are as long as after contrastive fine-tuning; an encoder that never saw an instruction is told none.

    Raises:
        MissingData: a task's data are not there.
    """
    encoder = MeasuredEncoder(
        weights=run.id,
        pretraining=run.id,
        protocol="zero_shot",
        context=min(run.recipe.longest_context, scaled_contrastive(scale, 0).max_tokens),
        tokenizer_origin=run.tokenizer_origin,
        seed=run.recipe.seed,
    )
    return EmbeddingEvaluation(encoder=encoder, tasks=_on_data(tasks, source, "nothing"))


def zero_shot_evaluation_of_model(
    model: ExternalModel, scale: Scale, tasks: Sequence[EmbeddingTask], source: Source
) -> EmbeddingEvaluation:
    """Tasks on a model from elsewhere; texts are no longer than it reads."""
    most_tokens = scaled_contrastive(scale, 0).max_tokens
    encoder = MeasuredEncoder(
        weights=model.id,
        pretraining=model.id,
        protocol="zero_shot",
        context=min(model.context or most_tokens, most_tokens),
        tokenizer_origin=model.tokenizer_origin,
        seed=0,
    )
    return EmbeddingEvaluation(encoder=encoder, tasks=_on_data(tasks, source, "nothing"))


def _on_data(tasks: Sequence[EmbeddingTask], source: Source, instructed: Instructed) -> tuple[TaskOnData, ...]:
    return tuple(
        TaskOnData(
            name=task.name,
            category=task.category,
            suite=task.suite,
            metric=task.metric,
            split=task.split,
            members=task.members,
            origin=source.embedding_task_origin(task.name),
            prompts=task_prompts(task, instructed),
        )
        for task in tasks
    )
