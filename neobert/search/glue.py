"""A GLUE study as a study of Optuna: its grid, with every point once, or its search."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from neobert.identity import plain
from neobert.kinds.glue import GlueStudy, Outcome, SearchTrial, Trial
from neobert.recipe import Point
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed
from neobert.runs.run_file import RunFile
from neobert.runs.work import Part
from neobert.search.endings import UNDEFINED, Ending, Params, Report
from neobert.search.samplers import Given, Rounded, axes_of, pruner_named, sampler_named
from neobert.search.space import SamplerName

TENTHS = 10
AnyTrial = Trial | SearchTrial


@dataclass
class GlueSubject:
    """A GLUE study. `run_file` names it in words; without one it is named by its id alone."""

    layout: Layout
    study: GlueStudy
    run_file: RunFile | None = None

    @property
    def id(self) -> str:
        return self.study.id

    @property
    def name(self) -> str:
        owner = f"{self.run_file.owner} " if self.run_file and self.run_file.owner else ""
        sampler = f" {self.study.search.sampler}" if self.study.search else ""
        return f"{owner}{self.study.task}{sampler} seed {self.study.seed} ({self.study.id})"

    @property
    def attributes(self) -> dict[str, Any]:
        study = self.study
        metric = study.about.decisive_metric(study.protocol) or " and ".join(map(str, study.about.metrics))
        own = {"task": study.task, "metric": metric, "seed": study.seed, "weights": study.weights}
        search = {"search": plain(study.search)} if study.search else {}
        return {**labels_in(self.run_file), **own, **search}

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "maximize"

    @cached_property
    def space(self) -> dict[str, BaseDistribution]:
        if self.study.search is not None and self.study.search.sampler != "grid":
            return axes_of(self.study.search.space)
        points = [plain(point) for point in self.study.points]
        return {axis: CategoricalDistribution(sorted({point[axis] for point in points})) for axis in points[0]}

    @property
    def prunes(self) -> bool:
        return self.study.search is not None

    @property
    def total(self) -> int:
        return self.study.total if self.study.search else 0

    @property
    def sampler_name(self) -> SamplerName:
        return self.study.search.sampler if self.study.search else "grid"

    def pruner(self) -> BasePruner:
        name = "none" if self.study.search is None else self.study.search.pruner
        return pruner_named(name, TENTHS * self.study.protocol.epochs)

    def sampler(self, number: int, had: Sequence[Params]) -> BaseSampler:
        if self.sampler_name == "grid":
            return Given(self.space, plain(self.study.points[number]))
        return Rounded(self.space, sampler_named(self.sampler_name, number), had)

    @cached_property
    def _of_grid(self) -> Sequence[Part]:
        return self.study.trials(self.layout)

    def trials(self) -> Sequence[Part]:
        if self.study.search is None:
            return self._of_grid
        return [self.study.search_trial(self.layout, point) for point in self.study.asked(self.layout).values()]

    def key_of_part(self, part: Part) -> Hashable:
        assert isinstance(part, AnyTrial)
        return part.point

    def key_of(self, trial: FrozenTrial) -> Hashable:
        try:
            return Point(**trial.params)
        except ValueError:
            return None

    def params_of(self, part: Part) -> Params:
        assert isinstance(part, AnyTrial)
        return dict(plain(part.point))

    def marks_of(self, part: Part) -> dict[str, Any]:
        return {"trial": part.id}

    def ending_of(self, part: Part) -> Ending | None:
        assert isinstance(part, AnyTrial)
        return ending_of(part)

    def asked(self) -> Mapping[int, Params]:
        return {number: plain(point) for number, point in self.study.asked(self.layout).items()}

    def publish(self, number: int, point: Params) -> bool:
        return publish_sealed(self.study.request_file(self.layout, number), {"point": point})

    def part_at(self, point: Params) -> Part:
        return self.study.search_trial(self.layout, Point(**point))


def labels_in(run_file: RunFile | None) -> dict[str, Any]:
    """Return the labels of a run that its study shows."""
    labels = run_file.labels if run_file else {}
    return {key: labels[key] for key in ("variants", "model", "scale", "ladder") if labels.get(key)}


def tenth_of_epoch(step: int, course_steps: int, epochs: int) -> int:
    """Return after how many tenths of an epoch a step of a course ends, rounded up. Unlike the number of updates, this
    is comparable between batch sizes."""
    return math.ceil(TENTHS * epochs * step / course_steps)


def by_tenths(report: Report, course_steps: int, epochs: int) -> Report:
    """Return a report by the number of updates for one by tenths of an epoch."""
    return lambda step, value: report(tenth_of_epoch(step, course_steps, epochs), value)


def ending_of(trial: AnyTrial) -> Ending | None:
    """Return how a trial ended; None without an intact record."""
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
