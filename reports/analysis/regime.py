"""Regime checks of the arms of a group: those of the plan, and those that need the runs."""

from collections.abc import Sequence

from ablations.rates import MARK, RateCurve
from ablations.regime import Check, check_half_life, check_rate, check_window
from reports.analysis.plateau import ArmSeeds, Regime, check_spread, check_transition, diagnose
from reports.analysis.quantities import QUANTITIES
from reports.analysis.transitions import Wait, arm_of, steps_of
from reports.curves import Curves
from reports.scores import Group, Row


def find_regime(group: Group, curves: Curves, waits: Sequence[Wait]) -> Regime:
    """Return the checks of all arms with runs; remarks are for those of the ladder and at own rates."""
    margin = QUANTITIES["loss"].margin
    steps = list(steps_of(group))
    rows = {row.name: row for row in (*group.compared_rows.values(), *(row for pair in steps for row in pair))}
    rows = {name: row for name, row in rows.items() if len(row.runs) and row.own_loss is not None}
    parents = {name: row.parent for name, row in rows.items()} | {variant.name: base.name for variant, base in steps}
    arms = {name: _seeds_of(row, curves) for name, row in rows.items()}
    checks: dict[str, tuple[Check, ...]] = {}
    diagnoses, failures = {}, {}
    for name, arm in arms.items():
        parent = arms.get(parents[name])
        of_runs = (check_transition(arm), *(() if parent is None else (check_spread(arm, parent),)))
        checks[name] = (*of_runs, *_planned_checks(rows[name], group))
        diagnoses[name] = diagnose(arm, parent, margin)
        failures[name] = next((f"no verdict: {name}: {check.words}" for check in checks[name] if check.fails), "")
    told = {row.name for row in (*group.last_rows.values(), *(row for pair in steps for row in pair))}
    return Regime(
        checks={name: own for name, own in checks.items() if name in told},
        diagnoses={name: reason for name, reason in diagnoses.items() if reason},
        failures={name: reason for name, reason in failures.items() if reason},
        words={(wait.variant, wait.base): wait.word for wait in waits if wait.word},
    )


def _planned_checks(row: Row, group: Group) -> tuple[Check, ...]:
    recipe, sweep = row.recipe.pretraining, group.sweeps.get(row.name.partition(MARK)[0])
    # Pilot seeds at one rate tell the spread of seeds, and are no sweep.
    curve = RateCurve({}, {}) if sweep is None or len(sweep.curve.rates) < 2 else sweep.curve
    return check_window(recipe), check_half_life(recipe), check_rate(recipe.optimization.peak_learning_rate, curve)


def _seeds_of(row: Row, curves: Curves) -> ArmSeeds:
    arm = arm_of(row, curves, "held-out") or arm_of(row, curves, "training")
    assert row.own_loss is not None
    return ArmSeeds(row.name, row.own_loss[1].by_pretraining, {}) if arm is None else arm.seeds
