"""What a study of Optuna is about, and how its trials end according to records: a GLUE grid or search, or a sweep over
numbers of the optimizer."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from neobert.files import read_json
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy, Outcome, PointPart, SearchTrial, Trial
from neobert.kinds.rates import RateSweep, RateTrial
from neobert.rates import RATE, RATE_DIGITS
from neobert.recipe import Point
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed, read_record
from neobert.runs.run_file import RunFile
from neobert.runs.work import Part
from neobert.search.samplers import Given, Params, Rounded, axes_of, pruner_named, sampler_named
from neobert.search.space import SamplerName, request_file, request_files

TENTHS = 10
Asked = Mapping[int, Any]
"""The points that a sampler was asked for, by their numbers."""
Studied = TypeVar("Studied", GlueStudy, RateSweep)
UNDEFINED = "the score is undefined"

Report = Callable[[int, float | None], None]
"""Called with the step and value of each evaluation."""


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


@dataclass
class Subject(ABC, Generic[Studied]):
    """What a study of Optuna is about: trials that are parts of `work`, each with parameters. `run_file` names it in
    words; without one it is named by its id alone."""

    layout: Layout
    work: Studied
    run_file: RunFile | None = None

    direction: ClassVar[Literal["maximize", "minimize"]]

    @property
    def id(self) -> str:
        return self.work.id

    @property
    def name(self) -> str:
        owner = f"{self.run_file.owner} " if self.run_file and self.run_file.owner else ""
        return f"{owner}{self.about} ({self.id})"

    @property
    @abstractmethod
    def about(self) -> str:
        """What is studied, in a few words."""

    @property
    def attributes(self) -> dict[str, Any]:
        """The user attributes of the study, with the labels of its run file."""
        labels = self.run_file.labels if self.run_file else {}
        return {key: labels[key] for key in ("variants", "model", "scale", "ladder") if labels.get(key)}

    @property
    @abstractmethod
    def space(self) -> dict[str, BaseDistribution]:
        """The distribution of each parameter."""

    @property
    def prunes(self) -> bool:
        """Whether a pruner may end trials."""
        return False

    def pruner(self) -> BasePruner:
        """Return what may end trials early."""
        return pruner_named("none", 1)

    @property
    def total(self) -> int:
        """The number of points that the sampler is asked for, 0 if it is never asked."""
        return self.work.search.trials if self.work.search else 0

    @property
    def sampler_name(self) -> SamplerName:
        return self.work.search.sampler if self.work.search else "grid"

    @abstractmethod
    def sampler(self, number: int, asked: Asked) -> BaseSampler:
        """Return the sampler for the point of a number. `asked` are the points that were asked for before."""

    @abstractmethod
    def trials(self, asked: Asked) -> Sequence[Part]:
        """Return the trials that there are now, in order. One that was asked for again is there again."""

    @abstractmethod
    def key_of_part(self, part: Part) -> Hashable:
        """Return what distinguishes a trial in the study."""

    @abstractmethod
    def key_of(self, trial: FrozenTrial) -> Hashable:
        """Return the same for a trial of Optuna; None if it has nothing such."""

    @abstractmethod
    def params_of(self, part: Part) -> Params:
        """Return the parameters of a trial."""

    def marks_of(self, part: Part) -> dict[str, Any]:
        """Return the user attributes of a trial, with the id of its part as `trial`."""
        return {"trial": part.id}

    @abstractmethod
    def ending_of(self, part: Part) -> Ending | None:
        """Return how a trial ended; None without an intact record."""

    def asked(self) -> Asked:
        """Return the points that the sampler was asked for."""
        return self.work.asked(self.layout)

    def has_asked_all(self) -> bool:
        """Return whether the sampler was asked for all of its points. Files are only read if there are as many."""
        files = request_files(self.layout.root / self.work.folder, self.total)
        return len(files) == self.total == len(self.asked())

    def publish(self, number: int, point: Params) -> bool:
        """Write the point of a number. Returns False if another process has written one."""
        return publish_sealed(request_file(self.layout.root / self.work.folder, number), {"point": point})

    @abstractmethod
    def part_at(self, point: Params) -> Part:
        """Return the trial at a point; of several the first."""


class GlueSubject(Subject[GlueStudy]):
    """A GLUE study: its grid, with every point once, or its search."""

    direction = "maximize"

    @property
    def about(self) -> str:
        sampler = f" {self.work.search.sampler}" if self.work.search else ""
        return f"{self.work.task}{sampler} seed {self.work.seed}"

    @property
    def attributes(self) -> dict[str, Any]:
        study = self.work
        metric = study.about.decisive_metric(study.protocol) or " and ".join(map(str, study.about.metrics))
        own = {"task": study.task, "metric": metric, "seed": study.seed, "weights": study.weights}
        search = {"search": plain(study.search)} if study.search else {}
        return {**super().attributes, **own, **search}

    @cached_property
    def space(self) -> dict[str, BaseDistribution]:
        if self.work.search is not None and self.work.search.sampler != "grid":
            return axes_of(self.work.search.space)
        points = [plain(point) for point in self.work.points]
        return {axis: CategoricalDistribution(sorted({point[axis] for point in points})) for axis in points[0]}

    @property
    def prunes(self) -> bool:
        return self.work.search is not None

    def pruner(self) -> BasePruner:
        name = "none" if self.work.search is None else self.work.search.pruner
        return pruner_named(name, TENTHS * self.work.protocol.epochs)

    def sampler(self, number: int, asked: Asked) -> BaseSampler:
        if self.sampler_name == "grid":
            return Given(self.space, plain(self.work.points[number]))
        had = [point.model_dump() for point in asked.values()]
        return Rounded(self.space, sampler_named(self.sampler_name, number), had)

    @cached_property
    def _of_grid(self) -> Sequence[Part]:
        return self.work.trials(self.layout)

    def trials(self, asked: Asked) -> Sequence[Part]:
        if self.work.search is None:
            return self._of_grid
        return [self.work.search_trial(self.layout, point) for point in asked.values()]

    def key_of_part(self, part: Part) -> Hashable:
        assert isinstance(part, PointPart)
        return part.point

    def key_of(self, trial: FrozenTrial) -> Hashable:
        try:
            return Point(**trial.params)
        except ValueError:
            return None

    def params_of(self, part: Part) -> Params:
        assert isinstance(part, PointPart)
        return dict(plain(part.point))

    def ending_of(self, part: Part) -> Ending | None:
        assert isinstance(part, Trial | SearchTrial)
        return ending_of(part)

    def part_at(self, point: Params) -> Part:
        return self.work.search_trial(self.layout, Point(**point))


def tenth_of_epoch(step: int, course_steps: int, epochs: int) -> int:
    """Return after how many tenths of an epoch a step of a course ends, rounded up. Unlike the number of updates, this
    is comparable between batch sizes."""
    return math.ceil(TENTHS * epochs * step / course_steps)


def by_tenths(report: Report, course_steps: int, epochs: int) -> Report:
    """Return a report by the number of updates for one by tenths of an epoch."""
    return lambda step, value: report(tenth_of_epoch(step, course_steps, epochs), value)


def ending_of(trial: Trial | SearchTrial) -> Ending | None:
    """Return how a trial ended; None without an intact record. The records of the seeds of a search are not read."""
    outcome, study = trial.outcome, trial.study
    if outcome is None:
        return None
    if isinstance(trial, SearchTrial):
        score, curve = outcome.scores["score"], dict(outcome.scores["curve"])
    else:
        score, curve = study.about.decisive_score(study.protocol, outcome.scores), _curve_of(trial, outcome)
    if outcome.state == "pruned":  # Optuna takes the last report as its value
        state, score = TrialState.PRUNED, curve[max(curve)] if curve else None
    else:
        state = TrialState.FAIL if score is None else TrialState.COMPLETE
    error = {"error": UNDEFINED} if state is TrialState.FAIL else {}
    return Ending(
        state=state,
        value=score,
        curve=curve,
        attributes={"trial": trial.id, "claim": outcome.claim, **error},
        ended_at=outcome.ended_at,
        seconds=outcome.seconds,
    )


def _curve_of(trial: Trial, outcome: Outcome) -> dict[int, float]:
    """Return the values of a trial's evaluations by tenths of an epoch."""
    curve: dict[int, float] = {}
    if course := outcome.course_steps:
        for step, value in outcome.scores.get("curve", ()):
            if value is not None:
                curve.setdefault(tenth_of_epoch(step, course, trial.study.protocol.epochs), float(value))
    return curve


class RateSubject(Subject[RateSweep]):
    """A sweep over numbers of the optimizer: a trial is one pre-training run."""

    direction = "minimize"

    @property
    def about(self) -> str:
        return f"rates {self.work.by.sampler}"

    @property
    def attributes(self) -> dict[str, Any]:
        own = {"metric": "held-out loss, nats per token", "seeds": list(self.work.seeds)}
        return {**super().attributes, **own, "search": plain(self.work.by)}

    @cached_property
    def space(self) -> dict[str, BaseDistribution]:
        return axes_of((name, self.work.by.space[name]) for name in self.work.own)

    def sampler(self, number: int, asked: Asked) -> BaseSampler:
        """Return the sampler for the point of a number. The first point is as near the variant's own as may be."""
        if number == 0:
            return Given(self.space, self.work.first)
        had = list(asked.values())
        return Rounded(self.space, sampler_named(self.sampler_name, number), had, {RATE: RATE_DIGITS})

    def trials(self, asked: Asked) -> Sequence[Part]:
        points = self.work.points(self.layout) if self.work.rule else asked.values()
        return [trial for point in points for trial in self.work.trials_at(self.layout, point)]

    def key_of_part(self, part: Part) -> Hashable:
        assert isinstance(part, RateTrial)
        return _key(part.point, part.seed)

    def key_of(self, trial: FrozenTrial) -> Hashable:
        return _key(trial.params, trial.user_attrs.get("seed"))

    def params_of(self, part: Part) -> Params:
        assert isinstance(part, RateTrial)
        return part.point

    def marks_of(self, part: Part) -> dict[str, Any]:
        assert isinstance(part, RateTrial)
        return {"trial": part.id, "seed": part.seed}

    def ending_of(self, part: Part) -> Ending | None:
        """Return how a trial ended. Records of pre-training do not say by which claim."""
        assert isinstance(part, RateTrial)
        if not part.is_done:
            return None
        loss = part.loss
        error = {"error": UNDEFINED} if loss is None else {}
        return Ending(
            state=TrialState.FAIL if loss is None else TrialState.COMPLETE,
            value=loss,
            attributes={**self.marks_of(part), "claim": None, **error},
            ended_at=part.record.stat().st_mtime,
            seconds=read_record(part.record).get("seconds", 0.0),
        )

    def part_at(self, point: Params) -> Part:
        return self.work.trials_at(self.layout, point)[0]


def _key(point: Params, seed: int | None) -> Hashable:
    return frozenset(point.items()), seed
