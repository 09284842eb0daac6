"""The pictures of a study: what is claimed is filled, colour is the verdict, every text is legible and alone."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from ablations.designs import cell, cells
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from reports.analysis.inference import compare
from reports.analysis.pairing import LADDER, Delta
from reports.analysis.quantities import BITS
from reports.analysis.steps import Step
from reports.analysis.transitions import RunCurve
from reports.analysis.verdicts import Look, Verdict
from reports.figures.curves import Pair, draw_curves, find_pairs
from reports.figures.forecasts import choose_outcomes
from reports.figures.forests import (
    MOST_BEYOND,
    PAGE_INCHES,
    Forest,
    Strip,
    draw_forest,
    forest_of_answers,
    forest_of_effects,
    forest_of_readouts,
    limits,
    near_strips,
)
from reports.figures.tones import Tone
from reports.forecasts.outcomes import Outcome
from reports.scores import Group
from tests.reports.extents import require_texts_fit
from tests.reports.forecasts.test_comparators import forecast, predicted
from tests.reports.made_up_study import Study

pytestmark = pytest.mark.usefixtures("papers_ladder")


def strip(values: tuple[float, ...], tone: Tone = Tone.NOTHING) -> Strip:
    found = compare(values, 0.5)
    return Strip(found, 2, found.interval, tone)


def require_fit(figure: Figure, *, least: int = 15) -> None:
    texts = require_texts_fit(figure)
    assert figure.get_figwidth() == PAGE_INCHES
    axes = [each.get_window_extent() for each in figure.axes]
    assert not any(first.overlaps(second) for first, second in combinations(axes, 2))
    assert len(texts) >= least and all(text.get_fontsize() >= 6 for text in texts)


def drawn(forest: Forest) -> Figure:
    figure: Figure = draw_forest.__wrapped__(forest)  # type: ignore[attr-defined]
    return figure


def made_up(word: str, number: int, part_of: tuple[str, str] | None = None) -> Step:
    """A step with a verdict, on two corpora, and with a waiting time."""
    directions = {"better": "lower", "worse": "higher"}
    look = Look(6, 0.03, 1.0, directions.get(word, ""), word == "equivalent")
    no_verdict = "not measurable: …" if word == "barred" else ""
    deltas = []
    for is_own, mean in ((True, -0.1 * number), (False, 0.05 * number)):
        values = {seed: mean + seed / 100 for seed in range(6)}
        empty = Delta(f"M{number}", "M0", BITS, "web", 64, differences=values, design=LADDER, is_own=is_own)
        own = Verdict((look,), True, 0, margin=0.016) if is_own else Verdict()
        found = compare(values.values(), 0.016)
        deltas.append(replace(empty, comparison=found, judged=own, no_verdict=no_verdict, timing="level"))
    waiting = {seed: 100.0 * number + seed for seed in range(6)}
    changes = "a change with a name that needs two lines"
    made = Step(f"M{number}", "M0", LADDER, changes, ("web", "web"), tuple(deltas), deltas[0], waiting)
    return replace(made, part_of=part_of)


VERDICTS = ("better", "worse", "equivalent", "nothing", "barred")


def test_the_forest_of_the_answer_fills_what_is_claimed_in_the_colour_of_the_verdict(study: Study) -> None:
    study.pretrain("M0")
    steps = [made_up(word, number) for number, word in enumerate(VERDICTS, 1)]
    steps.insert(1, made_up("better", 1, part_of=("M1", "M0")))
    forest = forest_of_answers(steps, study.group())
    assert [panel.title for panel in forest.panels] == ["bits per byte", "waiting"]
    assert forest.panels[0].margin == 0.016 and [line.is_part for line in forest.lines].count(True) == 1
    own = {step.variant: forest.cells[line, 0] for line, step in enumerate(steps)}
    told = {name: (mark[0].tone, mark[0].hollow) for name, mark in own.items() if not isinstance(mark, str)}
    assert told == {
        "M1": (Tone.BETTER, False),
        "M2": (Tone.WORSE, False),
        "M3": (Tone.EQUIVALENT, False),
        "M4": (Tone.NOTHING, True),
        "M5": (Tone.BARRED, True),
    }
    assert all(mark[1].is_other and mark[1].hollow for mark in own.values() if not isinstance(mark, str))
    assert [line.answer for line in forest.lines][-3:] == ["equivalent within 0.016", "within noise", "not measurable"]
    figure = drawn(forest)
    require_fit(figure, least=30)
    words = {text.get_text() for text in figure.legends[0].get_texts()}
    assert words == {tone.words for tone in Tone} | {"margin of equivalence"}
    assert set(draw_forest(forest)) == {"png", "svg", "pdf"}


def test_colours_of_verdicts_are_told_apart_by_lightness_or_fill() -> None:
    assert len({tone.colour for tone in Tone}) == len(Tone)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Study:
    made = Study(tmp_path_factory.mktemp("compared") / "runs", measured=("web", "wikibook"))
    made.write(["M0", "M1", "M2", "M3"], seeds=(0, 1, 2))
    return made


def test_without_bits_per_byte_the_answer_is_in_glue_and_loss(compared: Study) -> None:
    """What is not compared says why in its place."""
    findings = compared.findings()
    forest = forest_of_answers(findings.steps, findings.group)
    assert [line.name for line in forest.lines] == ["M1 − M0", "M2 − M1", "M3 − M2"]
    assert [(panel.title, panel.unit) for panel in forest.panels] == [
        ("GLUE", "points, higher is better"),
        ("loss", "nats per token, lower is better"),
    ]
    assert str(forest.cells[2, 1]).startswith("losses on other tokens") and "not evidence" in forest.title
    require_fit(drawn(forest))


def test_panels_that_do_not_fit_beside_each_other_stand_in_blocks(compared: Study) -> None:
    """Each with its own axis and unit, and all lines beside each block."""
    findings = compared.findings()
    forest = forest_of_answers(findings.steps, findings.group)
    panels = [replace(panel, title=f"{panel.title} {copy}") for copy in range(5) for panel in forest.panels]
    cells = {(line, place + 2 * copy): own for (line, place), own in forest.cells.items() for copy in range(5)}
    figure = drawn(replace(forest, panels=tuple(panels), cells=cells))
    require_fit(figure)
    assert len({round(axes.get_position().y0, 4) for axes in figure.axes}) > 1


def test_effects_have_a_line_each_in_the_colour_of_their_verdict(study: Study) -> None:
    study.measured = ("web", "wikibook")
    for on in cells(("positions", "norm")):
        study.levels[cell(on).name] = 52.0 + len(on)
        for seed in (0, 1):
            study.pretrain(cell(on).name, seed)
    findings = study.findings()
    effects = forest_of_effects(findings.factorials, findings.group)
    assert [line.name for line in effects.lines] == ["positions", "norm", "positions × norm"]
    strips = [strip for place in range(len(effects.panels)) for strip in effects.strips_in(place)]
    assert strips and {(strip.tone, strip.hollow) for strip in strips} == {(Tone.NOTHING, True)}


differences = st.lists(st.floats(-5, 5), min_size=1, max_size=5)


@given(st.lists(differences, min_size=1, max_size=4))
def test_axes_hold_zero_all_seeds_and_intervals_that_do_not_dwarf_them(lines: list[list[float]]) -> None:
    strips = [strip(tuple(line)) for line in lines]
    low, high = limits(strips)
    seeds = [0.0, *(value for line in lines for value in line)]
    assert low < min(seeds) <= max(seeds) < high
    spread = max(seeds) - min(seeds)
    assert high - low <= max(2.0, spread * (1 + 2 * MOST_BEYOND) * 1.18 + 1e-9)
    for each in strips:
        if each.interval and each.interval[1] <= max(seeds) + MOST_BEYOND * spread:
            assert each.interval[1] <= high


def test_a_step_that_reaches_much_further_than_all_others_does_not_set_the_axis() -> None:
    """On one corpus or on both."""
    near, far = [strip(each) for each in ((0.1, 0.2), (-0.3, 0.1), (0.0, 0.1))], strip((-1.0, -0.9))
    assert near_strips([*near, far]) == near == near_strips([*near, far, far])
    three = [*near, far, far, far]
    assert near_strips(near) == near and near_strips(three) == three and near_strips(near[:2]) == near[:2]


def pair(shift: float, *, is_late: bool, reason: str = "") -> Pair:
    """Runs of three seeds that fall alike after their transition; the variant's are `shift` better from then on."""

    def run(start: float, less: float) -> RunCurve:
        steps = np.geomspace(10, 1000, 60)
        losses = [7 - (0 if step < start else np.log(1 + (step - start) / 100) + less) for step in steps]
        return RunCurve(start, tuple(zip(steps.tolist(), losses, strict=True)))

    ours = {seed: run(100.0 + seed, shift) for seed in range(3)}
    theirs = {seed: run((200.0 if is_late else 100.0) + seed, 0.0) for seed in range(3)}
    return Pair("M1", "M0", "training loss", ours, theirs, reason, Tone.BETTER)


def lower_lines(figure: Figure) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The differences that are drawn of the first pair, by line style."""
    lines = [line for line in figure.axes[1].lines if len(line.get_xdata()) > 2]  # type: ignore[arg-type]
    return {str(line.get_linestyle()): np.asarray(line.get_ydata(), dtype=float) for line in lines}


def test_a_parent_that_waits_differs_at_equal_steps_and_not_since_its_transition(study: Study) -> None:
    study.pretrain("M0")
    waiting = draw_curves.__wrapped__([pair(0.0, is_late=True)], study.group())  # type: ignore[attr-defined]
    of_steps, since = (lower_lines(waiting)[style] for style in ("-", "--"))
    assert of_steps.min() < -0.5 and abs(since[3:]).max() < 0.1
    level = draw_curves.__wrapped__([pair(0.4, is_late=False)], study.group())  # type: ignore[attr-defined]
    assert all(own[-1] == pytest.approx(-0.4, abs=0.02) for own in lower_lines(level).values())
    require_fit(waiting, least=12)


def test_pairs_without_comparable_losses_say_why_in_place_of_the_difference(study: Study) -> None:
    study.pretrain("M0")
    figure = draw_curves.__wrapped__([pair(0.0, is_late=True, reason="losses on other text")], study.group())  # type: ignore[attr-defined]
    assert not lower_lines(figure) and "losses on other text" in {text.get_text() for text in figure.axes[1].texts}


def test_a_forecast_is_drawn_on_the_variants_own_corpus_before_anything_is_measured() -> None:
    """M1 reads wikibook and M4 the web, whichever stands first in the file."""
    outcomes = [
        Outcome(forecast(own), own, None, "not measured yet", ())
        for variant, base in (("M1", "M0"), ("M4", "M2"), ("M99", "M2"))
        for corpus in ("wikibook", "web")
        for own in [predicted(0.1, 0.2, variant=variant, base=base, quantity="bits per byte", corpus=corpus)]
    ]
    chosen = choose_outcomes(outcomes)
    assert [(each.step[0], each.predicted.corpus) for each in chosen] == [("M1", "wikibook"), ("M4", "web")]


def test_a_pair_with_one_arm_at_another_rate_is_told_from_the_step_at_the_shared_rate() -> None:
    names = [Pair(*step, "").name for step in (("M8", "M7"), ("M8", "M7@rate1.6e-3"), ("M8@rate1e-3", "M7"))]
    assert names == ["M8 − M7", "M8 − M7, own rates", "M8 − M7, own rates"]


def test_variants_with_curves_are_drawn_over_their_parents(study: Study) -> None:
    for name in ("M0", "M1", "M9"):
        study.pretrain(name)
        study.metrics(name)
    findings = study.findings()
    pairs = find_pairs(findings.group, findings.curves, findings.waits, findings.steps)
    assert [each.name for each in pairs] == ["M1 − M0"], "M9's parent has no run"
    require_fit(draw_curves.__wrapped__(pairs, findings.group), least=8)  # type: ignore[attr-defined]


def test_a_group_without_steps_has_no_forest(study: Study) -> None:
    study.pretrain("M0")
    group: Group = study.group()
    assert forest_of_answers([], group).panels == () == forest_of_readouts([], group).panels
