"""A process with a pretended GPU, one for each process of tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.gpu_dry.passes import strictly
from tests.support.pretended_cuda import pretending_process

Pretend = Callable[..., Any]


@pytest.fixture(scope="session")
def pretend() -> Iterator[Pretend]:
    """Calls a function of `passes` where there is a pretended GPU; skips where none can be built."""
    with pretending_process() as process:
        yield lambda function, *arguments, **named: process.submit(strictly, function, arguments, named).result()
