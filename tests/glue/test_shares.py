"""In which order and with which kernels a worker of a grid works, and which weights it writes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neobert.errors import RunFailed
from neobert.execution import Execution
from neobert.executors import glue as trials_of_a_study
from neobert.executors.selection import may_become_best
from neobert.kinds.glue import GlueStudy
from neobert.processes import StopRequest
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import read_run_file, write_run_file
from neobert.runs.worker import OpenPart, from_own_block
from neobert.training.distributed import choose_kernels
from tests.glue.glue_worlds import point, study_of
from tests.support.tiny_runs import SOURCE, claimed

POINTS = tuple(point(batch_size=size, learning_rate=rate) for size in (32, 16, 8) for rate in (1e-5, 2e-5, 3e-5, 4e-5))
EXECUTION = Execution(threads=1, processes=1, micro_batch_tokens=1, checkpoint_interval_steps=1)


@pytest.fixture
def study(tmp_path: Path) -> GlueStudy:
    made = study_of(points=POINTS)
    write_run_file(Layout(tmp_path), made, SOURCE, EXECUTION, {})
    return made


def finish(layout: Layout, study: GlueStudy, number: int, score: float) -> None:
    trial = study.trials(layout)[number]
    record = {"kind": "glue", "id": trial.id, "state": "done", "scores": {"score": score}}
    publish_record(trial.record, record)


def test_each_trial_chooses_the_kernels_of_its_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two trials a worker may do work of another kind, which chooses others."""
    layout, study, found = Layout(tmp_path), study_of(points=POINTS), list[bool]()
    execution = EXECUTION.model_copy(update={"deterministic": True})
    run_file = read_run_file(write_run_file(layout, study, SOURCE, execution, {}))

    def run(*_: Any) -> None:
        found.append(torch.are_deterministic_algorithms_enabled())
        raise RunFailed("that is enough")

    tuner = SimpleNamespace(run=run, schedule=lambda _: SimpleNamespace(steps=1))
    monkeypatch.setattr(trials_of_a_study, "_fine_tuner", lambda *_: tuner)
    for trial in study.trials(layout)[:2]:
        choose_kernels(deterministic=False)
        with claimed(layout, trial.id) as claim, pytest.raises(RunFailed):
            trials_of_a_study.execute(layout, run_file, trial, claim, StopRequest())
    choose_kernels(deterministic=False)
    assert found == [True, True]


@pytest.mark.parametrize("elements", [1, 3, 5, 40])
def test_the_elements_of_an_array_begin_with_blocks_of_their_own(elements: int) -> None:
    parts: list[OpenPart] = [(None, number) for number in range(12)]  # type: ignore[misc]
    array = {"SLURM_ARRAY_TASK_COUNT": str(elements), "SLURM_ARRAY_TASK_MIN": "7"}
    firsts = []
    for element in range(elements):
        ordered = from_own_block(parts, {**array, "SLURM_ARRAY_TASK_ID": str(7 + element)})
        assert sorted(ordered) == parts
        firsts.append(ordered[0][1])
    blocks = [later - earlier for earlier, later in zip(firsts, [*firsts[1:], 12], strict=True)]
    assert firsts[0] == 0 and max(blocks) - min(blocks) <= 1
    assert from_own_block(parts, {}) == parts


def test_weights_are_written_for_the_best_trial_so_far_alone(tmp_path: Path, study: GlueStudy) -> None:
    layout = Layout(tmp_path)
    trials = study.trials(layout)
    assert may_become_best(layout, trials[1], {"score": 0.1}), "none is finished"
    finish(layout, study, 0, 0.5)
    assert not may_become_best(layout, trials[1], {"score": 0.3})
    assert not may_become_best(layout, trials[1], {"score": 0.5}), "of equal ones the first in the grid is chosen"
    assert may_become_best(layout, trials[1], {"score": 0.7})
    small = study.model_copy(update={"points": POINTS[1:3]})
    write_run_file(layout, small, SOURCE, EXECUTION, {})
    assert may_become_best(layout, trials[1], {"score": 0.3}), "in a smaller grid that shares the trial"
