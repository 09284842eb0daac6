"""Ways to train take turns in bursts of a few steps; speeds are real tokens a second, ratios are paired."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.measuring import Timing, in_turns, median_ratio

Step = Callable[[], int]
"""One update; returns the real tokens it learned from."""

WARM_UP_STEPS = 2


@dataclass
class Burst:
    """`steps` updates as one call; `tokens` notes the real tokens of each call."""

    step: Step
    steps: int
    tokens: list[int] = field(default_factory=list)

    def __call__(self) -> None:
        self.tokens.append(sum(self.step() for _ in range(self.steps)))
        if torch.cuda.is_available():
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Race:
    """What was measured, by contender. `per_token`: time of a real token in each round; `warm_up_seconds`: of model,
    optimizer and first steps, compilation included; `left_out`: why a contender did not take part."""

    per_token: Mapping[str, Sequence[Timing]]
    warm_up_seconds: Mapping[str, float]
    left_out: Mapping[str, str]

    def tokens_per_second(self, name: str) -> float:
        """Median speed of a contender."""
        return statistics.median(1 / timing.wall for timing in self.per_token[name])

    def fastest(self, names: Sequence[str]) -> str | None:
        """Which of `names` has the highest median speed; None where none of them took part."""
        present = [name for name in names if name in self.per_token]
        return max(present, key=self.tokens_per_second) if present else None

    def speed_ratio(self, own: str, other: str) -> dict[str, float]:
        """Medians over the rounds of how many times as fast `own` is, by clock and by processor."""
        return median_ratio(self.per_token[other], self.per_token[own])

    def figures(self) -> dict[str, Any]:
        """Speed of every contender, and who was left out."""
        return {"real tokens per second": {name: self._speeds(name) for name in self.per_token}} | {
            "left out": dict(self.left_out)
        }

    def _speeds(self, name: str) -> dict[str, float]:
        timings = self.per_token[name]
        return {
            "median": round(self.tokens_per_second(name)),
            "best": round(max(1 / timing.wall for timing in timings)),
            "median per processor second": round(statistics.median(1 / timing.processor for timing in timings)),
            "warm-up seconds": round(self.warm_up_seconds[name], 1),
        }


def race(contenders: Mapping[str, Callable[[], Step]], *, rounds: int, steps: int) -> Race:
    """Make and warm up every contender, then time a burst of `steps` updates of each in every round.

    One that cannot run here is left out with the reason that its library gave.
    """
    bursts: dict[str, Burst] = {}
    warm_up_seconds: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, make in contenders.items():
        started = time.perf_counter()
        try:
            burst = Burst(make(), WARM_UP_STEPS)
            burst()
        except Exception as error:
            left_out[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
            print(f"  {name}: left out, {left_out[name]}", flush=True)
            continue
        warm_up_seconds[name] = time.perf_counter() - started
        bursts[name] = Burst(burst.step, steps)
        print(f"  {name}: warmed up in {warm_up_seconds[name]:.1f} s", flush=True)
    timings = in_turns(bursts, rounds)
    per_token = {name: _per_token(timings[name], burst.tokens) for name, burst in bursts.items()}
    return Race(per_token, warm_up_seconds, left_out)


def _per_token(timings: Sequence[Timing], tokens: Sequence[int]) -> list[Timing]:
    pairs = zip(timings, tokens, strict=True)
    return [Timing(timing.wall / count, timing.processor / count) for timing, count in pairs]
