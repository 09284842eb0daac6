"""Parameter counts, FLOPs per token and training memory of a recipe, without torch unless it has own parts.

Those are counted in the model, which is built without memory for its weights.
"""

import json
import math
import re
from dataclasses import dataclass
from functools import cache

from neobert import recipe
from neobert.own_code import is_own
from neobert.recipe import KERNEL_HEAD_MULTIPLE, EngineWord, gated_width

NORM_VECTORS = {"layer_norm": 2, "rms_norm": 1}


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a masked language model; `body` is the blocks and the final norm."""

    embeddings: int
    positions: int
    body: int
    decoder: int

    @property
    def encoder(self) -> int:
        """All parameters but the decoder's, as fine-tuning uses them."""
        return self.embeddings + self.positions + self.body

    @property
    def total(self) -> int:
        """All parameters, decoder included."""
        return self.encoder + self.decoder


def is_gated(feedforward: str) -> bool:
    """Whether a feed-forward is a gated linear unit (Shazeer 2020), which is if its name ends in "glu"."""
    return feedforward.endswith("glu")


def body_weights(model: recipe.Model) -> int:
    """Count the weights of all matrices in the blocks: query, key, value and output projection, and the feed-forward's
    two, or three narrower ones if it is gated."""
    if has_own_parts(model):
        return _counted(model.model_dump_json(), context=1)[1]
    feedforward = 2 * model.feedforward_width
    if is_gated(model.feedforward):
        feedforward = 3 * gated_width(model.feedforward_width)
    return model.layers * (4 * model.width**2 + model.width * feedforward)


def parameter_count(model: recipe.Model, context: int) -> Parameters:
    """Count the parameters of a model; `context` is the size of a learned position table."""
    if has_own_parts(model):
        return _counted(model.model_dump_json(), context)[0]
    norms = (2 * model.layers + (model.block == "pre_norm")) * NORM_VECTORS[model.norm] * model.width
    return Parameters(
        embeddings=model.vocabulary_size * model.width,
        positions=(context + 1) * model.width if model.positions == "learned" else 0,
        body=body_weights(model) + norms,
        decoder=model.vocabulary_size * (1 if model.tied_embeddings else model.width + 1),
    )


def has_own_parts(model: recipe.Model) -> bool:
    """Return whether a part of the model is a user's own."""
    return any(map(is_own, (model.positions, model.feedforward, model.norm, model.block)))


@cache
def _counted(model_json: str, context: int) -> tuple[Parameters, int]:
    """Build a model with own parts; count its parameters, and the weights of the matrices in its blocks."""
    import torch

    from neobert.model.build import build_masked_language_model

    model = recipe.Model.read(json.loads(model_json))
    with torch.device("meta"):
        network = build_masked_language_model(model, context)
    blocks = list(network.model.transformer_encoder.parameters())
    total, decoder, positions, embeddings = (
        sum(parameter.numel() for parameter in module.parameters())
        for module in (network, network.decoder, network.model.positional_embedding, network.model.encoder)
    )
    decoder -= embeddings if model.tied_embeddings else 0
    parameters = Parameters(embeddings, positions, total - embeddings - positions - decoder, decoder)
    return parameters, sum(parameter.numel() for parameter in blocks if parameter.ndim > 1)


def training_flops_per_token(model: recipe.Model, attended_tokens: float, predicted_share: float) -> float:
    """Return the floating-point operations of forward and backward pass per token.

    Six per matrix entry of the body, six per entry of the decoder for the `predicted_share` of tokens that get
    logits, and twelve × layers × width for each of the `attended_tokens`, the mean number that a token attends to
    (Chowdhery et al. 2022, appendix B, for bidirectional attention).
    """
    decoder = model.vocabulary_size * model.width * predicted_share
    attention = model.width * (model.layers * attended_tokens)
    return 6 * body_weights(model) + 6 * decoder + 12 * attention


def stage_flops_per_token(pretraining: recipe.Pretraining, stage: int, attended_tokens: float | None = None) -> float:
    """Return the floating-point operations of a stage (from 0) per token, by default if every slot holds a token and
    every row is one document."""
    if attended_tokens is None:
        attended_tokens = pretraining.stages[stage].context
    return training_flops_per_token(pretraining.model, attended_tokens, pretraining.masking.rate)


# Accelerator memory: tensors that `neobert.model` saves for the backward pass with CUDA's kernels in eager mode
# (variable-length attention, fused norms). A compiled model takes less. Tests count what autograd saves.

RESERVE_BYTES = 2_500_000_000
"""CUDA context, buffers of NCCL and cuBLAS, and allocator fragmentation: a round number, not measured."""

ZERO_BUCKET_ELEMENTS = 1 << 25
"""Number of gradient elements that ZeRO reduces at once."""

INPUT_BYTES_PER_TOKEN = 24
"""Token id, document and position, int64 each; all micro-batches of a step are on the device."""

SLOT_MULTIPLE = 8
STATISTICS_BYTES = {"layer_norm": 8, "rms_norm": 4}
MOST_STATISTICS_BYTES = max(STATISTICS_BYTES.values())
FP32 = 4


@dataclass(frozen=True)
class MicroBatchShape:
    """A micro-batch of `rows` of `context` tokens, at most `slots` of which are predicted."""

    rows: int
    context: int
    slots: int

    @classmethod
    def of(cls, rows: int, context: int, rate: float) -> "MicroBatchShape":
        """Make a shape with the slots that training usually takes for fixed shapes (`neobert.data.batches`), or a few
        more, since specials, which are never predicted, count here."""
        mean = rate * rows * context
        return cls(rows, context, math.ceil((mean + math.sqrt(mean)) / SLOT_MULTIPLE) * SLOT_MULTIPLE)


@dataclass(frozen=True)
class TrainingMemory:
    """Peak bytes on one accelerator, at the start of the backward pass.

    `weight_copies` are the matrices in the compute precision, `buckets` the buffers of the gradient exchange.
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
        """Sum of all parts."""
        return sum(vars(self).values())


def training_memory(
    pretraining: recipe.Pretraining,
    position_table: int,
    batch: MicroBatchShape,
    engine: EngineWord,
    processes: int,
    step_tokens: int,
) -> TrainingMemory:
    """Return the memory on each of `processes` accelerators, with Adam's two fp32 moments.

    ZeRO splits the optimizer and adds a second fp32 copy of its part of the weights (Rajbhandari et al. 2020).
    position_table: size of the position table in tokens. step_tokens: tokens of an optimizer step over all processes.
    """
    model, precision = pretraining.model, pretraining.precision
    parameters = parameter_count(model, position_table).total
    weights = gradients = FP32 * parameters
    optimizer, buckets = 2 * weights, 0  # DDP's gradients are views of its buckets
    if processes > 1 and engine not in ("ddp", "single"):
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


def trial_memory(
    model: recipe.Model, precision: recipe.PretrainingPrecision, position_table: int, rows: int, tokens: int
) -> int:
    """Return the most bytes of a trial of fine-tuning on an accelerator, in batches of `rows` of at most `tokens`.

    The weights are there three times: as they began, as they are, and as they were best. With gradients and moments
    that makes six tensors of their size.
    """
    batch = MicroBatchShape(rows, tokens, slots=rows)
    weights = FP32 * parameter_count(model, position_table).encoder
    copies = FP32 * 3 * model.width**2 if precision == "fp32" else 2 * body_weights(model)
    activations = saved_bytes(model, precision, batch) + INPUT_BYTES_PER_TOKEN * rows * tokens
    return 6 * weights + copies + activations + RESERVE_BYTES


def logits_bytes(model: recipe.Model, batch: MicroBatchShape) -> int:
    """Return the bytes of the log-probabilities of all predicted slots and of two gradients of that size, in fp32."""
    return 3 * FP32 * batch.slots * model.vocabulary_size


def saved_bytes(model: recipe.Model, precision: recipe.PretrainingPrecision, batch: MicroBatchShape) -> int:
    """Return the bytes that a micro-batch's forward pass saves for backward, without logits, weights and inputs.

    The last block computes keys and values for all tokens, everything else only at the slots. The residual stream is
    fp32, except with `bf16_residual`. For own parts this is an estimate.
    """
    width, rotary, tokens = model.width, model.positions == "rotary", batch.rows * batch.context
    element, stream = FP32 if precision == "fp32" else 2, 2 if precision == "bf16_residual" else FP32
    head_size = width // model.heads
    padded_width = model.heads * math.ceil(head_size / KERNEL_HEAD_MULTIPLE) * KERNEL_HEAD_MULTIPLE
    # Per token: the input of a norm, its statistics, and its output in the dtype of the following matrices
    norm = (stream + element) * width + STATISTICS_BYTES.get(model.norm, MOST_STATISTICS_BYTES)
    # Query, key and value in one tensor, rotated query and key in another, or all copied to padded heads
    queries_keys_values = 4 * padded_width if padded_width > width else (5 if rotary else 3) * width
    keys_values = 2 * padded_width if padded_width > width else (3 if rotary else 2) * width
    queries = (2 * padded_width if padded_width > width else width) + width
    attended = element * width + FP32 * model.heads  # and the sums of the softmax
    # Before and after the activation; a gated one keeps gate, value, activated gate and product
    hidden = 4 * gated_width(model.feedforward_width) if is_gated(model.feedforward) else 2 * model.feedforward_width
    if has_own_parts(model):  # as if all that is more than attention were a gated feed-forward
        hidden = math.ceil(4 / 3 * (body_weights(model) / model.layers - 4 * width**2) / width)
    dropped = 2 * width if model.dropout else 0
    behind_attention = dropped + norm + element * hidden
    bias = 0 if precision != "fp32" else FP32 * batch.context  # fp32 has no variable-length kernel
    position = FP32 * head_size if rotary else 8
    block = norm + element * queries_keys_values + attended + bias + behind_attention
    of_slot = element * queries + attended + bias + behind_attention + norm + 2 * 8 + (position if rotary else 0)
    of_token = position + (model.layers - 1) * block + norm + element * keys_values
    return tokens * of_token + batch.slots * of_slot


PEAK_FLOPS_PER_SECOND = {"A100": 312e12, "B200": 2250e12, "H100": 989e12, "H200": 989e12, "L40S": 362e12}
"""Dense bf16 peak from NVIDIA's data sheets (the SXM module if there are several)."""

OTHER_FORMS = {"PCIe", "NVL", "MIG"}
"""Words in a device's name that mark it as slower than the module in the table."""


def datasheet_peak(device_name: str) -> float | None:
    """Return the dense bf16 FLOPs per second of a GPU, by the driver's device name; None if it is not in the table."""
    words = set(re.split(r"[\s-]+", device_name))
    if words & OTHER_FORMS:
        return None
    return next((peak for name, peak in PEAK_FLOPS_PER_SECOND.items() if name in words), None)
