"""A sweep over numbers of the optimizer as a study of Optuna: a trial is one pre-training run."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from neobert.identity import plain
from neobert.kinds.rates import RateSweep, RateTrial
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed, read_record
from neobert.runs.run_file import RunFile
from neobert.runs.work import Part
from neobert.search.endings import UNDEFINED, Ending, Params
from neobert.search.glue import labels_in
from neobert.search.samplers import Given, Rounded, axes_of, pruner_named, sampler_named
from neobert.search.space import SamplerName


@dataclass
class RateSubject:
    """A sweep. `run_file` names it in words; without one it is named by its id alone."""

    layout: Layout
    sweep: RateSweep
    run_file: RunFile | None = None

    @property
    def id(self) -> str:
        return self.sweep.id

    @property
    def name(self) -> str:
        owner = f"{self.run_file.owner} " if self.run_file and self.run_file.owner else ""
        return f"{owner}rates {self.sweep.by.sampler} ({self.id})"

    @property
    def attributes(self) -> dict[str, Any]:
        own = {"metric": "held-out loss, nats per token", "seeds": list(self.sweep.seeds)}
        return {**labels_in(self.run_file), **own, "search": plain(self.sweep.by)}

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "minimize"

    @cached_property
    def space(self) -> dict[str, BaseDistribution]:
        return axes_of((name, self.sweep.by.space[name]) for name in self.sweep.own)

    @property
    def prunes(self) -> bool:
        return False

    @property
    def total(self) -> int:
        return self.sweep.search.trials if self.sweep.search else 0

    @property
    def sampler_name(self) -> SamplerName:
        return self.sweep.search.sampler if self.sweep.search else "grid"

    def pruner(self) -> BasePruner:
        return pruner_named("none", 1)

    def sampler(self, number: int, had: Sequence[Params]) -> BaseSampler:
        """Return the sampler for the point of a number. The first point is as near the variant's own as may be."""
        if number == 0:
            return Given(self.space, self.sweep.first)
        return Rounded(self.space, sampler_named(self.sampler_name, number), had, self.sweep.digits)

    def trials(self) -> Sequence[Part]:
        points = self.sweep.points(self.layout)
        return [trial for point in points for trial in self.sweep.trials_at(self.layout, point)]

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

    def asked(self) -> Mapping[int, Params]:
        return self.sweep.asked(self.layout)

    def publish(self, number: int, point: Params) -> bool:
        return publish_sealed(self.sweep.request_file(self.layout, number), {"point": point})

    def part_at(self, point: Params) -> Part:
        return self.sweep.trials_at(self.layout, point)[0]


def _key(point: Params, seed: int | None) -> Hashable:
    return frozenset(point.items()), seed
