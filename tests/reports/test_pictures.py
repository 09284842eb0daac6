"""The pictures of a study: colour is the word, claims are filled, every text is legible and alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from reports.differences import GLUE, LADDER, LOSS, NATS, POINTS, ComparedStep, Measure
from reports.figures.curves import CurvePair, draw_pairs, find_curves
from reports.figures.differences import forest, limits
from reports.figures.drawing import PAGE_INCHES, WORD_COLOURS, word_colour
from reports.statistics import Difference, judge
from tests.reports.extents import require_texts_fit
from tests.reports.made_up_study import MadeUpStudy

GLUE_AVERAGE, LOSS_IN_NATS = Measure(GLUE, POINTS, 0.5), Measure(LOSS, NATS, 0.05)
pytestmark = pytest.mark.usefixtures("papers_ladder")


def step(number: int, values: list[float], word: str = "", measure: Measure = GLUE_AVERAGE) -> ComparedStep:
    """A step with these differences, and the word that follows or another."""
    ours, theirs = dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0)
    own = Difference(ours, theirs, measure.margin, measure.higher_is_better)
    (judged,) = judge([own])
    return ComparedStep(LADDER, f"M{number}", "M0", measure, "", own, replace(judged, word=word or judged.word))


def require_fit(figure: Figure) -> None:
    """Every text is legible, within the figure, and beside all others."""
    texts = require_texts_fit(figure)
    assert figure.get_figwidth() == PAGE_INCHES and all(text.get_fontsize() >= 6 for text in texts)


def test_claims_are_filled_in_the_colour_of_their_word() -> None:
    words = ("better", "worse", "equivalent within 0.5", "no clear difference", "too few seeds", "unequal spread")
    steps = [step(number, [0.1 * number + seed / 100 for seed in range(6)], word) for number, word in enumerate(words)]
    steps += [step(number, [0.1], measure=LOSS_IN_NATS) for number in range(3)]
    figure = forest(steps, "a study")
    require_fit(figure)
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "D"]
    assert [to_hex(mark.get_markeredgecolor()).upper() for mark in marks] == [
        word_colour(word).upper() for word in words
    ]
    assert [mark.get_markerfacecolor() != "white" for mark in marks] == [True, True, True, False, False, False]
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert told == list(WORD_COLOURS) and [axes.get_xlabel() for axes in figure.axes] == ["points", "nats per token"]


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=4))
def test_axes_hold_zero_all_seeds_and_intervals_that_do_not_dwarf_them(lines: list[list[float]]) -> None:
    steps = [step(number, values, "too few seeds") for number, values in enumerate(lines)]
    low, high = limits(steps)
    seeds = [0.0, *(value for line in lines for value in line)]
    assert low < min(seeds) <= max(seeds) < high
    assert high - low <= max(2.0, 3 * 1.16 * (max(seeds) - min(seeds)) + 1e-9)


def curves(shift: float, reason: str = "") -> CurvePair:
    """Runs of three seeds that fall alike; the variant's are `shift` better."""
    steps = np.geomspace(10, 1000, 60)

    def run(less: float) -> tuple[tuple[float, float], ...]:
        return tuple((step, 7 - np.log(1 + step / 100) - less) for step in steps.tolist())

    ours, theirs = ({seed: run(less + seed / 100) for seed in range(3)} for less in (shift, 0.0))
    return CurvePair("M1 − M0", ours, theirs, reason, "better")


def test_the_difference_of_curves_is_that_at_equal_steps() -> None:
    figure = draw_pairs([curves(0.4), curves(0.0, "losses on other text")], "a study")
    require_fit(figure)
    difference = max(figure.axes[1].lines, key=lambda line: len(np.asarray(line.get_xdata())))
    assert np.asarray(difference.get_ydata(), dtype=float) == pytest.approx(-0.4)
    assert to_hex(str(difference.get_color())).upper() == WORD_COLOURS["better"]
    assert "losses on other text" in {text.get_text() for text in figure.axes[3].texts}


def test_variants_with_curves_are_drawn_over_their_parents(study: MadeUpStudy) -> None:
    """M9's parent has no run; M2 reads other text than M1."""
    for name in ("M0", "M1", "M2", "M9"):
        study.pretrain(name)
        study.metrics(name)
    pairs = find_curves(study.read())
    assert {pair.name: pair.reason for pair in pairs} == {"M1 − M0": "", "M2 − M1": "losses on other text"}
    require_fit(draw_pairs(pairs, "a study"))
