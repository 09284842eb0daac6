"""Verdicts: which claims the looks, the sequence of measures, collapsed seeds and intervals over texts allow."""

import itertools
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.analysis.inference import EQUIVALENCE_LEVEL, LOOKS
from reports.analysis.verdicts import Candidate, Verdict, judge

ALIKE = (0.9, 1.0, 1.1, 0.95, 1.05, 1.0, 0.9, 1.1, 1.0, 1.0)
"""A clear difference of ten seeds."""
NOISE = (1.0, -0.8, 0.6, -1.2, 0.9, -0.4, 0.2, -0.7, 1.1, -0.9)


def of(values: Iterable[float], margin: float = 0.5, **kwargs: object) -> Candidate:
    return Candidate(dict(enumerate(values)), margin, **kwargs)  # type: ignore[arg-type]


def one(*values: float, margin: float = 0.5, **kwargs: object) -> Verdict:
    """The verdict of a family of one."""
    ((verdict,),) = judge([[of(values, margin, **kwargs)]])
    return verdict


def test_between_looks_the_first_seeds_of_the_last_one_are_tested() -> None:
    first = dict(enumerate([0.3, 0.1, 0.4, 0.1, 0.5, 0.9]))
    verdict = one(*first.values(), -2.0)
    assert verdict.p_by_look == {6: 2 / 64} and verdict.words == "higher (claimed at 6 seeds)"
    shuffled = Candidate({6: -2.0} | dict(reversed(first.items())), 0.5)
    assert judge([[shuffled]])[0][0] == verdict, "seeds count in their own order"
    ((few,), (none,)) = judge([[of([1.0] * 5)], [of([])]])
    assert few.words == none.words == "too few seeds" and few.p_difference is None


def test_a_claim_stays() -> None:
    """At eight seeds the same step would not be claimed."""
    verdict = one(*ALIKE[:6], -5.0, -6.0, -1.0, -2.0)
    assert list(verdict.p_by_look) == [6, 8, 10] and verdict.p_by_look[6] <= LOOKS[6]
    assert verdict.p_by_look[8] > LOOKS[8] and verdict.p_by_look[10] > LOOKS[10]
    assert verdict.words == "higher (claimed at 6 seeds)" and verdict.claimed == ("higher", False)
    later = one(-3.0, *ALIKE[:9])
    assert later.claimed[0] == "" and one(-1.0, *ALIKE[:9]).words == "higher (claimed at 10 seeds)"


def test_a_part_is_tested_once_its_step_is_claimed() -> None:
    step, part, other = of(ALIKE), of(ALIKE[::-1]), of(NOISE)
    of_step, of_part, _ = (each[0] for each in judge([[step], [part], [other]], wholes=[None, 0, None]))
    assert of_step.claimed[0] == of_part.claimed[0] == "higher" and of_part.p_equivalence is None
    (of_noise,), (of_part,) = judge([[other], [part]], wholes=[None, 0])
    assert of_noise.words == "within noise" and not of_part.is_tested and not of_part.looks and not of_part.words


def test_parts_do_not_change_the_pooled_variance_of_steps() -> None:
    """The first step is claimed beside the second, however large its parts are."""
    step, other = of([1.1, 0.8, 0.8, 1.1, 0.7, 1.1]), of([0.4, 1.2, -0.3, 1.0, 1.7, 1.6])
    parts = [of([59.0, 45.0, 285.0, 223.0, -77.0, 92.0])], [of([60.0, 7.0, 15.0, 49.0, 94.0, 22.0])]
    assert judge([[step], [other]])[0][0].claimed[0] == "higher"
    assert judge([[step], [other], *parts], wholes=[None, None, 0, 0])[0][0].claimed[0] == "higher"


@given(st.lists(st.lists(st.floats(-2, 2), min_size=6, max_size=6), min_size=2, max_size=5), st.data())
def test_parts_of_steps_that_are_not_claimed_change_no_verdict(values: list[list[float]], data: st.DataObject) -> None:
    steps = [[of(own), of(reversed(own), level=1)] for own in values]
    alone = judge(steps, with_detectable=False)
    closed = [place for place, verdicts in enumerate(alone) if not verdicts[0].claimed[0]]
    if closed:
        owners = data.draw(st.lists(st.sampled_from(closed), min_size=1, max_size=3))
        drawn = st.lists(st.floats(-2, 2), min_size=6, max_size=6)
        parts = [[of(data.draw(drawn)), of(data.draw(drawn), level=1)] for _ in owners]
        wholes: list[int | None] = [*[None] * len(steps), *owners]
        told = judge([*steps, *parts], wholes=wholes, with_detectable=False)
        assert [[each.words for each in own] for own in told[: len(steps)]] == [
            [each.words for each in own] for own in alone
        ]
        assert not any(each.is_tested for own in told[len(steps) :] for each in own)


def test_words() -> None:
    assert one(*NOISE).words == "within noise"
    assert one(*(-value for value in ALIKE)).words == "lower (claimed at 6 seeds)"
    equal = one(*(value / 1000 for value in NOISE))
    assert equal.words == "equivalent within 0.5 (claimed at 6 seeds)" and equal.claimed == ("", True)
    both = one(*(value / 1000 for value in ALIKE))
    assert both.words == "higher (claimed at 6 seeds), yet equivalent within 0.5 (claimed at 6 seeds)"
    assert Verdict().words == "" and Verdict().claimed == ("", False)


def test_with_collapsed_seeds_the_larger_p_counts_of_all_seeds_and_of_the_rest() -> None:
    values = [0.3, 0.1, 0.4, 0.1, 0.5, 0.9, 0.2, 40.0]
    assert one(*values).p_by_look == {6: 2 / 64, 8: 2 / 256}
    assert one(*values, collapsed={8: [7]}).p_by_look == {6: 2 / 64, 8: 2 / 128}, "only at the look that has it"
    six = one(*values[:6], collapsed={6: [5]})
    assert six.p_by_look == {6: 1 / 16} and six.words == "within noise", "more than any look allows"
    assert one(*values, collapsed={8: range(1, 8)}).p_by_look[8] == 1.0
    opposed = [*values[:7], -40.0]
    assert one(*opposed, collapsed={8: [7]}).p_by_look[8] == one(*opposed).p_by_look[8] > 2 / 128, "of all seeds"


def test_a_barred_look_claims_nothing_and_takes_no_claim_of_another() -> None:
    assert one(*ALIKE[:8], barred=[6]).words == "higher (claimed at 8 seeds)"
    assert one(*ALIKE[:8], barred=[8]).words == "higher (claimed at 6 seeds)"
    assert not one(*ALIKE[:8], barred=[6, 8]).looks


def test_a_barred_measure_is_in_no_family_of_its_look() -> None:
    """With it, the other difference is one of two."""
    near, far = [0.9, 1.1, 1.0, 1.2, 0.8, -0.1], [0.0, 9.0, -9.0, 9.0, -9.0, 9.0]
    alone, beside, barred = (
        judge(steps)[0][0].p_difference
        for steps in ([[of(near)]], [[of(near)], [of(far)]], [[of(near)], [of(far, barred=[6])]])
    )
    assert alone == barred and barred is not None and beside is not None and barred < beside


def test_a_difference_needs_the_interval_over_texts_at_the_same_look() -> None:
    """An interval that excludes zero at eight seeds claims nothing at six."""
    both = {6: ((-0.1, 2.1), 0.06), 8: ((0.1, 1.9), 0.04)}
    assert one(*ALIKE[:8], both=both).words == "higher (claimed at 8 seeds)"
    assert one(*ALIKE[:6], both=both).words == "within noise"


@pytest.mark.parametrize(
    ("interval", "is_equivalent"), [((-0.1, 0.4), True), ((-0.1, 0.6), False), ((-0.6, 0.1), False)]
)
def test_an_equivalence_needs_both_ends_of_the_interval_over_texts_within_the_margin(
    interval: tuple[float, float], is_equivalent: bool
) -> None:
    verdict = one(*(value / 1000 for value in NOISE[:6]), both={6: (interval, 1.0)})
    assert verdict.claimed == ("", is_equivalent)


def test_nothing_is_equivalent_in_a_readout_that_tells_no_arms_apart() -> None:
    values = [value / 1000 for value in NOISE[:6]]
    assert one(*values, tells_apart=True).claimed[1] and not one(*values, tells_apart=False).claimed[1]


def test_equivalences_are_corrected_over_all_measures_of_all_steps() -> None:
    """The p of the first alone is below the level; beside others, of the same and of other steps, it is not."""
    near = [0.30, 0.31, 0.29, 0.30, 0.32, 0.28]
    alone = one(*near, margin=0.325)
    assert alone.p_equivalence is not None and EQUIVALENCE_LEVEL / 2 < alone.p_equivalence <= EQUIVALENCE_LEVEL
    assert alone.claimed[1]
    for steps in ([[of(near, 0.325)], [of(NOISE[:6], 0.325)]], [[of(near, 0.325), of(NOISE[:6], 0.325, level=1)]]):
        first = judge(steps)[0][0]
        assert first.p_equivalence == pytest.approx(2 * alone.p_equivalence) and not first.claimed[1]


def test_claims_are_corrected_over_the_family() -> None:
    """Alone, this step has the smallest p that six seeds allow; beside six noisy ones it has five times that."""
    step = [0.6, 0.9, 0.4, 1.1, 0.7, 0.5]
    others = np.round(np.random.default_rng(0).normal(0, 1, (7, 6)), 1)[1:].tolist()
    assert one(*step).p_difference == 1 / 32 and one(*step).claimed[0] == "higher"
    among = judge([[of(step)], *([of(values)] for values in others)])[0][0]
    assert among.p_difference == 5 / 32 and among.words == "within noise"


def test_a_measure_is_tested_only_for_steps_that_all_before_claimed() -> None:
    told, untold = (
        [of(ALIKE[:6]), of(ALIKE[:6], level=1), of(NOISE[:6], level=2), of(ALIKE[:6], level=3)],
        [
            of(NOISE[:6]),
            of(ALIKE[:6], level=1),
        ],
    )
    first, second = judge([told, untold])
    assert [each.words for each in first] == ["higher (claimed at 6 seeds)"] * 2 + ["within noise", ""]
    assert [each.words for each in second] == ["within noise", ""]
    assert [each.is_tested for each in second] == [True, False] and second[1].looks == ()
    assert [each.place for each in first] == [0, 1, 2, 3]


def test_an_equivalence_opens_no_further_measure() -> None:
    first, second = judge([[of([value / 1000 for value in NOISE[:6]]), of(ALIKE[:6], level=1)]])[0]
    assert first.claimed == ("", True) and not second.is_tested


def test_a_measure_opens_at_the_look_that_claims_the_one_before() -> None:
    late = [-1.0, *ALIKE[:9]]
    first, second = judge([[of(late), of(ALIKE, level=1)]])[0]
    assert first.words == "higher (claimed at 10 seeds)" and list(second.p_by_look) == [10]


def test_dividing_by_known_deviations_finds_a_precise_step_beside_noisy_ones() -> None:
    """As M4 − M2 among M5 to M7: 0.05 with a deviation of 0.02, beside five steps of 0.1 to 0.13."""
    random = np.random.default_rng(5)
    noisy = [random.normal(0, 0.12, 6) for _ in range(5)]
    precise = 0.05 + random.normal(0, 0.02, 6)
    pooled = judge([[of(precise, 0.01)], *([of(own, 0.01)] for own in noisy)])[0][0]
    scaled = judge([[of(precise, 0.01, scale=0.02)], *([of(own, 0.01, scale=0.12)] for own in noisy)])[0][0]
    assert pooled.words == "within noise" and scaled.words == "higher (claimed at 6 seeds)"
    assert pooled.detectable is not None and scaled.detectable is not None
    assert scaled.detectable < 0.06 < pooled.detectable


@given(st.integers(0, 1000), st.floats(0.1, 10), st.booleans())
def test_units_change_no_verdict(key: int, factor: float, is_scaled: bool) -> None:
    random = np.random.default_rng(key)
    steps = random.normal(0.5, 1, (3, 8))

    def words(times: float) -> list[str]:
        scales = (1.0, 2.0, 3.0) if is_scaled else (None,) * 3
        tested = [
            [of((own * times).tolist(), 0.5 * times, scale=s and s * times)]
            for own, s in zip(steps, scales, strict=True)
        ]
        return [each.words.partition(" within")[0] for (each,) in judge(tested, with_detectable=False)]

    assert words(1.0) == words(factor)


def test_seeds_of_other_arms_are_no_seeds_of_a_delta() -> None:
    """Two deltas with other seeds: patterns are of all eight, each counts its own six."""
    first = Candidate(dict(zip(range(6), ALIKE, strict=False)), 0.5)
    second = Candidate(dict(zip(range(2, 8), NOISE, strict=False)), 0.5)
    found: Mapping[int, float] = judge([[first], [second]])[0][0].p_by_look
    signs = [np.array(each) for each in itertools.product((-1, 1), repeat=8)]
    values = np.array([[*first.differences.values(), 0, 0], [0, 0, *second.differences.values()]])
    pooled = np.quantile((values**2).sum(axis=1) / 6, 0.25)
    scale = np.sqrt((values**2).sum(axis=1) + 6 * pooled)
    largest = np.array([(np.abs(values @ sign) / scale).max() for sign in signs])
    assert found[6] == pytest.approx(np.mean(largest >= abs(values[0].sum()) / scale[0] * (1 - 1e-9)))
