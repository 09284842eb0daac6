"""Waiting and level on curves whose truth is known."""

import math
from pathlib import Path

import numpy as np
import pytest
from neobert.training.transitions import curve_steps, find_transition

from neobert.kinds.pretraining import CurvePoint
from reports.analysis.plateau import ALL_SEEDS, LEVEL, WAITING
from reports.analysis.regime import find_regime
from reports.analysis.transitions import Arm, RunCurve, find_waits, subtract_times, trace_recorded, waits_table
from tests.reports.made_up_study import Study, facts_of

STEPS = 6000
FREQUENCIES, LEVEL_OF_CURVES = 6.5, 6.0
SEEDS = range(6)


def loss_at(step: float, leaves: float, offset: float = 0.0) -> float:
    """A plateau at the frequencies; after it the loss falls with the time since, down to 4.5 nats plus the offset."""
    since = max(0.0, step - leaves)
    return FREQUENCIES + 2 * math.exp(-step / 60) - (2 - offset) * (1 - math.exp(-since / 1500))


def curve(leaves: float, offset: float, seed: int) -> RunCurve:
    points = [
        CurvePoint(step=step, tokens=1000 * step, loss=loss_at(step, leaves, offset) + 1e-4 * seed)
        for step in sorted(curve_steps(STEPS))
    ]
    found = find_transition(points, FREQUENCIES)
    return trace_recorded(found)


def arm(name: str, leaves: float, offset: float = 0.0) -> Arm:
    runs = {seed: curve(leaves + 15 * (seed % 3), offset, seed + 10 * len(name)) for seed in SEEDS}
    return Arm(name, LEVEL_OF_CURVES, STEPS, runs, {seed: run.points[-1][1] for seed, run in runs.items()})


def mean(values: dict[int, float]) -> float:
    return float(np.mean(list(values.values())))


def test_a_copy_that_is_shifted_in_time_waits_and_differs_in_nothing_else() -> None:
    """24 points of a curve are coarse: between them the loss is known to a few hundredths of a nat."""
    wait = subtract_times(arm("early", 600), arm("late", 1600))
    assert mean(dict(wait.waiting)) == pytest.approx(-1000, rel=0.15)
    assert mean(dict(wait.at_end)) < -0.05
    assert abs(mean(dict(wait.since))) < 0.05 and wait.steps_since == 2000


def test_a_shift_is_read_as_waiting_where_seeds_differ_by_more_than_curves_are_coarse() -> None:
    def noisy(name: str, leaves: float, sign: int) -> Arm:
        runs = {seed: curve(leaves, sign * 0.05 * (-1) ** seed, seed) for seed in SEEDS}
        return Arm(name, LEVEL_OF_CURVES, STEPS, runs, {seed: run.points[-1][1] for seed, run in runs.items()})

    wait = subtract_times(noisy("early", 600, 1), noisy("late", 1600, -1))
    assert wait.word == WAITING and mean(dict(wait.waiting)) < -800
    assert subtract_times(noisy("early", 600, 1), noisy("same", 600, -1)).word != WAITING


def test_a_copy_that_falls_less_differs_in_level() -> None:
    """Its level is 0.3 nats × (1 − e^(−t / 1500)) higher at time t since; the step of its transition hardly moves."""
    wait = subtract_times(arm("worse", 1000, 0.3), arm("base", 1000))
    assert wait.word == LEVEL
    assert mean(dict(wait.since)) == pytest.approx(0.3 * (1 - math.exp(-2500 / 1500)), abs=0.05)
    assert 0 < mean(dict(wait.waiting)) < 200
    exchanged = subtract_times(arm("base", 1000), arm("worse", 1000, 0.3))
    assert exchanged.word == LEVEL and mean(dict(exchanged.since)) == -mean(dict(wait.since))


def test_a_run_that_never_leaves_is_counted_and_in_no_difference() -> None:
    late, base = arm("late", 1e9), arm("base", 600)
    mixed = Arm("late", LEVEL_OF_CURVES, STEPS, {**base.runs, 5: late.runs[5]}, base.losses)
    wait = subtract_times(mixed, base)
    assert set(wait.waiting) == set(wait.since) == set(SEEDS) - {5} and set(wait.at_end) == set(SEEDS)
    assert mixed.seeds.shares[5] == 1.0 and mixed.seeds.shares[0] < 0.3


def test_a_run_that_is_past_the_plateau_when_first_measured_left_it_by_then() -> None:
    never, past = arm("late", 1e9), arm("early", -5000, -1.0)
    first = min(curve_steps(STEPS))
    assert past.times == dict.fromkeys(SEEDS, first) and not never.times
    assert set(past.seeds.shares.values()) == {first / STEPS} and set(never.seeds.shares.values()) == {1.0}
    assert past.described_times.startswith(f"{first} (0%)") and never.described_times == "never"


def test_a_run_that_leaves_too_late_has_no_loss_since() -> None:
    wait = subtract_times(arm("late", 4500), arm("base", 600))
    assert len(wait.waiting) == 6 and not wait.since and wait.word == ""


def test_losses_on_other_text_are_not_subtracted() -> None:
    wait = subtract_times(arm("early", 600), arm("late", 1600), no_losses="losses on other text")
    assert wait.waiting and not wait.at_end and not wait.since


def test_times_are_taken_from_records_and_the_table_says_why_there_are_none(
    papers_ladder: None, tmp_path: Path
) -> None:
    timed = Study(tmp_path, frequency_loss=7.0, common_context=16, has_transitions=True)
    for seed in SEEDS:
        timed.pretrain("M0", seed)
        timed.pretrain("M1", seed)
    untimed = Study(tmp_path, frequency_loss=7.0, common_context=16)
    untimed.pretrain("M7")
    untimed.pretrain("M5")
    group = timed.group()
    waits = {wait.variant: wait for wait in find_waits(group)}
    of_m1 = waits["M1"]
    assert [each.level for each in of_m1.arms] == [6.5, 6.5] and set(of_m1.waiting) == set(SEEDS)
    assert mean(dict(of_m1.waiting)) < 0, "its curve falls further, so it crosses the level earlier"
    assert waits["M7"].left_out == "no record of the transition" and not waits["M7"].arms
    regime = find_regime(group, list(waits.values()))
    table = waits_table(list(waits.values()), regime, group)
    assert "small held-out text is 0.5 nats below" in table.markdown
    assert [line["variant"] for line in facts_of(table)] == list(waits)
    of_root, of_child = ([check.name for check in regime.checks[name]] for name in ("M0", "M1"))
    assert of_root[0] == "transition time as a share of the run" and "sd of child over parent" not in of_root
    assert of_child == [of_root[0], "sd of child over parent", *of_root[1:]] and len(of_root) == 4
    failing = {name: [check.words for check in checks if check.fails] for name, checks in regime.checks.items()}
    assert failing["M0"] and failing["M1"]
    for name, words in failing.items():
        expected = f"not measurable: {name}: {words[0]}" if words else ""
        assert regime.why_barred(name, ALL_SEEDS) == regime.why_barred(name, 6) == expected


def test_an_arm_is_checked_at_each_look_beside_the_parent_of_the_step(papers_ladder: None, tmp_path: Path) -> None:
    """M1 spreads more than the first six seeds of M0, and not more than eight; more than M2, which is no parent."""
    study = Study(tmp_path)
    spreads = {"M0": [0.1] * 6 + [9.0, -9.0], "M1": [4.0, -4.0] * 4, "M2": [0.1, -0.1] * 4}
    for name, own in spreads.items():
        for seed, spread in enumerate(own):
            study.levels[name] = 50 + spread * (1 + seed / 10)
            study.pretrain(name, seed)
    group = study.group()
    regime = find_regime(group, find_waits(group))
    at_six, at_eight, at_all = (regime.why_no_verdict("M1", "M0", seeds) for seeds in (6, 8, ALL_SEEDS))
    assert "times the sd of those of M0" in at_six and "times the sd" not in at_eight and at_all == at_eight
    assert regime.why_barred("M1", 6) == regime.why_no_verdict("M1", "M0+norm", 6) == at_six, "beside its first parent"
    few = find_regime(group, find_waits(group), declared=range(2, 8))
    assert "times the sd" not in few.why_no_verdict("M1", "M0", 6), "its first declared seeds are others"
