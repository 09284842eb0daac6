"""Checks before a plan is run or submitted: data are available, stages fit into memory, earlier runs exist."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ablations.ladders import Ladder
from ablations.launch.costs import GIGABYTE, Machine, stage_memory
from ablations.launch.request import gpus_in_words
from ablations.names import at_scale
from ablations.plan import PlanRow, unfinished
from ablations.scales import Scale
from ablations.scaling import scaled_variant
from ablations.variant import Variant
from neobert.data.catalog import TASK_SPLITS
from neobert.data.download import Needs, items_of
from neobert.data.mteb_tasks import benchmarks_for, member_names, members_of
from neobert.data.pairs import sets_of
from neobert.data.shards import FRAME_TOKENS
from neobert.data.sources import Source
from neobert.errors import MissingData
from neobert.files import is_there, matching
from neobert.glue.task_data import require_scorable
from neobert.identity import canonical
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.glue import GlueStudy
from neobert.kinds.mteb import EmbeddingEvaluation
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.size import parameter_count, trial_memory
from neobert.processes import gpu_memory_bytes, visible_gpus
from neobert.recipe import Pretraining
from neobert.runs.kinds import Run
from neobert.runs.layout import Layout
from neobert.runs.work import Work
from neobert.starts import misfit


@dataclass(frozen=True)
class Problem:
    """Why a run would fail in the queue: a `missing` run, or else an invalid configuration.

    A `wasteful` run would work, but with idle processes.
    """

    sentence: str
    missing: bool = False
    wasteful: bool = False


# Data


def requirements(
    ladder: Ladder,
    chosen: Sequence[Variant],
    scale: Scale,
    stages: Collection[str],
    benchmarks: Sequence[str] | None = None,
) -> Needs:
    """Return the corpora, tokenizers, tasks and pairs that variants read at a scale; every stage needs tokenizers.

    `benchmarks` are those of mteb; None means MTEB(eng, v1).

    Raises:
        ValueError: there is no such benchmark.
    """
    recipes = [scaled_variant(ladder, at_scale(ladder, variant, scale), scale, "published")[0] for variant in chosen]
    tokenizers: dict[str, int] = {}
    for recipe in recipes:
        name, rows = recipe.pretraining.data.tokenizer, recipe.pretraining.model.vocabulary_size
        tokenizers[name] = min(rows, tokenizers.get(name, rows))
    pair_sets = dict.fromkeys(name for recipe in recipes for name in sets_of(recipe.embedding.pairs))
    corpora = [recipe.pretraining.data.corpus for recipe in recipes]
    return Needs(
        corpora=_not_own(ladder, corpora) if "pretraining" in stages else (),
        tokenizers=tokenizers,
        tasks=tuple(task for task in TASK_SPLITS if task in ladder.tasks) if "glue" in stages else (),
        embedding_tasks=members_of(benchmarks) if "mteb" in stages else (),
        pair_sets=tuple(pair_sets) if "contrastive" in stages else (),
    )


def _not_own(ladder: Ladder, corpora: Iterable[str]) -> tuple[str, ...]:
    """Return each corpus once, without those that the ladder has in folders of its own."""
    return tuple(corpus for corpus in dict.fromkeys(corpora) if corpus not in ladder.corpora)


def corpus_lines(rows: Sequence[PlanRow], source: Source) -> list[str]:
    """Describe the files of the corpora that the rows read from folders."""
    corpora = _corpora_of([each.run for row in rows for each in row.planned])
    return [line for corpus in corpora if (line := source.described_corpus(corpus))]


def _corpora_of(runs: Sequence[Work]) -> list[str]:
    return list(dict.fromkeys(run.corpus.corpus for run in PretrainingRun.among(runs)))


def require_data(rows: Sequence[PlanRow], source: Source) -> None:
    """Check that the data of unfinished runs is on this machine, that the beginnings of corpora can be read, and that
    mteb is installed if they need it.

    Raises:
        MissingData: the data are on the hub, which runs do not read, or mteb is missing; the message names the items.
        ValueError: a corpus has a file that is not in its format.
    """
    runs = _training(unfinished(rows))
    if EmbeddingEvaluation.among(runs) and find_spec("mteb") is None:
        raise MissingData("MTEB evaluations need mteb, which is not installed: pip install -e '.[eval]'")
    if source.is_local or not runs:
        for corpus in _corpora_of(runs):
            source.corpus_size(corpus)  # reads the first rows
        return
    ladder = rows[0].ladder
    needs = _read_by(ladder, runs)
    read: Mapping[str, Collection[str]] = {
        "pretraining": needs.corpora,
        "glue": needs.tasks,
        "contrastive": needs.pair_sets,
        "mteb": needs.embedding_tasks,
    }
    stages = " ".join(stage for stage, names in read.items() if names)
    tasks = (task for evaluation in EmbeddingEvaluation.among(runs) for task in evaluation.tasks)
    if wanted := benchmarks_for(tasks):
        stages += f" --benchmark {shlex.join(wanted)}"
    variants = " ".join(dict.fromkeys(row.data_of for row in rows))
    items = ", ".join(f"{item.name} ({item.repositories})" for item in items_of(needs))
    raise MissingData(
        f"runs do not read the hub, and this is not here: {items}; download it with `python ablations/prefetch.py "
        f"--variant {variants} --scale {rows[0].scale} --stages {stages}{ladder.flag} --data-dir DIR` where there "
        "is a network, and pass --data DIR"
    )


def require_scorable_tasks(rows: Sequence[PlanRow], layout: Layout, source: Source) -> None:
    """Check the labels and texts of the tasks that are still to be encoded, before anything is trained for them.

    Raises:
        MissingData, DamagedFile, ValueError: as `require_scorable`.
    """
    coming = (study for study in GlueStudy.among(unfinished(rows)) if not study.encoded_task(layout).exists())
    for task in {study.task: rows[0].ladder.tasks[study.task] for study in coming}.values():
        require_scorable(task, source)


def _training(runs: Sequence[Run]) -> list[Work]:
    """Return the runs that are checked: of a sweep its first ones, since all of them need the same."""
    return [each for run in runs for each in run.trains]


def _read_by(ladder: Ladder, runs: Sequence[Work]) -> Needs:
    stages = PretrainingRun.among(runs)
    tasks = (task for evaluation in EmbeddingEvaluation.among(runs) for task in evaluation.tasks)
    members = (member for task in tasks for member in member_names(task))
    sets = (pairs.name for run in ContrastiveRun.among(runs) for pairs in run.sets)
    return Needs(
        corpora=_not_own(ladder, (run.recipe.data.corpus for run in stages)),
        tokenizers={run.recipe.data.tokenizer: run.recipe.model.vocabulary_size for run in stages},
        tasks=tuple(dict.fromkeys(study.task for study in GlueStudy.among(runs) if study.own_task is None)),
        embedding_tasks=tuple(dict.fromkeys(members)),
        pair_sets=tuple(dict.fromkeys(sets)),
    )


# Memory


def misfits(rows: Sequence[PlanRow], machine: Machine) -> list[Problem]:
    """Return the unfinished stages that do not fit into the GPU's memory, each with a setting that would."""
    if machine.gpu_memory_gb is None:
        return []
    most, sentences = machine.gpu_memory_gb * GIGABYTE, dict[str, str]()
    for row in rows:
        for run in PretrainingRun.among(_training(unfinished([row]))):
            needed, context = stage_memory(run, machine).total, run.recipe.stages[-1].context
            if needed <= most or run.id in sentences:
                continue
            sizes = (1 << power for power in range(machine.rows(run).bit_length()))
            fitting = [size for size in sizes if stage_memory(run, machine, size).total <= most]
            way = ", and no micro-batch fits: take more GPUs with --engine zero2, or GPUs with more memory"
            if fitting:
                way = f": micro_batch_tokens {fitting[-1] * context} ({fitting[-1]} rows of {context}) would fit"
            sentences[run.id] = (
                f"{row.name}'s {run.title} needs {needed / GIGABYTE:.1f} GB on each GPU, which has "
                f"{machine.gpu_memory_gb:g}{way}"
            )
    return list(map(Problem, sentences.values()))


def require_room(rows: Sequence[PlanRow], workers: int | None) -> None:
    """Raise ValueError if there are more workers than GPUs here, and trials of fine-tuning, which alone may share a
    GPU, do not fit into its memory together."""
    gpus = len(visible_gpus()) if workers is not None else 0
    if workers is None or not gpus or workers <= gpus:
        return
    requested = f"{workers} workers are requested, but this machine has {gpus_in_words(gpus)}"
    weights = {run.id: run for row in rows for run in row.encoders}
    studies = GlueStudy.among(run for row in rows for run in row.runs)
    if not studies or any(study.weights not in weights for study in studies):
        raise ValueError(f"{requested}, which only trials of fine-tuning a variant share: take {gpus} or fewer")
    trials = {study.title: _trial_bytes(study, weights[study.weights]) for study in studies}
    title, memory = max(trials, key=trials.__getitem__), gpu_memory_bytes()
    most = gpus * (memory // trials[title])
    if workers > most:
        raise ValueError(
            f"{requested} of {memory / GIGABYTE:.1f} GB, and a trial of {title} takes up to "
            f"{trials[title] / GIGABYTE:.1f} GB: take {max(gpus, most)} or fewer"
        )


def _trial_bytes(study: GlueStudy, weights: PretrainingRun) -> int:
    """Return the memory of the study's largest batch on a GPU."""
    model, protocol = weights.recipe.model, study.protocol
    return trial_memory(model, protocol.precision, weights.context, study.largest_batch, protocol.max_tokens)


def require_heldout_context(context: int | None, rows: Sequence[PlanRow]) -> None:
    """Raise ValueError if the common context, where one is given, has no room for text or exceeds a variant's learned
    positions."""
    if context is None:
        return
    if context <= FRAME_TOKENS:
        raise ValueError(f"--heldout-context {context} has no room beside {FRAME_TOKENS} special tokens: take more")
    for row in rows:
        for run in PretrainingRun.among(row.runs):
            table = run.position_table
            if table is not None and context > table:
                raise ValueError(
                    f"--heldout-context {context} is beyond the learned positions of {row.name}, which hold {table} "
                    f"tokens: take {table} or fewer, or leave {row.name} out"
                )


# Before a submission


def validate(rows: Sequence[PlanRow], layout: Layout, machine: Machine) -> list[Problem]:
    """Return all problems that would make an unfinished run fail, each once. Imports torch to build models."""
    coming = {run.reference for run in _training(unfinished(rows))}
    problems = misfits(rows, machine)
    models: dict[str, tuple[str, Pretraining]] = {}
    for row in rows:
        for run in _training(unfinished([row])):
            name = f"{row.name}'s {run.title}"
            problems += [
                Problem(f"{name} needs {reference}, which is not planned and has no weights", missing=True)
                for reference in run.after
                if reference not in coming and not _has_weights(layout.root / reference)
            ]
            if isinstance(run, PretrainingRun):
                problems += _problems_of_rows(name, run, machine)
                key = f"{canonical(run.recipe.model)} {run.recipe.longest_context} {run.recipe.start}"
                models.setdefault(key, (row.name, run.recipe))
    for name, recipe in models.values():
        if sentence := _built_otherwise(recipe):
            problems.append(Problem(f"{name}'s model {sentence}"))
    return list({problem.sentence: problem for problem in problems}.values())


def refuse(problems: Sequence[Problem]) -> list[str]:
    """Raise the first problem that is not just wasteful, as MissingData or ValueError; otherwise return the sentences
    of the wasteful ones."""
    refused = [problem for problem in problems if not problem.wasteful]
    if not refused:
        return [problem.sentence for problem in problems]
    others = f" ({len(refused) - 1} more problems)" if len(refused) > 1 else ""
    kind = MissingData if refused[0].missing else ValueError
    raise kind(refused[0].sentence + others)


def _has_weights(folder: Path) -> bool:
    """Return whether a study was closed, or training finished and its weights were kept."""
    if is_there(folder / "selection.json"):
        return True
    return is_there(folder / "done.json") and any(matching(folder, "checkpoints/step-*/model.safetensors"))


def _problems_of_rows(name: str, run: PretrainingRun, machine: Machine) -> Iterator[Problem]:
    """Yield the problems of dividing a step into micro-batches and among processes."""
    stage = run.recipe.stages[-1]
    rows = stage.tokens_per_step // stage.context
    if machine.micro_batch_tokens < stage.context:
        yield Problem(
            f"{name} has rows of {stage.context} tokens, but a micro-batch of {machine.micro_batch_tokens}: set "
            f"micro_batch_tokens to {stage.context} or more"
        )
    if machine.gpus > rows:
        sentence = f"{name} has {rows} rows per step for {machine.gpus} processes: take {rows} or fewer"
        yield Problem(sentence, wasteful=True)
    elif machine.rows(run) * (machine.gpus - 1) >= rows:
        fair = rows // machine.gpus * stage.context
        yield Problem(
            f"{name} has {rows} rows per step, which micro-batches of {machine.rows(run)} rows leave some of "
            f"{machine.gpus} processes without: set micro_batch_tokens to {fair} or less",
            wasteful=True,
        )


def _built_otherwise(pretraining: Pretraining) -> str | None:
    """Return how the model, built on the meta device, differs from the plan's; None if it does not."""
    import torch

    from neobert.model.build import build_masked_language_model

    try:
        with torch.device("meta"):
            network = build_masked_language_model(pretraining.model, pretraining.longest_context)
    except (ValueError, RuntimeError) as error:
        return f"cannot be built: {error}"
    if pretraining.start is not None:
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        if sentence := misfit(pretraining.start, shapes, is_tied=pretraining.model.tied_embeddings):
            return sentence
    built = sum(parameter.numel() for parameter in network.parameters())
    planned = parameter_count(pretraining.model, pretraining.longest_context).total
    return None if built == planned else f"has {built} parameters, but the plan counts {planned}"
