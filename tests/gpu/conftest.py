"""What the tests of one GPU share."""

import gc
from collections.abc import Iterator

import pytest
import torch

from benchmarks.pretraining import Setting
from tests.gpu.steps import setting_of_gpu


@pytest.fixture(scope="session")
def setting() -> Setting:
    """NeoBERT's shape on the GPU."""
    return setting_of_gpu()


@pytest.fixture(autouse=True)
def memory_of_one_test() -> Iterator[None]:
    """The next test, and the workers that it starts, find the memory of the GPU free and nothing compiled."""
    yield
    if torch.cuda.is_initialized():
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture
def ranks() -> int:
    """The number of GPUs; skips where there is one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return torch.cuda.device_count()
