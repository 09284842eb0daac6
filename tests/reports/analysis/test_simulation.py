"""The simulation behind the tables of docs/statistics.md: it tests what reports test, and the page has its numbers."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ablations.arm_seeds import ArmSeeds, check_spread, check_transition

from reports.analysis import simulation
from reports.analysis.inference import LOOKS
from reports.analysis.simulation import EFFECTS, NO_EFFECTS, NOISES, TESTS, TRUTHS
from reports.analysis.verdicts import Candidate, judge
from reports.simulated import PLACE

PAGE = Path(__file__).resolve().parents[3] / "docs" / "statistics.md"
FEW = 400
LARGEST_ERROR = 5.8
"""Percent: the levels of the looks keep the error of any claim below it, whatever the symmetric noise."""


def printed() -> Iterator[tuple[str, list[list[float]]]]:
    """Title and numbers by cell of each line of the page's tables."""
    found = PLACE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None
    for line in found[0].splitlines():
        title, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells and re.match(r"[\d.]", cells[0]):
            yield title, [[float(number) for number in cell.split(" / ")] for cell in cells]


def is_near(found: float, told: float, studies: int) -> bool:
    """Whether a rate of few studies is within four standard errors of the page's, which has an error of its own."""
    share = max(told, 0.5) / 100
    return abs(found - told) <= 400 * np.sqrt(share * (1 - share) * (1 / studies + 1 / simulation.STUDIES)) + 0.1


def test_the_page_has_a_line_for_every_noise_and_truth() -> None:
    titles = [title for title, _ in printed()]
    noises = [noise.title for noise in NOISES.values()]
    assert titles == [*noises, *noises, *(title for title, *_ in TRUTHS.values())]


@pytest.mark.parametrize("noise", ["unequal", "late0.2"])
def test_fewer_studies_give_the_rates_of_the_page(noise: str) -> None:
    null, true = (cells for title, cells in printed() if title == NOISES[noise].title)
    for told, found in zip(null, simulation.find_rates(noise, NO_EFFECTS, FEW).values(), strict=True):
        assert all(is_near(*pair, FEW) for pair in zip(found.errors, told, strict=True)), (found.errors, told)
    of_tests = simulation.find_rates(noise, EFFECTS, FEW).values()
    for (error,), told, found in zip(true[::2], true[1::2], of_tests, strict=True):
        assert is_near(found.errors[-1], error, FEW)
        assert all(is_near(*pair, FEW) for pair in zip(found.powers, told, strict=True)), (found.powers, told)


@pytest.mark.parametrize("truth", ["null", "large"])
def test_fewer_studies_have_as_many_false_words_as_the_page_says(truth: str) -> None:
    told = dict(printed())[TRUTHS[truth][0]]
    found = simulation.find_false_words(truth, FEW)
    assert all(is_near(*pair, FEW) for pair in zip(found, (cell[0] for cell in told), strict=True)), (found, told)


def test_what_the_page_says_of_its_tables_is_true() -> None:
    lines = list(printed())
    null, true, words = lines[: len(NOISES)], lines[len(NOISES) : 2 * len(NOISES)], lines[2 * len(NOISES) :]
    places = {name: place for place, name in enumerate(TESTS)}
    pooled, scaled, diagnosed, by_t = (places[name] for name in TESTS)
    symmetric = {NOISES[name].title for name in ("equal", "unequal", "late0.5")}
    for title, cells in null:
        for place in (pooled, scaled, diagnosed):
            assert title not in symmetric or cells[place][-1] <= LARGEST_ERROR
    by_title = {title: [cells[2 * place + 1] for place in range(len(TESTS))] for title, cells in true}
    unequal, equal = (by_title[NOISES[name].title] for name in ("unequal", "equal"))
    assert unequal[pooled][0] < 5 and unequal[scaled][0] > 80 and unequal[scaled][-1] >= 97
    assert unequal[by_t][0] - 3 < unequal[scaled][0]
    assert min(equal[pooled][0], equal[scaled][0]) > equal[by_t][0]
    assert all(total <= LARGEST_ERROR for _, (_, _, (total,)) in words)
    errors = {title: [cells[2 * place][0] for place in range(len(TESTS))] for title, cells in true}
    for name in ("late0.35", "late0.2", "late0.1"):
        assert errors[NOISES[name].title][diagnosed] < 0.7 * errors[NOISES[name].title][scaled]
    assert errors[NOISES["late0.2"].title][diagnosed] > LARGEST_ERROR, "what nobody sees is no less wrong"


@pytest.mark.drill
def test_the_command_makes_the_tables_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "statistics.md"
    page.write_text("before\n<!-- simulation -->\nold\n<!-- end of simulation -->\nafter\n", encoding="utf-8")
    assert simulation.main(["--page", str(page)]) == 0
    made = page.read_text(encoding="utf-8").splitlines()
    committed = PAGE.read_text(encoding="utf-8").splitlines()
    first, last = (committed.index(f"<!-- {mark} -->") for mark in ("simulation", "end of simulation"))
    assert made[1:-1] == committed[first : last + 1]


def test_a_page_without_a_place_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n", encoding="utf-8")
    assert simulation.main(["--page", str(page), "--studies", "40"]) == 2
    assert "has no lines <!-- simulation -->" in capsys.readouterr().err and page.read_text() == "nothing\n"


@pytest.mark.parametrize("seeds", LOOKS)
def test_studies_are_tested_as_reports_test_them(seeds: int) -> None:
    """Three simulated studies, one by one, through the verdicts of reports."""
    studies = simulation.simulate(NOISES["unequal"], EFFECTS, 3, key=5)
    scales = simulation.pilot_scales(studies.pilots)
    for name, is_scaled in (("variances pooled", False), ("divided by pilots", True)):
        together = TESTS[name](studies, seeds)
        for study, differences in enumerate(studies.differences):
            steps = [
                [Candidate(dict(enumerate(own)), 0.05, scale=float(scale) if is_scaled else None)]
                for own, scale in zip(differences[:, :seeds].tolist(), scales[study], strict=True)
            ]
            own = [verdict.p_by_look[seeds] for (verdict,) in judge(steps)]
            assert own == pytest.approx(together[study].tolist())


@pytest.mark.parametrize("noise", ["unequal", "late0.2"])
def test_steps_are_diagnosed_as_reports_diagnose_them(noise: str) -> None:
    studies = simulation.simulate(NOISES[noise], NO_EFFECTS, 60, key=6)
    together = simulation.is_diagnosed(studies, 6)
    assert 0 < together.mean() < 1
    for study, values in enumerate(studies.values[..., :6]):
        arms = [
            ArmSeeds(name, dict(enumerate(own.tolist())), {seed: 0.4 if late else 0.15 for seed, late in enumerate(of)})
            for name, own, of in zip(simulation.ARMS, values, studies.is_late[study, :, :6], strict=True)
        ]
        pilots = studies.pilots[study].var(axis=-1, ddof=1)
        unlike = simulation.are_unlike(values.var(axis=-1, ddof=1), 5, pilots, 3)
        failing = [check_transition(arm).fails or bool(own) for arm, own in zip(arms, unlike, strict=True)]
        for child, parent in enumerate(simulation.PARENTS, 1):
            failing[child] |= check_spread(arms[child], arms[parent]).fails
        expected = [failing[child] or failing[parent] for child, parent in enumerate(simulation.PARENTS, 1)]
        assert together[study].tolist() == expected
