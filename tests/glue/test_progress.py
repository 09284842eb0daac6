"""A trial that is interrupted goes on bit for bit from what it has saved."""

import signal
from pathlib import Path

import pytest

from neobert.execution import Execution
from neobert.executors import glue as trials_of_a_study
from neobert.glue import finetuning
from neobert.glue.finetuning import EvaluatedStep, FineTuner, SavedProgress
from neobert.processes import Stopped, StopRequest
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.run_file import read_run_file, write_run_file
from neobert.training import checkpoints
from tests.glue.glue_worlds import digest, fine_tuner, marked_task, point, study_of
from tests.support.tiny_runs import SOURCE, claimed

EVALUATIONS = 9
"""Of an uninterrupted run of these tests."""


@pytest.fixture(autouse=True)
def at_every_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "SAVE_SECONDS", 0)


def tuner() -> FineTuner:
    return fine_tuner(marked_task(train=48), epochs=3, evaluations_per_epoch=2, dropout=0.1, patience_evaluations=99)


def evaluated(layout: Layout, most: int = 99) -> tuple[list[EvaluatedStep], str | None]:
    """The evaluations of an attempt in which a stop is requested at the `most`-th; the digest of its outcome, None if
    it was stopped."""
    stop, found = StopRequest(), []
    with claimed(layout, "trial") as claim:
        run = tuner().evaluations(point(), 0, stop, SavedProgress(layout.root / "progress", claim.check))
        while True:
            try:
                found.append(next(run))
            except Stopped as reason:
                assert reason.progressed
                return found, None
            except StopIteration as end:
                return found, digest(end.value)
            if len(found) == most:
                stop.signals.add(signal.SIGTERM)


@pytest.mark.parametrize("stops", [(2, 4), tuple(range(1, EVALUATIONS))])
def test_a_run_that_was_stopped_equals_an_uninterrupted_one(tmp_path: Path, stops: tuple[int, ...]) -> None:
    whole, outcome = evaluated(Layout(tmp_path / "whole"))
    assert len(whole) == EVALUATIONS and outcome is not None
    layout = Layout(tmp_path / "stopped")
    for most in stops:
        assert evaluated(layout, most) == (whole[:most], None)
    assert evaluated(layout) == (whole, outcome)


def test_damaged_progress_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    whole, outcome = evaluated(Layout(tmp_path / "whole"))
    layout = Layout(tmp_path / "stopped")
    evaluated(layout, 4)
    saved = layout.root / "progress"
    before, newest = checkpoints.steps_on_disk(saved)
    (checkpoints.folder_of(saved, newest) / checkpoints.WEIGHTS).write_bytes(b"torn")
    with claimed(layout, "trial") as claim:
        found = SavedProgress(saved, claim.check).load()
    assert found is not None and found.course.step == before
    assert evaluated(layout) == (whole, outcome)


def test_a_short_run_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finetuning, "SAVE_SECONDS", 600)
    evaluated(Layout(tmp_path))
    assert not (tmp_path / "progress").exists()


def test_a_trial_has_no_progress_behind_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, study = Layout(tmp_path), study_of()
    (trial,) = study.trials(layout)
    execution = Execution(threads=1, processes=1, micro_batch_tokens=1, checkpoint_interval_steps=1)
    run_file = read_run_file(write_run_file(layout, study, SOURCE, execution, {}))
    monkeypatch.setattr(trials_of_a_study, "_fine_tuner", lambda *_: tuner())
    stop = StopRequest()
    keep = SavedProgress.keep

    def keep_and_stop(self: SavedProgress, make: object) -> None:
        keep(self, make)  # type: ignore[arg-type]
        stop.signals.add(signal.SIGTERM)

    monkeypatch.setattr(SavedProgress, "keep", keep_and_stop)
    with claimed(layout, trial.id) as claim, pytest.raises(Stopped):
        trials_of_a_study.execute(layout, run_file, trial, claim, stop)
    assert trial.progress.is_dir() and not trial.is_done
    stop.signals.clear()
    monkeypatch.setattr(SavedProgress, "keep", keep)
    with claimed(layout, trial.id) as claim:
        trials_of_a_study.execute(layout, run_file, trial, claim, stop)
    assert trial.is_done and not trial.progress.exists()
    assert len(read_record(trial.record)["scores"]["curve"]) == EVALUATIONS
