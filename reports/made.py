"""How a record came to be: which code, which data, and what it cost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablations.scales import SCALES, Scale
from neobert.errors import did_you_mean

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Made:
    """None stands for what a record does not say. `data` is the id of a tokenised corpus, or a task and its tokenizer;
    `tokens` counts slots, `real_tokens` leaves padding out."""

    commit: str | None = None
    dirty: bool | None = None
    data: str | None = None
    seconds: float | None = None
    processes: int = 1
    gpu_hours: float | None = None
    tokens: float | None = None
    real_tokens: float | None = None
    flops: float | None = None

    @property
    def hours(self) -> float | None:
        """Hours by the clock, times processes."""
        return None if self.seconds is None else self.seconds * self.processes / SECONDS_PER_HOUR

    @property
    def code(self) -> str | None:
        """The commit, and whether the tree differed from it."""
        if self.commit is None:
            return None
        return f"{self.commit} with uncommitted changes" if self.dirty else self.commit


NOTHING_SAID = Made()


def made(record: Mapping[str, Any]) -> Made:
    """What a record says of itself.

    Raises:
        ValueError: a cost is no finite number.
    """
    inputs = record.get("inputs", {})
    of_task = ", ".join(str(inputs[name]) for name in ("task", "tokenizer") if inputs.get(name))
    commit, dirty = record.get("commit"), record.get("dirty")
    return Made(
        commit=None if commit is None else str(commit),
        dirty=None if dirty is None else bool(dirty),
        data=str(inputs["data"]) if inputs.get("data") else of_task or None,
        processes=int(record.get("processes", 1)),
        **{name: _cost(record, name) for name in ("seconds", "gpu_hours", "tokens", "real_tokens", "flops")},
    )


def _cost(record: Mapping[str, Any], name: str) -> float | None:
    if record.get(name) is None:
        return None
    value = float(record[name])
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"its {name} {value} is no cost")
    return value


def known_scale(scale: str) -> Scale:
    """A scale that a record is labelled with.

    Raises:
        ValueError: there is no such scale.
    """
    for known in SCALES:
        if known == scale:
            return known
    raise ValueError(f"it is labelled with the unknown scale {scale!r}: {did_you_mean(scale, SCALES)}")
