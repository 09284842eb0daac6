"""How fast the work of a plan goes: measured by a finished run where there is one, else stated. Torch-free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neobert.errors import DamagedFile, did_you_mean
from neobert.identity import plain
from neobert.model.size import PEAK_FLOPS_PER_SECOND
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.specifications import PretrainingRun

STATED_UTILIZATION = 0.25
"""Share of the peak that encoders of this size reach on Hopper: NeoBERT itself 16 % (2.1T tokens in 6,000 H100-hours),
ModernBERT-base's shape 24 % (Ettin's published hours), NeoBERT's shape with a compiled model 27 %."""

SHAPE = ("vocabulary_size", "layers", "width", "heads", "feedforward_width", "feedforward", "positions", "norm")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Throughput:
    """Floating-point operations a second of one GPU, or slots of tokens a second whatever the model, and who says so.

    Both None: nobody knows.
    """

    flops_per_second: float | None
    tokens_per_second: float | None
    source: str | None

    def seconds(self, flops: float, tokens: float) -> float | None:
        """GPU-seconds of some work; None where nobody knows."""
        if self.tokens_per_second is not None:
            return tokens / self.tokens_per_second
        return None if self.flops_per_second is None else flops / self.flops_per_second


UNKNOWN = Throughput(None, None, None)


def stated_throughput(gpu: str | None, tokens_per_second: float | None) -> Throughput:
    """What a person says about a GPU: its tokens a second, else its name.

    Raises:
        ValueError: there is no such GPU.
    """
    if tokens_per_second is not None:
        return Throughput(None, tokens_per_second, f"stated: {tokens_per_second:,.0f} tokens/s a GPU")
    if gpu is None:
        return UNKNOWN
    if gpu not in PEAK_FLOPS_PER_SECOND:
        hint = did_you_mean(gpu, PEAK_FLOPS_PER_SECOND)
        raise ValueError(f"the peak of gpu {gpu!r} is not known: {hint}; or state tokens_per_second_per_gpu")
    peak = PEAK_FLOPS_PER_SECOND[gpu]
    source = f"stated: {STATED_UTILIZATION:.0%} of {gpu}'s {peak / 1e12:,.0f} TFLOP/s bf16"
    return Throughput(STATED_UTILIZATION * peak, None, source)


def finished_runs(layout: Layout) -> list[Record]:
    """The records of pre-training stages that were done on GPUs, newest first; unreadable ones are passed over."""
    paths = list(layout.root.glob("pretraining/*/done.json"))
    records: list[Record] = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            record = read_record(path)
        except DamagedFile:
            continue
        if record.get("gpu_hours") and record.get("flops"):
            records.append(record)
    return records


def measured_throughput(run: PretrainingRun, finished: Sequence[Record]) -> Throughput | None:
    """What the newest run of the same shape reached; one with rows of the same kind is taken before others.

    With the same rows the slots that packing leaves empty are in the number, else only the work is compared.
    """
    shape = _shape(plain(run.recipe.model))
    same = [record for record in finished if _shape(record["config"]["recipe"]["model"]) == shape]
    for record in same:
        if _rows(record["config"]["recipe"]) == _rows(plain(run.recipe)):
            return Throughput(None, record["tokens"] / (3600 * record["gpu_hours"]), f"measured by run {record['id']}")
    return measured_rate(run, same)


def measured_rate(run: PretrainingRun, finished: Sequence[Record]) -> Throughput | None:
    """The operations a second of the newest run of the same shape, whatever rows it had."""
    shape = _shape(plain(run.recipe.model))
    for record in finished:
        if _shape(record["config"]["recipe"]["model"]) == shape:
            rate = record["flops"] / (3600 * record["gpu_hours"])
            return Throughput(rate, None, f"measured by run {record['id']}")
    return None


def _shape(model: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(model.get(field) for field in SHAPE)


def _rows(recipe: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides how full rows are and what a slot costs."""
    stage = recipe["stages"][-1]
    return recipe["data"], recipe["packing"], recipe["precision"], stage["context"], stage["mixture"]
