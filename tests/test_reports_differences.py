"""The figures of deltas and effects: what stands where, axes that hold the seeds, and equal bytes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports_study import Study

from ablations.designs import cell, cells
from reports.deltas import Delta, find_deltas
from reports.effects import find_factorials
from reports.evidence import read_evidence
from reports.figures.figure1 import find_bars
from reports.figures.forests import (
    MOST_BEYOND,
    Forest,
    Strip,
    deltas_figure,
    forest_of_deltas,
    forest_of_effects,
    limits,
)
from reports.inference import compare
from reports.matching import group_of
from reports.resampling import StoredPredictions
from reports.scores import Group

pytestmark = pytest.mark.usefixtures("no_waiting_for_disks")

FACTORS = ("positions", "norm")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made_up = Study(tmp_path / "runs", measured=("web", "wikibook"))
    made_up.write(["M0", "M1", "M2", "M3"], seeds=(0, 1, 2))
    return made_up


def read(study: Study) -> tuple[Group, tuple[Delta, ...]]:
    evidence = read_evidence(study.root)
    group = group_of(evidence, study.scale, study.data)
    return group, find_deltas(group, find_bars(group).tasks, StoredPredictions(study.root, evidence.studies))


def at(forest: Forest, line: str, column: str) -> Strip | str:
    lines, columns = [name for name, _ in forest.lines], [title for title, _ in forest.columns]
    return forest.cells.get((lines.index(line), columns.index(column)), "")


def test_every_delta_has_a_line_and_every_quantity_a_column(study: Study) -> None:
    group, deltas = read(study)
    forest = forest_of_deltas(deltas, group, "average of 8 tasks")
    assert [name for name, _ in forest.lines][:4] == ["M1 − M0", "M2 − M1", "M3 − M2", "M4 − M2"]
    assert forest.columns == (
        ("GLUE", "points, higher is better"),
        ("loss on wikibook", "nats a token, lower is better"),
        ("loss on web", "nats a token, lower is better"),
    )
    by_name = {(each.variant, each.base, each.pair.measured): each for each in deltas}
    for line, column in (("M1 − M0", "GLUE"), ("M2 − M1", "loss on web")):
        strip = at(forest, line, column)
        assert isinstance(strip, Strip)
        assert strip.comparison == by_name[(*line.split(" − "), column)].comparison  # type: ignore[index]
    assert "not evidence" in forest.title


def test_what_is_not_compared_says_why_in_its_place(study: Study) -> None:
    group, deltas = read(study)
    forest = forest_of_deltas(deltas, group, "average of 8 tasks")
    assert str(at(forest, "M3 − M2", "loss on web")).startswith("losses on other tokens")
    assert str(at(forest, "M4 − M2", "GLUE")).startswith("M4: no record")
    assert isinstance(at(forest, "M3 − M2", "GLUE"), Strip)


def test_discarded_variants_and_interactions_are_grey(study: Study) -> None:
    for on in cells(FACTORS):
        study.levels[cell(on).name] = 52.0 + len(on)
        study.pretrain(cell(on).name)
        study.pretrain(cell(on).name, seed=1)
    group, deltas = read(study)
    forest = forest_of_deltas(deltas, group, "average of 8 tasks")
    of_ladder = {line: at(forest, line, "GLUE") for line in ("M2 − M1", "M3 − M2")}
    assert {line: strip.quiet for line, strip in of_ladder.items() if isinstance(strip, Strip)} == {
        "M2 − M1": False,
        "M3 − M2": True,
    }
    effects = forest_of_effects(find_factorials(group, find_bars(group).tasks), group)
    assert [name for name, _ in effects.lines] == ["positions", "norm", "positions × norm"]
    strips = [at(effects, name, "loss on web") for name, _ in effects.lines]
    assert [strip.quiet for strip in strips if isinstance(strip, Strip)] == [False, False, True]


differences = st.lists(st.floats(-5, 5), min_size=1, max_size=5)


@given(st.lists(differences, min_size=1, max_size=4))
def test_axes_hold_zero_all_seeds_and_intervals_that_do_not_dwarf_them(lines: list[list[float]]) -> None:
    strips = [Strip(compare(line, 0.5), 2) for line in lines]
    low, high = limits(strips)
    seeds = [0.0, *(value for line in lines for value in line)]
    assert low < min(seeds) <= max(seeds) < high
    spread = max(seeds) - min(seeds)
    assert high - low <= max(2.0, spread * (1 + 2 * MOST_BEYOND) * 1.12 + 1e-9)
    for strip in strips:
        if strip.comparison.interval and strip.comparison.interval[1] <= max(seeds) + MOST_BEYOND * spread:
            assert strip.comparison.interval[1] <= high


def test_equal_deltas_give_equal_bytes(study: Study) -> None:
    first, second = (deltas_figure(read(study)[1], read(study)[0], "average of 8 tasks") for _ in range(2))
    assert first == second and set(first) == {"pdf", "svg", "png"}
    assert b"/Type /Font" in first["pdf"] and b"CreationDate" not in first["pdf"]
