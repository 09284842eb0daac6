"""Searches: a sampler chooses the points, a pruner ends trials, and killed workers lose and repeat nothing."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from neobert.errors import RunFailed
from neobert.executors import selection
from neobert.executors.selection import best_of_grid, best_trial
from neobert.files import read_lines
from neobert.identity import plain
from neobert.recipe import Point
from neobert.runs.claims import ClaimLost, acquire
from neobert.runs.index import Index
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.search.samplers import SAMPLERS, axes_of, space_of
from neobert.search.space import Range, Space, request_file
from neobert.search.storages import STORAGE_VARIABLE, storage_address, storage_at
from tests.search.grid_worlds import (
    POINTS,
    assert_search_is_right,
    execute,
    load,
    score_at,
    search_by,
    start_worker,
    started,
    study_of,
    work_through,
)
from tests.support.tiny_runs import claimed
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def storage_of_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(STORAGE_VARIABLE, storage_address("journal", tmp_path))
    yield
    storage_at.cache_clear()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_tries_its_points_once_within_the_space_with_rates_of_three_digits(
    tmp_path: Path, sampler: str
) -> None:
    layout, search = Layout(tmp_path), search_by(sampler, 12)
    assert work_through(layout, 0, search=search) == 0
    assert_search_is_right(layout, search)
    points = study_of(0, search=search).asked(layout).values()
    assert len(set(points)) == 12
    assert all(point.batch_size in (8, 32) and 1e-6 <= point.learning_rate <= 1e-2 for point in points)
    assert all(point.learning_rate == float(f"{point.learning_rate:.3g}") for point in points)
    assert len({point.learning_rate for point in points}) > 6


@pytest.mark.parametrize(("sampler", "pruner"), [("tpe", "median"), ("tpe", "hyperband"), ("grid", "median")])
def test_a_pruned_trial_has_a_record_of_the_search_but_none_of_its_own(
    tmp_path: Path, sampler: str, pruner: str
) -> None:
    layout, count = Layout(tmp_path), 20
    search = search_by(sampler, count, pruner)
    assert work_through(layout, count, search=search) == 0
    assert_search_is_right(layout, search, points=count)
    study = study_of(count, search=search)
    trials = study.search_trials(layout)
    pruned = [each for each in trials if each.state == "pruned"]
    assert pruned and len(pruned) < count
    assert [each.trials[0].is_done for each in trials] == [each.state == "done" for each in trials]
    best, score = best_trial(layout, study)
    assert score == max(score_at(each.point, 0) for each in trials if each.state == "done")
    assert best.id not in {each.trials[0].id for each in pruned}


def test_a_trial_with_seeds_goes_on_at_the_seed_at_which_it_was_killed(tmp_path: Path) -> None:
    layout, search = Layout(tmp_path), search_by("random", 2, seeds=(3, 4))
    (tmp_path / "kill-seed4").touch()
    assert start_worker(layout, 0, 0.0, "journal", search=search).wait(timeout=60) == -signal.SIGKILL
    (first,) = study_of(0, search=search).search_trials(layout)
    assert [trial.is_done for trial in first.trials] == [True, False]
    (tmp_path / "kill-seed4").unlink()
    assert work_through(layout, 0, search=search) == 0
    assert_search_is_right(layout, search)
    record = read_record(first.record)
    assert record["seeds"] == {"3": first.trials[0].id, "4": first.trials[1].id}
    assert record["scores"]["score"] == pytest.approx(score_at(first.point, 3) + 0.0005)
    assert record["scores"]["curve"] == [[1, score_at(first.point, 3)], [2, score_at(first.point, 4)]]


def test_the_best_point_has_the_best_mean_over_the_seeds_and_is_the_first_seed_s_trial(tmp_path: Path) -> None:
    layout, search = Layout(tmp_path), search_by("random", 5, seeds=(2, 1))
    assert work_through(layout, 0, search=search) == 0
    study = study_of(0, search=search)
    means = {each.point: read_record(each.record)["scores"]["score"] for each in study.search_trials(layout)}
    best = best_of_grid(layout, [study])
    assert best is not None and best.point == max(means, key=lambda point: means[point])
    assert best.mean == pytest.approx(max(means.values())) and set(best.by_seed) == {1, 2}
    trial, score = best_trial(layout, study)
    assert (trial.point, trial.study.seed, score) == (best.point, 2, pytest.approx(best.mean))


def test_weights_of_a_mean_that_another_worker_publishes_meanwhile_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, search = Layout(tmp_path), search_by("random", 2)
    assert work_through(layout, 0, search=search) == 0
    study = study_of(0, search=search)
    best, _ = best_trial(layout, study)
    best.weights.touch()
    mean = study.search_trial(layout, best.point).record
    held_back = mean.rename(tmp_path / "held back")

    def publish_after_look_up(*arguments: Any) -> Any:
        found = best_trial(*arguments)
        held_back.rename(mean)
        return found

    monkeypatch.setattr(selection, "_studies_of_same_weights", lambda *_: [study])
    monkeypatch.setattr(selection, "best_trial", publish_after_look_up)
    selection.drop_beaten_weights(layout, study)
    assert best.weights.exists() and mean.exists()


def test_wilcoxon_compares_the_scores_of_seeds(tmp_path: Path) -> None:
    layout, search = Layout(tmp_path), search_by("random", 6, "wilcoxon", seeds=(0, 1, 2, 3, 4, 5))
    assert work_through(layout, 0, search=search) == 0
    assert_search_is_right(layout, search)
    trials = study_of(0, search=search).search_trials(layout)
    pruned = [each for each in trials if each.state == "pruned"]
    assert pruned, "random points are worse than the best in all seeds"
    assert {sum(trial.is_done for trial in each.trials) for each in pruned} == {4}


def test_a_grid_and_a_search_share_their_trials(tmp_path: Path) -> None:
    """A point that the one has recorded is not run again by the other."""
    layout, count = Layout(tmp_path), 4
    assert work_through(layout, count) == 0
    space = Space.model_validate(
        {axis: sorted({plain(point)[axis] for point in POINTS[:count]}) for axis in Space.model_fields}
    )
    search = search_by("random", count, space=space)
    assert work_through(layout, count, search=search) == 0
    runs = Counter(line["part"] for line in read_lines(tmp_path / "published.jsonl"))
    ids = {trial.id for trial in study_of(count).trials(layout)}
    assert all(runs[trial] == 1 for trial in ids)
    assert {each.trials[0].id for each in study_of(count, search=search).search_trials(layout)} == ids
    assert_search_is_right(layout, search, points=count)


def test_a_search_waits_while_a_grid_runs_its_trial(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    search = search_by("grid", 1, "median")
    (trial,) = study_of(1).trials(layout)
    grid = start_worker(layout, 1, 0.2, "journal")
    until(lambda: started(layout) == 1)
    assert work_through(layout, 1, search=search) == 0
    assert grid.wait(timeout=60) == 0
    assert Counter(line["part"] for line in read_lines(tmp_path / "published.jsonl"))[trial.id] == 1


def test_points_that_are_asked_for_again_count_and_are_not_run_again(tmp_path: Path) -> None:
    space = Space(batch_size=(8,), learning_rate=(1e-4, 1e-3), weight_decay=(0.0,))
    layout, search = Layout(tmp_path), search_by("random", 5, space=space)
    assert work_through(layout, 0, search=search) == 0
    assert_search_is_right(layout, search)
    assert len(study_of(0, search=search).search_trials(layout)) == 2


def test_a_search_whose_trial_fails_tries_the_others_and_is_not_closed(tmp_path: Path) -> None:
    layout, count = Layout(tmp_path), 4
    search = search_by("grid", count, "median")
    (tmp_path / "break-1").touch()
    (tmp_path / "undefined-2").touch()
    assert work_through(layout, count, search=search) == 1
    study = study_of(count, search=search)
    progress = Index(layout).progress(study)
    assert (progress.state, study.done(layout, progress.pending), study.open_parts(layout)) == ("failed", count - 1, 1)
    states = [each.state.name for each in load(layout, count, "journal", search).trials]
    assert states == ["COMPLETE", "FAIL", "FAIL", "COMPLETE"]
    (tmp_path / "break-1").unlink()
    assert work_through(layout, count, search=search) == 0
    assert study.closing(layout).is_done


def test_a_worker_that_has_all_points_asked_takes_that_of_a_lost_one(tmp_path: Path) -> None:
    """A point with a live owner is left to it; a search is not closed before it has asked for all points."""
    layout, search = Layout(tmp_path), search_by("random", 2)
    study = study_of(0, search=search)
    taken = study.sweep(layout).take()
    assert taken is not None
    part, claim = taken
    assert acquire(layout.claims(part.id)) is None
    assert [each.name for each in {trial.state for trial in study.sweep(layout).show().trials}] == ["RUNNING"]
    assert study.parts(layout)[-1].after[-1].record == request_file(layout.root / study.folder, 1)
    with claim:
        execute(layout, None, part, claim, None)  # type: ignore[arg-type]
    assert work_through(layout, 0, search=search) == 0
    assert_search_is_right(layout, search)


@pytest.mark.parametrize("lost", ["record of the search", "record of a seed", "point"])
def test_a_torn_record_or_point_is_made_again(tmp_path: Path, lost: str) -> None:
    layout, search = Layout(tmp_path), search_by("random", 3, seeds=(0, 1))
    assert work_through(layout, 0, search=search) == 0
    study = study_of(0, search=search)
    trial = study.search_trials(layout)[1]
    torn = {"record of the search": trial.record, "record of a seed": trial.trials[1].record}
    path = torn.get(lost, request_file(layout.root / study.folder, 1))
    path.write_bytes(path.read_bytes()[:30])
    study.closing(layout).record.unlink()
    begun = started(layout)
    assert work_through(layout, 0, search=search) == 0
    assert [each.point for each in study.search_trials(layout)][1] == trial.point, "the same seed of the sampler"
    again = {"record of the search": 0, "record of a seed": 1, "point": 0}[lost]
    runs = Counter(line["part"] for line in read_lines(tmp_path / "published.jsonl"))
    assert sum(runs[each.id] for each in study.trials(layout)) == 6 + again
    assert started(layout) == begun + 1 + (lost != "point"), "the selection, and the trial of which something was torn"
    assert len([each for each in load(layout, 0, "journal", search).trials if each.state.name == "COMPLETE"]) == 3


def test_a_record_that_another_worker_published_a_moment_ago_stays(tmp_path: Path) -> None:
    layout, search = Layout(tmp_path), search_by("random", 2)
    assert work_through(layout, 0, search=search) == 0
    part = study_of(0, search=search).search_trials(layout)[0]
    published = part.record.read_bytes()
    with claimed(layout, part.id) as claim, pytest.raises(ClaimLost):
        execute(layout, None, part, claim, None)  # type: ignore[arg-type]
    assert part.record.read_bytes() == published
    assert_search_is_right(layout, search)


def test_a_storage_that_cannot_be_used_ends_the_worker_and_loses_no_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, search = Layout(tmp_path), search_by("random", 3)
    (tmp_path / "blocked").touch()
    monkeypatch.setenv(STORAGE_VARIABLE, storage_address(f"journal:{tmp_path / 'blocked' / 'file'}", tmp_path))
    with pytest.raises(RunFailed, match="cannot be asked for a point"):
        work_through(layout, 0, lease_seconds=0.5, search=search)
    monkeypatch.setenv(STORAGE_VARIABLE, storage_address("journal", tmp_path))
    assert work_through(layout, 0, search=search) == 0
    assert_search_is_right(layout, search)


def test_a_search_does_not_change_the_ids_of_grids_and_trials() -> None:
    grid, search = study_of(3), study_of(3, search=search_by("tpe", 3))
    assert "search" not in json.loads(json.dumps(grid.shared_by_trials))
    assert grid.trial_id(POINTS[0]) == search.trial_id(POINTS[0])
    assert grid.id != search.id


@given(
    st.sampled_from(
        [
            IntDistribution(2, 32, log=True),
            CategoricalDistribution((4, 8)),
        ]
    ),
    st.sampled_from([FloatDistribution(1e-6, 1e-3, log=True), CategoricalDistribution((1e-5,))]),
    st.sampled_from([FloatDistribution(0, 0.1), FloatDistribution(1e-6, 0.1, log=True)]),
)
def test_distributions_of_optuna_become_a_space_and_back(
    sizes: BaseDistribution, rates: BaseDistribution, decays: BaseDistribution
) -> None:
    axes = {"batch_size": sizes, "learning_rate": rates, "weight_decay": decays}
    assert axes_of(Space.read(json.loads(space_of(axes).model_dump_json()))) == axes


@pytest.mark.parametrize(
    ("axis", "distribution", "sentence"),
    [
        ("learning_rate", FloatDistribution(0.0, 0.1), "learning_rate cannot be 0"),
        ("batch_size", FloatDistribution(1.5, 8.0), "whole numbers"),
        ("weight_decay", FloatDistribution(0.0, 0.1, step=0.05), "steps of 0.05: give its values"),
        ("weight_decay", 0.1, "give a distribution of optuna.distributions"),
        ("weight_decays", FloatDistribution(0.0, 0.1), "weight_decays"),
    ],
)
def test_axes_that_no_point_can_have_are_refused(axis: str, distribution: BaseDistribution, sentence: str) -> None:
    axes: dict[str, BaseDistribution] = {
        "batch_size": CategoricalDistribution((8,)),
        "learning_rate": CategoricalDistribution((1e-4,)),
        "weight_decay": CategoricalDistribution((0.0,)),
    }
    with pytest.raises(ValueError, match=sentence):
        space_of(axes | {axis: distribution})


def test_the_space_of_a_grid_lies_between_its_ends() -> None:
    points = [
        Point(batch_size=size, learning_rate=rate, weight_decay=0.01) for size in (16, 8) for rate in (3e-5, 1e-5)
    ]
    assert Space.of_grid(points) == Space(
        batch_size=(8, 16), learning_rate=Range(low=1e-5, high=3e-5, log=True), weight_decay=(0.01,)
    )
