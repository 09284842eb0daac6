"""What a study of Optuna is about, and how its trials end according to records. Each kind of study has a module."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from neobert.files import read_json
from neobert.runs.layout import Layout
from neobert.runs.work import Part
from neobert.search.space import SamplerName

UNDEFINED = "the score is undefined"

Report = Callable[[int, float | None], None]
"""Called with the step and value of each evaluation."""
Params = Mapping[str, Any]
"""The parameters of a trial of Optuna, by name."""


class Pruned(Exception):
    """The pruner of a search ends a trial."""


@dataclass(frozen=True)
class Ending:
    """How a trial ended according to its record. An undefined score is FAIL, never a number. `attributes` has the claim
    of the attempt, None if the record does not name it."""

    state: TrialState
    value: float | None
    curve: Mapping[int, float] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    ended_at: float = 0.0
    seconds: float = 0.0


def failure_of(part: Part, marks: Mapping[str, Any]) -> Ending | None:
    """Return the last failure of a trial without a record; None if it has not failed."""
    try:
        failure = read_json(part.error)
    except FileNotFoundError:
        return None
    attributes = {**marks, "claim": failure["claim"], "error": failure["error"]}
    return Ending(TrialState.FAIL, None, attributes=attributes, ended_at=part.error.stat().st_mtime)


class Subject(Protocol):
    """What a study of Optuna is about: trials that are parts of work, each with parameters.

    `prunes` is whether a pruner may end trials. `total` is the number of points that the sampler is asked for, 0 if it
    is never asked.
    """

    layout: Layout

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...
    @property
    def direction(self) -> Literal["maximize", "minimize"]: ...
    @property
    def space(self) -> dict[str, BaseDistribution]: ...
    @property
    def prunes(self) -> bool: ...
    @property
    def total(self) -> int: ...
    @property
    def sampler_name(self) -> SamplerName: ...

    def pruner(self) -> BasePruner:
        """Return what may end trials early."""

    def sampler(self, number: int, had: Sequence[Params]) -> BaseSampler:
        """Return the sampler for the point of a number. `had` are the points that were asked for before."""

    def trials(self) -> Sequence[Part]:
        """Return the trials that there are now, in order. One that was asked for again is there again."""

    def key_of_part(self, part: Part) -> Hashable:
        """Return what distinguishes a trial in the study."""

    def key_of(self, trial: FrozenTrial) -> Hashable:
        """Return the same for a trial of Optuna; None if it has nothing such."""

    def params_of(self, part: Part) -> Params:
        """Return the parameters of a trial."""

    def marks_of(self, part: Part) -> dict[str, Any]:
        """Return the user attributes of a trial, with the id of its part as `trial`."""

    def ending_of(self, part: Part) -> Ending | None:
        """Return how a trial ended; None without an intact record."""

    def asked(self) -> Mapping[int, Params]:
        """Return the points that the sampler was asked for, by their numbers."""

    def publish(self, number: int, point: Params) -> bool:
        """Write the point of a number. Returns False if another process has written one."""

    def part_at(self, point: Params) -> Part:
        """Return the trial at a point; of several the first."""
