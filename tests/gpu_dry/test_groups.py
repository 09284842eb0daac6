"""DDP and ZeRO on a pretended GPU, with seven ranks that pretend: one reduction of each gradient a step, and no wait
but for DeepSpeed's norm."""

import inspect

import pytest

from neobert.training.zero import ZERO_ENGINES, ZeroEngine
from tests.gpu_dry import groups
from tests.gpu_dry.conftest import Pretend
from tests.gpu_dry.passes import Pass, dtypes


def test_a_step_of_ddp_sends_each_gradient_once_and_waits_for_nothing(pretend: Pretend) -> None:
    step, buckets, parameters = pretend(groups.pretrain_with_ddp)
    assert step.work.waits == step.work.pageable == []
    assert sum(buckets) == parameters, "two micro-batches, one reduction"
    assert set(dtypes(step.work)) == {"bfloat16"}


@pytest.mark.drill
def test_blocks_that_are_compiled_alone_share_a_graph_and_send_gradients_while_others_compute(pretend: Pretend) -> None:
    """The blocks, the last one, and the loss. A graph of the whole model sends everything behind its backward pass."""
    graphs, order = pretend(groups.backward_and_buckets, by_part=True)
    assert graphs == 3 and order.count("backward") == 5
    assert order.index("send") < len(order) - 1 - order[::-1].index("backward"), order
    graphs, order = pretend(groups.backward_and_buckets, by_part=False)
    assert graphs == 1 and order[0] == "backward" and set(order[1:]) == {"send"}


@pytest.fixture(scope="module")
def zero_steps(pretend: Pretend) -> dict[str, tuple[Pass, int, int]]:
    """A step under each engine of DeepSpeed."""
    return {engine: pretend(groups.pretrain_with_zero, engine) for engine in ZERO_ENGINES}


def test_a_step_of_zero_waits_where_it_clips_alone(zero_steps: dict[str, tuple[Pass, int, int]]) -> None:
    """DeepSpeed tells the gradient's norm to the host; forward and backward pass wait for nothing."""
    lines, first = inspect.getsourcelines(ZeroEngine._clip_and_update)
    clipping = {f"zero.py:{line}" for line in range(first, first + len(lines))}
    for step, _, _ in zero_steps.values():
        assert len(step.work.waits) == 3 and step.work.pageable == []
        assert all(wait.partition(" at ")[2].split(" < ")[0] in clipping for wait in step.work.waits)
        assert set(dtypes(step.work)) == {"bfloat16"}


def test_zero_keeps_what_the_memory_model_says(zero_steps: dict[str, tuple[Pass, int, int]]) -> None:
    """Between steps the weights, and this rank's eighth of the moments and of the second copy of the weights."""
    for _, kept, parameters in zero_steps.values():
        assert kept == pytest.approx(4 * parameters + 12 * parameters / groups.RANKS, rel=0.01)
    peaks = {engine: step.work.peak_bytes for engine, (step, _, _) in zero_steps.items()}
    assert peaks["zero2"] < peaks["zero1"]
