"""Steps on a device and what they are compared with: settings, gradients and distances.

On a GPU the setting has NeoBERT's own shape; `tiny_setting` tries the same functions on a CPU.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.data import IDS, NEOBERT_MASKING, SHORTEST, web_lengths
from benchmarks.pretraining import Mode, Setting, masked_documents, neobert_recipe
from neobert.data.batches import Batch, collate
from neobert.data.packing import pack_documents
from neobert.embeddings.contrastive import GradCache, StepCollator, StepTexts, match_texts
from neobert.embeddings.encoders import DTYPES, PackedEncoder
from neobert.model.build import build_encoder, initialize
from neobert.model.size import MicroBatchShape, training_memory
from neobert.recipe import Precision, Pretraining
from neobert.training.distributed import Process, set_up_device
from neobert.training.engine import autocast
from neobert.training.pretraining import summed_loss

CPU = torch.device("cpu")
CONTEXT = 1024
TEXTS = 64
ATTENTION_BOUND = 0.05
"""How far bf16 may take the gradient of query and key weights from fp32. Scores a quarter too large take it 0.25."""
TOKENS_PER_STEP = 1 << 16
STEPS_PER_PASS = 64
"""Enough that no step has a padding row, and that documents pack as in a window of training."""
SHORTEST_DOCUMENTS = {1024: SHORTEST, 4096: 1024}
"""Tokens of the shortest document, by context. The paper's second stage mostly draws documents of at least 1,024
tokens (§3.2)."""


def gpu_setting(recipe: Pretraining, context: int, tokens_per_step: int, device: torch.device) -> Setting:
    """Return a setting with documents as long as web pages, in steps of about `tokens_per_step` slots."""
    rows = tokens_per_step // context
    lengths = web_lengths(STEPS_PER_PASS * rows, SHORTEST_DOCUMENTS.get(context, SHORTEST))
    documents = masked_documents(lengths, recipe.model.vocabulary_size, context)
    return Setting(recipe, documents, round(rows / documents.padded_fill), device)


def tiny_setting() -> Setting:
    """Return three layers of width 64 on the CPU, traced but not compiled."""
    shape = {"layers": 3, "width": 64, "heads": 4, "feedforward_width": 96, "vocabulary_size": 512}
    return replace(gpu_setting(neobert_recipe("bf16", **shape), 64, 256, CPU), backend="aot_eager")


def setting_of_gpu() -> Setting:
    """Return NeoBERT's shape with as many rows in a step as the GPU holds, at most `TOKENS_PER_STEP` slots."""
    device, recipe = set_up_device(), neobert_recipe("bf16")
    tokens = fitting_tokens(recipe, torch.cuda.get_device_properties(device).total_memory)
    return gpu_setting(recipe, CONTEXT, tokens, device)


def fitting_tokens(recipe: Pretraining, memory_bytes: int) -> int:
    """Return the tokens of a step, `TOKENS_PER_STEP` or a half, a quarter, … of them, that fit into a GPU's memory."""
    tokens = TOKENS_PER_STEP
    while tokens >= 2 * CONTEXT:
        rows = math.ceil(1.1 * tokens / CONTEXT)  # the most that `own_batches` gives
        shape = MicroBatchShape.of(rows, CONTEXT, recipe.masking.rate)
        if training_memory(recipe, CONTEXT, shape, "single", 1, rows * CONTEXT).total <= memory_bytes:
            return tokens
        tokens //= 2
    pytest.skip(f"a step of two rows does not fit into {memory_bytes / 1e9:.0f} GB")


def distance(found: Tensor, exact: Tensor) -> float:
    """Return the relative distance of two tensors: the norm of their difference / the norm of `exact`."""
    return float((found - exact).norm() / exact.norm())


@dataclass(frozen=True)
class StepNumbers:
    """The loss of a step and its gradient as one vector on the CPU; of it `attention`, the query and key weights.

    At initial weights the loss hardly depends on what tokens attend to, and neither does most of the gradient.
    """

    loss: float
    gradient: Tensor
    attention: Tensor

    def assert_near(self, exact: "StepNumbers") -> None:
        """Assert that this step is within the noise of bf16 of one in fp32."""
        assert abs(self.loss / exact.loss - 1) <= 0.005
        assert distance(self.gradient, exact.gradient) <= 0.03
        assert distance(self.attention, exact.attention) <= ATTENTION_BOUND


def two_packed_rows(setting: Setting, mode: Mode) -> Batch:
    """Return a batch of two rows of several documents each, which a CPU computes in seconds."""
    context = setting.documents.context
    lengths = np.random.default_rng(0).integers(context // 16, context // 4, 13)
    documents = masked_documents(lengths, setting.recipe.model.vocabulary_size, context)
    (batch,) = replace(setting, documents=documents, documents_per_step=len(lengths)).own_batches(mode)
    assert batch.token_ids.shape[0] == 2
    return batch


def pretraining_step(setting: Setting, mode: Mode) -> StepNumbers:
    """Return the numbers of a step with initial weights."""
    model = setting.own_engine(mode).model
    with autocast(setting.device, setting.recipe.precision):
        loss = summed_loss(model, two_packed_rows(setting, mode).to(setting.device))
    names, weights = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, weights)
    heads = setting.recipe.model.heads
    attention = [
        gradient.unflatten(0, (heads, 3, -1))[:, :2].flatten().cpu()  # of the rows of query and key
        for name, gradient in zip(names, gradients, strict=True)
        if name.endswith("qkv.weight")
    ]
    whole = torch.cat([gradient.flatten().cpu() for gradient in gradients])
    return StepNumbers(loss.item(), whole, torch.cat(attention))


def exact(setting: Setting) -> Setting:
    """Return the setting in fp32 on the CPU."""
    return replace(setting, recipe=setting.recipe.model_copy(update={"precision": "fp32"}), device=CPU)


def varied_batches(setting: Setting, count: int) -> list[Batch]:
    """Return `count` batches of packed rows on the CPU, each with another number of rows, from two thirds of a step's
    to all of them. Steps of a run differ like this, and the last rows of a window of documents are the fewest."""
    documents = setting.documents
    packed = pack_documents(documents.view, np.arange(len(documents.view)), documents.keys, documents.context)
    most = round(setting.documents_per_step * documents.padded_fill)
    sizes = np.random.default_rng(0).permutation(np.linspace(2 / 3 * most, most, count).round().astype(int))
    ends = np.cumsum(sizes)
    flat = setting.device.type == "cuda"
    return [
        collate(packed[end - size : end], documents.view.corpus, NEOBERT_MASKING, varlen=flat)
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)
    ]


def random_texts(setting: Setting) -> list[tuple[Any, Any]]:
    """Return texts of random tokens, the longest first."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(3.5, 0.6, TEXTS), 5, setting.documents.context).astype(np.int64)
    vocabulary = IDS.first_text_id, setting.recipe.model.vocabulary_size
    return [(generator.integers(*vocabulary, length), np.zeros(length, np.int8)) for length in np.sort(lengths)[::-1]]


def text_encoder(setting: Setting, precision: Precision) -> PackedEncoder:
    recipe = setting.recipe
    encoder = PackedEncoder(build_encoder(recipe.model, setting.documents.context))
    initialize(encoder, recipe.model.initialization, recipe.seed)
    return encoder.to(setting.device, DTYPES[precision]).eval()


@torch.no_grad()
def vectors_of(setting: Setting, precision: Precision) -> Tensor:
    """Return vectors (texts, width) of random texts, on the CPU."""
    encoder = text_encoder(setting, precision)
    vectors: Tensor = encoder(encoder.collate(random_texts(setting), setting.device, precision))
    return vectors.float().cpu()


def contrastive_step(setting: Setting, precision: Precision) -> tuple[float, Tensor]:
    """Return the loss of a contrastive step on pairs of random texts, computed with GradCache, and the gradient as one
    vector on the CPU."""
    encoder = text_encoder(setting, "fp32")
    numbers = np.arange(TEXTS)
    matching = match_texts(numbers[::2], numbers[1::2], numbers[:0], keep_false_negatives=False)
    step, process = StepTexts(random_texts(setting), matching), Process(0, 1)
    collator = StepCollator(encoder, int(step.lengths.sum()) // 3, precision, process, setting.device)
    batches = collator.collate(step, collator.split(step.lengths), process)
    cache = GradCache(temperature=0.07, always=True)
    with autocast(setting.device, precision):
        losses = [cache.loss(encoder, batch) for batch in cache.prepare(encoder, batches)]
    loss = torch.stack(losses).sum()
    loss.backward()
    gradients = [weight.grad for weight in encoder.parameters() if weight.grad is not None]
    return loss.item(), torch.cat([gradient.flatten().cpu() for gradient in gradients])


def waits(call: Callable[[], Any]) -> bool:
    """Return whether a call waits for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False
