"""Attention masks and kernel dispatch.

An `AttentionPlan` serves both callers of the encoder: training packs several documents into a row, and the Hugging Face
classes pass one padded document per row.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl, list_flash_attention_impls

from neobert.recipe import KERNEL_HEAD_MULTIPLE

logger = logging.getLogger(__name__)

try:
    from flash_attn import flash_attn_varlen_func
except (ImportError, OSError):  # also if it was built for another torch, or is FlashAttention 4 alone
    flash_attn_varlen_func = None

VARIABLE_LENGTH_CAPABILITY = 8
"""Least major compute capability of the GPUs that variable-length kernels support (Ampere)."""

NEWER_FLASH_ATTENTION = {9: ("FA3", "flash_attn_interface"), 10: ("FA4", "flash_attn.cute")}
"""By the major compute capability of a GPU (Hopper, Blackwell): the implementation of torch's registry, and the package
that brings its kernels."""

LOW_PRECISION = (torch.bfloat16, torch.float16)

EXPLICIT_TOKENS = 512
"""Longest row, in tokens, for which explicit attention beats torch's flash kernel on a CPU in bf16."""

SHORT_TOKENS = 24
"""Longest row, in tokens, whose CPU softmax is faster in fp32, casts included (three times faster at 24)."""

CUDA_KERNELS = ("cuda",)
"""Devices with CUDA's kernels, which need or prefer another layout of tensors than a CPU's: see `has_cuda_kernels`."""


@dataclass(frozen=True, eq=False)
class Tensors:
    """Base class of dataclasses of tensors that move together; fields may be such dataclasses or mappings too."""

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with `change` applied to each tensor."""

        def changed(part: Any) -> Any:
            if isinstance(part, Tensors):
                return part.mapped(change)
            if isinstance(part, Mapping):
                return {name: changed(value) for name, value in part.items()}
            return change(part) if isinstance(part, Tensor) else part

        return replace(self, **{name: changed(part) for name, part in vars(self).items()})

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on a device, made by `send`."""
        return self.mapped(lambda tensor: send(tensor, device))


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy `tensor` to a device. Copies to a GPU go through pinned memory, so that the host does not wait."""
    if tensor.is_cpu and torch.device(device).type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def has_cuda_kernels(tensor: Tensor) -> bool:
    """Whether CUDA's kernels compute on `tensor`. They need head sizes that are multiples of `KERNEL_HEAD_MULTIPLE`,
    and are fastest with aligned rows of logits."""
    return tensor.device.type in CUDA_KERNELS


def gather_tokens(values: Tensor, indices: Tensor) -> Tensor:
    """Gather entries of `values` (rows, tokens, …) at `indices` of the flattened rows: (*indices.shape, …)."""
    return values.flatten(0, 1).index_select(0, indices.flatten()).unflatten(0, indices.shape)


@dataclass(frozen=True, eq=False)
class GatherIndex(Tensors):
    """The tokens for which the last block computes more than keys and values.

    queries: int64 indices into the flattened rows × tokens. For kernels that work row by row (rows, most), each row
        padded with any of its own indices; for variable-length kernels (1, gathered), ascending.
    used: (gathered,) int64 indices of the flattened queries that are kept, in the order of the result; None for all.
    cu_seqlens: int32 cumulative counts of the documents' gathered tokens, for variable-length kernels.
    """

    queries: Tensor
    used: Tensor | None = None
    cu_seqlens: Tensor | None = None

    @classmethod
    def at(cls, columns: Tensor, tokens: int, used: Tensor | None = None) -> Self:
        """Make the index of `columns` (rows, most) in rows of `tokens`."""
        first = torch.arange(columns.shape[0], device=columns.device).unsqueeze(1) * tokens
        return cls(columns + first, used)

    @property
    def indices(self) -> Tensor:
        """(gathered,) indices into the flattened rows × tokens."""
        return self.kept(self.queries)

    def kept(self, values: Tensor) -> Tensor:
        """Select the entries of `values` (rows, most, …), one per query, that are kept: (gathered, …)."""
        flat = values.flatten(0, 1)
        return flat if self.used is None else flat.index_select(0, self.used)


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function of query, key and value that returns the attended values; all (rows, tokens, heads, head size)."""


@dataclass(frozen=True, eq=False)
class AttentionPlan(Tensors):
    """Which tokens attend to each other in a batch of rows.

    positions: (rows, tokens) int64, position in the document from 0, −1 at padding.
    bias: float32, added to the scores: (rows, 1, tokens, tokens) packed, (rows, 1, 1, tokens) padded, (rows, heads,
        tokens, tokens) with a score bias.
    doc_ids: (rows, tokens) number of the document in its row, −1 at filler; replaces a packed bias.
    cu_seqlens: int32 cumulative document lengths over the flattened rows, in addition to `doc_ids` or a padded bias,
        for variable-length kernels.
    max_seqlen: upper bound on the tokens of a document; 0 means a whole row.
    attention: the caller's own attention function, which masks by itself and replaces all of the above but the
        positions.
    Without bias, doc_ids and attention every token sees its whole row.
    """

    positions: Tensor
    bias: Tensor | None = None
    cu_seqlens: Tensor | None = None
    max_seqlen: int = 0
    doc_ids: Tensor | None = None
    attention: Attention | None = None

    @property
    def most_tokens(self) -> int:
        """Upper bound on the tokens of a document, known without a sync."""
        return self.max_seqlen or self.positions.shape[1]

    def with_bias(self, score_bias: Tensor | None = None) -> Self:
        """Return the plan with its bias computed once for all blocks, unless variable-length kernels need none.

        score_bias: (rows, heads, tokens, tokens) from the positions. Variable-length kernels do not support it, so
            packed rows then use the kernels that take a bias.

        Raises:
            ValueError: no kernel for this plan supports a score bias.
        """
        masks_by_itself = self.attention is not None or self.doc_ids is None
        if score_bias is None and (masks_by_itself or self.cu_seqlens is not None):
            return self
        if self.attention is not None:
            raise ValueError(f"{type(self.attention).__name__} takes no score bias, which this model's positions add")
        bias = _bias(self, None)
        if self.doc_ids is None and self.bias is None and self.cu_seqlens is not None:
            raise ValueError("variable-length attention takes no score bias, which this model's positions add")
        if score_bias is not None:
            bias = score_bias if bias is None else score_bias + bias
        return replace(self, bias=bias, doc_ids=None, cu_seqlens=None)


def packed_plan(doc_ids: Tensor, positions: Tensor, device: torch.device | None = None) -> AttentionPlan:
    """Make the plan for rows of several documents that do not attend to each other.

    doc_ids: (rows, tokens) number of the document within its row, −1 at filler; the tokens of a document are
        contiguous. Filler sees filler. Documents with the same number see each other.
    positions: (rows, tokens) position in the document, −1 at filler.
    device: where the model runs, by default the device of `doc_ids`. With `doc_ids` still on the CPU, computing
        `cu_seqlens` needs no sync with an accelerator.
    """
    device = doc_ids.device if device is None else device
    if has_variable_length_kernels(device):
        cu_seqlens, max_seqlen = _cu_seqlens(doc_ids)
        return AttentionPlan(positions, None, cu_seqlens, max_seqlen, doc_ids).to(device)
    return AttentionPlan(positions, doc_ids=doc_ids).to(device)


def padded_plan(mask: Tensor, device: torch.device | None = None) -> AttentionPlan:
    """Make the plan for one padded document per row; `mask` (rows, tokens) is 1 at tokens, 0 at padding on any side.

    A row that is all padding sees itself, which avoids NaN. `device` is where the model runs, by default the device of
    `mask`. For variable-length kernels a row is three documents: padding, tokens (contiguous) and padding, of which any
    may be empty, so that the sizes depend on those of the mask alone.
    """
    token = mask.bool()
    visible = token | ~token.any(dim=1, keepdim=True)
    positions = torch.where(token, token.long().cumsum(dim=1) - 1, -1)
    plan = AttentionPlan(positions, _bias_where(visible)[:, None, None, :])
    if not has_variable_length_kernels(mask.device if device is None else device):
        return plan
    rows, tokens = mask.shape
    first = token.int().argmax(dim=1)  # 0 in a row of padding
    within = torch.stack([torch.zeros_like(first), first, first + token.sum(dim=1)], dim=1)
    starts = torch.arange(rows, device=mask.device)[:, None] * tokens + within
    cu_seqlens = functional.pad(starts.flatten(), (0, 1), value=rows * tokens)
    return replace(plan, cu_seqlens=cu_seqlens.to(torch.int32), max_seqlen=tokens)


def whole_rows_plan(token_ids: Tensor) -> AttentionPlan:
    """Make the plan for unpadded rows: every token of `token_ids` (rows, tokens) sees its whole row."""
    rows, tokens = token_ids.shape
    return AttentionPlan(torch.arange(tokens, device=token_ids.device).expand(rows, tokens))


def has_variable_length_kernels(device: torch.device) -> bool:
    """Whether a device has kernels for variable-length attention, which bf16 and fp16 then use."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= VARIABLE_LENGTH_CAPABILITY


def is_flash_attn_available() -> bool:
    """Whether FlashAttention 2 (the package flash_attn) can be imported."""
    return flash_attn_varlen_func is not None


@cache
def choose_flash_attention(device: torch.device) -> None:
    """Let torch's variable-length attention use FlashAttention 3 or 4 if the GPU supports it and its package is
    installed. One that cannot be used is named on stderr, once per process."""
    if device.type != "cuda" or current_flash_attention_impl() is not None:
        return
    name, package = NEWER_FLASH_ATTENTION.get(torch.cuda.get_device_capability(device)[0], ("", ""))
    if name in list_flash_attention_impls() and _is_installed(package):
        try:
            activate_flash_attention_impl(name)
        except Exception as error:  # whatever the package raises, there are other kernels
            logger.warning(f"FlashAttention {name[2:]} cannot be used ({error}): attention takes other kernels")


def _is_installed(package: str) -> bool:
    return find_spec(package.partition(".")[0]) is not None and find_spec(package) is not None


def variable_length_kernels() -> str:
    """Return which kernels compute variable-length attention: FA3 or FA4 if `choose_flash_attention` activated it, else
    flash_attn if available, else torch's own."""
    return current_flash_attention_impl() or ("flash_attn" if is_flash_attn_available() else "torch")


def attend(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, gather: GatherIndex | None = None) -> Tensor:
    """Compute softmax attention, scaled by 1/√(head size), to the tokens that the plan lets each token see.

    query, key and value: (rows, tokens, heads, head size); with `gather` the query is (rows, most, heads, head size).
    Returns a tensor in the shape of the query; with `gather` (gathered, heads, head size).
    """
    if plan.attention is not None:
        assert gather is None, "a caller's own attention function computes all tokens"
        return plan.attention(query, key, value)
    head_size = query.shape[-1]
    missing = -head_size % KERNEL_HEAD_MULTIPLE if has_cuda_kernels(query) else 0
    if missing:  # zeros change neither scores nor sums
        query, key, value = (functional.pad(vectors, (0, missing)) for vectors in (query, key, value))
    cu_seqlens = plan.cu_seqlens if gather is None else gather.cu_seqlens
    if cu_seqlens is not None and query.dtype in LOW_PRECISION:
        attended = _variable_length_attention(query, key, value, plan, cu_seqlens, head_size**-0.5)
    else:
        heads_first = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        attended = _attention_by_row(*heads_first, _bias(plan, gather), head_size**-0.5).transpose(1, 2)
    if missing:
        attended = attended[..., :head_size]
    return attended if gather is None else gather.kept(attended)


def _variable_length_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, cu_seqlens_q: Tensor, scale: float
) -> Tensor:
    """Compute attention with `variable_length_kernels`."""
    flat = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
    cu_seqlens_k, max_seqlen = plan.cu_seqlens, plan.max_seqlen
    assert cu_seqlens_k is not None
    if is_flash_attn_available() and current_flash_attention_impl() is None:
        attended = flash_attn_varlen_func(
            *(*flat, cu_seqlens_q, cu_seqlens_k, max_seqlen, max_seqlen),
            softmax_scale=scale,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
    else:
        from torch.nn.attention.varlen import varlen_attn

        attended = varlen_attn(*flat, cu_seqlens_q, cu_seqlens_k, max_seqlen, max_seqlen, scale=scale)
    return attended.view(query.shape)


def _attention_by_row(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Compute attention row by row; all tensors are (rows, heads, tokens, head size)."""
    if query.device.type == "cpu" and query.dtype in LOW_PRECISION and key.shape[2] <= EXPLICIT_TOKENS:
        return explicit_attention(query, key, value, bias)
    # A float bias, because a boolean mask takes twice the time on a CPU.
    mask = None if bias is None else bias.to(query.dtype)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


def explicit_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """Compute attention as two products and a softmax; all tensors are (rows, heads, tokens, head size).

    On a CPU in bf16, forward and backward take a quarter of the time of torch's flash kernel in rows of 128 tokens; in
    fp32 that kernel is as fast or faster. The softmax always accumulates in fp32.
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    dtype = torch.float32 if scores.shape[-1] <= SHORT_TOKENS else None
    return torch.softmax(scores, dim=-1, dtype=dtype).to(value.dtype) @ value


def _bias(plan: AttentionPlan, gather: GatherIndex | None) -> Tensor | None:
    """Return the bias for all queries or those of `gather`: (rows, 1 or heads, queries or 1, tokens)."""
    if plan.doc_ids is not None:
        of_queries = plan.doc_ids if gather is None else gather_tokens(plan.doc_ids, gather.queries)
        return _bias_where(_is_same_document(of_queries, plan.doc_ids))
    bias = plan.bias
    if bias is not None and gather is not None and bias.shape[2] > 1:
        return gather_tokens(bias.transpose(1, 2), gather.queries).transpose(1, 2)
    return bias


def _is_same_document(of_queries: Tensor, of_keys: Tensor) -> Tensor:
    return of_queries[:, None, :, None] == of_keys[:, None, None, :]


def _bias_where(visible: Tensor) -> Tensor:
    return torch.zeros(visible.shape, device=visible.device).masked_fill(~visible, float("-inf"))


def _cu_seqlens(doc_ids: Tensor) -> tuple[Tensor, int]:
    """Return cumulative lengths of the documents in the flattened rows (int32, from 0), and a bound on their lengths.

    The number of documents (padded with empty ones) and the bound are rounded up to powers of two, so that a compiled
    graph sees few shapes.
    """
    starts = torch.ones_like(doc_ids, dtype=torch.bool)
    starts[:, 1:] = doc_ids[:, 1:] != doc_ids[:, :-1]
    begins = starts.flatten().nonzero().flatten()
    max_seqlen = int(begins.diff(append=begins.new_tensor([doc_ids.numel()])).max())
    missing = _power_of_two(len(begins)) + 1 - len(begins)
    padded = functional.pad(begins, (0, missing), value=doc_ids.numel())
    return padded.to(torch.int32), _power_of_two(max_seqlen)


def _power_of_two(number: int) -> int:
    """Return the smallest power of two ≥ `number`."""
    return 1 << (number - 1).bit_length()
