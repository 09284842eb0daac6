"""The variable-length path of training with real numbers: stand-ins for the kernels compute on the CPU, refuse what
those on CUDA would, and give the losses and gradients of rows."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import list_flash_attention_impls

from benchmarks.data import NEOBERT_MASKING, web_lengths
from benchmarks.pretraining import masked_documents, neobert_recipe
from neobert.data.batches import EXACT, PaddingBuckets, PaddingSizes, collate
from neobert.data.packing import pack_documents
from neobert.evaluation import heldout
from neobert.evaluation.heldout import HeldoutText, token_losses
from neobert.glue.batching import PackedLayout, Pooling
from neobert.glue.encoding import EncodedSplit
from neobert.model import attention
from neobert.model.build import build_classifier, build_masked_language_model, initialize
from neobert.model.heads import MaskedLanguageModel
from neobert.recipe import Precision
from neobert.training.engine import autocast
from neobert.training.pretraining import summed_loss
from tests.model.kernels_on_cpu import CALLS, check, variable_length_kernels_on_cpu

CONTEXT, ROWS, VOCABULARY = 128, 12, 512
CPU = torch.device("cpu")
FORMS = {
    "heads of 24": {"heads": 4},
    "heads of 12, padded to 16": {"heads": 8},
}
DISTANCE = {"fp32": 1e-5, "bf16": 2e-2}
"""Of a gradient from that of rows in fp32, as a share of its length."""


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with variable_length_kernels_on_cpu():
        CALLS.clear()
        yield


@pytest.fixture(scope="module", params=FORMS)
def model(request: pytest.FixtureRequest) -> MaskedLanguageModel:
    shape = {"layers": 3, "width": 96, "feedforward_width": 192, "vocabulary_size": VOCABULARY}
    recipe = neobert_recipe("fp32", **shape | FORMS[request.param]).model
    built = build_masked_language_model(recipe, CONTEXT)
    initialize(built, recipe.initialization, 0)
    return built.train()


def losses_and_gradients(
    model: MaskedLanguageModel, precision: Precision, sizes: PaddingSizes, *, varlen: bool
) -> tuple[float, Tensor]:
    documents = masked_documents(web_lengths(60) // 8 + 8, VOCABULARY, CONTEXT)
    rows = pack_documents(documents.view, np.arange(len(documents.view)), documents.keys, CONTEXT)[:ROWS]
    batch = collate(rows, documents.view.corpus, NEOBERT_MASKING, sizes=sizes, varlen=varlen)
    model.zero_grad()
    with autocast(CPU, precision):
        loss = summed_loss(model, batch)
    loss.backward()
    return loss.item(), torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


@pytest.mark.parametrize("precision", DISTANCE)
@pytest.mark.parametrize("sizes", [EXACT, PaddingBuckets(16, CONTEXT, 0.2, 60.0)], ids=["exact", "in buckets"])
def test_flat_tokens_give_the_loss_and_gradients_of_rows(
    model: MaskedLanguageModel, sizes: PaddingSizes, precision: Precision
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "LOW_PRECISION", (torch.bfloat16, torch.float16))
        loss, gradient = losses_and_gradients(model, "fp32", EXACT, varlen=False)
    assert not CALLS
    found, found_gradient = losses_and_gradients(model, precision, sizes, varlen=True)
    assert len(CALLS) == len(model.model.transformer_encoder)
    assert found == pytest.approx(loss, rel=DISTANCE[precision])
    assert (found_gradient - gradient).norm() <= DISTANCE[precision] * gradient.norm()


def test_the_heldout_loss_of_each_token_is_that_of_rows(
    model: MaskedLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = masked_documents(web_lengths(60) // 8 + 8, VOCABULARY, CONTEXT).view
    frequencies = np.full(VOCABULARY, 1 / VOCABULARY)
    text = HeldoutText("web", documents, CONTEXT, ROWS, "cut", frequencies)
    by_row = token_losses(model, text, "fp32", CPU)
    assert not CALLS
    for module in (attention, heldout):
        monkeypatch.setattr(module, "has_variable_length_kernels", lambda device: True)
    monkeypatch.setattr(heldout, "autocast", lambda device, precision: nullcontext())
    np.testing.assert_allclose(token_losses(model, text, "bf16", CPU), by_row, rtol=1e-4)
    assert CALLS


def padded_split(lengths: list[int]) -> EncodedSplit:
    drawn = np.random.default_rng(0)
    ids = drawn.integers(5, VOCABULARY, sum(lengths)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return EncodedSplit(ids, offsets, np.zeros(len(ids), np.int8), drawn.integers(0, 2, len(lengths)))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize(
    ("lengths", "fixed_rows"),
    [([40, 39, 38, 37], None), ([40, 5, 33], 4), ([60, 9, 8, 7, 30, 20], None)],
    ids=["padded", "padded, fixed, with an empty row", "packed"],
)
def test_examples_of_glue_have_the_logits_of_rows(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], fixed_rows: int | None, pooling: Pooling
) -> None:
    shape = {"layers": 3, "width": 96, "heads": 4, "feedforward_width": 192, "vocabulary_size": VOCABULARY}
    recipe = neobert_recipe("fp32", **shape).model
    classifier = build_classifier(recipe, CONTEXT, 2, 0.0)
    initialize(classifier, recipe.initialization, 0)
    layout, split = PackedLayout(), padded_split(lengths)
    examples = np.arange(len(lengths))
    exact = layout.logits(classifier, layout.collate(split, examples, CPU, fixed_rows), pooling)
    assert not CALLS
    monkeypatch.setattr(attention, "has_variable_length_kernels", lambda device: True)
    found = layout.logits(classifier, layout.collate(split, examples, CPU, fixed_rows), pooling)
    assert len(CALLS) == 3
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_sizes_of_padded_rows_depend_on_the_mask_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a graph of one size is replayed for all batches of it. The kernel takes the empty documents."""
    monkeypatch.setattr(attention, "has_variable_length_kernels", lambda device: True)
    masks = [[[1] * 8, [1] * 3 + [0] * 5, [0] * 8], [[0] * 2 + [1] * 6, [0, 1, 1, 0, 0, 0, 0, 0], [1] * 8]]
    for mask in masks:
        plan = attention.padded_plan(torch.tensor(mask))
        assert plan.cu_seqlens is not None and plan.cu_seqlens.shape == (10,) and plan.max_seqlen == 8
        tokens = torch.zeros(24, 2, 8)
        check(tokens, tokens, tokens, plan.cu_seqlens, plan.cu_seqlens, 8, 8)


@pytest.mark.parametrize(
    ("installed", "device", "capability", "activated"),
    [
        ("flash_attn_interface", "cuda", 9, ["FA3"]),
        ("flash_attn.cute", "cuda", 10, ["FA4"]),
        ("flash_attn_interface", "cuda", 10, []),
        ("flash_attn_interface", "cuda", 8, []),
        ("flash_attn_interface", "cpu", 9, []),
        ("", "cuda", 9, []),
    ],
)
def test_a_hopper_takes_flash_attention_3_and_a_blackwell_4_where_they_are_installed(
    monkeypatch: pytest.MonkeyPatch, installed: str, device: str, capability: int, activated: list[str]
) -> None:
    """Under the names of torch's registry."""
    found: list[str] = []
    monkeypatch.setattr(attention, "find_spec", lambda name: object() if installed.startswith(name) else None)
    monkeypatch.setattr(attention, "activate_flash_attention_impl", found.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    attention.choose_flash_attention.__wrapped__(torch.device(device))
    assert found == activated and set(found) <= set(list_flash_attention_impls())


def test_a_flash_attention_3_that_cannot_be_loaded_is_said_once_and_other_kernels_are_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: str) -> None:
        raise ImportError("undefined symbol")

    monkeypatch.setattr(attention, "find_spec", lambda name: object())
    monkeypatch.setattr(attention, "activate_flash_attention_impl", fail)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    attention.choose_flash_attention.cache_clear()
    for _ in range(2):
        attention.choose_flash_attention(torch.device("cuda", 0))
    assert capsys.readouterr().err.count("FlashAttention 3 cannot be used (undefined symbol)") == 1
    assert attention.variable_length_kernels() == "torch"


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_before_ampere_computes_attention_by_row(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(attention.AttentionPlan, "to", lambda plan, device: plan)
    documents = torch.tensor([[0, 0, 1, -1]])
    plan = attention.packed_plan(documents, documents, torch.device("cuda"))
    assert (plan.cu_seqlens is not None) == expected


def one_row_of_two_documents() -> tuple[Tensor, Tensor, Tensor, attention.AttentionPlan]:
    """Query, key and value of three and five tokens in two heads, and who attends to whom."""
    tokens = torch.zeros(1, 8, 2, 8, dtype=torch.bfloat16)
    cu_seqlens = torch.tensor([0, 3, 8], dtype=torch.int32)
    plan = attention.AttentionPlan(torch.zeros(1, 8, dtype=torch.int64), cu_seqlens=cu_seqlens, max_seqlen=5)
    return tokens, tokens, tokens, plan


@pytest.mark.parametrize(
    ("active", "installed", "taken", "own"),
    [(None, False, "torch", 0), (None, True, "flash_attn", 1), ("FA3", True, "FA3", 0)],
)
def test_flash_attention_3_comes_before_flash_attn_and_that_before_torchs_own(
    monkeypatch: pytest.MonkeyPatch, active: str | None, installed: bool, taken: str, own: int
) -> None:
    """Of deterministic runs flash_attn is asked for its deterministic form; torch's own kernels look at the switch."""
    calls: list[bool] = []

    def flash_attn_varlen_func(query: Tensor, *words: Any, deterministic: bool, **named: Any) -> Tensor:
        calls.append(deterministic)
        return query

    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)

    monkeypatch.setattr(attention, "flash_attn_varlen_func", flash_attn_varlen_func if installed else None)
    monkeypatch.setattr(attention, "current_flash_attention_impl", lambda: active)
    attention.attend(*one_row_of_two_documents())
    assert attention.variable_length_kernels() == taken
    assert (calls, len(CALLS)) == ([True] * own, 1 - own)
