"""All that the reports say about one scale and source of data, worked out once for every figure, table and the page."""

from dataclasses import dataclass
from functools import cached_property

from reports.bars import Bars, bars_of
from reports.deltas import Delta, deltas_of
from reports.effects import Factorial, factorials_of
from reports.embeddings import Embeddings, embeddings_of
from reports.perplexity import PerplexityLine, perplexity_lines
from reports.predictions import StoredPredictions
from reports.scores import Group
from reports.trials import Evidence


@dataclass(frozen=True)
class Findings:
    """A group and, on demand, what follows from it. `folder` is the name of the folder that its files go to."""

    group: Group
    folder: str
    stored: StoredPredictions
    evidence: Evidence

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

    @cached_property
    def embeddings(self) -> Embeddings:
        """Scores on embedding tasks, where there are any."""
        return embeddings_of(self.group, self.evidence)

    @cached_property
    def perplexities(self) -> tuple[PerplexityLine, ...]:
        """Pseudo-perplexity over lengths, where it was measured."""
        return perplexity_lines(self.group, self.evidence)

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for everything that is not counted in here."""
        return (*self.group.problems, *self.embeddings.problems)
