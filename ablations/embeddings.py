"""From an encoder to its evaluation on a source's tasks of embeddings, after contrastive fine-tuning or zero-shot."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.contrastive import Encoder, context_of, contrastive_run, pair_sets
from ablations.modification import Embedding
from neobert.data.mteb_tasks import EmbeddingTask, Wording, chosen_tasks, task_prompts
from neobert.data.pairs import Mix
from neobert.data.sources import Source
from neobert.errors import MissingData
from neobert.external import ExternalModel
from neobert.recipe import Instructed
from neobert.runs.specifications import (
    ContrastiveRun,
    EmbeddingEvaluation,
    MeasuredEncoder,
    PairSet,
    PretrainingRun,
    TaskOnData,
)
from neobert.sentence_modules import read_sentence_modules


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
