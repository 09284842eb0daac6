"""Studies in memory: what Optuna's storage shows, made from records alone, and asked for by name from Python."""

from pathlib import Path

import pytest

import ablations
from neobert.errors import MissingData
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed
from neobert.search.memory import importances, study_in_memory
from neobert.search.space import Search, request_file
from neobert.search.storages import STORAGE_VARIABLE, storage_address, storage_at
from tests.reports.made_up_study import SAMPLED, MadeUpStudy, copy, search_by
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
        publish_sealed(request_file(layout.root / study.folder, number), {"point": plain(point)})
    assert not study_in_memory(layout, study).trials
    fail_part(study.search_trial(layout, POINTS[1]), 1, "diverged")
    (trial,) = study_in_memory(layout, study).trials
    assert trial.state.name == "FAIL" and trial.params == plain(POINTS[1])
    assert trial.user_attrs["error"] == "diverged"


def test_importances_are_the_same_for_equal_records_and_none_without_a_difference(layout: Layout) -> None:
    assert work_through(layout, 8) == 0
    found = [importances(study_in_memory(layout, study_of(count))) for count in (8, 8, 1)]
    assert found[0] == found[1] and sum(found[0].values()) == pytest.approx(1) and found[2] == {}


@pytest.fixture
def searched(papers_ladder: None, study: MadeUpStudy) -> GlueStudy:
    """A search of CoLA on M1 and a grid of RTE with two seeds."""
    for seed in (0, 1):
        study.pretrain("M1", seed)
        study.search("M1", study.study("M1", "rte", seed))
    return study.sampled("M1", "cola", search_by("tpe", "median"), SAMPLED, pruned=SAMPLED[:2])


def test_a_study_is_asked_for_by_variant_and_task(searched: GlueStudy, study: MadeUpStudy, tmp_path: Path) -> None:
    frame = ablations.study("M1", "cola", runs=study.root).trials_dataframe()
    assert frame.state.tolist() == ["PRUNED"] * 2 + ["COMPLETE"] * 6
    assert frame.params_learning_rate.tolist() == [point.learning_rate for point in SAMPLED]
    assert copy(study.root, tmp_path / "copy") == 0
    of_copy = ablations.study("M1", "cola", runs=tmp_path / "copy")
    assert of_copy.best_value == frame.value.max() and of_copy.study_name == f"M1 cola tpe seed 0 ({searched.id})"


def test_of_several_studies_one_is_chosen(searched: GlueStudy, study: MadeUpStudy) -> None:
    with pytest.raises(
        ValueError, match="there are 2 studies of rte on M1: choose one by its scale, seed, sampler or id"
    ):
        ablations.study("M1", "rte", runs=study.root)
    chosen = ablations.study("M1", "rte", seed=1, runs=study.root)
    assert chosen.user_attrs["seed"] == 1 and len(chosen.trials) == len(study.study("M1", "rte", 1).points)
    study.search("M1", study.study("M1", "cola"))
    assert "tpe" in ablations.study("M1", "cola", sampler="tpe", runs=study.root).study_name
    assert "tpe" not in ablations.study("M1", "cola", sampler="grid", runs=study.root).study_name
    assert ablations.study("M1", "cola", study_id=searched.id, runs=study.root).user_attrs["study"] == searched.id


def test_a_study_that_is_not_there_is_named(searched: GlueStudy, study: MadeUpStudy, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="there is no study of mnli on M1 in"):
        ablations.study("M1", "mnli", runs=study.root)
    with pytest.raises(MissingData, match="there is no study of cola on M1 with seed 3 in"):
        ablations.study("M1", "cola", seed=3, runs=study.root)
    with pytest.raises(MissingData, match="there is no folder of runs"):
        ablations.study("M1", "cola", runs=tmp_path / "nowhere")
