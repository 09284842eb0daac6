"""How many GPUs to train one model on: the price of exchanging gradients, and a proposal with few of them.

Several runs of a ladder at once, on few GPUs each, exchange less than one run after the other on all.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from neobert.kinds.pretraining import PretrainingRun
from neobert.model.size import FP32, parameter_count

LEAST_TOKENS_PER_GPU = 1 << 15
"""Tokens of a step that each GPU should have. An exchange of 245M gradients among H100s takes 4 % of the time in which
one computes as many in full rows at 300,000 a second, and more of it where rows are padded."""

BUS_BYTES_PER_SECOND = 400e9
"""Bus bandwidth of an all-reduce among the H100s of a node, as NCCL counts it. Between nodes it is much less."""


def proposed_gpus(run: PretrainingRun, most: int) -> int:
    """Return the number of GPUs for a stage: `most` if that leaves each enough tokens, else the largest power of two
    that does, at least one."""
    tokens, gpus = run.recipe.stages[-1].tokens_per_step, 1
    if tokens // most >= LEAST_TOKENS_PER_GPU:
        return most
    while tokens // (2 * gpus) >= LEAST_TOKENS_PER_GPU:
        gpus *= 2
    return gpus


def exchange_hours(run: PretrainingRun, gpus: int) -> float:
    """Return the GPU-hours of a stage in which `gpus` GPUs exchange fp32 gradients around a ring (Patarasuk and Yuan
    2009) and do nothing else. Exchange during the backward pass would hide some of them."""
    sent = 2 * (gpus - 1) / gpus * FP32 * parameter_count(run.recipe.model, run.context).total
    return gpus * run.recipe.stages[-1].steps * sent / BUS_BYTES_PER_SECOND / 3600


@dataclass(frozen=True)
class Proposal:
    """The price of exchanging gradients in unfinished stages: as planned, and as proposed.

    names: of the rows for which fewer GPUs are proposed, by the number of GPUs.
    """

    gpus: int
    planned_hours: float
    proposed_hours: float
    names: Mapping[int, tuple[str, ...]]

    @classmethod
    def of(cls, stages: Iterable[tuple[str, PretrainingRun]], gpus: int) -> "Proposal":
        """Make the proposal for stages with the names of their rows."""
        named = list(stages)
        unique = {run.id: run for _, run in named}.values()

        def hours(count: Callable[[PretrainingRun], int]) -> float:
            return sum(exchange_hours(run, count(run)) for run in unique)

        names: dict[int, dict[str, None]] = {}
        for name, run in named:
            if (fewer := proposed_gpus(run, gpus)) < gpus:
                names.setdefault(fewer, {})[name] = None
        return cls(
            gpus,
            hours(lambda run: gpus),
            hours(lambda run: proposed_gpus(run, gpus)),
            {count: tuple(names[count]) for count in sorted(names)},
        )

    def lines(self) -> list[str]:
        """Return what to print; nothing where all stages are large enough."""
        if not self.names:
            return []
        proposed = "; ".join(f"{gpus} for {', '.join(names)}" for gpus, names in self.names.items())
        return [
            f"GPUs per run: {self.gpus} as planned, and exchanging gradients takes up to {self.planned_hours:.3g} "
            f"GPU-hours; proposed {proposed}, several runs at once, and {self.proposed_hours:.3g} GPU-hours",
            f"(on {self.gpus} GPUs each has less than {LEAST_TOKENS_PER_GPU:,} tokens of a step; --gpus sets them)",
        ]
