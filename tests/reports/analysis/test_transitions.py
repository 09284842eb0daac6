"""Waiting and level on curves whose truth is known, and on the committed study."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neobert.identity import plain
from neobert.kinds.pretraining import CurvePoint
from neobert.runs.collected import Collected
from neobert.runs.records import publish_record
from neobert.training.transitions import curve_steps, find_transition
from reports.analysis.inference import seed_interval
from reports.analysis.plateau import LEVEL, WAITING
from reports.analysis.regime import find_regime
from reports.analysis.transitions import (
    Arm,
    RunCurve,
    Source,
    Wait,
    find_waits,
    level_of,
    moving_mean,
    subtract_times,
    trace_recorded,
    trace_training,
    waits_table,
)
from reports.curves import Curves, Points
from reports.evidence import read_evidence
from reports.matching import group_of
from reports.scores import Group

STUDY = Path(__file__).resolve().parents[3] / "reports" / "study"
STEPS, STRETCHES = 6000, 77
FREQUENCIES, LEVEL_OF_CURVES = 6.5, 6.0
SEEDS = range(6)


def loss_at(step: float, leaves: float, offset: float = 0.0) -> float:
    """A plateau at the frequencies; after it the loss falls with the time since, down to 4.5 nats plus the offset."""
    since = max(0.0, step - leaves)
    return FREQUENCIES + 2 * math.exp(-step / 60) - (2 - offset) * (1 - math.exp(-since / 1500))


def training_curve(leaves: float, offset: float, seed: int) -> RunCurve:
    noise = np.random.default_rng(seed).normal(0, 0.002, STRETCHES)
    steps = np.linspace(40, STEPS - 40, STRETCHES)
    points = tuple((float(step), loss_at(step, leaves, offset) + each) for step, each in zip(steps, noise, strict=True))
    return trace_training(points, LEVEL_OF_CURVES)


def heldout_curve(leaves: float, offset: float, seed: int) -> RunCurve:
    points = [
        CurvePoint(step=step, tokens=1000 * step, loss=loss_at(step, leaves, offset) + 1e-4 * seed)
        for step in sorted(curve_steps(STEPS))
    ]
    found = find_transition(points, FREQUENCIES)
    return trace_recorded(found)


def arm(name: str, leaves: float, offset: float = 0.0, source: Source = "training") -> Arm:
    made = training_curve if source == "training" else heldout_curve
    runs = {seed: made(leaves + 15 * (seed % 3), offset, seed + 10 * len(name)) for seed in SEEDS}
    return Arm(name, source, LEVEL_OF_CURVES, STEPS, runs, {seed: run.points[-1][1] for seed, run in runs.items()})


def mean(values: dict[int, float]) -> float:
    return float(np.mean(list(values.values())))


@pytest.mark.parametrize(("source", "tolerance"), [("training", 0.01), ("held-out", 0.05)])
def test_a_copy_that_is_shifted_in_time_waits_and_differs_in_nothing_else(source: Source, tolerance: float) -> None:
    """24 points of a curve are coarse: between them the loss is known to a few hundredths of a nat."""
    wait = subtract_times(arm("early", 600, source=source), arm("late", 1600, source=source))
    assert mean(dict(wait.waiting)) == pytest.approx(-1000, rel=0.03 if source == "training" else 0.15)
    assert mean(dict(wait.at_end)) < -0.05
    assert abs(mean(dict(wait.since))) < tolerance and wait.steps_since == 2000
    if source == "training":
        assert wait.word == WAITING


@pytest.mark.parametrize("source", ["training", "held-out"])
def test_a_copy_that_falls_less_differs_in_level(source: Source) -> None:
    """Its level is 0.3 nats × (1 − e^(−t / 1500)) higher at time t since; the step of its transition hardly moves."""
    wait = subtract_times(arm("worse", 1000, 0.3, source), arm("base", 1000, source=source))
    assert wait.word == LEVEL
    assert mean(dict(wait.since)) == pytest.approx(0.3 * (1 - math.exp(-2500 / 1500)), abs=0.05)
    assert 0 < mean(dict(wait.waiting)) < 200
    exchanged = subtract_times(arm("base", 1000, source=source), arm("worse", 1000, 0.3, source))
    assert exchanged.word == LEVEL and mean(dict(exchanged.since)) == -mean(dict(wait.since))


def test_a_run_that_never_leaves_is_counted_and_in_no_difference() -> None:
    late, base = arm("late", 1e9), arm("base", 600)
    mixed = Arm("late", "training", LEVEL_OF_CURVES, STEPS, {**base.runs, 5: late.runs[5]}, base.losses)
    wait = subtract_times(mixed, base)
    assert set(wait.waiting) == set(wait.since) == set(SEEDS) - {5} and set(wait.at_end) == set(SEEDS)
    assert mixed.seeds.shares[5] == 1.0 and mixed.seeds.shares[0] < 0.3


def test_a_run_that_is_past_the_plateau_when_first_measured_left_it_by_then() -> None:
    never, past = arm("late", 1e9, source="held-out"), arm("early", -5000, -1.0, "held-out")
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


def test_levels_are_quarters_of_a_nat_and_half_a_nat_below_frequencies() -> None:
    assert [level_of(loss) for loss in (6.352, 6.688, 6.5, 6.499)] == [5.75, 6.0, 6.0, 5.75]


def test_a_moving_mean_is_that_of_neighbours() -> None:
    points: Points = ((1.0, 4.0), (2.0, 1.0), (3.0, 1.0), (6.0, 4.0))
    assert moving_mean(points, 3) == ((2.0, 2.0), (pytest.approx(11 / 3), 2.0))
    assert moving_mean(points[:2], 3) == ()


def test_times_are_taken_from_records_that_have_them(papers_ladder: None, tmp_path: Path) -> None:
    """Six runs of M1 and of M0, without any curve of the training loss."""
    evidence, records = read_evidence(STUDY), Collected(STUDY).files
    group = group_of(evidence, "laptop", "real_text")
    for name, leaves in (("M0", 1500), ("M1", 700)):
        for seed, run in zip(group.last_rows[name].runs.seed, group.last_rows[name].runs.id, strict=True):
            content = json.loads(records[f"pretraining/{run}/done.json"])
            points = [
                CurvePoint(step=step, tokens=1000 * step, loss=loss_at(step, leaves + 10 * seed))
                for step in sorted(curve_steps(STEPS))
            ]
            content["scores"]["transition"] = plain(find_transition(points, FREQUENCIES))
            publish_record(tmp_path / "pretraining" / run / "done.json", content)
    evidence = read_evidence(tmp_path)
    made = group_of(evidence, "laptop", "real_text"), Curves(tmp_path, evidence.runs)
    (wait,) = [wait for wait in find_waits(*made) if wait.arms]
    assert [each.source for each in wait.arms] == ["held-out", "held-out"]
    assert [each.level for each in wait.arms] == [6.0, 6.0]
    assert len(wait.waiting) == 6 and mean(dict(wait.waiting)) == pytest.approx(-800, rel=0.15)
    assert "held-out loss, small text" in waits_table([wait], find_regime(*made, [wait]), made[0]).markdown


# The committed study, whose records have no transition: expected are numbers that were computed with other code.


@pytest.fixture(scope="module")
def study() -> tuple[Group, Curves]:
    evidence = read_evidence(STUDY)
    return group_of(evidence, "laptop", "real_text"), Curves(STUDY, evidence.runs)


@pytest.fixture(scope="module")
def waits(study: tuple[Group, Curves]) -> dict[str, Wait]:
    return {f"{wait.variant} − {wait.base}": wait for wait in find_waits(*study)}


def test_m1_leaves_the_plateau_earlier_and_is_no_better_at_equal_time_since(
    papers_ladder: None, waits: dict[str, Wait]
) -> None:
    wait = waits["M1 − M0"]
    assert [arm.level for arm in wait.arms] == [5.75, 5.75]
    assert mean(dict(wait.waiting)) == pytest.approx(-1098, abs=1)
    assert seed_interval(wait.waiting.values()) == pytest.approx((-1351, -845), abs=1)
    assert mean(dict(wait.at_end)) == pytest.approx(-0.21, abs=0.005)
    low, high = seed_interval(wait.since.values()) or (0, 0)
    assert ((low + high) / 2, (high - low) / 2) == pytest.approx((0.015, 0.063), abs=0.002)
    assert wait.word == WAITING


def test_m4_leaves_the_plateau_with_m2_and_is_worse_ever_after(papers_ladder: None, waits: dict[str, Wait]) -> None:
    wait = waits["M4 − M2"]
    assert [arm.level for arm in wait.arms] == [6.0, 6.0]
    assert mean(dict(wait.waiting)) == pytest.approx(46, abs=1)
    assert seed_interval(wait.waiting.values()) == pytest.approx((5, 88), abs=1)
    low, high = seed_interval(wait.since.values()) or (0, 0)
    assert ((low + high) / 2, (high - low) / 2) == pytest.approx((0.24, 0.02), abs=0.006)
    assert wait.word == LEVEL


def test_m5_gets_a_diagnosis_and_remarks_have_every_check(
    papers_ladder: None, study: tuple[Group, Curves], waits: dict[str, Wait]
) -> None:
    regime = find_regime(*study, list(waits.values()))
    told = regime.why_no_verdict("M5", "M4")
    assert told == "not measurable: the seeds of M5 differ by when they leave the plateau (sd 0.100, parent 0.008)"
    assert regime.why_no_verdict("M7", "M5") == told, "an arm tells of its children, too"
    assert {name for name in regime.diagnoses if "@" not in name} == {"M0", "M5"}
    late = {name for name, checks in regime.checks.items() if checks[0].fails}
    assert late == {"M0", "M5", "M6", "M7"} and {checks[0].name for checks in regime.checks.values()} == {
        "transition time as a share of the run"
    }
    assert regime.words == {("M1", "M0"): WAITING, ("M4", "M2"): LEVEL, ("M4@rate1.3e-3", "M2@rate1.3e-3"): LEVEL}
    assert waits["M5 − M4"].reason == "training losses under other masks" and not waits["M5 − M4"].waiting
    assert waits["M7 − M5"].word == waits["M6 − M5"].word == ""
    assert any(line.startswith("Regime of M0: fails: it leaves the plateau after 37%") for line in regime.remarks)
    (of_m4,) = [line for line in regime.remarks if line.startswith("Regime of M4: it leaves")]
    assert "; its seeds have 0.4 times the sd of those of M2 (bound" in of_m4
    assert "; fails: 0.375 gradients per vocabulary row in beta2's window of 20 steps (bound: ≥ 4);" in of_m4


def test_the_table_has_every_step_and_why_it_is_not_measurable(
    papers_ladder: None, study: tuple[Group, Curves], waits: dict[str, Wait]
) -> None:
    regime = replace(find_regime(*study, list(waits.values())), failures={})
    table = waits_table(list(waits.values()), regime, study[0])
    shown = pd.DataFrame(table.shown).set_index("Variant")
    assert list(shown.index) == ["M1", "M2", "M3", "M4", "M5", "M6", "M7", "M4@rate1.3e-3"]
    assert shown.loc["M1", "Waiting, steps"] == "−1098" and shown.loc["M1", "Reading"].startswith("waiting; not measur")
    assert shown.loc["M4", "Reading"] == "level" and shown.loc["M2", "Reading"] == "losses on other text"
    assert len(table.facts) == len(shown)
