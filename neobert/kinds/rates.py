"""A sweep over peak learning rates: pre-training runs of one variant, of which workers add the next ones.

A trial is one rate with one pilot seed, and is a pre-training run like any other: it has the id, folder, claim and
record of that run, which the variant at that rate has too.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from neobert.files import status_of
from neobert.identity import Neutral
from neobert.kinds.pretraining import PretrainingRun
from neobert.rates import RATE, next_step, with_number
from neobert.recipe import Start, Value
from neobert.runs.claims import is_claimed
from neobert.runs.layout import Layout
from neobert.runs.records import read_once, read_record
from neobert.runs.work import Part, Work


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

    def rate(self, step: int) -> float:
        """Return the rate so many steps above the variant's own."""
        return self.rates[self.most + step]


class RateSweep(Work):
    """A sweep. `stages` are the pre-training runs of the variant at its own numbers, with the first of the `seeds`;
    `by` is the rule that chooses rates. Each rate is trained with all seeds."""

    kind: Annotated[Literal["rates"], Neutral("rates")] = "rates"
    stages: tuple[PretrainingRun, ...]
    seeds: tuple[NonNegativeInt, ...]
    by: RateRule

    job = "pretrain"
    counted = "runs"
    folder_pattern = "rates/{id}"
    mechanisms = PretrainingRun.mechanisms

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
    def start(self) -> Start | None:
        return self.stages[0].start

    @property
    def preparation(self) -> tuple[Work, ...]:
        return self.stages[0].preparation

    @property
    def trains(self) -> tuple[Work, ...]:
        return self.stages

    @property
    def grows(self) -> bool:
        return True

    # Rates and their runs

    @property
    def own(self) -> float:
        """The variant's own rate."""
        return self.stages[0].recipe.optimization.peak_learning_rate

    def runs(self, rate: float, seed: int) -> tuple[PretrainingRun, ...]:
        """Return the stages of pre-training at a rate with a seed; each names its predecessor by id."""
        if (rate, seed) not in self._runs:
            runs: list[PretrainingRun] = []
            for stage in self.stages:
                optimization = stage.recipe.optimization.model_copy(update={RATE: rate})
                recipe = stage.recipe.model_copy(update={"seed": seed, "optimization": optimization})
                previous = runs[-1].id if runs else None
                runs.append(stage.model_copy(update={"recipe": recipe, "previous": previous}))
            self._runs[rate, seed] = tuple(runs)
        return self._runs[rate, seed]

    @cached_property
    def _runs(self) -> dict[tuple[float, int], tuple[PretrainingRun, ...]]:
        return {}

    def name_at(self, name: str, rate: float) -> str:
        """Return the name of the variant at a rate; at its own the name itself."""
        return name if rate == self.own else with_number(name, RATE, rate)

    def labels_at(self, labels: Mapping[str, Any], rate: float) -> dict[str, Any]:
        """Return the labels of a run at a rate, as its variant has them; `labels` are those of the sweep."""
        shared = {key: value for key, value in labels.items() if key != "base"}
        if rate == self.own:
            return shared
        delta = {f"optimization.{RATE}": [self.own, rate]}
        return shared | {"variants": [self.name_at(labels["base"], rate)], "parent": labels["base"], "delta": delta}

    # Trials

    def trial(self, layout: Layout, rate: float, seed: int) -> "RateTrial":
        """Return the trial at a rate with a seed."""
        runs = self.runs(rate, seed)
        last = runs[-1].closing(layout)
        return RateTrial(
            work=self,
            id=last.id,
            title=f"pretraining {last.id} ({RATE} {rate:g}, seed {seed})",
            record=last.record,
            error=last.error,
            layout=layout,
            rate=rate,
            seed=seed,
            runs=runs,
        )

    def trials_at(self, layout: Layout, rate: float) -> "tuple[RateTrial, ...]":
        """Return the trials at a rate, in the order of the seeds."""
        return tuple(self.trial(layout, rate, seed) for seed in self.seeds)

    def trials(self, layout: Layout) -> "tuple[RateTrial, ...]":
        """Return the trials of all rates so far."""
        return tuple(trial for step in self._steps(layout) for trial in self.trials_at(layout, self.by.rate(step)))

    def _steps(self, layout: Layout) -> Iterator[int]:
        """Yield the steps of the grid, and those that follow from ended runs."""
        losses: dict[int, float | None] = {}
        tried = list(range(-self.by.width, self.by.width + 1))
        while tried:
            yield from tried
            for step in tried:
                trials = self.trials_at(layout, self.by.rate(step))
                if not all(trial.has_ended for trial in trials):
                    return
                losses[step] = mean_loss(trials)
            following = next_step(losses, self.by.most)
            tried = [] if following is None else [following]

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return self.trials(layout)

    def done(self, layout: Layout, pending: Sequence[Part]) -> int:
        left = {part.id for part in pending}
        return sum(trial.id not in left for trial in self.trials(layout))

    def closing(self, layout: Layout) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class RateTrial(Part):
    """One rate with one pilot seed: `runs` are its stages of pre-training, and it is done when the last one is."""

    work: RateSweep = field(compare=False, repr=False)
    layout: Layout
    rate: float
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
    """Return the mean loss of the trials at a rate; None if one has no loss."""
    losses = [loss for trial in trials if (loss := trial.loss) is not None]
    return statistics.fmean(losses) if len(losses) == len(trials) else None


def _read_heldout_losses(record: Path) -> Mapping[str, float]:
    losses: Mapping[str, float] = read_record(record)["scores"]["heldout_loss"]
    return losses
