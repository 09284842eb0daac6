"""A sweep over numbers of the optimizer: pre-training runs of one variant, of which workers add the next ones.

A trial is one point with one pilot seed, and is a pre-training run like any other: it has the id, folder, claim and
record of that run, which the variant at that point has too.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from neobert.files import status_of
from neobert.identity import Neutral
from neobert.kinds.pretraining import PretrainingRun
from neobert.rates import IN_NAMES, RATE, next_step, with_number
from neobert.recipe import Start, Value
from neobert.runs.claims import is_claimed
from neobert.runs.layout import Layout
from neobert.runs.records import read_once, read_record, read_sealed
from neobert.runs.work import Part, Work
from neobert.search.space import Range, read_requests, request_part

Numbers = Mapping[str, float]
"""A point of a sweep: numbers of the optimizer by field."""


class RateRule(Value):
    """A grid of rates around the variant's own, which is in the middle of `rates` (ascending). It begins with `width`
    rates on each side; as long as the best rate is at an edge, the next one beyond it follows."""

    sampler: Literal["rule"] = "rule"
    rates: tuple[PositiveFloat, ...]
    width: PositiveInt

    @property
    def most(self) -> int:
        """The largest number of rates on each side."""
        return len(self.rates) // 2

    @property
    def space(self) -> dict[str, Range]:
        """The range of the rates."""
        return {RATE: Range(low=min(self.rates), high=max(self.rates), log=True)}

    def rate(self, step: int) -> float:
        """Return the rate so many steps above the variant's own."""
        return self.rates[self.most + step]


class RateSearch(Value):
    """A search of `trials` points, which a sampler of Optuna chooses within the ranges of `space`, by field."""

    sampler: Literal["random", "tpe", "gp", "qmc"]
    trials: PositiveInt
    space: dict[str, Range]


class RateSweep(Work):
    """A sweep. `stages` are the pre-training runs of the variant at its own numbers, with the first of the `seeds`;
    `by` is what chooses the points. Each point is trained with all seeds."""

    kind: Annotated[Literal["rates"], Neutral("rates")] = "rates"
    stages: tuple[PretrainingRun, ...]
    seeds: tuple[NonNegativeInt, ...]
    by: RateRule | RateSearch

    job = "pretrain"
    counted = "runs"
    folder_pattern = "rates/{id}"
    mechanisms = PretrainingRun.mechanisms

    @property
    def rule(self) -> RateRule | None:
        return self.by if isinstance(self.by, RateRule) else None

    @property
    def search(self) -> RateSearch | None:
        return self.by if isinstance(self.by, RateSearch) else None

    @property
    def title(self) -> str:
        return f"learning rates ({self.by.sampler})"

    @property
    def seed(self) -> int:
        return self.seeds[0]

    @property
    def columns(self) -> Mapping[str, Any]:
        return {"seed": self.seed}

    @property
    def total(self) -> int | None:
        return self.search.trials * len(self.seeds) if self.search else None

    @property
    def start(self) -> Start | None:
        return self.stages[0].start

    @property
    def preparation(self) -> tuple[Work, ...]:
        return self.first_runs[0].preparation

    @property
    def trains(self) -> tuple[Work, ...]:
        return self.first_runs

    @property
    def grows(self) -> bool:
        return True

    # Points and their runs

    @cached_property
    def own(self) -> Numbers:
        """The variant's own numbers in the fields of the sweep, in their order in names."""
        optimization = self.stages[0].recipe.optimization.model_dump()
        return {name: optimization[name] for name in IN_NAMES if name in self.by.space}

    @cached_property
    def first(self) -> Numbers:
        """The variant's own numbers, or the nearest ones in the ranges."""
        space = self.by.space
        return {name: min(max(value, space[name].low), space[name].high) for name, value in self.own.items()}

    @property
    def first_runs(self) -> tuple[PretrainingRun, ...]:
        """The stages of the first trial."""
        return self.runs(self.first, self.seed)

    def runs(self, point: Numbers, seed: int) -> tuple[PretrainingRun, ...]:
        """Return the stages of pre-training at a point with a seed; each names its predecessor by id."""
        key = frozenset(point.items()), seed
        if key not in self._runs:
            runs: list[PretrainingRun] = []
            for stage in self.stages:
                optimization = stage.recipe.optimization.model_copy(update=dict(point))
                recipe = stage.recipe.model_copy(update={"seed": seed, "optimization": optimization})
                previous = runs[-1].id if runs else None
                runs.append(stage.model_copy(update={"recipe": recipe, "previous": previous}))
            self._runs[key] = tuple(runs)
        return self._runs[key]

    @cached_property
    def _runs(self) -> dict[tuple[frozenset[tuple[str, float]], int], tuple[PretrainingRun, ...]]:
        return {}

    def name_at(self, name: str, point: Numbers) -> str:
        """Return the name of the variant at a point, without numbers that it has anyway."""
        for number, own in self.own.items():
            if point[number] != own:
                name = with_number(name, number, point[number])
        return name

    def labels_at(self, labels: Mapping[str, Any], point: Numbers) -> dict[str, Any]:
        """Return the labels of a run at a point, as its variant has them; `labels` are those of the sweep."""
        shared = {key: value for key, value in labels.items() if key != "base"}
        changed = [name for name, own in self.own.items() if point[name] != own]
        if not changed:
            return shared
        last = changed[-1]
        parent = self.name_at(labels["base"], {**point, last: self.own[last]})
        delta = {f"optimization.{last}": [self.own[last], point[last]]}
        return shared | {"variants": [self.name_at(labels["base"], point)], "parent": parent, "delta": delta}

    # Trials

    def trial(self, layout: Layout, point: Numbers, seed: int) -> "RateTrial":
        """Return the trial at a point with a seed."""
        runs = self.runs(point, seed)
        last = runs[-1].closing(layout)
        where = ", ".join(f"{name} {point[name]:g}" for name in self.own)
        return RateTrial(
            work=self,
            id=last.id,
            title=f"pretraining {last.id} ({where}, seed {seed})",
            record=last.record,
            error=last.error,
            layout=layout,
            point=point,
            seed=seed,
            runs=runs,
        )

    def trials_at(self, layout: Layout, point: Numbers) -> "tuple[RateTrial, ...]":
        """Return the trials at a point, in the order of the seeds."""
        return tuple(self.trial(layout, point, seed) for seed in self.seeds)

    def trials(self, layout: Layout) -> "tuple[RateTrial, ...]":
        """Return the trials of all points so far, each once."""
        found = {trial.id: trial for point in self.points(layout) for trial in self.trials_at(layout, point)}
        return tuple(found.values())

    def points(self, layout: Layout) -> list[Numbers]:
        """Return the points so far. A sampler may ask for a point again."""
        if self.rule is None:
            return list(self.asked(layout).values())
        return [{RATE: self.rule.rate(step)} for step in self._steps(layout, self.rule)]

    def _steps(self, layout: Layout, rule: RateRule) -> Iterator[int]:
        """Yield the steps of the grid, and those that follow from ended runs."""
        losses: dict[int, float | None] = {}
        tried = list(range(-rule.width, rule.width + 1))
        while tried:
            yield from tried
            for step in tried:
                trials = self.trials_at(layout, {RATE: rule.rate(step)})
                if not all(trial.has_ended for trial in trials):
                    return
                losses[step] = mean_loss(trials)
            following = next_step(losses, rule.most)
            tried = [] if following is None else [following]

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return the trials so far; of a search also one that cannot be taken, until all points are asked for."""
        trials, asked = self.trials(layout), self.asked(layout)
        total = self.search.trials if self.search else 0
        unasked = next((number for number in range(total) if number not in asked), None)
        if unasked is None:
            return trials
        request = request_part(self, layout.root / self.folder, unasked, total)
        return (*trials, replace(request, after=(request,)))

    def open_parts(self, layout: Layout) -> int:
        """Return how many trials workers could do side by side. Samplers that learn try one point at a time."""
        trials = self.trials(layout)
        done = sum(trial.is_done for trial in trials)
        if self.search is None:
            return len(trials) - done
        left = self.search.trials * len(self.seeds) - done
        return min(left, len(self.seeds)) if self.search.sampler in ("tpe", "gp") else left

    def done(self, layout: Layout, pending: Sequence[Part]) -> int:
        left = {part.id for part in pending}
        trials = (trial for point in self.points(layout) for trial in self.trials_at(layout, point))
        return sum(trial.id not in left for trial in trials)

    def closing(self, layout: Layout) -> None:
        return None

    # The points of a search

    def asked(self, layout: Layout) -> dict[int, Numbers]:
        """Return the points that a search has asked for, by their numbers."""
        if self.search is None:
            return {}
        return read_requests(layout.root / self.folder, self.search.trials, _read_request)


@dataclass(frozen=True, kw_only=True)
class RateTrial(Part):
    """One point with one pilot seed: `runs` are its stages of pre-training, and it is done when the last one is."""

    work: RateSweep = field(compare=False, repr=False)
    layout: Layout
    point: Numbers = field(compare=False)
    seed: int
    runs: tuple[PretrainingRun, ...] = field(compare=False, repr=False)

    @property
    def has_failed(self) -> bool:
        """Whether it failed, and nobody is trying again."""
        is_left = status_of(self.error) is not None and not self.is_done
        return is_left and not is_claimed(self.layout.claims(self.id))

    @property
    def has_ended(self) -> bool:
        return self.is_done or self.has_failed

    @property
    def loss(self) -> float | None:
        """The held-out loss on the run's own corpus, in nats per token; None without a record, or if it has none."""
        losses = read_once(self.record, _read_heldout_losses)
        loss = None if losses is None else self.runs[-1].heldout_loss(losses)
        return loss if loss is not None and math.isfinite(loss) else None


def mean_loss(trials: Sequence[RateTrial]) -> float | None:
    """Return the mean loss of the trials at a point; None if one has no loss."""
    losses = [loss for trial in trials if (loss := trial.loss) is not None]
    return statistics.fmean(losses) if len(losses) == len(trials) else None


def _read_heldout_losses(record: Path) -> Mapping[str, float]:
    losses: Mapping[str, float] = read_record(record)["scores"]["heldout_loss"]
    return losses


def _read_request(path: Path) -> Numbers:
    """Read a point that a search asked for. Raises as `read_sealed`."""
    return dict(read_sealed(path)["point"])
