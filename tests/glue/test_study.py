"""Optuna's view of a grid: it shows what the files say, survives everything, and never stands in the way."""

import signal
import sqlite3
import sys
from pathlib import Path

import pytest

from neobert.glue.optuna_view import storage_address, view_for_command
from neobert.processes import StopRequest
from neobert.runs.layout import Layout
from neobert.runs.work import Part
from tests.glue.grid_worlds import (
    assert_exactly_once,
    dummies,
    fail_part,
    load,
    start_worker,
    study_of,
    survive_kills,
    view_of,
    work_through,
)
from tests.support.tiny_runs import claimed
from tests.support.waiting import until

POINTS = 12


def run_all(layout: Layout, storage: str, count: int = POINTS) -> int:
    """One worker in this process works through the grid."""
    return work_through(layout, count, view_of(layout, count, storage))


def states(layout: Layout, points: int, storage: str, part: Part) -> list[tuple[int, str]]:
    """Claim and state of each Optuna trial of a part."""
    shown = [trial for trial in load(layout, points, storage).trials if trial.user_attrs["trial"] == part.id]
    return [(trial.user_attrs["claim"], trial.state.name) for trial in shown]


def test_a_study_shows_every_record_once_with_parameters_value_and_curve(tmp_path: Path, storage: str) -> None:
    layout = Layout(tmp_path)
    assert run_all(layout, storage) == 0
    assert_exactly_once(layout, POINTS, storage)
    assert load(layout, POINTS, storage).direction.name == "MAXIMIZE"


def test_workers_that_are_killed_lose_and_repeat_nothing(tmp_path: Path, storage: str) -> None:
    survive_kills(Layout(tmp_path), storage, points=POINTS, workers=4, kills=2, seconds=0.3)


def test_a_study_is_made_again_from_the_files_alone(tmp_path: Path, storage: str) -> None:
    """Another database, empty, shows after one call what the first one showed; a second call adds nothing."""
    layout = Layout(tmp_path)
    for dummy in dummies(layout, POINTS - 1):
        with claimed(layout, dummy.id) as claim:
            dummy.work.execute(layout, None, dummy, claim, StopRequest())  # type: ignore[arg-type]
    fail_part(dummies(layout, POINTS)[-1], 7, "RunFailed: step 3: the loss is nan")
    for _ in range(2):
        view_of(layout, POINTS, storage).close()
        trials = load(layout, POINTS, storage).trials
        assert len(trials) == POINTS
        (failed,) = [trial for trial in trials if trial.state.name == "FAIL"]
        assert failed.user_attrs["error"] == "RunFailed: step 3: the loss is nan" and failed.user_attrs["claim"] == 7


def test_a_lost_database_is_filled_again_by_the_next_start(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert run_all(layout, "sqlite") == 0
    (tmp_path / "optuna.db").unlink()
    assert run_all(layout, "sqlite") == 0
    assert_exactly_once(layout, POINTS, "sqlite")


def test_an_owner_paused_past_its_lease_publishes_nothing(tmp_path: Path, storage: str) -> None:
    layout = Layout(tmp_path)
    view_of(layout, 1, storage).close()
    paused = start_worker(layout, 1, 3.0, storage, lease_seconds=1.5)
    until((tmp_path / "inside-0-1").exists)
    paused.send_signal(signal.SIGSTOP)
    try:
        assert start_worker(layout, 1, 0.1, storage, lease_seconds=1.5).wait(timeout=60) == 0
        part = dummies(layout, 1)[0]
        before = part.record.read_bytes()
    finally:
        paused.send_signal(signal.SIGCONT)
    assert paused.wait(timeout=60) == 0
    assert part.record.read_bytes() == before
    assert states(layout, 1, storage, part) == [(2, "COMPLETE")]
    assert_exactly_once(layout, 1, storage)


def test_a_failed_point_is_told_fail_with_its_error(tmp_path: Path, storage: str) -> None:
    layout = Layout(tmp_path)
    (tmp_path / "break-3").touch()
    assert run_all(layout, storage) == 1
    failed = [trial for trial in load(layout, POINTS, storage).trials if trial.state.name == "FAIL"]
    assert [trial.user_attrs["error"] for trial in failed] == ["RuntimeError: broken on purpose"]
    (tmp_path / "break-3").unlink()
    assert run_all(layout, storage) == 0
    assert_exactly_once(layout, POINTS, storage)


def test_a_locked_database_never_stops_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("neobert.glue.optuna_view.SQLITE_TIMEOUT_SECONDS", 0.05)
    layout = Layout(tmp_path)
    view = view_of(layout, POINTS, "sqlite")
    lock = sqlite3.connect(tmp_path / "optuna.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    assert work_through(layout, POINTS, view) == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "database is locked" in said[0] and "did not reach" in said[1]
    lock.close()
    view.close()
    assert_exactly_once(layout, POINTS, "sqlite")


def test_without_optuna_a_grid_runs_unseen_and_an_explicit_storage_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = Layout(tmp_path)
    monkeypatch.setattr("neobert.glue.optuna_view.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert view_for_command(None, layout, [study_of(1)]) is None
    assert "is not installed" in capsys.readouterr().err
    with pytest.raises(ValueError, match="pip install optuna"):
        view_for_command("journal", layout, [study_of(1)])


@pytest.mark.parametrize(("storage", "file"), [("sqlite", "optuna.db"), ("journal", "optuna.journal")])
def test_a_storage_that_cannot_be_used_stops_a_grid_only_if_it_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], storage: str, file: str
) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    (tmp_path / file).mkdir()
    assert view_for_command(None, Layout(tmp_path), [study_of(1)], storage) is None
    said = capsys.readouterr().err
    assert f"{file} cannot be used" in said and said.endswith("the work goes on without it\n")
    with pytest.raises(ValueError, match="cannot be used"):
        view_for_command(storage, Layout(tmp_path), [study_of(1)])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sqlight", "did you mean 'sqlite'"),
        ("postgresql://me:secret@host/grid", "^'postgresql' is no storage"),
    ],
)
def test_an_unknown_storage_is_refused(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        storage_address(name, tmp_path)
