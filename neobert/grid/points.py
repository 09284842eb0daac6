"""A point of a grid as those see it who show, list or choose among trials: names, parameters and files. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from neobert.records import is_published


@dataclass(frozen=True)
class GridPoint:
    """One trial of a study, by the name under which people find the study.

    `record`, `error` and `claims` are where the trial's files lie, whether they exist or not.
    """

    study: str
    trial: str
    parameters: Mapping[str, float]
    record: Path
    error: Path
    claims: Path

    @property
    def is_recorded(self) -> bool:
        """Whether the record is there and whole."""
        return is_published(self.record)


class Report(Protocol):
    """Told about every evaluation of a trial; `score` is None where the metric is undefined."""

    def __call__(self, step: int, score: float | None) -> None: ...


class Observer(Protocol):
    """Told what happens to units that are points of a grid; None stands for every other unit. Never raises."""

    def started(self, point: GridPoint | None, claim: int) -> None: ...
    def reported(self, step: int, score: float | None) -> None: ...
    def recorded(self) -> None: ...
    def failed(self, reason: str) -> None: ...
    def close(self) -> None: ...


class Nobody:
    """The observer of a worker without one."""

    def started(self, point: GridPoint | None, claim: int) -> None:
        """Not told."""

    def reported(self, step: int, score: float | None) -> None:
        """Not told."""

    def recorded(self) -> None:
        """Not told."""

    def failed(self, reason: str) -> None:
        """Not told."""

    def close(self) -> None:
        """Nothing to close."""
