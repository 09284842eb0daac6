"""Stand-ins for the kernels of variable-length attention, which compute on the CPU and refuse what those on CUDA
would."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.attention.varlen  # registers the operators
from torch import Tensor

from neobert.model import attention

CALLS: list[int] = []


def check(query: Tensor, key: Tensor, value: Tensor, *boundaries: Any) -> None:
    """What the kernel on CUDA takes for granted; it reads beyond its memory where that does not hold."""
    of_query, of_key, most_queries, most_keys = boundaries
    assert query.shape[-1] % 8 == 0 and query.shape[1:] == key.shape[1:] == value.shape[1:]
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert len(of_query) == len(of_key)
    for cumulated, most, tokens in ((of_query, most_queries, query), (of_key, most_keys, key)):
        assert cumulated.dtype == torch.int32 and cumulated.is_contiguous()
        assert cumulated[0] == 0 and cumulated[-1] == len(tokens)
        assert int(cumulated.diff().min()) >= 0 and int(cumulated.diff().max()) <= most


def documents_of(of_query: Tensor, of_key: Tensor) -> Iterator[tuple[slice, slice]]:
    """The tokens of each document that asks."""
    for query, key in zip(of_query.unfold(0, 2, 1).tolist(), of_key.unfold(0, 2, 1).tolist(), strict=True):
        if query[0] < query[1]:
            yield slice(*query), slice(*key)


def forward(query: Tensor, key: Tensor, value: Tensor, *words: Any) -> tuple[Tensor, Tensor, Tensor]:
    """As the operator `_varlen_attn`: attended tokens, log of the sums, state of randomness."""
    *boundaries, _, scale, _ = words[:7]
    check(query, key, value, *boundaries)
    CALLS.append(len(query))
    attended = torch.zeros(query.shape, dtype=query.dtype)
    sums = torch.full((query.shape[1], len(query)), float("-inf"))
    for asking, asked in documents_of(*boundaries[:2]):
        scores = torch.einsum("qhd,khd->hqk", query[asking].float(), key[asked].float()) * scale
        sums[:, asking] = scores.logsumexp(-1)
        attended[asking] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[asked].float()).to(query.dtype)
    return attended, sums, torch.zeros(2, dtype=torch.uint64)


def backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *words: Any) -> tuple[Tensor, ...]:
    """As the operator `_varlen_attn_backward`: the gradients of query, key and value."""
    _, _, *boundaries, _, _, scale, _ = words[:10]
    check(query, key, value, *boundaries)
    of_query, of_key, of_value = (torch.zeros(tensor.shape) for tensor in (query, key, value))
    for asking, asked in documents_of(*boundaries[:2]):
        wide = (query[asking].float(), key[asked].float(), value[asked].float())
        scores = torch.einsum("qhd,khd->hqk", *wide[:2]) * scale
        shares = scores.softmax(-1)
        of_value[asked] = torch.einsum("hqk,qhd->khd", shares, gradient[asking].float())
        of_shares = torch.einsum("qhd,khd->hqk", gradient[asking].float(), wide[2])
        of_scores = shares * (of_shares - (of_shares * shares).sum(-1, keepdim=True)) * scale
        of_query[asking] = torch.einsum("hqk,khd->qhd", of_scores, wide[1])
        of_key[asked] = torch.einsum("hqk,qhd->khd", of_scores, wide[0])
    return tuple(tensor.to(query.dtype) for tensor in (of_query, of_key, of_value))


@contextmanager
def variable_length_kernels_on_cpu() -> Iterator[None]:
    """Register the stand-ins; in fp32 too, which no kernel on CUDA takes, so that nothing but them can differ."""
    library = torch.library.Library("torch_attn", "IMPL")
    library.impl("_varlen_attn", forward, "CPU")
    library.impl("_varlen_attn_backward", backward, "CPU")
    precisions = (*attention.LOW_PRECISION, torch.float32)
    try:
        with mock.patch.multiple(
            attention, flash_attn_varlen_func=None, CUDA_KERNELS=("cpu",), LOW_PRECISION=precisions
        ):
            yield
    finally:
        library._destroy()
