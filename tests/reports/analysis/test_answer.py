"""Three sentences on top of the page claim what verdicts claim, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.analysis.answer import answer
from reports.analysis.inference import compare
from reports.analysis.pairing import LADDER, Delta
from reports.analysis.quantities import BITS

STEPS = (("M1", "M0"), ("M2", "M1"), ("M4", "M2"))


def delta(variant: str, base: str, quantity: str, mean: float, seeds: int, p: float) -> Delta:
    """A step with seeds around a mean, and its p in the family."""
    values = {seed: mean + (seed % 3 - 1) / 100 for seed in range(seeds)}
    found = compare(values.values(), 0.5 if quantity == "GLUE" else 0.05)
    corpus = "" if quantity == "GLUE" else "web"
    empty = Delta(variant, base, quantity, corpus, differences=values, design=LADDER, comparison=found)
    return replace(empty, p_family=p, p_equivalence_holm=1.0)


@pytest.mark.parametrize(("quantity", "word"), [("loss", "better"), ("GLUE", "worse")])
def test_what_is_claimed_is_told_with_its_direction(quantity: str, word: str) -> None:
    deltas = [delta(*step, quantity, -1.0, 6, p) for step, p in zip(STEPS, (0.01, 0.9, 0.9), strict=True)]
    text = " ".join(answer(deltas))
    assert f"a difference is claimed of 1 of 3 steps compared; {word}: M1 against M0." in text
    assert "Not told: M2 against M1, M4 against M2." in text


def test_too_few_seeds_claim_nothing_and_say_so() -> None:
    deltas = [delta(*step, "loss", -1.0, 3, 0.25) for step in STEPS]
    first, second, third = answer(deltas)
    assert (
        first
        == "In held-out loss on web nothing is claimed of 3 steps compared: they have 3 seeds, and a claim needs 6."
    )
    assert second == "In GLUE no step of the ladder can be compared."
    assert third == "No step of the ladder can be told from these records."


def test_a_step_with_a_collapsed_seed_and_too_few_others_is_not_told() -> None:
    first = replace(delta(*STEPS[0], "loss", -1.0, 5, 0.06), collapsed={"M1": [4]})
    assert answer([first, delta(*STEPS[1], "loss", -1.0, 5, 0.06)])[2].startswith("No step of the ladder can be told")


def test_claims_in_bits_per_byte_and_equivalences_on_any_corpus_are_told() -> None:
    bits = replace(delta(*STEPS[1], "loss", 1.0, 6, 0.01), quantity=BITS, context=64)
    equal = replace(delta(*STEPS[2], "loss", 0.0, 6, 0.9), corpus="wikibook", p_equivalence_holm=0.01)
    loss, _, untold = answer([delta(*STEPS[0], "loss", -1.0, 6, 0.01), bits, equal])
    assert "bits per byte on web, 64 tokens a difference is claimed of 1 of 1 step compared; worse: M2" in loss
    assert untold.startswith("Every step is told; equivalent within the margins: M4 against M2 in loss on wikibook")


def test_what_is_left_out_is_named() -> None:
    deltas = [
        delta("M1", "M0", "loss", -1.0, 6, 0.01),
        Delta("M2", "M1", "loss", design=LADDER, reason="M2: no record"),
    ]
    assert answer(deltas)[2] == "Not told: M2 against M1."
    assert answer([replace(each, design="add-one") for each in deltas])[0].endswith("can be compared.")


@given(st.lists(st.tuples(st.floats(-2, 2), st.integers(1, 10), st.floats(0, 1)), min_size=3, max_size=3))
def test_a_step_is_claimed_exactly_where_its_verdict_is(values: list[tuple[float, int, float]]) -> None:
    deltas = [delta(*step, "loss", mean, seeds, p) for step, (mean, seeds, p) in zip(STEPS, values, strict=True)]
    text = answer(deltas)[0]
    better, worse = (text.partition(f"{word}: ")[2].partition(";")[0] for word in ("better", "worse"))
    for each in deltas:
        name = f"{each.variant} against {each.base}"
        assert (name in better) == each.verdict.startswith("lower")
        assert (name in worse) == each.verdict.startswith("higher")
