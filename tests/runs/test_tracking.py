"""Trackers show a run under one id, whatever is killed; and no run depends on them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Never

import pytest

from ablations import run
from neobert.errors import EXIT_MISSING
from neobert.files import read_lines
from neobert.runs import tracking
from neobert.runs.collected import RunFiles
from neobert.runs.index import Index
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from neobert.runs.tracking import TrackedPart, track_scores
from tests.support.tiny_runs import STEPS, beside, curve, ends, tiny_run, wait_for_steps, worker, write_tiny_run

Steps = list[tuple[int, float]]


def in_tensorboard(place: Path, name: str) -> Steps:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        (event.step, value.tensor.float_val[0])
        for path in sorted((place / name).glob("events*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag == "loss"
    ]


def test_a_run_is_shown_under_one_id_whatever_is_killed(tmp_path: Path, finished: Path) -> None:
    """Steps that the killed attempt has sent may be there twice, with the same values."""
    pytest.importorskip("tensorboard")
    root, trained = beside(tmp_path / "runs", finished), tiny_run()
    write_tiny_run(root, trained)
    variables = {tracking.VARIABLE: "tensorboard"}
    process = worker(root, trained.reference, variables=variables)
    wait_for_steps(root, trained, 9)
    process.kill()
    process.communicate()
    codes, said = ends([worker(root, trained.reference, variables=variables)])
    assert codes == [0] and not [line for line in said.splitlines() if "no more" in line], said
    sent = in_tensorboard(root / "tracking" / "tensorboard", trained.id)
    losses = curve(root, trained)
    assert [loss for _, loss in sent] == pytest.approx([losses[step - 1] for step, _ in sent])
    newest = max((root / trained.folder / "attempts").iterdir())
    assert min(line["step"] for line in read_lines(newest / "metrics.jsonl")) > 1
    assert {step for step, _ in sent} == set(range(1, STEPS + 1))


def test_wandb_takes_a_run_without_a_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("wandb")
    layout, run_file = Layout(tmp_path), read_run_file(write_tiny_run(tmp_path, tiny_run()))
    (part,) = run_file.run.parts(layout)
    tracker = TrackedPart(layout, run_file, part, name="wandb")
    tracker.log(1, {"loss": 1.0})
    tracker.close()
    assert list(layout.tracking.glob(f"wandb/offline-run-*-{part.id}/*.wandb")) and not capsys.readouterr().err


def test_tensorboard_hides_repeated_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    layout, run_file = Layout(tmp_path), read_run_file(write_tiny_run(tmp_path, tiny_run()))
    (part,) = run_file.run.parts(layout)
    for steps in (range(1, 8), range(6, 11)):
        attempt = TrackedPart(layout, run_file, part, name="tensorboard")
        for step in steps:
            attempt.log(step, {"loss": 1 / step, "phase_seconds": {"data": 0.5}, "compiled": False})
        attempt.close()
    shown = EventAccumulator(str(layout.tracking / "tensorboard" / part.id)).Reload()
    assert set(shown.Tags()["scalars"]) == {"loss", "phase_seconds/data"}
    assert [event.step for event in shown.Scalars("loss")] == list(range(1, 11))


def test_a_tracker_that_fails_is_reported_once_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Never:
        raise OSError("the tracker's disk is full")

    monkeypatch.setitem(tracking.OPENERS, "wandb", fail)  # type: ignore[misc]
    layout, run_file = Layout(tmp_path), read_run_file(write_tiny_run(tmp_path, tiny_run()))
    (part,) = run_file.run.parts(layout)
    tracker = TrackedPart(layout, run_file, part, name="wandb")
    for step in (1, 2):
        tracker.log(step, {"loss": 1.0})
    tracker.close()
    assert capsys.readouterr().err == f"wandb takes no more of {part.title}: the tracker's disk is full\n"


def test_scores_of_every_kind_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the smoke study: a curve per trial, and one step of tasks and readouts."""
    files = RunFiles(Path(__file__).parents[2] / "reports" / "pipeline_check")
    layout = Layout(files.root)
    sent: dict[str, list[tuple[int, set[str]]]] = {}

    def log(tracker: TrackedPart, step: int, values: Mapping[str, object]) -> None:
        sent.setdefault(tracker.part.id, []).append((step, set(values)))

    monkeypatch.setenv(tracking.VARIABLE, "tensorboard")
    monkeypatch.setattr(TrackedPart, "log", log)
    run_files = [read_run_file(layout.root / row.folder) for row in Index(layout).rows()]
    for run_file in run_files:
        for part in run_file.run.parts(layout):
            if part.is_done and part.id not in sent:  # studies share trials
                track_scores(layout, run_file, part)
    assert len(sent) > 100 and all(steps == sorted(steps, key=lambda each: each[0]) for steps in sent.values())
    assert any(len(steps) > 1 and steps[0][1] == {"score"} for steps in sent.values())
    trained = {run_file.id for run_file in run_files if run_file.run.counted == "steps"}
    assert trained and not trained & sent.keys()


def test_a_tracker_that_is_not_installed_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    flags = ["--variant", "M0", "--stages", "pretrain", "--cluster", "here", "--runs", str(tmp_path / "runs")]
    assert run.main([*flags, "--track", "wandb"]) == EXIT_MISSING
    assert capsys.readouterr().err == "run.py: --track wandb needs wandb, which is not installed: pip install wandb\n"
    assert not (tmp_path / "runs").exists()
