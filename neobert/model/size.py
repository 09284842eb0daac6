"""How many parameters a recipe has and how much work a token is, without importing torch."""

import math
import re
from dataclasses import dataclass

from neobert import recipe
from neobert.recipe import EngineWord

NORM_VECTORS = {"layer_norm": 2, "rms_norm": 1}


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a masked language model; `body` holds the blocks and the last norm."""

    embeddings: int
    positions: int
    body: int
    decoder: int

    @property
    def encoder(self) -> int:
        """Everything that fine-tuning keeps: all but the decoder."""
        return self.embeddings + self.positions + self.body

    @property
    def total(self) -> int:
        """All parameters, decoder included."""
        return self.encoder + self.decoder


def is_gated(feedforward: str) -> bool:
    """Whether a feed-forward is a gated linear unit: by Shazeer (2020), exactly those whose name ends in "glu"."""
    return feedforward.endswith("glu")


def gated_width(nominal_width: int) -> int:
    """Hidden width of a gated feed-forward: two thirds of the nominal one, rounded up to a multiple of 8."""
    return -(-int(2 * nominal_width / 3) // 8) * 8


def feedforward_weights(model: recipe.Model) -> int:
    """Weights of one feed-forward: two matrices, or three narrower ones where it is gated."""
    if is_gated(model.feedforward):
        return 3 * model.width * gated_width(model.feedforward_width)
    return 2 * model.width * model.feedforward_width


def body_weights(model: recipe.Model) -> int:
    """Entries of all matrices inside the blocks: query, key, value, output projection and feed-forward."""
    return model.layers * (4 * model.width**2 + feedforward_weights(model))


def parameter_count(model: recipe.Model, context: int) -> Parameters:
    """Counts for a model whose longest context is `context` tokens (the size of a learned position table)."""
    norms = (2 * model.layers + 1) * NORM_VECTORS[model.norm] * model.width
    return Parameters(
        embeddings=model.vocabulary_size * model.width,
        positions=(context + 1) * model.width if model.positions == "learned" else 0,
        body=body_weights(model) + norms,
        decoder=model.vocabulary_size * (model.width + 1),
    )


def training_flops_per_token(model: recipe.Model, attended_tokens: float, predicted_share: float) -> float:
    """Floating-point operations of forward and backward for one token.

    Six for each matrix entry of the body, six for each of the decoder at the `predicted_share` of tokens that get
    logits, and twelve × layers × width for each of the `attended_tokens`, the mean length that a token attends to
    (Chowdhery et al. 2022, appendix B, for attention in both directions).
    """
    decoder = model.vocabulary_size * model.width * predicted_share
    attention = model.layers * model.width * attended_tokens
    return 6 * body_weights(model) + 6 * decoder + 12 * attention


RESERVE_BYTES = 2_500_000_000
"""The CUDA context, NCCL's and cuBLAS' buffers, and what the allocator cannot use: a round number, not measured."""

ZERO_BUCKET_ELEMENTS = 1 << 25
"""Gradients that ZeRO reduces at once."""

INPUT_BYTES_PER_TOKEN = 24
"""Token id, document and position of a token, int64 each; all micro-batches of a step lie on the device."""

KERNEL_HEAD_MULTIPLE = 8
SLOT_MULTIPLE = 8
STATISTICS_BYTES = {"layer_norm": 8, "rms_norm": 4}
FP32 = 4


@dataclass(frozen=True)
class MicroBatch:
    """`rows` of `context` tokens, with room for `slots` predicted ones in all."""

    rows: int
    context: int
    slots: int

    @classmethod
    def of(cls, rows: int, context: int, rate: float) -> "MicroBatch":
        """With as many slots as training gives it when sizes are fixed (`neobert.data.batches`)."""
        mean = rate * rows * context
        return cls(rows, context, math.ceil((mean + math.sqrt(mean)) / SLOT_MULTIPLE) * SLOT_MULTIPLE)


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one accelerator when they are most: as the backward pass begins.

    `weight_copies` are the matrices in the precision of computing, `buckets` what gradients are exchanged through.
    """

    weights: int
    gradients: int
    optimizer: int
    buckets: int
    weight_copies: int
    activations: int
    logits: int
    inputs: int
    reserve: int = RESERVE_BYTES

    @property
    def total(self) -> int:
        """All of it."""
        held = self.weights + self.gradients + self.optimizer + self.buckets + self.weight_copies
        return held + self.activations + self.logits + self.inputs + self.reserve


def training_memory(
    pretraining: recipe.Pretraining,
    position_table: int,
    batch: MicroBatch,
    engine: EngineWord,
    processes: int,
    step_tokens: int,
) -> TrainingMemory:
    """What each of `processes` accelerators holds.

    position_table: tokens that the model is built for. step_tokens: tokens of an optimizer step over all processes.
    """
    model, precision = pretraining.model, pretraining.precision
    parameters = parameter_count(model, position_table).total
    matrices = body_weights(model) + model.vocabulary_size * model.width
    shared_bytes = _shared_bytes(parameters, engine, processes)
    return TrainingMemory(
        weights=FP32 * parameters,
        gradients=shared_bytes["gradients"],
        optimizer=shared_bytes["optimizer"],
        buckets=shared_bytes["buckets"],
        weight_copies=2 * matrices if precision == "bf16" else FP32 * 3 * model.width**2,
        activations=saved_bytes(model, precision, batch),
        logits=logits_bytes(model, batch),
        inputs=INPUT_BYTES_PER_TOKEN * max(batch.rows * batch.context, math.ceil(step_tokens / processes)),
    )


def _shared_bytes(parameters: int, engine: EngineWord, processes: int) -> dict[str, int]:
    """What depends on how processes share the work. With Adam: two fp32 moments; ZeRO adds a second fp32 copy of its
    part of the weights (Rajbhandari et al. 2020)."""
    whole = FP32 * parameters
    if processes == 1 or engine == "single":
        return {"gradients": whole, "optimizer": 2 * whole, "buckets": 0}
    if engine == "ddp":
        return {"gradients": whole, "optimizer": 2 * whole, "buckets": whole}
    gradients = whole if engine == "zero1" else math.ceil(whole / processes)
    bucket = FP32 * min(parameters, ZERO_BUCKET_ELEMENTS)
    return {"gradients": gradients, "optimizer": math.ceil(3 * whole / processes), "buckets": bucket}


def logits_bytes(model: recipe.Model, batch: MicroBatch) -> int:
    """The log-probabilities of all predicted slots and two gradients of that size, in fp32."""
    return 3 * FP32 * batch.slots * model.vocabulary_size


def saved_bytes(model: recipe.Model, precision: recipe.Precision, batch: MicroBatch) -> int:
    """What the forward pass of one micro-batch keeps for the backward pass, without logits, weights and inputs.

    The last block computes keys and values everywhere, all else at the slots.
    """
    tokens, slots = batch.rows * batch.context, batch.slots
    parts = _Parts(model, 2 if precision == "bf16" else FP32)
    bias = 0 if precision == "bf16" else FP32 * batch.context  # fp32 has no variable-length kernel
    block = parts.norm + parts.attention + bias + parts.residual_branches + parts.norm + parts.feedforward
    at_slots = parts.queries + bias + parts.residual_branches + 2 * 8
    at_slots += parts.norm + parts.feedforward + parts.norm
    positions = 4 * parts.head_size if model.positions == "rotary" else 8
    kept = tokens * (positions + (model.layers - 1) * block + parts.norm + parts.keys_and_values)
    return kept + slots * (at_slots + (positions if model.positions == "rotary" else 0))


@dataclass(frozen=True)
class _Parts:
    """Bytes that the parts of a block keep for one token; `element` bytes hold a number in the precision of computing.

    The stream between the blocks is fp32.
    """

    model: recipe.Model
    element: int

    @property
    def head_size(self) -> int:
        return self.model.width // self.model.heads

    @property
    def padded_width(self) -> int | None:
        """Width of all heads where the kernels need them larger."""
        missing = -self.head_size % KERNEL_HEAD_MULTIPLE
        return self.model.heads * (self.head_size + missing) if missing else None

    @property
    def norm(self) -> int:
        """Input, statistics, and the output as the matrices behind it read it."""
        return (FP32 + self.element) * self.model.width + STATISTICS_BYTES[self.model.norm]

    @property
    def attention(self) -> int:
        """Query, key and value in one tensor, query and key turned in another, the sums of the softmax, the output."""
        turned = 2 if self.model.positions == "rotary" else 0
        inputs = (3 + turned) * self.model.width
        if self.padded_width:
            inputs = 4 * self.padded_width
        return self.element * (inputs + self.model.width) + FP32 * self.model.heads

    @property
    def keys_and_values(self) -> int:
        """The same without the query."""
        turned = 1 if self.model.positions == "rotary" else 0
        return self.element * (2 * self.padded_width if self.padded_width else (2 + turned) * self.model.width)

    @property
    def queries(self) -> int:
        """What the query of a slot is computed from, itself, the sums of its softmax, and the output."""
        around = 2 * self.padded_width if self.padded_width else self.model.width
        return self.element * (around + 2 * self.model.width) + FP32 * self.model.heads

    @property
    def residual_branches(self) -> int:
        """Which numbers dropout dropped, twice."""
        return 2 * self.model.width if self.model.dropout else 0

    @property
    def feedforward(self) -> int:
        """Before and after the activation; a gated one keeps gate, value, activated gate and product."""
        if is_gated(self.model.feedforward):
            return self.element * 4 * gated_width(self.model.feedforward_width)
        return self.element * 2 * self.model.feedforward_width


PEAK_FLOPS_PER_SECOND = {"A100": 312e12, "B200": 2250e12, "H100": 989e12, "H200": 989e12, "L40S": 362e12}
"""Dense bf16 of NVIDIA's data sheets (SXM modules where there are several)."""

OTHER_FORMS = {"PCIe", "NVL", "MIG"}
"""Words in a device's name that say that it is slower than the module in the table."""


def datasheet_peak(device_name: str) -> float | None:
    """Dense bf16 operations a second of a GPU as the driver names it; None where the table does not have it."""
    words = set(re.split(r"[\s-]+", device_name))
    if words & OTHER_FORMS:
        return None
    return next((peak for name, peak in PEAK_FLOPS_PER_SECOND.items() if name in words), None)
