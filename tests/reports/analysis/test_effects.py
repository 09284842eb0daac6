"""Factorials → effects: equal to least squares, exact where the truth is known, silent where cells are missing."""

from pathlib import Path

import numpy as np
import pytest
from ablations.declarations import PROTOCOL
from ablations.designs import cell, cells
from hypothesis import given
from hypothesis import strategies as st

from reports.analysis.effects import Factorial, effects_table, estimate_effects, find_factorials
from reports.analysis.plateau import Regime
from reports.analysis.readouts import SignalToNoise
from tests.reports.made_up_study import Study, facts_of, variant

THREE = ("positions", "norm", "masking")


def made_up(factors: tuple[str, ...], seeds: int, key: int) -> dict[tuple[str, ...], np.ndarray]:  # type: ignore[type-arg]
    random = np.random.default_rng(key)
    return {on: random.normal(50, 3, seeds) for on in cells(factors)}


@given(st.integers(1, 4), st.integers(0, 1000))
def test_effects_are_twice_the_coefficients_of_least_squares_with_seeds_as_blocks(seeds: int, key: int) -> None:
    values = made_up(THREE, seeds, key)
    effects = estimate_effects(values, THREE, 0.5)
    assert len(effects) == 7
    columns = [np.repeat(np.arange(seeds) == seed, len(values)) for seed in range(seeds)]
    for effect in effects:
        signs = [np.prod([1 if name in on else -1 for name in effect.factors]) for on in values]
        columns.append(np.tile(signs, seeds))
    observed = np.concatenate([[values[on][seed] for on in values] for seed in range(seeds)])
    coefficients = np.linalg.lstsq(np.stack(columns, axis=1).astype(float), observed, rcond=None)[0][seeds:]
    assert [effect.comparison.mean for effect in effects] == pytest.approx(list(2 * coefficients), abs=1e-8)


def planted(on: tuple[str, ...]) -> float:
    """Two main effects, and one interaction: norm helps only with rotary positions."""
    return 52 + 2.0 * ("positions" in on) + 1.0 * ("masking" in on) + 1.5 * ("positions" in on and "norm" in on)


def write(study: Study, switched_on: list[tuple[str, ...]], seeds: tuple[int, ...]) -> None:
    for on in switched_on:
        study.levels[cell(on).name] = planted(on)
        for seed in seeds:
            study.pretrain(cell(on).name, seed)


def reported(study: Study) -> tuple[dict[str, Factorial], str]:
    """Factorials by quantity and the printed page."""
    findings = study.findings()
    assert not findings.group.problems and findings.tables["effects"].latex
    return {each.quantity: each for each in findings.factorials}, findings.tables["effects"].markdown


def test_planted_effects_come_out_of_the_records(study: Study) -> None:
    write(study, cells(THREE), (0, 1, 2))
    found, page = reported(study)
    effects = {(effect.kind, effect.factors): effect for effect in found["loss"].effects}
    # The made-up loss is 6 − level / 20; all seeds move alike, so that the estimates are exact.
    for factors, points in ((("positions",), 2.75), (("masking",), 1.0), (("norm",), 0.75)):
        assert effects["main", factors].comparison.mean == pytest.approx(-points / 20, abs=1e-4)
    assert effects["interaction", ("positions", "norm")].comparison.mean == pytest.approx(-0.75 / 20, abs=1e-4)
    assert effects["interaction", THREE].comparison.mean == pytest.approx(0, abs=1e-4)
    assert "positions × norm" in page
    assert "8 cells have scores" in found["GLUE"].reason
    assert len(facts_of(study.findings().tables["effects"])) == 7 + 1


def test_a_half_factorial_names_what_each_effect_is_mixed_with(study: Study) -> None:
    write(study, cells(THREE, "half"), (0, 1))
    found, page = reported(study)
    half = found["loss"]
    assert half.fraction == "half" and [effect.alias for effect in half.effects] == [
        ("norm", "masking"),
        ("positions", "masking"),
        ("positions", "norm"),
    ]
    assert "positions (or norm × masking)" in page


def test_a_missing_cell_leaves_the_factorial_out_with_its_name(study: Study) -> None:
    write(study, [on for on in cells(THREE) if on != ("positions", "norm")], (0,))
    found, page = reported(study)
    assert found["loss"].effects == () and "missing: F:positions+norm" in found["loss"].reason
    assert "left out: 7 of 8 cells have scores" in page


def test_a_seed_that_lacks_a_cell_is_left_out_and_named(study: Study) -> None:
    write(study, cells(THREE), (0, 1))
    write(study, cells(THREE)[:3], (2,))
    found, page = reported(study)
    assert found["loss"].seeds == (0, 1) and "seed 2 lacks some cells and is left out" in page


def test_losses_on_other_text_are_no_factorial_of_losses(study: Study) -> None:
    write(study, cells(("positions", "corpus")), (0,))
    found, _ = reported(study)
    assert found["loss"].reason.startswith("losses on other text")


def test_losses_on_both_corpora_are_a_factorial_each(tmp_path: Path) -> None:
    study = Study(tmp_path / "runs", measured=("web", "wikibook"))
    write(study, cells(("positions", "corpus")), (0, 1))
    found = study.findings().factorials
    assert [each.measured for each in found] == ["GLUE", "loss on wikibook", "loss on web"]
    for each in found[1:]:
        effects = {effect.factors: effect for effect in each.effects if effect.kind == "main"}
        assert effects[("positions",)].comparison.mean == pytest.approx(-2.0 / 20, abs=1e-4)
        assert len(each.ids) == 2 * 4


def test_a_cell_that_is_a_variant_of_the_ladder_needs_no_run_of_its_own(study: Study) -> None:
    factors = ("positions", "feedforward", "norm")
    assert variant("F:positions+feedforward+norm").recipe == variant("M1").recipe
    write(study, [on for on in cells(factors) if on != factors], (0,))
    study.pretrain("M1")
    found, _ = reported(study)
    assert found["loss"].factors == factors and len(found["loss"].effects) == 7


def test_effects_are_judged_at_the_looks_of_the_protocol(study: Study) -> None:
    """Sign flips of four seeds reach p = 0.125, which this protocol claims and the usual one does not."""
    factors = ("positions", "norm")
    for on in cells(factors):
        for seed in range(4):
            study.levels[cell(on).name] = 52 + 4.0 * ("positions" in on) + 0.1 * ((seed + len(on)) % 3)
            study.pretrain(cell(on).name, seed)
    group = study.group()
    for looks, verdict in (({4: 0.13}, "lower (claimed at 4 seeds)"), (PROTOCOL.looks, "too few seeds")):
        protocol = PROTOCOL.model_copy(update={"looks": looks})
        found = find_factorials(group, (), (), protocol)
        (loss,) = [each for each in found if each.quantity == "loss"]
        assert {effect.name: effect.judged.words for effect in loss.effects}["positions"] == verdict
        told = "no effect is claimed" in effects_table(found, group, "").markdown
        assert told == (looks == PROTOCOL.looks)
    protocol = PROTOCOL.model_copy(update={"looks": {4: 0.13}})
    of_three = [
        each for each in find_factorials(group, (), (), protocol, declared=(1, 2, 3)) if each.quantity == "loss"
    ]
    assert {effect.judged.words for effect in of_three[0].effects} == {"too few seeds"}, "seed 0 is not declared"
    assert of_three[0].seeds == (0, 1, 2, 3) and "no effect is claimed" in effects_table(of_three, group, "").markdown


def test_a_cell_that_fails_a_check_bars_the_verdicts_of_its_factorial(study: Study) -> None:
    """At the look at which it fails; a claim of an earlier look stays until then."""
    factors = ("positions", "norm")
    for on in cells(factors):
        for seed in range(5):
            study.levels[cell(on).name] = 52 + 4.0 * ("positions" in on) + 0.1 * ((seed + len(on)) % 3)
            study.pretrain(cell(on).name, seed)
    group, protocol = study.group(), PROTOCOL.model_copy(update={"looks": {4: 0.13, 5: 0.07}})
    barred, name = "not measurable: it leaves late", cell(("norm",)).name
    told = {}
    for look in (4, 5):
        regime = Regime(reasons={(name, ""): {look: barred}})
        (loss,) = (each for each in find_factorials(group, (), (), protocol, regime) if each.quantity == "loss")
        told[look] = loss
    assert {effect.judged.words for effect in told[5].effects} == {""} and told[5].notes == (barred,)
    claimed = {effect.name: effect.judged for effect in told[4].effects}
    assert [look.seeds for look in claimed["positions"].looks] == [5] and claimed["positions"].claimed[0] == "lower"


def test_no_effect_is_equivalent_in_a_loss_that_tells_no_arms_apart(study: Study) -> None:
    random = np.random.default_rng(5)
    for on in cells(("positions", "norm")):
        for seed in range(6):
            study.levels[cell(on).name] = 52 + float(random.normal(0, 0.1))
            study.pretrain(cell(on).name, seed)
    findings = study.findings()
    sources = findings.group, (), (), PROTOCOL.model_copy(update={"margins": PROTOCOL.margins | {"loss": 9.0}})
    (loss,) = (each for each in find_factorials(*sources) if each.quantity == "loss")
    assert loss.effects and not any(effect.judged.claimed[1] for effect in loss.effects)
    noises = dict.fromkeys(("M0", "M1"), 0.01)
    signal = SignalToNoise("loss", "loss", loss.corpus, 12, 1.0, noises, ())
    (loss,) = (each for each in find_factorials(findings.group, (), (signal,), sources[-1]) if each.quantity == "loss")
    assert all(effect.judged.claimed[1] for effect in loss.effects)
