"""All that the reports say about one scale and source of data, worked out once for every figure, table and the page."""

from dataclasses import dataclass
from functools import cached_property

from reports.bars import Bars, bars_of
from reports.deltas import Delta, deltas_of
from reports.effects import Factorial, factorials_of
from reports.predictions import StoredPredictions
from reports.scores import Group


@dataclass(frozen=True)
class Findings:
    """A group and, on demand, what follows from it. `folder` is the name of the folder that its files go to."""

    group: Group
    folder: str
    stored: StoredPredictions

    @cached_property
    def bars(self) -> Bars:
        """Scores and relative changes of the ladder."""
        return bars_of(self.group)

    @cached_property
    def deltas(self) -> tuple[Delta, ...]:
        """Differences over paired seeds, with their statistics."""
        return deltas_of(self.group, self.bars.tasks, self.stored)

    @cached_property
    def factorials(self) -> tuple[Factorial, ...]:
        """Effects in factorials, where there are any."""
        return factorials_of(self.group, self.bars.tasks)
