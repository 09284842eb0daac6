"""The fastest batch size: doubled until that is slower or memory is out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

MARGIN = 0.1
"""How much slower than the best one a batch size must be to end the search: single timings scatter."""


@dataclass(frozen=True)
class Found:
    """What a search tried, {batch size: tokens a second}, and why it ended."""

    tried: dict[int, float]
    ended: str

    @property
    def best(self) -> int | None:
        """The fastest batch size; None where not even one row fitted."""
        return max(self.tried, key=lambda size: self.tried[size]) if self.tried else None


def best_batch(speed: Callable[[int], float], most_rows: int) -> Found:
    """Try 1, 2, 4, … up to `most_rows` rows; `speed` gives tokens a second and may run out of memory."""
    tried: dict[int, float] = {}
    rows = 1
    while rows <= most_rows:
        try:
            tried[rows] = speed(rows)
        except torch.OutOfMemoryError as error:
            return Found(tried, f"out of memory at batch {rows}: {str(error).partition('.')[0]}")
        if tried[rows] < (1 - MARGIN) * max(tried.values()):
            return Found(tried, f"slower at batch {rows}")
        rows *= 2
    return Found(tried, f"batch {most_rows} is the largest that was allowed")
