"""From a variant's recipe to specifications of runs: pre-training stages and GLUE studies, in the order they depend."""

from dataclasses import dataclass

from ablations.modification import Recipe
from ablations.protocol import TRANSFER_TASK, TRANSFERRED_TASKS
from neobert.data.sources import Source
from neobert.glue.tasks import SELECTION_RULES, TASKS
from neobert.identity import neutral_values
from neobert.recipe import FineTuning, Point, Pretraining
from neobert.runs.specifications import GlueStudy, PretrainingRun, Start


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
