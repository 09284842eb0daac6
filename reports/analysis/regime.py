"""Regime checks of the arms of a group: those of the plan, and those that need the runs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

from ablations.arm_seeds import ArmSeeds, check_spread, check_transition, diagnose
from ablations.declarations import PROTOCOL, Protocol
from ablations.rates import RateCurve, without_rate
from ablations.regime import Check, check_half_life, check_rate, check_window
from reports.analysis.plateau import ALL_SEEDS, Regime
from reports.analysis.transitions import Wait, arm_of, steps_of
from reports.scores import Group, Row


@dataclass(frozen=True)
class _CheckedArm:
    """The seeds of an arm and of a parent of it, and its checks. `margin` is the bound of equivalence of the loss, in
    nats."""

    seeds: ArmSeeds
    parent: ArmSeeds | None
    planned: tuple[Check, ...]
    margin: float

    @property
    def checks(self) -> tuple[Check, ...]:
        of_parent = () if self.parent is None else (check_spread(self.seeds, self.parent),)
        return (check_transition(self.seeds), *of_parent, *self.planned)

    @property
    def reason(self) -> str:
        """Why its differences get no verdict, in words that begin with "not measurable"; empty if they may."""
        failing = (f"not measurable: {self.seeds.name}: {check.words}" for check in self.checks if check.fails)
        return diagnose(self.seeds, self.margin) or next(failing, "")

    def first(self, seeds: int, declared: Collection[int] | None) -> "_CheckedArm":
        parent = None if self.parent is None else self.parent.first(seeds, declared)
        return _CheckedArm(self.seeds.first(seeds, declared), parent, self.planned, self.margin)


def find_regime(
    group: Group, waits: Sequence[Wait], protocol: Protocol = PROTOCOL, declared: Collection[int] | None = None
) -> Regime:
    """Return the checks of all arms with runs, over all seeds and at each look of the `declared` ones; remarks are for
    those of the ladder and at own rates."""
    steps, margin = list(steps_of(group)), protocol.margin_of("loss")
    shown = {row.name: row for row in (*group.last_rows.values(), *chain.from_iterable(steps))}
    rows = {row.name: row for row in {**group.compared_rows, **shown}.values() if row.own_loss is not None}
    seeds = {name: _seeds_of(row) for name, row in rows.items()}
    of_steps = [(variant.name, base.name) for variant, base in steps if variant.name in rows]
    others = [(name, row.parent) for name, row in rows.items() if name not in {variant for variant, _ in of_steps}]
    arms = {
        (name, parent): _CheckedArm(seeds[name], seeds.get(parent), _planned_checks(rows[name], group), margin)
        for name, parent in (*of_steps, *others)
    }
    beside_first_parent = {name: arm for (name, _), arm in reversed(arms.items())}
    return Regime(
        checks={name: beside_first_parent[name].checks for name in rows if name in shown},
        reasons={
            pair: {ALL_SEEDS: arm.reason} | {look: arm.first(look, declared).reason for look in protocol.looks}
            for pair, arm in arms.items()
        },
        words={(wait.variant, wait.base): (wait.word, wait.side) for wait in waits if wait.word},
    )


def _planned_checks(row: Row, group: Group) -> tuple[Check, ...]:
    recipe, sweep = row.recipe.pretraining, group.sweeps.get(without_rate(row.name))
    # Pilot seeds at one rate tell the spread of seeds, and are no sweep.
    curve = RateCurve({}, {}) if sweep is None or len(sweep.curve.rates) < 2 else sweep.curve
    return check_window(recipe), check_half_life(recipe), check_rate(recipe.optimization.peak_learning_rate, curve)


def _seeds_of(row: Row) -> ArmSeeds:
    arm = arm_of(row)
    assert row.own_loss is not None
    return ArmSeeds(row.name, row.own_loss[1].by_pretraining, {}) if arm is None else arm.seeds
