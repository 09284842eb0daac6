"""DDP on a pretended GPU, with seven ranks that pretend: one reduction of each gradient a step, and no wait."""

from tests.gpu_dry import groups
from tests.gpu_dry.conftest import Pretend
from tests.gpu_dry.passes import dtypes


def test_a_step_of_ddp_sends_each_gradient_once_and_waits_for_nothing(pretend: Pretend) -> None:
    step, buckets, parameters = pretend(groups.pretrain_with_ddp)
    assert step.work.waits == step.work.pageable == []
    assert sum(buckets) == parameters, "two micro-batches, one reduction"
    assert set(dtypes(step.work)) == {"bfloat16"}


def test_a_size_that_comes_within_ddp_is_one_graph_too(pretend: Pretend) -> None:
    assert pretend(groups.count_graphs_of_ddp) == (1, 1)


def test_events_of_a_rank_are_recorded_on_its_own_gpu(pretend: Pretend) -> None:
    assert pretend(groups.record_events, 3, 4) == ("cuda:3", [3, 3])
