"""ZeRO behind the same engine interface: equal losses, checkpoints that any engine continues, half the state."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from neobert.errors import MissingData
from neobert.kinds.pretraining import PretrainingRun
from neobert.training.zero import SHARDED, _deepspeed, require_internals
from tests.support import forking
from tests.support.tiny_runs import (
    assert_equal_weights,
    beside,
    curve,
    ends,
    final_weights,
    record,
    slurm_tasks,
    tiny_model,
    tiny_run,
    tiny_stage,
    wait_for_steps,
    write_tiny_run,
)

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed: pip install -e '.[deepspeed]'"
)
ENGINES = ("ddp", "zero1", "zero2")
STEPS, LATE = 12, "step-00000010"


@dataclass
class Finished:
    """A run, the folder of runs of each engine, and what its ranks said of their state."""

    run: PretrainingRun
    roots: dict[str, Path]
    said: dict[str, str]


@pytest.fixture(scope="module")
def imported() -> Iterator[None]:
    """Workers are forked from a process that has imported deepspeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(forking.IMPORTED, "deepspeed")
        yield


@pytest.fixture(scope="module")
def finished(imported: None, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The same run without dropout under each engine, two processes, two micro-batches a step each."""
    stage = tiny_stage(steps=STEPS, decay_steps=STEPS - 4)
    done = Finished(tiny_run(model=tiny_model(dropout=0.0), stages=(stage,)), {}, {})
    for engine in ENGINES:
        root = done.roots[engine] = tmp_path_factory.mktemp(engine)
        if engine != "ddp":
            beside(root, done.roots["ddp"])
        write_tiny_run(root, done.run, engine=engine, micro_batch_tokens=64)
        done.said[engine] = train(root, done.run, program="tests.training.telling_ranks")
    return done


def train(root: Path, run: PretrainingRun, processes: int = 2, program: str = forking.WORKER) -> str:
    """As ranks of a job, whose processes start sooner than those of a worker; what they said."""
    codes, said = ends(slurm_tasks(root, run.reference, count=processes, program=program))
    assert codes == [0] * processes, said
    return said


@needs_deepspeed
@pytest.mark.parametrize("engine", ["zero1", "zero2"])
def test_losses_are_those_of_ddp(finished: Finished, engine: str) -> None:
    """fp32 on gloo, to 1e-6 relative over all steps: only the order of sums differs."""
    roots, run = finished.roots, finished.run
    assert len(curve(roots[engine], run)) == STEPS
    assert curve(roots[engine], run) == pytest.approx(curve(roots["ddp"], run), rel=1e-6)


@needs_deepspeed
@pytest.mark.parametrize(("engine", "bytes_each"), [("ddp", 8), ("zero1", 4), ("zero2", 4)])
def test_each_of_two_ranks_holds_half_of_the_optimizer_state(finished: Finished, engine: str, bytes_each: int) -> None:
    """8 bytes a parameter under ddp, half of it under ZeRO, up to padding."""
    root = finished.roots[engine]
    parameters = sum(tensor.numel() for tensor in final_weights(root, finished.run).values())
    held = {int(rank): int(count) for rank, count in re.findall(r"rank (\d): (\d+) bytes", finished.said[engine])}
    assert held == pytest.approx(dict.fromkeys(range(2), bytes_each * parameters), abs=64)
    assert record(root, finished.run)["optimizer_state_bytes"] == held[0]


@needs_deepspeed
def test_checkpoints_hold_the_same_tensors_whatever_the_engine(finished: Finished) -> None:
    """By name, shape, type and, to 1e-4 of the largest, value."""
    roots, run = finished.roots, finished.run
    for file in ("model.safetensors", "optimizer.safetensors"):
        ours, *others = (load_file(roots[engine] / run.reference / "checkpoints" / LATE / file) for engine in ENGINES)
        for theirs in others:
            assert theirs.keys() == ours.keys()
            for name, tensor in ours.items():
                assert theirs[name].shape == tensor.shape and theirs[name].dtype == tensor.dtype
                assert torch.allclose(theirs[name], tensor, rtol=1e-4, atol=1e-4 * float(tensor.abs().max())), name


@needs_deepspeed
@pytest.mark.parametrize(("begun", "continued", "processes"), [("zero2", "single", 1), ("ddp", "zero1", 2)])
def test_a_run_goes_on_under_another_engine(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str, continued: str, processes: int
) -> None:
    """From step 10 on the losses are those of the run that stayed, to 1e-5 relative. Workers import what they need."""
    monkeypatch.delenv(forking.IMPORTED)
    roots, run = finished.roots, finished.run
    root = beside(tmp_path / "mixed", roots["ddp"])
    folder = write_tiny_run(root, run, engine=continued, micro_batch_tokens=64)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / LATE).symlink_to(roots[begun] / run.reference / "checkpoints" / LATE)
    train(root, run, processes)
    assert curve(root, run) == pytest.approx(curve(roots[begun], run)[10:], rel=1e-5)


@needs_deepspeed
def test_a_killed_run_goes_on_bit_for_bit(finished: Finished, tmp_path: Path) -> None:
    roots, run = finished.roots, finished.run
    root = beside(tmp_path / "killed", roots["ddp"])
    write_tiny_run(root, run, engine="zero2", micro_batch_tokens=64)
    tasks = slurm_tasks(root, run.reference, count=2)
    wait_for_steps(root, run, 7)
    for task in tasks:
        task.kill()
    ends(tasks)
    train(root, run)
    assert_equal_weights(root, roots["zero2"], run)


def test_without_the_package_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(MissingData, match=r"pip install -e '\.\[deepspeed\]', or choose engine ddp"):
        _deepspeed(torch.device("cpu"))


def test_another_version_of_the_package_is_refused_in_one_sentence() -> None:
    with pytest.raises(MissingData, match=r"not with 0\.20\.1, which lacks single_partition_of_fp32_groups.*ddp$"):
        require_internals(object(), SHARDED, "0.20.1")
