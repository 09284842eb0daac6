"""Whether the stages of a plan fit into the memory of a GPU, and what would. Torch-free."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal, NoReturn

from ablations.costs import GIGABYTE, Machine, stage_memory
from ablations.plan import PlannedUnit, Row
from ablations.scales import Scale, scaled_variant
from ablations.variant import Variant
from neobert.data.catalog import TASK_SPLITS
from neobert.data.mteb_tasks import MTEB_REPOSITORIES
from neobert.data.pairs import sets_of
from neobert.data.requirements import Needs, items_of
from neobert.data.shards import MANIFEST
from neobert.data.sources import UNRESOLVED, HubSource, Source
from neobert.errors import MissingData
from neobert.identity import canonical
from neobert.model.size import parameter_count
from neobert.recipe import EngineWord, Pretraining
from neobert.runs.layout import Layout
from neobert.runs.specifications import ContrastiveRun, EmbeddingEvaluation, GlueStudy, PretrainingRun, Run

MOST_GPUS = 1024
SPLITTING_ENGINES: tuple[EngineWord, ...] = ("zero1", "zero2")


def misfits(rows: Sequence[Row], machine: Machine) -> list[str]:
    """One sentence for each stage that is not done and does not fit into the GPU's memory, with what would."""
    if machine.gpu_memory_gb is None:
        return []
    sentences = {}
    for row in rows:
        for unit in row.units:
            if isinstance(unit.run, PretrainingRun) and unit.state != "done" and not _fits(unit.run, machine):
                sentences[unit.run.id] = f"{row.variant.name}'s {unit.kind} {_misfit(unit.run, machine)}"
    return list(sentences.values())


def refuse_misfits(rows: Sequence[Row], machine: Machine) -> None:
    """Check that every stage fits.

    Raises:
        ValueError: one does not; says which micro-batch, engine or number of GPUs would.
    """
    if sentences := misfits(rows, machine):
        others = f" ({len(sentences) - 1} more stages do not fit either)" if len(sentences) > 1 else ""
        raise ValueError(sentences[0] + others)


def _fits(run: PretrainingRun, machine: Machine, rows: int | None = None) -> bool:
    assert machine.gpu_memory_gb is not None
    return stage_memory(run, machine, rows).total <= machine.gpu_memory_gb * GIGABYTE


def _misfit(run: PretrainingRun, machine: Machine) -> str:
    needed = stage_memory(run, machine).total / GIGABYTE
    context = run.recipe.stages[-1].context
    said = f"needs {needed:.1f} GB on each GPU, which has {machine.gpu_memory_gb:g}"
    if rows := _largest_rows(run, machine):
        return f"{said}: micro_batch_tokens {rows * context} ({rows} rows of {context}) would fit"
    return f"{said}, and no micro-batch fits: {_remedy(run, machine)}"


def _largest_rows(run: PretrainingRun, machine: Machine) -> int:
    """The largest power of two of rows that fits; 0 where not even one row does."""
    rows = 0
    while (rows * 2 or 1) <= machine.rows(run) and _fits(run, machine, rows * 2 or 1):
        rows = rows * 2 or 1
    return rows


def _remedy(run: PretrainingRun, machine: Machine) -> str:
    """The least change after which one row fits: an engine that splits more, then more GPUs under it."""
    gpus = machine.gpus
    while gpus <= MOST_GPUS:
        for engine in SPLITTING_ENGINES:
            if _fits(run, replace(machine, engine=engine, gpus=gpus), 1):
                where = f"on {gpus} GPUs" if gpus > machine.gpus else f"on these {gpus} GPUs"
                return f"one row would with --engine {engine} {where}"
        gpus *= 2
    return "take GPUs with more memory"


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


NeededPart = Literal["pretrain", "glue", "contrastive", "mteb"]
NEEDED_PARTS: tuple[NeededPart, ...] = ("pretrain", "glue", "contrastive", "mteb")


def needs_of(chosen: Sequence[Variant], scale: Scale, parts: Sequence[NeededPart]) -> Needs:
    """Corpora, tokenizers and tasks of the variants at a scale, each once; tokenizers go with every part."""
    corpora: list[str] = []
    tokenizers: dict[str, int] = {}
    pair_sets: list[str] = []
    for variant in chosen:
        recipe, _ = scaled_variant(variant, scale, "published")
        data, rows = recipe.pretraining.data, recipe.pretraining.model.vocabulary_size
        corpora.append(data.corpus)
        pair_sets += sets_of(recipe.embedding.pairs)
        tokenizers[data.tokenizer] = min(rows, tokenizers.get(data.tokenizer, rows))
    return Needs(
        corpora=tuple(dict.fromkeys(corpora)) if "pretrain" in parts else (),
        tokenizers=tokenizers,
        tasks=tuple(TASK_SPLITS) if "glue" in parts else (),
        embedding_tasks=tuple(MTEB_REPOSITORIES) if "mteb" in parts else (),
        pair_sets=tuple(dict.fromkeys(pair_sets)) if "contrastive" in parts else (),
    )


def require_data(rows: Sequence[Row], source: Source) -> None:
    """Check, before anything is written or started, that what a plan reads lies here; runs do not read the hub.

    Raises:
        MissingData: it is on the hub alone (the items are named), or mteb is not installed.
    """
    runs = [unit.run for row in rows for unit in row.units]
    require_mteb(runs)
    if not isinstance(source, HubSource) or not rows:
        return
    parts: list[NeededPart] = ["pretrain"]
    parts += ["glue"] if any(isinstance(run, GlueStudy) for run in runs) else []
    chosen = {row.variant.name: row.variant for row in rows}
    embedding = _embedding_parts(runs)
    needs = needs_of(list(chosen.values()), rows[0].scale, [*parts, *embedding])
    _refuse_hub(replace(needs, embedding_tasks=_members(runs)), chosen, rows[0].scale, [*parts, *embedding])


def require_data_of_model(runs: Sequence[Run], scale: Scale, source: Source) -> None:
    """The same for pairs and tasks of embeddings of a model from elsewhere, which brings its own tokenizer.

    Raises:
        MissingData: as `require_data`.
    """
    require_mteb(runs)
    parts = _embedding_parts(runs)
    if isinstance(source, HubSource) and parts:
        sets = (pairs.name for run in runs if isinstance(run, ContrastiveRun) for pairs in run.sets)
        needs = Needs(embedding_tasks=_members(runs), pair_sets=tuple(dict.fromkeys(sets)))
        _refuse_hub(needs, ["M9"], scale, parts)


def require_mteb(runs: Sequence[Run]) -> None:
    """Check that mteb is installed where a plan measures by it.

    Raises:
        MissingData: it is not.
    """
    if any(isinstance(run, EmbeddingEvaluation) for run in runs) and find_spec("mteb") is None:
        raise MissingData("tasks of embeddings are measured by mteb, which is not installed: pip install -e '.[eval]'")


def _embedding_parts(runs: Sequence[Run]) -> list[NeededPart]:
    parts: list[NeededPart] = ["contrastive"] if any(isinstance(run, ContrastiveRun) for run in runs) else []
    return [*parts, "mteb"] if any(isinstance(run, EmbeddingEvaluation) for run in runs) else parts


def _members(runs: Sequence[Run]) -> tuple[str, ...]:
    """mteb's own tasks behind those of evaluations, each once."""
    tasks = (task for run in runs if isinstance(run, EmbeddingEvaluation) for task in run.tasks)
    return tuple(dict.fromkeys(member for task in tasks for member in task.members or (task.name,)))


def _refuse_hub(needs: Needs, variants: Iterable[str], scale: Scale, parts: Sequence[NeededPart]) -> NoReturn:
    names = ", ".join(f"{item.name} ({item.repositories})" for item in items_of(needs))
    raise MissingData(
        f"runs do not read the hub, and this is not here: {names}; bring it with `python ablations/prefetch.py "
        f"--variant {' '.join(variants)} --scale {scale} --stages {' '.join(parts)} --data-dir DIR` where there "
        f"is a network, and pass --data DIR"
    )
