"""What chooses the points of a study and ends trials: Optuna's samplers and pruners, and the space that they search."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, WilcoxonPruner
from optuna.samplers import BaseSampler, GPSampler, QMCSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from neobert.search.space import PrunerName, Range, SamplerName, Space

Params = Mapping[str, Any]
"""The parameters of a trial of Optuna, by name."""

RESAMPLED = 100
"""How often a sampler is asked again if it suggests a point that it had before; then the point counts once more."""
RATE_DIGITS = 3


class Suggesting(BaseSampler):
    """Base of samplers that suggest a whole point at once."""

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self.space = dict(space)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.space

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        raise AssertionError(f"{name} was not suggested with the others")


class Given(Suggesting):
    """Sampler that suggests the point given: the next of a grid. Optuna's GridSampler repeats points if several workers
    ask."""

    def __init__(self, space: Mapping[str, BaseDistribution], point: Params) -> None:
        super().__init__(space)
        self.point = point

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
        return dict(self.point)


class Rounded(Suggesting):
    """Sampler that suggests what another does, in `digits` digits (default: `RATE_DIGITS`), and if possible no point
    that it had before."""

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        inner: BaseSampler,
        had: Sequence[Params],
        digits: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(space)
        self.inner = inner
        self.had = had
        self.digits = digits or {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
        for _ in range(RESAMPLED):
            found = self.inner.sample_relative(study, trial, self.inner.infer_relative_search_space(study, trial))
            for name in self.space.keys() - found.keys():
                found[name] = self.inner.sample_independent(study, trial, name, self.space[name])
            point = {name: self._rounded(name, found[name]) for name in self.space}
            if point not in self.had:
                break
        return point

    def _rounded(self, name: str, value: Any) -> Any:
        distribution = self.space[name]
        if not isinstance(distribution, FloatDistribution):
            return value
        rounded = float(f"{value:.{self.digits.get(name, RATE_DIGITS)}g}")
        return min(max(rounded, distribution.low), distribution.high)


def axes_of(space: Iterable[tuple[str, Range | tuple[float, ...]]]) -> dict[str, BaseDistribution]:
    """Return the space as Optuna's distributions."""
    return {axis: _distribution(axis, values) for axis, values in space}


def _distribution(axis: str, values: Range | tuple[float, ...]) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution(values)
    if axis == "batch_size":
        return IntDistribution(int(values.low), int(values.high), log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)


def space_of(axes: Mapping[str, BaseDistribution]) -> Space:
    """Return the space that distributions of Optuna describe, by the field of a point.

    Raises ValueError if a field is missing or unknown, or cannot be so distributed.
    """
    return Space.model_validate({axis: _values(axis, distribution) for axis, distribution in axes.items()})


def _values(axis: str, distribution: BaseDistribution) -> Range | tuple[Any, ...]:
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)
    if not isinstance(distribution, IntDistribution | FloatDistribution):
        raise ValueError(f"{axis} is a {type(distribution).__name__}: give a distribution of optuna.distributions")
    if distribution.step not in (None, 1):
        raise ValueError(f"{axis} has steps of {distribution.step:g}: give its values in a CategoricalDistribution")
    return Range(low=distribution.low, high=distribution.high, log=distribution.log)


SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "random": lambda seed: RandomSampler(seed=seed),
    "tpe": lambda seed: TPESampler(seed=seed),
    "gp": lambda seed: GPSampler(seed=seed, warn_independent_sampling=False),
    "qmc": lambda seed: QMCSampler(seed=seed, warn_independent_sampling=False),
}
PACKAGES: Mapping[SamplerName, tuple[str, ...]] = {"gp": ("torch", "scipy.stats"), "qmc": ("scipy.stats",)}
"""What samplers import when they are asked."""
PRUNERS: Mapping[PrunerName, Callable[[int], BasePruner]] = {
    "none": lambda last_step: NopPruner(),
    "median": lambda last_step: MedianPruner(),
    "hyperband": lambda last_step: HyperbandPruner(min_resource=1, max_resource=last_step),
    "wilcoxon": lambda last_step: WilcoxonPruner(),
}


def import_for(name: SamplerName) -> None:
    """Import what a sampler needs, before a lock is held for it: on a slow file system that takes many seconds."""
    for package in PACKAGES.get(name, ()):
        import_module(package)


def sampler_named(name: SamplerName, number: int) -> BaseSampler:
    """Return the sampler for the point of a number. The number is its seed: a single worker that is started again makes
    the same choices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return SAMPLERS[name](number)


def pruner_named(name: PrunerName, last_step: int) -> BasePruner:
    """Return the pruner for trials whose reports end at a step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return PRUNERS[name](last_step)
