"""Optuna runs the grid: every point once whatever dies, and a study that always agrees with the records."""

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.work import Part
from neobert.search import storages
from neobert.search.storages import STORAGE_VARIABLE, FolderLock, LockLost, storage_address, storage_at
from neobert.search.study import OptunaStudy, open_studies
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


@pytest.fixture(autouse=True)
def storage_of_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers of this process use the journal, unless a test names another storage."""
    monkeypatch.delenv(STORAGE_VARIABLE, raising=False)
    yield
    storage_at.cache_clear()


def run_all(layout: Layout, storage: str, monkeypatch: pytest.MonkeyPatch, count: int = COUNT) -> int:
    """One worker in this process works through the grid."""
    monkeypatch.setenv(STORAGE_VARIABLE, storage_address(storage, layout.root))
    return work_through(layout, count)


def states(layout: Layout, points: int, storage: str, part: Part) -> list[tuple[int, str]]:
    """Claim and state of each Optuna trial of a part."""
    shown = [trial for trial in load(layout, points, storage).trials if trial.user_attrs["trial"] == part.id]
    return [(trial.user_attrs["claim"], trial.state.name) for trial in shown]


def test_every_point_is_asked_once_and_told_with_its_curve(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    assert run_all(layout, storage, monkeypatch) == 0
    address = storage_address(storage, layout.root)
    (name,) = optuna.get_all_study_names(storage_at(address).open())
    study = optuna.load_study(study_name=name, storage=storage_at(address).open())
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * COUNT, "told by the worker itself"
    assert study.direction.name == "MAXIMIZE"
    assert (study.user_attrs["task"], study.user_attrs["metric"], study.user_attrs["seed"]) == ("cola", "matthews", 0)
    assert_exactly_once(layout, COUNT, storage)


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
        assert run_all(Layout(tmp_path), "journal", monkeypatch) == 0
    assert_exactly_once(Layout(tmp_path), COUNT, "journal")


def test_a_trial_is_shown_as_running_with_its_reports_until_it_ends_or_its_worker_does(
    tmp_path: Path, storage: str
) -> None:
    layout, held = Layout(tmp_path), tmp_path / "hold-0"
    held.touch()
    worker = start_worker(layout, 1, 0.0, storage)

    def shown() -> list[tuple[str, int]]:
        subject = GlueSubject(layout, study_of(1))
        trials = OptunaStudy(subject, storage_at(storage_address(storage, tmp_path))).opened().trials
        return [(trial.state.name, len(trial.intermediate_values)) for trial in trials]

    until((tmp_path / "inside-0-1").exists)
    until(lambda: shown() == [("RUNNING", 1)])
    worker.kill()
    worker.wait()
    worker = start_worker(layout, 1, 0.0, storage)
    until(lambda: shown() == [("FAIL", 1), ("RUNNING", 1)])
    held.unlink()
    assert worker.wait(timeout=60) == 0
    assert shown() == [("FAIL", 1), ("COMPLETE", 2)]


def test_points_that_fail_have_no_score_or_kill_their_worker_do_not_stop_the_grid(tmp_path: Path) -> None:
    """The point that kills its worker is taken again last, and ends at the third try."""
    layout = Layout(tmp_path)
    for name in ("break-0", "undefined-1", "kill-2"):
        (tmp_path / name).touch()
    codes = []
    while not codes or codes[-1] < 0:
        codes.append(start_worker(layout, COUNT, 0.0, "journal").wait(timeout=60))
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 1], "killed twice, and then one point has failed"
    parts = dummies(layout, COUNT)
    assert [part.is_done for part in parts] == [False] + [True] * (COUNT - 1)
    assert read_record(parts[1].record)["scores"]["score"] is None
    assert started(layout) == COUNT + 2 + 2, "each worker tries the failing point once"
    assert_shows_records(layout, COUNT, "journal")
    undefined = states(layout, COUNT, "journal", parts[1])
    assert undefined == [(1, "FAIL")]


@pytest.mark.parametrize("damage", ["deleted", "cut", "scored otherwise", "twice"])
def test_a_study_that_is_lost_damaged_or_wrong_is_made_again_from_the_records(
    tmp_path: Path, storage: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    assert run_all(layout, storage, monkeypatch) == 0
    path = storage_at(storage_address(storage, tmp_path)).path
    assert path is not None
    content = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        study = load(layout, COUNT, storage)
        again = study.trials[0]
        again.value = 0.123 if damage == "scored otherwise" else again.value
        study.add_trial(again)
    assert run_all(layout, storage, monkeypatch) == 0
    assert started(layout) == COUNT
    assert_shows_records(layout, COUNT, storage)


@pytest.mark.parametrize("content", ["none", "an older study"])
def test_a_file_in_the_place_of_a_deleted_one_is_opened_anew_and_not_made_again(
    tmp_path: Path, storage: str, content: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A report of another worker makes such a file, or one that begins sooner. It may have the inode of the old one."""
    layout, opened = Layout(tmp_path), storage_at(storage_address(storage, tmp_path))
    path = opened.path
    assert path is not None
    assert run_all(layout, storage, monkeypatch, COUNT // 2) == 0
    older = path.read_bytes()
    load(layout, COUNT, storage)
    path.unlink()
    path.write_bytes(older if content == "an older study" else b"")
    assert not opened.is_current
    assert run_all(layout, storage, monkeypatch) == 0
    assert_exactly_once(layout, COUNT, storage)
    assert "made again" not in caplog.text


def test_a_file_that_is_deleted_while_a_study_is_mended_is_opened_anew(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layout, opened = Layout(tmp_path), storage_at(storage_address(storage, tmp_path))
    assert run_all(layout, storage, monkeypatch) == 0
    key_of, deleted = GlueSubject.key_of, []

    def delete_once(*arguments: Any) -> Any:
        if not deleted:
            assert opened.path is not None
            opened.path.unlink()
            opened.path.touch()
            deleted.append(True)
            raise ValueError("no such table: studies")
        return key_of(*arguments)

    monkeypatch.setattr(GlueSubject, "key_of", delete_once)
    assert_exactly_once(layout, COUNT, storage)
    assert deleted and "made again" not in caplog.text


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
            assert len(load(layout, COUNT, "journal").trials) == COUNT
        return ending_of(*arguments)

    monkeypatch.setattr(GlueSubject, "ending_of", break_once)
    assert len(load(layout, COUNT, "journal").trials) == COUNT
    assert broken and "made again" not in caplog.text
    assert_exactly_once(layout, COUNT, "journal")


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


def test_of_two_trials_of_one_attempt_the_one_that_its_worker_tells_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that fails after it has answered leaves a trial behind, and the worker asks again. It ends while another
    worker compares the study with the records."""
    layout, mark, live_claims, ends = Layout(tmp_path), OptunaStudy._mark, OptunaStudy._live_claims, ExitStack()
    (dummy,) = dummies(layout, 1)

    def fail_once(*arguments: Any) -> None:
        mark(*arguments)
        monkeypatch.setattr(OptunaStudy, "_mark", mark)
        raise OSError("the server is away")

    def end_first(*arguments: Any) -> Any:
        ends.close()
        return live_claims(*arguments)

    monkeypatch.setattr(OptunaStudy, "_mark", fail_once)
    claim = ends.enter_context(claimed(layout, dummy.id))
    reports = ends.enter_context(dummy.study.sweep(layout).running(dummy, claim))
    dummy.study._run(dummy, claim, reports)
    monkeypatch.setattr(OptunaStudy, "_live_claims", end_first)
    for _ in range(2):
        assert states(layout, 1, "journal", dummy) == [(1, "FAIL"), (1, "COMPLETE")]
    assert "made again" not in caplog.text


def test_a_long_journal_is_shortened_to_the_same_trials_when_nobody_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storages, "FEW_LINES", 0)
    layout, address, path = Layout(tmp_path), storage_address("journal", tmp_path), tmp_path / "optuna.journal"
    (tmp_path / "break-3").touch()
    assert run_all(layout, "journal", monkeypatch) == 1
    (tmp_path / "break-3").rename(tmp_path / "hold-3")
    worker = start_worker(layout, COUNT, 0.0, "journal")
    until((tmp_path / "inside-3-2").exists)
    inode = path.stat().st_ino
    open_studies(layout, [], address)
    assert path.stat().st_ino == inode, "a worker reports to it"
    (tmp_path / "hold-3").unlink()
    assert worker.wait(timeout=60) == 0
    before, lines = load(layout, COUNT, "journal").trials, path.read_bytes().count(b"\n")
    open_studies(layout, [], address)
    assert load(layout, COUNT, "journal").trials == before and len(before) == COUNT + 1
    assert path.read_bytes().count(b"\n") < lines / storages.LINES_PER_TRIAL
    assert_exactly_once(layout, COUNT, "journal")


def test_a_study_is_made_again_with_its_failures(tmp_path: Path, storage: str) -> None:
    layout = Layout(tmp_path)
    for dummy in dummies(layout, COUNT - 1):
        with claimed(layout, dummy.id) as claim:
            execute(layout, None, dummy, claim, None)  # type: ignore[arg-type]
    fail_part(dummies(layout, COUNT)[-1], 7, "RunFailed: step 3: the loss is nan")
    for _ in range(2):
        trials = load(layout, COUNT, storage).trials
        assert len(trials) == COUNT
        (failed,) = [trial for trial in trials if trial.state.name == "FAIL"]
        assert failed.user_attrs["error"] == "RunFailed: step 3: the loss is nan" and failed.user_attrs["claim"] == 7


def test_an_owner_paused_past_its_lease_publishes_nothing(tmp_path: Path, storage: str) -> None:
    layout = Layout(tmp_path)
    paused = start_worker(layout, 1, 2.0, storage, lease_seconds=1.0)
    until((tmp_path / "inside-0-1").exists)
    paused.send_signal(signal.SIGSTOP)
    try:
        assert start_worker(layout, 1, 0.1, storage, lease_seconds=1.0).wait(timeout=60) == 0
        part = dummies(layout, 1)[0]
        before = part.record.read_bytes()
    finally:
        paused.send_signal(signal.SIGCONT)
    assert paused.wait(timeout=60) == 0
    assert part.record.read_bytes() == before
    assert states(layout, 1, storage, part) == [(1, "FAIL"), (2, "COMPLETE")]
    assert_exactly_once(layout, 1, storage)


def test_a_failed_point_is_told_fail_with_its_error_until_it_is_run_again(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    (tmp_path / "break-3").touch()
    assert run_all(layout, storage, monkeypatch) == 1
    failed = [trial for trial in load(layout, COUNT, storage).trials if trial.state.name == "FAIL"]
    assert [trial.user_attrs["error"] for trial in failed] == ["RuntimeError: broken on purpose"]
    (tmp_path / "break-3").unlink()
    assert run_all(layout, storage, monkeypatch) == 0
    assert_exactly_once(layout, COUNT, storage)


def test_a_locked_database_is_waited_for_and_never_loses_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storages, "SQLITE_TIMEOUT_SECONDS", 0.05)
    layout = Layout(tmp_path)
    load(layout, COUNT, "sqlite")
    lock = sqlite3.connect(tmp_path / "optuna.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    monkeypatch.setenv(STORAGE_VARIABLE, storage_address("sqlite", tmp_path))
    assert work_through(layout, COUNT, lease_seconds=1.0) == 0
    assert [record.message for record in caplog.records if "database is locked" in record.message] == [
        f"sqlite:///{tmp_path}/optuna.db: database is locked; the work goes on unseen by Optuna"
    ]
    lock.close()
    assert_exactly_once(layout, COUNT, "sqlite")
    assert not list(tmp_path.glob("*.damaged-*"))


@pytest.mark.parametrize(("storage", "file"), [("sqlite", "optuna.db"), ("journal", "optuna.journal")])
def test_a_file_that_is_no_storage_is_refused_unless_it_is_the_folders_own_journal(
    tmp_path: Path, storage: str, file: str
) -> None:
    (tmp_path / file).write_bytes(b"what is this?\n" * 100)
    address = storage_address(storage, tmp_path)
    if storage == "journal":
        open_studies(Layout(tmp_path), [study_of(1)], address)
        assert (tmp_path / f"{file}.damaged-1").exists()
    else:
        with pytest.raises(ValueError, match=r"optuna.db cannot be used \(file is not a database\)"):
            open_studies(Layout(tmp_path), [study_of(1)], address)
        assert (tmp_path / file).read_bytes() == b"what is this?\n" * 100


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sqlight", "did you mean 'sqlite'"),
        ("postgresql://me:secret@host/grid", "would show the password .* NEOBERT_GRID_STORAGE"),
    ],
)
def test_an_unknown_storage_and_a_visible_password_are_refused(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        storage_address(name, tmp_path)


def test_passwords_are_never_printed() -> None:
    assert str(storage_at("postgresql://me:secret@host/grid")) == "postgresql://host/grid"


@given(st.integers(1, 5000), st.integers(1, 20), st.data())
def test_tenths_of_an_epoch_rise_from_one_to_ten_times_the_epochs(
    course: int, epochs: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, course))
    tenth = tenth_of_epoch(step, course, epochs)
    assert 1 <= tenth <= 10 * epochs
    assert tenth >= tenth_of_epoch(max(1, step - 1), course, epochs)
    assert tenth_of_epoch(course, course, epochs) == 10 * epochs
