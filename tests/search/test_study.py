"""Optuna runs the grid: every point once whatever dies, and a study that always agrees with the records."""

from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.runs.layout import Layout
from neobert.runs.work import Part
from neobert.search.storages import JOURNAL, FolderLock, LockLost, journal_of
from neobert.search.study import OptunaStudy
from neobert.search.subjects import GlueSubject, tenth_of_epoch
from tests.search.grid_worlds import (
    assert_exactly_once,
    assert_shows_records,
    dummies,
    execute,
    fail_part,
    load,
    start_worker,
    started,
    study_of,
    work_through,
)
from tests.support.tiny_runs import claimed
from tests.support.waiting import until

COUNT = 8


def run_all(layout: Layout, monkeypatch: pytest.MonkeyPatch, count: int = COUNT) -> int:
    """One worker in this process works through the grid."""
    return work_through(layout, count)


def states(layout: Layout, points: int, part: Part) -> list[tuple[int, str]]:
    """Claim and state of each Optuna trial of a part."""
    shown = [trial for trial in load(layout, points).trials if trial.user_attrs["trial"] == part.id]
    return [(trial.user_attrs["claim"], trial.state.name) for trial in shown]


def test_every_point_is_asked_once_and_told_with_its_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path)
    assert run_all(layout, monkeypatch) == 0
    (name,) = optuna.get_all_study_names(storage := journal_of(tmp_path).open())
    study = optuna.load_study(study_name=name, storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * COUNT, "told by the worker itself"
    assert study.direction.name == "MAXIMIZE"
    assert (study.user_attrs["task"], study.user_attrs["metric"], study.user_attrs["seed"]) == ("cola", "matthews", 0)
    assert_exactly_once(layout, COUNT)


@pytest.mark.parametrize("lost", [1, 10**6])
def test_reports_that_a_storage_does_not_take_are_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """With the next value; or, if none is taken before the worker ends, by a trial that is added from the record."""
    report, calls = optuna.Trial.report, iter(range(10**9))

    def unreliable(trial: optuna.Trial, value: float, step: int) -> None:
        if next(calls) < lost:
            raise OSError("the server is away")
        report(trial, value, step)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "report", unreliable)
        assert run_all(Layout(tmp_path), monkeypatch) == 0
    assert_exactly_once(Layout(tmp_path), COUNT)


def test_a_trial_is_shown_as_running_with_its_reports_until_it_ends_or_its_worker_does(tmp_path: Path) -> None:
    layout, held = Layout(tmp_path), tmp_path / "hold-0"
    held.touch()
    worker = start_worker(layout, 1, 0.0)

    def shown() -> list[tuple[str, int]]:
        subject = GlueSubject(layout, study_of(1))
        trials = OptunaStudy(subject).opened().trials
        return [(trial.state.name, len(trial.intermediate_values)) for trial in trials]

    until((tmp_path / "inside-0-1").exists)
    until(lambda: shown() == [("RUNNING", 1)])
    worker.kill()
    worker.wait()
    worker = start_worker(layout, 1, 0.0)
    until(lambda: shown() == [("FAIL", 1), ("RUNNING", 1)])
    held.unlink()
    assert worker.wait(timeout=60) == 0
    assert shown() == [("FAIL", 1), ("COMPLETE", 2)]


@pytest.mark.parametrize("damage", ["deleted", "cut", "scored otherwise", "twice"])
def test_a_study_that_is_lost_damaged_or_wrong_is_made_again_from_the_records(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    assert run_all(layout, monkeypatch) == 0
    path = tmp_path / JOURNAL
    content = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        study = load(layout, COUNT)
        again = study.trials[0]
        again.value = 0.123 if damage == "scored otherwise" else again.value
        study.add_trial(again)
    assert run_all(layout, monkeypatch) == 0
    assert started(layout) == COUNT
    assert_shows_records(layout, COUNT)


@pytest.mark.parametrize("content", ["none", "an older study"])
def test_a_file_in_the_place_of_a_deleted_one_is_opened_anew_and_not_made_again(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A report of another worker makes such a file, or one that begins sooner. It may have the inode of the old one."""
    layout, opened = Layout(tmp_path), journal_of(tmp_path)
    path = opened.path
    assert path is not None
    assert run_all(layout, monkeypatch, COUNT // 2) == 0
    older = path.read_bytes()
    load(layout, COUNT)
    path.unlink()
    path.write_bytes(older if content == "an older study" else b"")
    assert not opened.is_current
    assert run_all(layout, monkeypatch) == 0
    assert_exactly_once(layout, COUNT)
    assert "made again" not in caplog.text


def test_a_worker_whose_lock_was_broken_while_it_read_adds_nothing_that_another_has_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was slow or stopped for so long that the other took it for dead, and did the same from the same records."""
    layout, ending_of, broken = Layout(tmp_path), GlueSubject.ending_of, []
    for dummy in dummies(layout, COUNT):
        with claimed(layout, dummy.id) as claim:
            execute(layout, None, dummy, claim, None)  # type: ignore[arg-type]
    (tmp_path / "optuna.journal").unlink()

    def break_once(*arguments: Any) -> Any:
        if not broken:
            broken.append(True)
            (tmp_path / "optuna.lock").unlink()
            assert len(load(layout, COUNT).trials) == COUNT
        return ending_of(*arguments)

    monkeypatch.setattr(GlueSubject, "ending_of", break_once)
    assert len(load(layout, COUNT).trials) == COUNT
    assert broken and "made again" not in caplog.text
    assert_exactly_once(layout, COUNT)


def test_a_broken_lock_is_noticed_and_that_of_another_left_alone(tmp_path: Path) -> None:
    slow, other = FolderLock(tmp_path), FolderLock(tmp_path)
    with slow:
        slow.keep()
        (tmp_path / "optuna.lock").unlink()
        other.__enter__()
        with pytest.raises(LockLost):
            slow.keep()
    other.keep()
    other.__exit__()
    assert not (tmp_path / "optuna.lock").exists()


def test_a_study_is_made_again_with_its_failures(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    for dummy in dummies(layout, COUNT - 1):
        with claimed(layout, dummy.id) as claim:
            execute(layout, None, dummy, claim, None)  # type: ignore[arg-type]
    fail_part(dummies(layout, COUNT)[-1], 7, "RunFailed: step 3: the loss is nan")
    for _ in range(2):
        trials = load(layout, COUNT).trials
        assert len(trials) == COUNT
        (failed,) = [trial for trial in trials if trial.state.name == "FAIL"]
        assert failed.user_attrs["error"] == "RunFailed: step 3: the loss is nan" and failed.user_attrs["claim"] == 7


def test_a_failed_point_is_told_fail_with_its_error_until_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    (tmp_path / "break-3").touch()
    assert run_all(layout, monkeypatch) == 1
    failed = [trial for trial in load(layout, COUNT).trials if trial.state.name == "FAIL"]
    assert [trial.user_attrs["error"] for trial in failed] == ["RuntimeError: broken on purpose"]
    (tmp_path / "break-3").unlink()
    assert run_all(layout, monkeypatch) == 0
    assert_exactly_once(layout, COUNT)


@given(st.integers(1, 5000), st.integers(1, 20), st.data())
def test_tenths_of_an_epoch_rise_from_one_to_ten_times_the_epochs(
    course: int, epochs: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, course))
    tenth = tenth_of_epoch(step, course, epochs)
    assert 1 <= tenth <= 10 * epochs
    assert tenth >= tenth_of_epoch(max(1, step - 1), course, epochs)
    assert tenth_of_epoch(course, course, epochs) == 10 * epochs
