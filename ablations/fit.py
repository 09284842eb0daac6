"""Whether the stages of a plan fit into the memory of a GPU, and what would. Torch-free."""

from collections.abc import Sequence
from dataclasses import replace

from ablations.costs import GIGABYTE, Machine, stage_memory
from ablations.plan import Row
from neobert.runs.specifications import EngineWord, PretrainingRun

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
