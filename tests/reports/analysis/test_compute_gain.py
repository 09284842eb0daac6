"""Curves of held-out losses → compute-equivalent gain: exact where the truth is known, a bound where it is not."""

import json
import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.runs.layout import Layout
from reports.analysis.compute_gain import ComputeGain, Crossing, cross, find_gains, gains_table
from reports.curves import Curves, Points
from reports.evidence import read_evidence
from tests.reports.made_up_study import Study, change_record

PARTS = (0.1, 0.25, 0.5, 1.0)


def logarithmic(total: float, gain: float = 1.0, shift: float = 0.0) -> Points:
    """A loss that falls with the logarithm of compute, as if each unit were `gain` units."""
    return tuple((total * part, 9 - math.log(gain * total * part) + shift) for part in PARTS)


curves = st.lists(st.floats(0.5, 9), min_size=2, max_size=6).map(
    lambda losses: tuple((float(place), loss) for place, loss in enumerate(losses, start=1))
)


@given(st.floats(0.15, 6), st.floats(0.7, 1.4))
def test_the_gain_is_the_factor_that_compute_is_worth_more(gain: float, size: float) -> None:
    """Whichever curve is crossed, and whether or not both spend the same compute."""
    found = cross(logarithmic(100 * size, gain), logarithmic(100))
    assert found == Crossing(pytest.approx(math.log(gain), abs=1e-9), "")  # type: ignore[arg-type]


@given(curves, curves)
def test_exchanging_the_curves_exchanges_the_sign(ours: Points, theirs: Points) -> None:
    forth, back = cross(ours, theirs), cross(theirs, ours)
    assert forth.log_gain == pytest.approx(-back.log_gain, abs=1e-9)
    if forth.bound:
        assert {forth.bound, back.bound} == {"least", "most"}


def test_a_curve_that_was_past_the_others_end_at_first_gives_a_bound() -> None:
    strong, weak = logarithmic(100, 50), logarithmic(100)
    assert cross(strong, weak) == Crossing(pytest.approx(math.log(10)), "least")  # type: ignore[arg-type]
    assert cross(weak, strong).bound == "most"


def gain_of(by_seed: Mapping[int, Crossing]) -> ComputeGain:
    return ComputeGain("M1", "M0", "web", "tokens", by_seed, ())


def test_the_interval_covers_the_true_gain_as_often_as_it_says() -> None:
    """2,000 simulated studies of six seeds, in which each run's losses have noise of their own."""
    random = np.random.default_rng(0)
    covered = 0
    for noise in random.normal(0, 0.1, (2000, 6, 2)).tolist():
        crossings = [cross(logarithmic(100, 1.3, ours), logarithmic(100, 1, theirs)) for ours, theirs in noise]
        interval = gain_of(dict(enumerate(crossings))).interval
        assert interval is not None
        covered += interval[0] <= 1.3 <= interval[1]
    assert 0.94 <= covered / 2000 <= 0.96


def test_bounds_have_no_interval_and_their_direction() -> None:
    least, most, exact = Crossing(1.0, "least"), Crossing(-1.0, "most"), Crossing(0.5)
    assert gain_of({0: exact, 1: least}).bound == "least" and gain_of({0: exact, 1: least}).interval is None
    assert gain_of({0: most, 1: least}).bound == "none"
    assert gain_of({0: exact}).interval is None and gain_of({0: exact}).bound == ""
    assert gain_of({0: exact, 1: Crossing(0.7)}).mean == pytest.approx(math.exp(0.6))


def write_curve(study: Study, name: str, seed: int, gain: float, flops: float = 100.0) -> None:
    """A run with losses on both corpora along the way."""
    study.pretrain(name, seed, flops=flops, real_tokens=50)
    (run,) = study.runs(name, seed)
    steps = run.recipe.stages[0].steps
    lines = [
        {
            "step": steps * part,
            "heldout_loss": 9 - math.log(gain * flops * part) + seed / 10,
            "heldout_losses": {corpus: 9 - math.log(gain * flops * part) + seed / 10 for corpus in study.measured},
        }
        for part in PARTS
    ]
    path = Layout(study.root).pretraining(run.id) / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_gains_come_from_the_records_of_paired_seeds(study: Study) -> None:
    study.measured = ("web", "wikibook")
    for seed in (0, 1):
        write_curve(study, "M0", seed, 1.0)
        write_curve(study, "M1", seed, 1.5, flops=120.0)
        write_curve(study, "M2", seed, 1.8)
        write_curve(study, "M3", seed, 1.8)
    write_curve(study, "M1", 2, 1.5)
    group = study.group()
    found = find_gains(group, Curves(study.root, read_evidence(study.root).runs))
    assert {(gain.variant, gain.base, gain.corpus) for gain in found} == {
        (variant, base, corpus) for variant, base in (("M1", "M0"), ("M2", "M1")) for corpus in ("web", "wikibook")
    }
    first = next(gain for gain in found if gain.variant == "M1")
    assert list(first.by_seed) == [0, 1] and first.unit == "FLOPs" and len(first.ids) == 4
    assert first.mean == pytest.approx(1.5) and first.interval == pytest.approx((1.5, 1.5))
    table = gains_table(found, group)
    assert "| M1 | M0 | wikibook | FLOPs | 2 | 1.50 | 1.50 to 1.50 |" in table.markdown and table.latex


def test_runs_without_curves_have_no_gain(study: Study) -> None:
    study.write(["M0", "M1"])
    curves_of = Curves(study.root, read_evidence(study.root).runs)
    assert find_gains(study.group(), curves_of) == ()


def test_the_target_is_the_final_loss_and_no_lower_one_on_the_way() -> None:
    ours, theirs = ((1.0, 3.0), (2.0, 2.55)), ((1.0, 3.0), (1.5, 2.5), (2.0, 2.6))
    assert cross(ours, theirs).log_gain > 0 > cross(theirs, ours).log_gain


@pytest.mark.parametrize(("untrained", "gains"), [("M0", 0), ("M1", 0), ("", 1)])
def test_there_is_no_gain_of_or_over_a_row_that_has_learned_only_frequencies(
    study: Study, untrained: str, gains: int
) -> None:
    """Each row in turn is at the frequencies, while the other is below them; with neither there there is a gain."""
    study.measured, study.common_context = ("wikibook",), 16
    for each in ("M0", "M1"):
        write_curve(study, each, 0, 1.0)
        study.frequency_loss = 3.4 if each == untrained else 9.0
        (run,) = study.runs(each)
        loss = {"wikibook": 3.4}
        scores = {"heldout_loss": loss, "training_loss": 3.4, **study.heldout(run, loss)}
        path = Layout(study.root).pretraining(run.id) / "done.json"
        change_record(path, lambda record, scores=scores: record.update(scores=scores))  # type: ignore[misc]
    group = study.group()
    assert [row.name for row in group.last_rows.values() if row.untrained] == [untrained] * bool(untrained)
    assert len(find_gains(group, Curves(study.root, read_evidence(study.root).runs))) == gains
