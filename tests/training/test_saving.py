"""Checkpoints by the clock, written in a thread while training goes on."""

import threading
from pathlib import Path

import pytest
import torch

from neobert.runs.layout import Layout
from neobert.training import checkpoints
from neobert.training.checkpoints import Checkpoint
from neobert.training.pretraining import PretrainingTrainer
from tests.support.tiny_runs import claimed, tiny_run, tiny_stage, trainer_of

BRIEF = tiny_stage(steps=8, warmup_steps=1, decay_steps=7)
LIMIT_SECONDS = 30


@pytest.fixture
def trainer(tmp_path: Path) -> PretrainingTrainer:
    """A run that looks at the clock after every step, and saves every quarter of an hour."""
    run = tiny_run(stages=(BRIEF,))
    made = trainer_of(tmp_path, run, checkpoint_interval_steps=1, checkpoint_interval_seconds=900)
    made.begin()
    return made


def test_a_checkpoint_is_due_by_the_clock_and_looked_for_at_some_steps(trainer: PretrainingTrainer) -> None:
    assert not trainer._save_is_due(1)
    trainer._saved_at -= 901
    assert trainer._save_is_due(1)
    trainer.execution = trainer.execution.model_copy(update={"checkpoint_interval_steps": 2})
    assert not trainer._save_is_due(1) and trainer._save_is_due(2)


def test_training_goes_on_while_a_checkpoint_of_the_weights_then_is_written(
    trainer: PretrainingTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, go_on, threads = checkpoints.save, threading.Event(), []

    def slow_save(*words: object) -> None:
        threads.append(threading.current_thread())
        assert go_on.wait(LIMIT_SECONDS)
        save(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoints, "save", slow_save)
    steps = trainer.steps(0)
    next(steps).measured()
    then = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    moments = {name: tensor.clone() for name, tensor in trainer.engine.optimizer_tensors().items()}
    tokens = trainer.totals.real_tokens
    with claimed(Layout(tmp_path), "x") as claim:
        trainer._save_together(1, claim.check, wait=False)
        next(steps).measured()
        assert not checkpoints.steps_on_disk(trainer.checkpoints)
        go_on.set()
        trainer.writer.finish()
    assert threads != [threading.main_thread()]
    found = checkpoints.newest(trainer.checkpoints)
    assert found is not None and found.step == 1 and found.state()["totals"]["real_tokens"] == tokens
    assert all(torch.equal(found.weights()[name], tensor) for name, tensor in then.items())
    assert all(torch.equal(found.optimizer()[name], tensor) for name, tensor in moments.items())
    assert any(not torch.equal(then[name], tensor) for name, tensor in trainer.model.state_dict().items())
    assert 0 < trainer.totals.checkpoint_seconds < LIMIT_SECONDS


def test_a_checkpoint_that_could_not_be_written_is_an_error_at_the_next_one(
    trainer: PretrainingTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Checkpoint:
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoints, "save", fail)
    with claimed(Layout(tmp_path), "x") as claim:
        trainer._save_together(1, claim.check, wait=False)
        with pytest.raises(OSError, match="no space left"):
            trainer._save_together(2, claim.check, wait=False)


def test_a_run_by_the_clock_has_its_milestones_and_their_time_in_the_record(
    trainer: PretrainingTrainer, tmp_path: Path
) -> None:
    with claimed(Layout(tmp_path), "x") as claim:
        folder = tmp_path / "attempt"
        folder.mkdir()
        result = trainer.fit(folder, check=claim.check)
    assert set(checkpoints.steps_on_disk(trainer.checkpoints)) == trainer.milestones
    assert result.totals.checkpoint_seconds > 0
