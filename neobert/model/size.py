"""How many parameters a recipe has, how much work a token is, and how much memory training takes, without torch."""

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


def body_weights(model: recipe.Model) -> int:
    """Entries of all matrices inside the blocks: query, key, value, output projection, and two of the feed-forward,
    or three narrower ones where it is gated."""
    feedforward = 2 * model.feedforward_width
    if is_gated(model.feedforward):
        feedforward = 3 * gated_width(model.feedforward_width)
    return model.layers * (4 * model.width**2 + model.width * feedforward)


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
    (Chowdhery et al. 2022, appendix B, for attention in both directions); in local blocks at most their window.
    """
    decoder = model.vocabulary_size * model.width * predicted_share
    whole = math.ceil(model.layers / model.global_every)
    seen = whole * attended_tokens + (model.layers - whole) * min(attended_tokens, model.attention_window + 1)
    attention = model.width * seen
    return 6 * body_weights(model) + 6 * decoder + 12 * attention


# Memory of an accelerator: what the modules beside this one keep for the backward pass with CUDA's kernels, in eager
# mode (variable-length attention, fused norms), so a compiled model takes less. Tests count what autograd saves.

RESERVE_BYTES = 2_500_000_000
"""The CUDA context, NCCL's and cuBLAS' buffers, and what the allocator cannot use: a round number, not measured."""

ZERO_BUCKET_ELEMENTS = 1 << 25
"""Gradients that ZeRO reduces at once."""

INPUT_BYTES_PER_TOKEN = 24
"""Token id, document and position of a token, int64 each; all micro-batches of a step lie on the device."""

KERNEL_HEAD_MULTIPLE = 8
"""Kernels on accelerators take head sizes that are multiples of this; others are padded with zeros."""

SLOT_MULTIPLE = 8
STATISTICS_BYTES = {"layer_norm": 8, "rms_norm": 4}
FP32 = 4


@dataclass(frozen=True)
class MicroBatchShape:
    """`rows` of `context` tokens, `slots` of which are predicted at most."""

    rows: int
    context: int
    slots: int

    @classmethod
    def of(cls, rows: int, context: int, rate: float) -> "MicroBatchShape":
        """With as many slots as training gives it when shapes are fixed (`neobert.data.batches`)."""
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
        return sum(vars(self).values())


def training_memory(
    pretraining: recipe.Pretraining,
    position_table: int,
    batch: MicroBatchShape,
    engine: EngineWord,
    processes: int,
    step_tokens: int,
) -> TrainingMemory:
    """What each of `processes` accelerators holds, with two fp32 moments of Adam.

    ZeRO splits the optimizer and adds a second fp32 copy of its part of the weights (Rajbhandari et al. 2020).
    position_table: tokens that the model is built for. step_tokens: tokens of an optimizer step over all processes.
    """
    model, precision = pretraining.model, pretraining.precision
    parameters = parameter_count(model, position_table).total
    weights = gradients = FP32 * parameters
    optimizer, buckets = 2 * weights, 0
    if processes > 1 and engine == "ddp":
        buckets = weights
    elif processes > 1 and engine != "single":
        optimizer, buckets = math.ceil(3 * weights / processes), FP32 * min(parameters, ZERO_BUCKET_ELEMENTS)
        gradients = weights if engine == "zero1" else math.ceil(weights / processes)
    matrices = body_weights(model) + model.vocabulary_size * model.width
    return TrainingMemory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        buckets=buckets,
        weight_copies=2 * matrices if precision != "fp32" else FP32 * 3 * model.width**2,
        activations=saved_bytes(model, precision, batch),
        logits=logits_bytes(model, batch),
        inputs=INPUT_BYTES_PER_TOKEN * max(batch.rows * batch.context, math.ceil(step_tokens / processes)),
    )


def logits_bytes(model: recipe.Model, batch: MicroBatchShape) -> int:
    """The log-probabilities of all predicted slots and two gradients of that size, in fp32."""
    return 3 * FP32 * batch.slots * model.vocabulary_size


def saved_bytes(model: recipe.Model, precision: recipe.PretrainingPrecision, batch: MicroBatchShape) -> int:
    """What the forward pass of one micro-batch keeps for the backward pass, without logits, weights and inputs.

    The last block computes keys and values everywhere, all else at the slots. The stream between the blocks is fp32,
    but for `bf16_residual`.
    """
    width, rotary, tokens = model.width, model.positions == "rotary", batch.rows * batch.context
    element, stream = FP32 if precision == "fp32" else 2, 2 if precision == "bf16_residual" else FP32
    head_size = width // model.heads
    padded_width = model.heads * math.ceil(head_size / KERNEL_HEAD_MULTIPLE) * KERNEL_HEAD_MULTIPLE
    # Of a token: the input of a norm, its statistics, and its output as the matrices behind it read it
    norm = (stream + element) * width + STATISTICS_BYTES[model.norm]
    # Query, key and value in one tensor, query and key turned in another, or all copied to heads that kernels take
    queries_keys_values = 4 * padded_width if padded_width > width else (5 if rotary else 3) * width
    keys_values = 2 * padded_width if padded_width > width else (3 if rotary else 2) * width
    queries = (2 * padded_width if padded_width > width else width) + width
    attended = element * width + FP32 * model.heads  # and the sums of the softmax
    # Before and after the activation; a gated one keeps gate, value, activated gate and product
    hidden = 4 * gated_width(model.feedforward_width) if is_gated(model.feedforward) else 2 * model.feedforward_width
    dropped = 2 * width if model.dropout else 0
    behind_attention = dropped + norm + element * hidden
    bias = 0 if precision != "fp32" else FP32 * batch.context  # fp32 has no variable-length kernel
    position = FP32 * head_size if rotary else 8
    block = norm + element * queries_keys_values + attended + bias + behind_attention
    of_slot = element * queries + attended + bias + behind_attention + norm + 2 * 8 + (position if rotary else 0)
    of_token = position + (model.layers - 1) * block + norm + element * keys_values
    return tokens * of_token + batch.slots * of_slot


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
