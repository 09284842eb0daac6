"""What must hold before a plan is submitted, found out without a queue. Imports torch when it is asked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ablations.costs import Machine
from ablations.fit import misfits
from ablations.plan import PlannedUnit, Row
from neobert.data.shards import MANIFEST
from neobert.data.sources import UNRESOLVED, Source
from neobert.errors import MissingData
from neobert.identity import canonical
from neobert.model.size import parameter_count
from neobert.recipe import Pretraining
from neobert.runs.layout import Layout
from neobert.runs.specifications import EmbeddingEvaluation, GlueStudy, PretrainingRun


@dataclass(frozen=True)
class Problem:
    """Why a unit would fail in the queue; `missing` tells absent data or runs from a refused configuration.

    What is `wasteful` would run, with processes that do nothing.
    """

    unit: str
    sentence: str
    missing: bool = False
    wasteful: bool = False

    def __str__(self) -> str:
        return self.sentence


def validate(rows: Sequence[Row], layout: Layout, source: Source, machine: Machine) -> list[Problem]:
    """Everything that would keep a unit which is not done from running, each once."""
    planned = {unit.run.id for row in rows for unit in row.units}
    problems = [Problem("memory", sentence) for sentence in misfits(rows, machine)]
    for row in rows:
        for unit in row.units:
            if unit.state == "done":
                continue
            name = f"{row.variant.name}'s {unit.kind}"
            if isinstance(unit.run, PretrainingRun):
                problems += _of_stage(name, unit.run, layout, planned, machine)
            elif isinstance(unit.run, GlueStudy):
                problems += _of_study(name, unit.run, layout, planned)
            elif isinstance(unit.run, EmbeddingEvaluation):
                problems += _of_evaluation(name, unit.run, layout, planned)
    problems += _of_models(rows)
    return list({problem.sentence: problem for problem in problems}.values())


def refuse(problems: Sequence[Problem]) -> list[str]:
    """The sentences about waste, where there is nothing worse.

    Raises:
        ValueError: a unit is refused.
        MissingData: data or a run is not there.
    """
    refused = [problem for problem in problems if not problem.wasteful]
    if not refused:
        return [problem.sentence for problem in problems]
    others = f" ({len(refused) - 1} more problems)" if len(refused) > 1 else ""
    kind = MissingData if refused[0].missing else ValueError
    raise kind(refused[0].sentence + others)


def _of_stage(name: str, run: PretrainingRun, layout: Layout, planned: set[str], machine: Machine) -> Iterator[Problem]:
    for origin, what in (
        (run.corpus_origin, run.recipe.data.corpus),
        (run.tokenizer_origin, run.recipe.data.tokenizer),
    ):
        if UNRESOLVED in origin and not (layout.data(run.data_id) / MANIFEST).exists():
            sentence = f"{name} reads {what} at a revision that nobody looked up: bring it with ablations/prefetch.py"
            yield Problem(run.id, f"{sentence} and pass its folder with --data", missing=True)
    if run.previous is not None and not _is_coming(layout, run.previous, planned):
        sentence = f"{name} continues {run.previous}, which is neither planned nor has a checkpoint"
        yield Problem(run.id, sentence, missing=True)
    if machine.micro_batch_tokens < run.recipe.stages[-1].context:
        yield Problem(run.id, f"{name} {_too_small(run, machine)}")
    yield from (Problem(run.id, f"{name} {sentence}", wasteful=True) for sentence in _of_split(run, machine))


def _of_study(name: str, study: GlueStudy, layout: Layout, planned: set[str]) -> Iterator[Problem]:
    if UNRESOLVED in study.task_origin:
        sentence = f"{name} reads examples at a revision that nobody looked up: bring them with ablations/prefetch.py"
        yield Problem(study.id, f"{sentence} and pass their folder with --data", missing=True)
    if not _is_coming(layout, study.weights, planned):
        sentence = f"{name} needs {study.weights}, which is neither planned nor has a checkpoint"
        yield Problem(study.id, sentence, missing=True)
    start = study.starts_from
    if start.task is None or start.study is None or start.study in planned:
        return
    if not (layout.study(start.task, start.study) / "selection.json").exists():
        sentence = f"{name} starts from study {start.study} of {start.task}, which is neither planned nor closed"
        yield Problem(study.id, sentence, missing=True)


def _of_evaluation(name: str, evaluation: EmbeddingEvaluation, layout: Layout, planned: set[str]) -> Iterator[Problem]:
    weights = evaluation.weights
    is_tuned = (layout.contrastive(weights) / "done.json").exists()
    if not (is_tuned or layout.model(weights).exists() or _is_coming(layout, weights, planned)):
        yield Problem(evaluation.id, f"{name} needs {weights}, which is neither planned nor done", missing=True)


def _is_coming(layout: Layout, run_id: str, planned: set[str]) -> bool:
    """Whether the weights of a run are there, or will be."""
    folder = layout.pretraining(run_id)
    if (folder / "done.json").exists():
        return any(folder.glob("checkpoints/step-*/model.safetensors"))
    return run_id in planned


def _too_small(run: PretrainingRun, machine: Machine) -> str:
    context = run.recipe.stages[-1].context
    return (
        f"has rows of {context} tokens, but a micro-batch of {machine.micro_batch_tokens}: set micro_batch_tokens to "
        f"{context} or more"
    )


def _of_split(run: PretrainingRun, machine: Machine) -> Iterator[str]:
    """How a step is divided among processes."""
    stage = run.recipe.stages[-1]
    rows = stage.tokens_per_step // stage.context
    if machine.gpus > rows:
        yield f"has {rows} rows a step for {machine.gpus} processes: take {rows} or fewer"
    elif machine.rows(run) * (machine.gpus - 1) >= rows:
        fair = rows // machine.gpus * stage.context
        yield (
            f"has {rows} rows a step, which micro-batches of {machine.rows(run)} rows leave some of {machine.gpus} "
            f"processes without: set micro_batch_tokens to {fair} or less"
        )


def _of_models(rows: Sequence[Row]) -> Iterator[Problem]:
    """Build each model that is not trained yet without memory, once, and compare its size with the plan's."""
    seen = set[str]()
    for row in rows:
        pretraining = row.recipe.pretraining
        key = f"{canonical(pretraining.model)} {pretraining.longest_context}"
        if key not in seen and any(_is_open_stage(unit) for unit in row.units):
            seen.add(key)
            sentence = _built_otherwise(pretraining)
            if sentence:
                yield Problem(row.variant.name, f"{row.variant.name}'s model {sentence}")


def _is_open_stage(unit: PlannedUnit) -> bool:
    return isinstance(unit.run, PretrainingRun) and unit.state != "done"


def _built_otherwise(pretraining: Pretraining) -> str | None:
    import torch

    from neobert.model.build import build_masked_language_model

    try:
        with torch.device("meta"):
            network = build_masked_language_model(pretraining.model, pretraining.longest_context)
    except (ValueError, RuntimeError) as error:
        return f"cannot be built: {error}"
    built = sum(parameter.numel() for parameter in network.parameters())
    planned = parameter_count(pretraining.model, pretraining.longest_context).total
    return None if built == planned else f"has {built} parameters, but the plan counts {planned}"
