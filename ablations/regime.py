"""Regime checks: does a run at this scale have what its recipe relies on?

A check compares one number with a bound. Those here follow from the plan and from finished sweeps. The others need the
records of the runs themselves (`ablations.arm_seeds`): transition time as a share of the run, and the child's standard
deviation over the parent's.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ablations.rates import PILOT_SEEDS, RateCurve, rate_text
from neobert.identity import plain
from neobert.kinds.pretraining import PretrainingRun
from neobert.recipe import Pretraining
from neobert.runs.kinds import stage_records
from neobert.runs.layout import Layout

LEAST_GRADIENTS_PER_ROW = 4.0
LONGEST_HALF_LIFE_SHARE = 0.1
LEAST_RATES_BEYOND = 1.0
AFTER_THE_RUNS = ("transition time as a share of the run", "sd of child over parent")


@dataclass(frozen=True)
class Check:
    """One number beside its bound. `number` is None if it is not known yet, and `holds` is False then; `words` is a
    sentence with both."""

    name: str
    number: float | None
    bound: float
    holds: bool
    words: str

    @property
    def fails(self) -> bool:
        """Whether the number is known and beyond the bound."""
        return self.number is not None and not self.holds


def check_window(recipe: Pretraining) -> Check:
    """Check that Adam's second moment averages enough gradients of each row of the vocabulary.

    The number is 1 / (1 − beta2) steps × predicted tokens per step ÷ vocabulary, in the first stage and if every slot
    held a token: 13 in the paper at beta2 = 0.95. A row has a gradient of its own where its token is predicted.
    """
    stage, beta2 = recipe.stages[0], recipe.optimization.beta2
    window = 1 / (1 - beta2)
    number = window * stage.tokens_per_step * recipe.predicted_share(0) / recipe.model.vocabulary_size
    bound = LEAST_GRADIENTS_PER_ROW
    words = f"{number:.3g} gradients per vocabulary row in beta2's window of {window:,.0f} steps (bound: ≥ {bound:g})"
    return Check("gradients per vocabulary row", number, bound, number >= bound, words)


def check_half_life(recipe: Pretraining) -> Check:
    """Check that Adam's second moment forgets the start of the run: half-life over the steps of all stages."""
    beta2, bound = recipe.optimization.beta2, LONGEST_HALF_LIFE_SHARE
    half_life = 0.0 if beta2 == 0 else math.log(2) / -math.log(beta2)
    number = half_life / sum(stage.steps for stage in recipe.stages)
    words = f"beta2 has a half-life of {half_life:,.0f} steps, {number:.2g} of the run (bound: ≤ {bound:g})"
    # A scale that caps the half-life at this share rounds beta2.
    return Check("half-life of beta2", number, bound, number <= bound * (1 + 1e-3), words)


def check_rate(rate: float, curve: RateCurve) -> Check:
    """Check that an arm's peak rate and the best one of its sweep have swept rates on both sides.

    The number is how many there are on the side that has fewer.
    """
    name, bound = "rate inside the swept grid", LEAST_RATES_BEYOND
    if not curve.means:
        return Check(name, None, bound, holds=False, words=f"the peak rate {rate:g} is not swept")
    best = min(curve.means, key=lambda each: curve.means[each])
    sides = [[each for each in curve.rates if (each - own) * sign > 0] for own in (rate, best) for sign in (-1, 1)]
    number = float(min(map(len, sides)))
    swept = f"{rate_text(curve.rates[0])} to {rate_text(curve.rates[-1])}"
    words = (
        f"the peak rate {rate:g} and the best of the sweep, {rate_text(best)}, have {number:g} or more of the swept "
        f"rates ({swept}) on each side (bound: ≥ {bound:g})"
    )
    return Check(name, number, bound, number >= bound, words)


def checks_of(run: PretrainingRun, pilots: Iterable[Mapping[str, Any]]) -> tuple[Check, ...]:
    """Return the checks of a run; `pilots` are records as `pilot_records` returns them."""
    rate = run.recipe.optimization.peak_learning_rate
    return check_window(run.recipe), check_half_life(run.recipe), check_rate(rate, sweep_of(run, pilots))


def pilot_records(layout: Layout) -> list[Mapping[str, Any]]:
    """Return the records of finished pre-training on pilot seeds; unreadable ones are skipped."""
    return [record for _, record in stage_records(layout) if record.get("seed") in PILOT_SEEDS]


def sweep_of(run: PretrainingRun, pilots: Iterable[Mapping[str, Any]]) -> RateCurve:
    """Return the losses of the pilot runs that differ from a run in rate and seed alone, by rate."""
    wanted, losses = _but_for_rate(plain(run.recipe)), dict[float, dict[int, float]]()
    for record in pilots:
        with suppress(KeyError, TypeError, ValueError):  # of another version
            recipe = Pretraining.read(record["config"]["recipe"])
            loss = run.heldout_loss(record["scores"]["heldout_loss"])
            if loss is not None and _but_for_rate(plain(recipe)) == wanted:
                losses.setdefault(recipe.optimization.peak_learning_rate, {})[record["seed"]] = loss
    return RateCurve(losses, {})


def _but_for_rate(recipe: Mapping[str, Any]) -> str:
    optimization = {**recipe["optimization"], "peak_learning_rate": None}
    return json.dumps({**recipe, "optimization": optimization, "seed": None}, sort_keys=True)


def describe_checks(checks: Mapping[str, Sequence[Check]]) -> list[str]:
    """Return lines about the checks of arms by name: how many hold, each that fails, and what is not known yet."""
    every = [check for own in checks.values() for check in own]
    known = [check for check in every if check.number is not None]
    held = sum(check.holds for check in known)
    lines = [f"regime: {held} of {len(known)} checks hold (after the runs: {', '.join(AFTER_THE_RUNS)})"]
    lines += [f"  {name}: {check.words}" for name, own in checks.items() for check in own if check.fails]
    unswept = [name for name, own in checks.items() if any(check.number is None for check in own)]
    return [*lines, *([f"  peak rate not swept: {', '.join(unswept)}"] if unswept else [])]
