"""Text encoders: this package's own encoders run without padding, external ones in padded rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from neobert.data.packing import Placement
from neobert.data.tokenizers import Array, FramedTexts, Framing, Text, frame_texts
from neobert.errors import RunFailed
from neobert.glue.batching import PaddedLayout, PaddedTexts, padded_batches
from neobert.model.attention import (
    AttentionPlan,
    Tensors,
    attend,
    has_variable_length_kernels,
    packed_plan,
    whole_rows_plan,
)
from neobert.model.encoder import Encoder
from neobert.model.heads import mean_over_tokens
from neobert.model.positions import Positions
from neobert.recipe import EmbeddingPrecision
from neobert.training.trainer import prefetch

if TYPE_CHECKING:
    from neobert.hub.external import ExternalEncoder

UNBOUNDED = 1 << 30
"""A context longer than any text."""

CHUNK_TEXTS = 4096
"""Number of texts to tokenise together, ahead of the model."""

BATCH_TOKENS = {"cpu": 1024, "cuda": 32_768}
"""Tokens of a batch. On a CPU the tensors fit into caches and stay below the size at which malloc maps new memory."""

BIASED_TOKENS = 4096
"""Most tokens of a batch that attends with a bias between all of its tokens: 0.8 GB with the score bias of 12 heads."""

DTYPES: dict[EmbeddingPrecision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class EmbeddingModel(nn.Module, ABC):
    """An encoder with pooling: maps a batch of texts to vectors (texts, width) float32.

    The encoder is the submodule `model`, so that its parameters are named as in pre-training ("model.…").
    """

    model: Encoder | Any

    @property
    def width(self) -> int:
        return int(self.model.width)

    @abstractmethod
    def collate(self, texts: Sequence[Text], device: torch.device, precision: EmbeddingPrecision) -> Any:
        """Collate `texts`, which are sorted by length, into a batch on `device` for a forward pass in `precision`."""

    def most_tokens(self, device: torch.device, precision: EmbeddingPrecision) -> int:
        """Return the largest number of tokens of a batch whose memory is in proportion to them."""
        return UNBOUNDED

    def slots(self, lengths: Array) -> int:
        """Return the number of tokens of a batch of texts of `lengths` (texts), padding included."""
        return int(lengths.sum())

    def batches(self, lengths: Array, most_tokens: int) -> Iterator[slice]:
        """Split texts of `lengths` (texts), the longest first, into batches of at most `most_tokens` tokens, padding
        included. A longer text gets a batch of its own."""
        return packed_batches(lengths, most_tokens)


def packed_batches(lengths: Array, most_tokens: int) -> Iterator[slice]:
    """Split texts of `lengths` (texts) into consecutive batches of at most `most_tokens` tokens. A longer text gets a
    batch of its own."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = ends[start] - lengths[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + most_tokens, side="right")))
        yield slice(start, stop)
        start = stop


@dataclass(frozen=True)
class AttentionOfEqualLengths:
    """Attention for texts that are packed into one row, sorted by length: `runs` are (texts, tokens of each).

    Texts of equal length are computed as one batch, which needs neither masks nor padding; it has no score
    biases.
    """

    runs: tuple[tuple[int, int], ...]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute attention; all tensors are (1, tokens, heads, head size)."""
        sizes = [texts * tokens for texts, tokens in self.runs]
        parts = zip(*(vectors[0].split(sizes) for vectors in (query, key, value)), strict=True)
        attended = [self._run(shape, *part) for shape, part in zip(self.runs, parts, strict=True)]
        return torch.cat(attended).unsqueeze(0)

    def _run(self, shape: tuple[int, int], *vectors: Tensor) -> Tensor:
        query, key, value = (part.unflatten(0, shape) for part in vectors)
        return attend(query, key, value, whole_rows_plan(query[..., 0, 0])).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class PackedTexts(Tensors):
    """Texts packed into one row without padding: `token_ids` (1, tokens) int64, attention `plan`, `lengths` (texts)."""

    token_ids: Tensor
    plan: AttentionPlan
    lengths: Tensor


class PackedEncoder(EmbeddingModel):
    """An encoder of this package with mean pooling over all tokens of a text, specials included."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PackedTexts) -> Tensor:
        """Return vectors (texts, width) float32."""
        hidden = self.model(batch.token_ids, batch.plan).squeeze(0).float()  # half precision is too coarse for sums
        # `unsafe` skips a check of the lengths, which would wait for the device.
        return torch.segment_reduce(hidden, "mean", lengths=batch.lengths, unsafe=True)

    def most_tokens(self, device: torch.device, precision: EmbeddingPrecision) -> int:
        return BIASED_TOKENS if self._has_score_bias else UNBOUNDED

    @property
    def _has_score_bias(self) -> bool:
        return type(self.model.positional_embedding).score_bias is not Positions.score_bias

    def collate(self, texts: Sequence[Text], device: torch.device, precision: EmbeddingPrecision) -> PackedTexts:
        lengths = np.array([len(ids) for ids, _ in texts], np.int64)
        columns = np.cumsum(lengths) - lengths
        placed = Placement.of(np.zeros_like(columns), columns, lengths, (1, int(lengths.sum())))
        token_ids = placed.grid(np.concatenate([ids for ids, _ in texts]), 0)
        positions = torch.from_numpy(placed.positions).unsqueeze(0)
        if (has_variable_length_kernels(device) and precision != "fp32") or self._has_score_bias:
            plan = packed_plan(torch.from_numpy(placed.doc_ids).unsqueeze(0), positions, device)
        else:
            first = np.flatnonzero(np.diff(lengths, prepend=-1))
            counts = np.diff(first, append=len(lengths))
            runs = tuple(zip(counts.tolist(), lengths[first].tolist(), strict=True))
            plan = AttentionPlan(positions, max_seqlen=int(lengths.max()), attention=AttentionOfEqualLengths(runs))
        return PackedTexts(torch.from_numpy(token_ids), plan, torch.from_numpy(lengths)).to(device)


class PaddedEncoder(EmbeddingModel):
    """An external encoder with mean pooling; rows are padded to the longest text, up to `context`. The model's own
    pooler is neither used nor trained."""

    def __init__(self, model: "ExternalEncoder", context: int | None) -> None:
        super().__init__()
        self.model = model
        self.layout = PaddedLayout(model.pad_id, context or UNBOUNDED)
        for name, parameter in model.named_parameters():
            if "pooler." in name:
                parameter.requires_grad_(False)

    def forward(self, batch: PaddedTexts) -> Tensor:
        """Return vectors (texts, width) float32."""
        hidden = self.model(batch.token_ids, batch.mask, batch.token_types)
        return mean_over_tokens(hidden.float(), batch.mask - 1)

    def collate(self, texts: Sequence[Text], device: torch.device, precision: EmbeddingPrecision) -> PaddedTexts:
        return self.layout.pad(texts, device)

    def slots(self, lengths: Array) -> int:
        return len(lengths) * self.layout.row_tokens(int(lengths.max()))

    def batches(self, lengths: Array, most_tokens: int) -> Iterator[slice]:
        return padded_batches(lengths, most_tokens, self.layout.row_tokens)


@dataclass(frozen=True)
class TextCounts:
    """Numbers of texts requested, of blank texts and of texts cut to the context."""

    texts: int = 0
    empty: int = 0
    cut: int = 0

    def __add__(self, other: "TextCounts") -> "TextCounts":
        return TextCounts(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))


class TextEncoder:
    """Encodes texts into vectors; texts are cut to `context` tokens, specials included (None: no limit).

    `model` is moved to `device` and cast to `precision` in place. Under fp16 the weights stay in fp32 and matrices are
    multiplied in fp16 (autocast), because sums of hidden states may exceed the range of fp16.

    `counts` accumulates over all calls since it was last set.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        tokenizer: Framing,
        context: int | None,
        *,
        precision: EmbeddingPrecision,
        device: torch.device,
    ) -> None:
        self.model = model.to(device, torch.float32 if precision == "fp16" else DTYPES[precision]).eval()
        self.tokenizer = tokenizer
        self.context = context or UNBOUNDED
        self.precision = precision
        self.device = device
        self.batch_tokens = BATCH_TOKENS[device.type]
        self.counts = TextCounts()

    @property
    def width(self) -> int:
        return self.model.width

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], *, instruction: str | None = None) -> Array:
        """Return vectors (texts, width) float32 in the order of `texts`; a repeated text is computed once.

        instruction: placed before every text as a segment of its own, as in contrastive fine-tuning.

        Raises:
            ValueError: an item of `texts` is not a string.
            RunFailed: a vector is not finite.
        """
        distinct, numbers = _distinct(texts)
        vectors = np.empty((len(distinct), self.width), np.float32)
        is_cut = np.zeros(len(distinct), bool)
        for chunk, framed, cut in prefetch(self._framed(distinct, instruction)):
            vectors[chunk] = self._vectors(framed)
            is_cut[chunk] = cut
        broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(broken):
            number = int(np.flatnonzero(np.isin(numbers, broken))[0])
            raise RunFailed(f"the vector of text {number} is not finite: the weights or the precision do not serve")
        empty = sum(not text.strip() for text in texts)
        self.counts += TextCounts(len(texts), empty, int(is_cut[numbers].sum()))
        return vectors if len(distinct) == len(texts) else vectors[numbers]

    def _framed(self, texts: Sequence[str], instruction: str | None) -> Iterator[tuple[Array, FramedTexts, Array]]:
        """Yield chunks (numbers of texts, tokenised texts, which were cut), with the longest texts first."""
        order = np.argsort([-len(text) for text in texts], kind="stable")
        for start in range(0, len(order), CHUNK_TEXTS):
            chunk = order[start : start + CHUNK_TEXTS]
            yield chunk, *frame_texts([texts[number] for number in chunk], self.tokenizer, instruction, self.context)

    def _vectors(self, texts: FramedTexts) -> Array:
        order = np.argsort(-texts.lengths, kind="stable")
        most = min(self.batch_tokens, self.model.most_tokens(self.device, self.precision))
        parts = []
        with torch.autocast(self.device.type, torch.float16, enabled=self.precision == "fp16"):
            for members in self.model.batches(texts.lengths[order], most):
                members_texts = [texts[number] for number in order[members]]
                parts.append(self.model(self.model.collate(members_texts, self.device, self.precision)))
        vectors = np.empty((len(texts), self.width), np.float32)
        vectors[order] = torch.cat(parts).cpu().numpy()
        return vectors


def _distinct(texts: Sequence[str]) -> tuple[list[str], Array]:
    """Return the distinct texts, and for each text its index among them, (texts) int64."""
    seen: dict[str, int] = {}
    numbers = np.empty(len(texts), np.int64)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"text {number} is {text!r}, not a text: leave it out or give an empty text")
        numbers[number] = seen.setdefault(text, len(seen))
    return list(seen), numbers


@dataclass(frozen=True)
class NamedEncoder:
    """An encoder and its `name` ("organisation/model") in mteb. `revision` is the id of its weights, which separates
    its results from those of other weights."""

    name: str
    revision: str
    encoder: TextEncoder
