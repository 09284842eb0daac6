"""Searches: which points a sampler may try in the place of a grid, which pruner ends trials, and which points were
asked for. Without Optuna.

The grid is complete and every point of it is finished. A search tries fewer points, or ends bad ones early, so its best
score is no substitute for that of the grid, and tables say so.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Self, TypeVar, get_args

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from neobert.files import children
from neobert.recipe import Point, Value
from neobert.runs.records import read_once, read_sealed
from neobert.runs.work import Part, Work, error_beside

SamplerName = Literal["grid", "random", "tpe", "gp", "qmc"]
PrunerName = Literal["none", "median", "hyperband", "wilcoxon"]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
PRUNERS: tuple[PrunerName, ...] = get_args(PrunerName)
WILCOXON_SEEDS = 5
"""The fewest seeds with which Optuna's Wilcoxon pruner can save any: four differences of one sign have p = 1/16."""


class Range(Value):
    """Numbers between two ends, which are included; `log` if their logarithms are equally likely."""

    low: NonNegativeFloat
    high: NonNegativeFloat
    log: bool

    @model_validator(mode="after")
    def _refuse_impossible_ends(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"the range from {self.low:g} to {self.high:g} is empty: give a lower low end")
        if self.log and self.low == 0:
            raise ValueError("a logarithmic range cannot begin at 0: give a positive low end, or leave out log")
        return self


class Space(Value):
    """What each field of a point may be: one of several values, or a number in a range."""

    batch_size: Range | tuple[PositiveInt, ...]
    learning_rate: Range | tuple[PositiveFloat, ...]
    weight_decay: Range | tuple[NonNegativeFloat, ...]

    @model_validator(mode="after")
    def _refuse_impossible_fields(self) -> Self:
        for name, values in self:
            if values == ():
                raise ValueError(f"{name} has no values")
        if isinstance(self.learning_rate, Range) and self.learning_rate.low == 0:
            raise ValueError("learning_rate cannot be 0: give a positive low end")
        sizes = self.batch_size
        if isinstance(sizes, Range) and not (sizes.low >= 1 and sizes.low.is_integer() and sizes.high.is_integer()):
            raise ValueError("batch_size must range over whole numbers from 1 on")
        return self

    @classmethod
    def of_grid(cls, points: Sequence[Point]) -> Self:
        """Return the space between the ends of a grid: its batch sizes, a range of rates, and of decays above 0."""
        sizes, rates, decays = (
            sorted({values[axis] for values in (point.model_dump() for point in points)}) for axis in cls.model_fields
        )
        return cls(batch_size=tuple(sizes), learning_rate=_between(rates), weight_decay=_between(decays))


def _between(values: Sequence[float]) -> Range | tuple[float, ...]:
    if len(values) == 1 or values[0] <= 0:
        return tuple(values)
    return Range(low=values[0], high=values[-1], log=True)


class Search(Value):
    """A search of `trials` points, each with all `seeds`.

    Its value is the mean over the seeds. With one seed, the pruner sees every evaluation; with several, the score of
    each seed. The sampler "grid" takes the points of the study in their order, and `space` only describes them.
    """

    sampler: SamplerName
    trials: PositiveInt
    pruner: PrunerName
    seeds: tuple[NonNegativeInt, ...]
    space: Space


def refuse_pruner(pruner: PrunerName, seeds: int) -> None:
    """Raise ValueError if a pruner cannot compare trials with so many seeds."""
    if pruner in ("median", "hyperband") and seeds > 1:
        raise ValueError(
            f"--pruner {pruner} compares evaluations of one course, and a trial with {seeds} seeds has several: "
            "give one seed, or --pruner wilcoxon"
        )
    if pruner == "wilcoxon" and seeds < WILCOXON_SEEDS:
        raise ValueError(
            "--pruner wilcoxon compares the scores of seeds, and cannot end a trial before its fourth seed: give at "
            f"least {WILCOXON_SEEDS} seeds"
        )


# The points that a search has asked for: numbered files, each written before a worker takes its point

Read = TypeVar("Read")

REQUEST = re.compile(r"[0-9]{5,12}\.json")


def request_file(search: Path, number: int) -> Path:
    """Return the file with the point that the search of a folder asked for as its `number`-th, from 0."""
    return search / "asked" / f"{number:05d}.json"


def read_requests(search: Path, total: int, read: Callable[[Path], Read]) -> dict[int, Read]:
    """Return the points that the search of a folder has asked for, by their numbers below `total`, without damaged
    ones. `read` reads the file of one."""
    found = {number: read_once(path, read) for number, path in request_files(search, total).items()}
    return {number: point for number, point in found.items() if point is not None}


def request_files(search: Path, total: int) -> dict[int, Path]:
    """Return the files with the points that the search of a folder has asked for, by their numbers below `total`,
    which rise. A file may be damaged."""
    found = (path for path in children(search / "asked", "*.json") if REQUEST.fullmatch(path.name))
    files = {int(path.stem): path for path in found}
    return {number: files[number] for number in sorted(files) if number < total}


def request_part(work: Work, search: Path, number: int, total: int) -> Part:
    """Return the part that is done as soon as a search has asked for so many points. Its record has the point."""
    record = request_file(search, number)
    return Part(
        work=work,
        id=f"{work.id}-asked-{number}",
        title=f"point {number + 1} of {total}",
        record=record,
        error=error_beside(record),
        read=read_sealed,
    )
