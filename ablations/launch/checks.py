"""Checks before a plan is run or submitted: data are available, stages fit into memory, earlier runs exist."""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from ablations.ladders import Ladder
from ablations.launch.costs import GIGABYTE, Machine, stage_memory
from ablations.launch.request import gpus_in_words
from ablations.names import at_scale
from ablations.plan import PlanRow, VariantRow, unfinished
from ablations.scales import Scale
from ablations.scaling import scaled_variant
from ablations.variant import Variant
from neobert.data.catalog import TASK_SPLITS
from neobert.data.download import Needs, items_of
from neobert.data.mteb_tasks import BENCHMARKS, ENGLISH_SUITE_V2, member_names, members_of
from neobert.data.pairs import sets_of
from neobert.data.sources import Source
from neobert.errors import MissingData
from neobert.files import is_there, matching
from neobert.glue.task_data import require_scorable
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.glue import GlueStudy
from neobert.kinds.mteb import EmbeddingEvaluation
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.size import trial_memory
from neobert.processes import gpu_memory_bytes, visible_gpus
from neobert.runs.kinds import Run
from neobert.runs.layout import Layout
from neobert.runs.work import Work

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
    pair_sets = dict.fromkeys(name for recipe in recipes for name in sets_of(recipe.embedding.pairs))
    corpora = [recipe.pretraining.data.corpus for recipe in recipes]
    return Needs(
        corpora=_not_own(ladder, corpora) if "pretraining" in stages else (),
        tokenizers=tuple(dict.fromkeys(recipe.pretraining.data.tokenizer for recipe in recipes)),
        tasks=tuple(task for task in TASK_SPLITS if task in ladder.tasks) if "glue" in stages else (),
        embedding_tasks=members_of(benchmarks) if "mteb" in stages else (),
        pair_sets=tuple(pair_sets) if "contrastive" in stages else (),
    )


def _not_own(ladder: Ladder, corpora: Iterable[str]) -> tuple[str, ...]:
    """Return each corpus once, without those that the ladder has in folders of its own."""
    return tuple(corpus for corpus in dict.fromkeys(corpora) if corpus not in ladder.corpora)


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
        for corpus in dict.fromkeys(run.corpus.corpus for run in PretrainingRun.among(runs)):
            source.corpus_size(corpus)  # reads the first rows
        return
    ladder, stages_here = rows[0].ladder, PretrainingRun.among(runs)
    tasks = [task for evaluation in EmbeddingEvaluation.among(runs) for task in evaluation.tasks]
    needs = Needs(
        corpora=_not_own(ladder, (run.recipe.data.corpus for run in stages_here)),
        tokenizers=tuple(dict.fromkeys(run.recipe.data.tokenizer for run in stages_here)),
        tasks=tuple(dict.fromkeys(study.task for study in GlueStudy.among(runs) if study.own_task is None)),
        embedding_tasks=tuple(dict.fromkeys(member for task in tasks for member in member_names(task))),
        pair_sets=tuple(dict.fromkeys(pairs.name for run in ContrastiveRun.among(runs) for pairs in run.sets)),
    )
    read: Mapping[str, Collection[str]] = {
        "pretraining": needs.corpora,
        "glue": needs.tasks,
        "contrastive": needs.pair_sets,
        "mteb": needs.embedding_tasks,
    }
    stages = " ".join(stage for stage, names in read.items() if names)
    if any(task.suite == ENGLISH_SUITE_V2 for task in tasks):
        stages += f" --benchmark {shlex.join(BENCHMARKS)}"
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


# Memory


def require_memory(rows: Sequence[PlanRow], machine: Machine) -> None:
    """Raise ValueError if an unfinished stage does not fit into the GPU's memory, with a setting that would."""
    if machine.gpu_memory_gb is None:
        return
    most = machine.gpu_memory_gb * GIGABYTE
    for row in rows:
        for run in PretrainingRun.among(_training(unfinished([row]))):
            needed, context = stage_memory(run, machine).total, run.recipe.stages[-1].context
            if needed <= most:
                continue
            sizes = (1 << power for power in range(machine.rows(run).bit_length()))
            fitting = [size for size in sizes if stage_memory(run, machine, size).total <= most]
            way = ", and no micro-batch fits: take more GPUs with --engine zero2, or GPUs with more memory"
            if fitting:
                way = f": micro_batch_tokens {fitting[-1] * context} ({fitting[-1]} rows of {context}) would fit"
            raise ValueError(
                f"{row.name}'s {run.title} needs {needed / GIGABYTE:.1f} GB on each GPU, which has "
                f"{machine.gpu_memory_gb:g}{way}"
            )


def require_room(rows: Sequence[PlanRow], workers: int | None) -> None:
    """Raise ValueError if there are more workers than GPUs here, and trials of fine-tuning, which alone may share a
    GPU, do not fit into its memory together."""
    gpus = len(visible_gpus()) if workers is not None else 0
    if workers is None or not gpus or workers <= gpus:
        return
    requested = f"{workers} workers are requested, but this machine has {gpus_in_words(gpus)}"
    weights = {run.id: run for row in rows if isinstance(row, VariantRow) for run in row.stages}
    studies = GlueStudy.among(run for row in rows for run in row.runs)
    if not studies or any(study.weights not in weights for study in studies):
        raise ValueError(f"{requested}, which only trials of fine-tuning a variant share: take {gpus} or fewer")
    trials: dict[str, int] = {}
    for study in studies:
        stage, protocol = weights[study.weights], study.protocol
        lengths = stage.context, study.largest_batch, protocol.max_tokens
        trials[study.title] = trial_memory(stage.recipe.model, protocol.precision, *lengths)
    title, memory = max(trials, key=trials.__getitem__), gpu_memory_bytes()
    most = gpus * (memory // trials[title])
    if workers > most:
        raise ValueError(
            f"{requested} of {memory / GIGABYTE:.1f} GB, and a trial of {title} takes up to "
            f"{trials[title] / GIGABYTE:.1f} GB: take {max(gpus, most)} or fewer"
        )


def require_startable(rows: Sequence[PlanRow], layout: Layout, machine: Machine) -> None:
    """Check before a submission that every unfinished run could start.

    Raises:
        MissingData: it needs a run that is not planned and has no weights.
        ValueError: it does not fit into the GPU's memory, or a micro-batch has no room for one of its rows.
    """
    require_memory(rows, machine)
    coming = {run.reference for run in _training(unfinished(rows))}
    for row in rows:
        for run in _training(unfinished([row])):
            name = f"{row.name}'s {run.title}"
            for reference in run.after:
                if reference not in coming and not _has_weights(layout.root / reference):
                    raise MissingData(f"{name} needs {reference}, which is not planned and has no weights")
            context = run.recipe.stages[-1].context if isinstance(run, PretrainingRun) else 0
            if machine.micro_batch_tokens < context:
                raise ValueError(
                    f"{name} has rows of {context} tokens, but a micro-batch of {machine.micro_batch_tokens}: set "
                    f"micro_batch_tokens to {context} or more"
                )


def _has_weights(folder: Path) -> bool:
    """Return whether a study was closed, or training finished and its weights were kept."""
    if is_there(folder / "selection.json"):
        return True
    return is_there(folder / "done.json") and any(matching(folder, "checkpoints/step-*/model.safetensors"))
