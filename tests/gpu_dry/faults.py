"""Faults that tests put into a pass on a pretended GPU, to show that they are noticed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from neobert.model import layers

Fault = Callable[[], AbstractContextManager[Any]]
KEPT: list[Tensor] = []


def _in_blocks(change: Callable[[Tensor], Tensor]) -> Fault:
    """The fault of `change` done to what comes out of every feed-forward network."""
    forward = layers.SwiGLU.forward

    def faulty(module: layers.SwiGLU, hidden: Tensor) -> Tensor:
        return change(forward(module, hidden))

    return lambda: mock.patch.object(layers.SwiGLU, "forward", faulty)


def _wait_for_a_number(hidden: Tensor) -> Tensor:
    return hidden * 2 if hidden.sum().item() < 0 else hidden


def _wait_for_a_shape(hidden: Tensor) -> Tensor:
    hidden[hidden > 1e9] = 0
    return hidden


def _copy_to_the_host(hidden: Tensor) -> Tensor:
    return hidden + torch.zeros(hidden.shape[-1]).to(hidden.device, hidden.dtype)


def _keep(hidden: Tensor) -> Tensor:
    KEPT.append(hidden.detach().clone())
    return hidden


@contextmanager
def _kept() -> Iterator[None]:
    with _in_blocks(_keep)():
        yield
    KEPT.clear()


def _multiply_in_fp32(hidden: Tensor) -> Tensor:
    with torch.autocast("cuda", enabled=False):
        return hidden + (hidden.float() @ hidden.new_zeros(2 * hidden.shape[-1:], dtype=torch.float32)).to(hidden.dtype)


FAULTS: dict[str, Fault] = {
    "a number is read in every block": _in_blocks(_wait_for_a_number),
    "a mask selects": _in_blocks(_wait_for_a_shape),
    "a tensor comes from pageable memory": _in_blocks(_copy_to_the_host),
    "a block is kept": _kept,
    "products in fp32": _in_blocks(_multiply_in_fp32),
}
