"""Studies in memory: what Optuna's storage shows, made from records alone, and asked for by name from Python."""

from pathlib import Path

import pytest

from neobert.identity import plain
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed
from neobert.search.memory import importances, study_in_memory
from neobert.search.space import Search
from neobert.search.storages import STORAGE_VARIABLE, storage_address, storage_at
from tests.reports.made_up_study import search_by
from tests.search.grid_worlds import POINTS, fail_part, load, study_of, work_through


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A folder of runs whose workers use a journal."""
    monkeypatch.setenv(STORAGE_VARIABLE, storage_address("journal", tmp_path))
    storage_at.cache_clear()
    return Layout(tmp_path)


@pytest.mark.parametrize("search", [None, search_by("tpe", "median"), search_by("random", seeds=(0, 1))])
def test_it_is_what_the_storage_shows(layout: Layout, search: Search | None) -> None:
    count = 8 if search is None else 0
    assert work_through(layout, count, search=search) == 0
    shown = load(layout, count, "journal", search)
    made = study_in_memory(layout, study_of(count, search=search))
    assert made.study_name == shown.study_name and made.user_attrs == shown.user_attrs

    def facts(study: object) -> list[tuple[object, ...]]:
        return [(each.state, each.values, each.params, each.distributions, each.intermediate_values) for each in study]  # type: ignore[attr-defined]

    assert facts(made.trials) == facts(shown.trials) and len(made.trials) == 8


def test_it_needs_no_storage_and_changes_no_file(layout: Layout) -> None:
    assert work_through(layout, 4) == 0
    (layout.root / "optuna.journal").unlink()
    before = {path: path.stat().st_mtime_ns for path in layout.root.rglob("*")}
    study = study_in_memory(layout, study_of(4))
    study.add_trial(study.trials[0])
    assert len(study.trials) == 5
    assert {path: path.stat().st_mtime_ns for path in layout.root.rglob("*")} == before


def test_a_point_that_was_asked_for_twice_is_there_twice_and_a_failure_is_one(layout: Layout) -> None:
    search = search_by("grid", "median")
    points = (POINTS[0], POINTS[0], POINTS[1])
    study = study_of(8, search=search)
    for number, point in enumerate(points):
        publish_sealed(study.request_file(layout, number), {"point": plain(point)})
    assert not study_in_memory(layout, study).trials
    fail_part(study.search_trial(layout, POINTS[1]), 1, "diverged")
    (trial,) = study_in_memory(layout, study).trials
    assert trial.state.name == "FAIL" and trial.params == plain(POINTS[1])
    assert trial.user_attrs["error"] == "diverged"


def test_importances_are_the_same_for_equal_records_and_none_without_a_difference(layout: Layout) -> None:
    assert work_through(layout, 8) == 0
    found = [importances(study_in_memory(layout, study_of(count))) for count in (8, 8, 1)]
    assert found[0] == found[1] and sum(found[0].values()) == pytest.approx(1) and found[2] == {}
