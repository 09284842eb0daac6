"""Trackers get every step once, under one id, whatever is killed; and no run depends on them."""

import json
import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from ablations import run
from neobert.errors import EXIT_DONE, EXIT_MISSING
from neobert.files import append_line, line_bytes
from neobert.runs import tracking
from neobert.runs.collected import unpacked
from neobert.runs.index import Index
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.tracking import Follower, Tracker, tracked
from tests.support.forking import start_worker
from tests.support.tiny_runs import STEPS, claimed, curve, ends, tiny_run, worker, write_tiny_run
from tests.support.waiting import until

Steps = list[tuple[int, float]]
BLOCK_BYTES, HEADER_BYTES = 32768, 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of pre-training that nobody trains; its lines are written by the tests."""
    return write_tiny_run(tmp_path / "runs", tiny_run())


def note(folder: Path, attempt: int, first: int, last: int) -> None:
    """Lines of an attempt, whose losses tell it from others."""
    for step in range(first, last + 1):
        path = folder / "attempts" / f"{attempt:06d}" / "metrics.jsonl"
        append_line(path, {"step": step, "loss": step + attempt / 16, "phase_seconds": {"data": 0.5}})


def finish(folder: Path, *lines: tuple[int, int]) -> None:
    """The merged metrics of (attempt, step) and the record."""
    merged = b"".join(line_bytes({"step": step, "loss": step + attempt / 16}) for attempt, step in lines)
    (folder / "metrics.jsonl").write_bytes(merged)
    publish_record(folder / "done.json", {"kind": "pretraining", "id": folder.name, "state": "done"})


def in_tensorboard(place: Path, name: str) -> Steps:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        (event.step, value.tensor.float_val[0])
        for path in sorted((place / name).glob("events*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag == "loss"
    ]


def in_wandb(place: Path, name: str) -> Steps:
    """From the files of all sessions, which are LevelDB logs of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(place.glob(f"offline-run-*-{name}/*.wandb")):
        for content in records_of(path.read_bytes()):
            record = Record.FromString(content)
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if "loss" in items:
                found.append((record.history.step.num, json.loads(items["loss"])))
            if record.HasField("run"):
                assert record.run.run_id == name
    return found


def records_of(content: bytes) -> Iterator[bytes]:
    begun, place = b"", HEADER_BYTES  # of the file
    while place + HEADER_BYTES <= len(content):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER_BYTES:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + HEADER_BYTES])
        begun = (b"" if kind in (1, 2) else begun) + content[place + HEADER_BYTES : place + HEADER_BYTES + length]
        place += HEADER_BYTES + length
        if kind in (1, 4):
            yield begun


def in_trackio(place: Path, name: str) -> Steps:
    """From its database, since trackio itself reads the folder's name once, when it is imported."""
    with closing(sqlite3.connect(place / f"{tracking.PROJECT}.db")) as database:
        rows = database.execute("SELECT step, metrics, run_name FROM metrics ORDER BY id").fetchall()
    assert {run for *_, run in rows} == {f"T pretraining stage 1 {name}"}
    return [(step, json.loads(metrics)["loss"]) for step, metrics, _ in rows]


READERS = {"tensorboard": in_tensorboard, "wandb": in_wandb, "trackio": in_trackio}


@pytest.fixture(params=READERS)
def tracker(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


def test_a_follower_that_is_killed_leaves_no_gap_and_no_step_twice(folder: Path, tracker: str) -> None:
    """Nor does a run that was killed and repeats steps: the first word on a step that was sent counts."""
    root = folder.parents[1]
    place, words = root / "tracking" / tracker, ["--runs", str(root), "--track", tracker]
    note(folder, 1, 1, 6)
    assert tracking_command(*words, f"pretraining/{folder.name}") == EXIT_DONE
    assert READERS[tracker](place, folder.name) == [(step, step + 1 / 16) for step in range(1, 6)]
    note(folder, 1, 7, 9)
    process = start_worker([*words, "--follow", f"pretraining/{folder.name}"], os.environ, "neobert.runs.tracking")
    until(lambda: '"closed": false' in (root / "tracking" / f"{folder.name}.{tracker}.json").read_text(), 60)
    process.kill()
    process.communicate()
    note(folder, 2, 4, 12)
    finish(folder, *((1, step) for step in range(1, 4)), *((2, step) for step in range(4, 13)))
    assert tracking_command(*words) == EXIT_DONE
    sent = READERS[tracker](place, folder.name)
    assert [step for step, _ in sent] == list(range(1, 13)) and sent[-1] == (12, 12 + 2 / 16)
    assert tracking_command(*words) == EXIT_DONE and READERS[tracker](place, folder.name) == sent


def tracking_command(*words: str) -> int:
    """The command in a process of its own, as it takes its standard output over."""
    process = start_worker(words, os.environ, "neobert.runs.tracking")
    process.communicate()
    assert process.returncode is not None
    return process.returncode


def test_a_job_follows_its_own_runs(folder: Path) -> None:
    """Its worker is told by the environment; what the run writes is the same."""
    pytest.importorskip("tensorboard")
    root, trained = folder.parents[1], tiny_run()
    codes, said = ends([worker(root, trained.reference, variables={tracking.VARIABLE: "tensorboard"})])
    assert codes == [0], said
    sent = in_tensorboard(root / "tracking" / "tensorboard", trained.id)
    assert [step for step, _ in sent] == list(range(1, STEPS + 1))
    assert [value for _, value in sent] == pytest.approx(curve(root, trained))


class Broken(Tracker):
    def open(self) -> int | None:
        raise OSError("the tracker's disk is full")

    log = close = sessions = drop = lambda *_: []  # type: ignore[assignment]


def test_steps_are_sent_once_the_process_that_followed_them_is_gone(folder: Path) -> None:
    note(folder, 1, 1, 3)
    layout = Layout(folder.parents[1])
    (part,) = tracked(layout, f"pretraining/{folder.name}")
    follower = Follower(layout, "tensorboard")
    with claimed(layout, f"tracking-tensorboard-{part.id}"):
        assert follower.send(part) == 0
    assert follower.send(part) > 0
    follower.close(part)


def test_a_tracker_that_fails_is_said_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(tracking.CLASSES, "wandb", Broken)  # type: ignore[arg-type]
    note(folder, 1, 1, 3)
    layout = Layout(folder.parents[1])
    (part,) = tracked(layout, f"pretraining/{folder.name}")
    follower = Follower(layout, "wandb")
    assert [follower.send(part), follower.send(part)] == [0, 0]
    assert capsys.readouterr().err == f"wandb took no more of {part.name}: the tracker's disk is full\n"
    assert part.name == f"T pretraining stage 1 {folder.name}"


def test_every_kind_of_record_has_steps() -> None:
    """The records of the smoke study: curves of pre-training, thinned out, and of trials."""
    collected = unpacked(Path(__file__).parents[2] / "reports" / "pipeline_check")
    assert collected is not None
    layout = Layout(collected.root)
    references = [row.folder for row in Index(layout).rows()]
    steps = {each.id: list(each.steps()) for reference in references for each in tracked(layout, reference)}
    numbers = [[step for step, _ in taken] for taken in steps.values()]
    assert sum(map(bool, numbers)) > 200 and all(each == sorted(set(each)) for each in numbers)
    assert all(isinstance(step, int) for each in numbers for step in each)
    assert {"score"} in [set(values) for taken in steps.values() for _, values in taken]


def test_a_tracker_that_is_not_installed_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    flags = ["--variant", "M0", "--stages", "pretrain", "--cluster", "here", "--runs", str(tmp_path / "runs")]
    assert run.main([*flags, "--track", "wandb"]) == EXIT_MISSING
    assert capsys.readouterr().err == "run.py: --track wandb needs wandb, which is not installed: pip install wandb\n"
    assert not (tmp_path / "runs").exists()
