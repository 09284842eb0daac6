"""Three sentences on top of the page claim what verdicts claim, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.analysis.answer import answer
from reports.analysis.inference import compare
from reports.analysis.pairing import LADDER, Delta
from reports.analysis.quantities import BITS
from reports.analysis.verdicts import Look, Verdict

STEPS = (("M1", "M0"), ("M2", "M1"), ("M4", "M2"))


def delta(
    variant: str,
    base: str,
    mean: float,
    seeds: int = 6,
    *,
    quantity: str = BITS,
    place: int = 0,
    direction: str = "",
    is_equivalent: bool = False,
) -> Delta:
    """A tested step with seeds around a mean, and what is claimed of it."""
    values = {seed: mean + (seed % 3 - 1) / 100 for seed in range(seeds)}
    empty = Delta(variant, base, quantity, "web", differences=values, design=LADDER, is_own=place != 1)
    looks = (Look(6, 0.03, 1.0, direction, is_equivalent),) if seeds >= 6 else ()
    return replace(empty, comparison=compare(values.values(), 0.016), judged=Verdict(looks, True, place))


@pytest.mark.parametrize(("direction", "word"), [("lower", "better"), ("higher", "worse")])
def test_what_is_claimed_is_told_with_its_direction(direction: str, word: str) -> None:
    deltas = [delta(*step, -1.0, direction=claimed) for step, claimed in zip(STEPS, (direction, "", ""), strict=True)]
    text = " ".join(answer(deltas))
    assert text.startswith("In bits per byte on the variant's training corpus a difference is claimed of 1 of 3 steps")
    assert f"tested; {word}: M1 against M0." in text
    assert "Not told: M2 against M1, M4 against M2." in text


def test_too_few_seeds_claim_nothing_and_say_so() -> None:
    first, second, third = answer([delta(*step, -1.0, 3) for step in STEPS])
    assert first.endswith("nothing is claimed of 3 steps tested: they have 3 seeds, and a claim needs 6.")
    assert second == "" and third == "No step of the ladder can be told from these records."


def test_measures_that_are_tested_later_have_sentences_of_their_own() -> None:
    first = [delta(*step, -1.0, direction="lower") for step in STEPS]
    other = [delta(*step, 1.0, place=1, direction="higher") for step in STEPS[:2]]
    words = [delta(*STEPS[0], 0.0, place=2, quantity="whole words", is_equivalent=True)]
    _, second, third = answer([*first, *other, *words])
    assert second == (
        "In bits per byte on another corpus a difference is claimed of 2 of 2 steps tested; worse: M1 against M0, M2 "
        "against M1. In whole words on the variant's training corpus none of 1 step tested, with 6 seeds, changes it "
        "beyond the noise of seeds."
    )
    assert third == "Every step is told; equivalent within the margins: M1 against M0 in whole words on web."


def test_exploratory_measures_and_what_is_left_out_are_no_answer() -> None:
    clear = replace(delta(*STEPS[0], -1.0, quantity="GLUE"), judged=Verdict())
    missing = Delta("M2", "M1", "loss", design=LADDER, reason="M2: no record")
    assert answer([clear, missing]) == (
        "In the primary measure no step of the ladder can be compared.",
        "",
        "No step of the ladder can be told from these records.",
    )
    told = delta(*STEPS[0], -1.0, direction="lower")
    assert answer([told, clear, missing])[2] == "Not told: M2 against M1."
    assert answer([replace(told, design="add-one")])[0].endswith("can be compared.")


@given(st.lists(st.tuples(st.integers(1, 10), st.sampled_from(["", "higher", "lower"])), min_size=3, max_size=3))
def test_a_step_is_claimed_exactly_where_its_verdict_is(values: list[tuple[int, str]]) -> None:
    deltas = [
        delta(*step, 1.0, seeds, direction=direction) for step, (seeds, direction) in zip(STEPS, values, strict=True)
    ]
    text = answer(deltas)[0]
    better, worse = (text.partition(f"{word}: ")[2].partition(";")[0] for word in ("better", "worse"))
    for each in deltas:
        name = f"{each.variant} against {each.base}"
        assert (name in better) == each.verdict.startswith("lower")
        assert (name in worse) == each.verdict.startswith("higher")


def test_steps_without_verdicts_are_one_sentence() -> None:
    barred = [replace(delta(*step, -1.0), no_verdict="no verdict: it leaves the plateau late") for step in STEPS]
    said = "No step of the ladder gets a verdict: the table of differences says why for each."
    assert answer(barred) == (said, "", "")
    assert answer([*barred[:2], delta(*STEPS[2], -1.0, direction="lower")])[0] != said
