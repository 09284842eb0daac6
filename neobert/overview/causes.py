"""Failures grouped by what was said: a cause that hit a hundred trials is one cause."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from neobert.overview.row import Failure, Row

IDENTIFIER = re.compile(r"\b[0-9a-f]{12}\b")


@dataclass(frozen=True)
class Cause:
    """Failures with the same text but for the ids of runs in it, and the log paths of the runs they hit."""

    error: str
    failures: tuple[Failure, ...]
    logs: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The units that failed."""
        return tuple(failure.name for failure in self.failures)


def causes_of(rows: Sequence[Row]) -> list[Cause]:
    """The causes of all failures, most frequent first; a trial that studies share counts once."""
    failures: dict[str, dict[str, Failure]] = {}
    logs: dict[str, dict[str, None]] = {}
    for row in rows:
        for failure in row.errors:
            text = IDENTIFIER.sub("…", failure.error)
            failures.setdefault(text, {})[failure.unit] = failure
            logs.setdefault(text, {}).update(dict.fromkeys(row.logs))
    causes = [
        Cause(next(iter(units.values())).error, tuple(units.values()), tuple(logs[text]))
        for text, units in failures.items()
    ]
    return sorted(causes, key=lambda cause: -len(cause.failures))
