"""Checkpoints by the clock."""

from pathlib import Path

import pytest

from neobert.training.pretraining import PretrainingTrainer
from tests.support.tiny_runs import tiny_run, tiny_stage, trainer_of

BRIEF = tiny_stage(steps=8, warmup_steps=1, decay_steps=7)


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
