"""Regime checks of the arms of a group: those of the plan, and those that need the runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ablations.arm_seeds import ArmSeeds, check_spread, check_transition, diagnose
from ablations.declarations import PROTOCOL, Protocol
from ablations.rates import MARK, RateCurve
from ablations.regime import Check, check_half_life, check_rate, check_window
from reports.analysis.plateau import Regime
from reports.analysis.transitions import Wait, arm_of, steps_of
from reports.scores import Group, Row


@dataclass(frozen=True)
class _CheckedArm:
    """A row with its seeds and those of its parent, and its checks."""

    row: Row
    seeds: ArmSeeds
    parent: ArmSeeds | None
    planned: tuple[Check, ...]
    margin: float
    """Bound of equivalence of the loss, in nats."""

    @property
    def checks(self) -> tuple[Check, ...]:
        of_parent = () if self.parent is None else (check_spread(self.seeds, self.parent),)
        return (check_transition(self.seeds), *of_parent, *self.planned)

    @property
    def failure(self) -> str:
        """The first check that fails, in words that begin with "not measurable"; empty if none does."""
        return next((f"not measurable: {self.row.name}: {check.words}" for check in self.checks if check.fails), "")

    @property
    def diagnosis(self) -> str:
        """What its seeds show against a verdict; empty if nothing."""
        return diagnose(self.seeds, self.parent, self.margin)


def find_regime(group: Group, waits: Sequence[Wait], protocol: Protocol = PROTOCOL) -> Regime:
    """Return the checks of all arms with runs; remarks are for those of the ladder and at own rates."""
    steps, margin = list(steps_of(group)), protocol.margin_of("loss")
    shown = {row.name: row for row in (*group.last_rows.values(), *chain.from_iterable(steps))}
    rows = [row for row in {**group.compared_rows, **shown}.values() if row.own_loss is not None]
    parents = {row.name: row.parent for row in rows} | {variant.name: base.name for variant, base in steps}
    seeds = {row.name: _seeds_of(row) for row in rows}
    arms = [
        _CheckedArm(row, seeds[row.name], seeds.get(parents[row.name]), _planned_checks(row, group), margin)
        for row in rows
    ]
    return Regime(
        checks={arm.row.name: arm.checks for arm in arms if arm.row.name in shown},
        diagnoses={arm.row.name: reason for arm in arms if (reason := arm.diagnosis)},
        failures={arm.row.name: reason for arm in arms if (reason := arm.failure)},
        words={(wait.variant, wait.base): wait.word for wait in waits if wait.word},
    )


def _planned_checks(row: Row, group: Group) -> tuple[Check, ...]:
    recipe, sweep = row.recipe.pretraining, group.sweeps.get(row.name.partition(MARK)[0])
    # Pilot seeds at one rate tell the spread of seeds, and are no sweep.
    curve = RateCurve({}, {}) if sweep is None or len(sweep.curve.rates) < 2 else sweep.curve
    return check_window(recipe), check_half_life(recipe), check_rate(recipe.optimization.peak_learning_rate, curve)


def _seeds_of(row: Row) -> ArmSeeds:
    arm = arm_of(row)
    assert row.own_loss is not None
    return ArmSeeds(row.name, row.own_loss[1].by_pretraining, {}) if arm is None else arm.seeds
