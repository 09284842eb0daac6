"""Causal stages: no state depends on a later token, on any kernel, and the loss is that of transformers' Llama."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from neobert.data.batches import collate
from neobert.data.rows import PackedRows, pack_documents
from neobert.data.shards import TokenizedCorpus, all_documents
from neobert.model import attention
from neobert.model.attention import AttentionPlan, packed_plan, padded_plan, whole_rows_plan
from neobert.model.build import build_encoder, build_masked_language_model, initialize
from neobert.model.encoder import Encoder
from neobert.model.heads import MaskedLanguageModel
from neobert.model.size import gated_width, stage_flops_per_token, training_flops_per_token
from neobert.recipe import Masking
from neobert.training.engine import autocast
from neobert.training.pretraining import summed_loss
from tests.support.small_corpora import IDS, corpus_of
from tests.support.small_models import FORMS, START, pack, padded_rows, random_document, small_model
from tests.support.tiny_runs import tiny_model, tiny_recipe, tiny_stage

CONTEXT = 40
LOCAL: dict[str, Any] = {"layers": 4, "attention_window": 6, "global_every": 2}
MODELS: dict[str, dict[str, Any]] = {**FORMS, "local blocks": LOCAL}


@pytest.fixture(params=["fp32", "bf16, explicit", "bf16, torch's kernel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What computes attention on a CPU; variable-length kernels have a stand-in in tests/gpu_dry."""
    if request.param == "bf16, torch's kernel":
        monkeypatch.setattr(attention, "EXPLICIT_TOKENS", 0)
    with nullcontext() if request.param == "fp32" else autocast(torch.device("cpu"), "bf16"):
        yield


def encoder_of(**changes: Any) -> Encoder:
    model = build_encoder(small_model(**changes), CONTEXT).eval()
    initialize(model, START, 0)
    return model


def causal(plan: AttentionPlan) -> AttentionPlan:
    return replace(plan, causal=True)


@torch.no_grad()
@hypothesis.settings(
    max_examples=20, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(
    lengths=st.lists(st.integers(1, 13), min_size=1, max_size=3), form=st.sampled_from(sorted(MODELS)), data=st.data()
)
def test_a_token_changes_no_state_before_it_and_none_of_its_neighbours(
    kernel: None, lengths: list[int], form: str, data: st.DataObject
) -> None:
    model = encoder_of(**MODELS[form])
    documents = [random_document(length, number) for number, length in enumerate(lengths)]
    ids, numbers, positions = pack([documents], CONTEXT)
    place = data.draw(st.integers(0, sum(lengths) - 1))
    changed = ids.clone()
    changed[0, place] = (ids[0, place] + 7) % 50
    before, after = (model(each, causal(packed_plan(numbers, positions))) for each in (ids, changed))
    may_change = (numbers == numbers[0, place]) & (positions >= positions[0, place])
    assert torch.equal(before[~may_change], after[~may_change])
    assert not torch.equal(before[0, place], after[0, place]) and before.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("form", sorted(MODELS))
def test_padded_whole_and_packed_rows_have_the_same_states(kernel: None, form: str) -> None:
    model = encoder_of(**MODELS[form])
    lengths = (12, 7)
    ids, mask = padded_rows(lengths)
    padded = model(ids, causal(padded_plan(mask)))
    assert padded.isfinite().all()
    left = model(
        ids[1:, :7].new_zeros(1, 12).index_put((torch.tensor(0), torch.arange(5, 12)), ids[1, :7]),
        causal(padded_plan(mask[1:].flip(1))),
    )
    whole = model(ids[:1], causal(whole_rows_plan(ids[:1])))
    row, numbers, positions = pack([[ids[0], ids[1, :7]]], CONTEXT)
    packed = model(row, causal(packed_plan(numbers, positions)))
    near = {"rtol": 2e-2, "atol": 2e-2} if torch.is_autocast_enabled("cpu") else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(whole[0], padded[0], **near)
    torch.testing.assert_close(packed[0, :12], padded[0], **near)
    torch.testing.assert_close(packed[0, 12:19], padded[1, :7], **near)
    torch.testing.assert_close(left[0, 5:], padded[1, :7], **near)


def llama_of(ours: MaskedLanguageModel) -> LlamaForCausalLM:
    """transformers' Llama with the weights of a rotary model with RMSNorm and SwiGLU."""
    model = small_model()
    configuration = LlamaConfig(
        vocab_size=IDS.end_text_id,
        hidden_size=model.width,
        intermediate_size=gated_width(model.feedforward_width),
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        rms_norm_eps=model.norm_epsilon,
        attn_implementation="eager",
    )
    theirs = LlamaForCausalLM(configuration)
    with torch.no_grad():
        theirs.model.embed_tokens.weight.copy_(ours.model.encoder.weight)
        theirs.lm_head.weight.copy_(ours.decoder.weight)
        theirs.model.norm.weight.copy_(ours.model.layer_norm.weight)
        for block, layer in zip(ours.model.transformer_encoder, theirs.model.layers, strict=True):
            query, key, value = block.qkv.weight.unflatten(0, (model.heads, 3, -1)).unbind(1)
            layer.self_attn.q_proj.weight.copy_(halves(query))
            layer.self_attn.k_proj.weight.copy_(halves(key))
            layer.self_attn.v_proj.weight.copy_(value.flatten(0, 1))
            layer.self_attn.o_proj.weight.copy_(block.wo.weight)
            gate, up = block.ffn.w12.weight.chunk(2)
            layer.mlp.gate_proj.weight.copy_(gate)
            layer.mlp.up_proj.weight.copy_(up)
            layer.mlp.down_proj.weight.copy_(block.ffn.w3.weight)
            layer.input_layernorm.weight.copy_(block.attention_norm.weight)
            layer.post_attention_layernorm.weight.copy_(block.ffn_norm.weight)
    return theirs


def halves(weight: Tensor) -> Tensor:
    """Rows (heads, head size, width) in Llama's order, which turns halves and not adjacent pairs."""
    return weight.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2).flatten(0, 1)


def packed(corpus: TokenizedCorpus) -> PackedRows:
    documents = all_documents(corpus)
    return pack_documents(documents, np.arange(len(documents)), documents.numbers, CONTEXT)


def test_the_loss_and_its_gradients_are_those_of_llama_on_each_document() -> None:
    """transformers shifts the labels, of which special and unknown tokens are ignored here as in masking."""
    corpus = corpus_of([9, 30, 17, 1, 12])
    ours = build_masked_language_model(small_model(vocabulary_size=IDS.end_text_id), CONTEXT)
    initialize(ours, START, 0)
    nn.init.zeros_(ours.decoder.bias)  # Llama has none
    theirs, batch = llama_of(ours), collate(packed(corpus), corpus, None)
    loss = summed_loss(ours, batch)
    loss.backward()
    starts, expected, counted = np.concatenate([[0], np.cumsum(corpus.lengths)]), torch.zeros(()), 0
    tokens = np.concatenate(corpus.shards).astype(np.int64)
    for first, last in pairwise(starts):
        ids = torch.tensor([[IDS.cls, *tokens[first:last], IDS.sep]])
        labels = torch.where(torch.isin(ids, torch.tensor(IDS.never_predicted)), -100, ids)
        count = int((labels[:, 1:] != -100).sum())
        if count:
            expected = expected + theirs(input_ids=ids, labels=labels).loss * count
        counted += count
    expected.backward()
    assert batch.predicted_tokens == counted == (batch.targets != -100).sum()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    for mine, other in (
        (ours.model.encoder.weight, theirs.model.embed_tokens.weight),
        (ours.decoder.weight, theirs.lm_head.weight),
        (ours.model.transformer_encoder[0].wo.weight, theirs.model.layers[0].self_attn.o_proj.weight),
        (ours.model.transformer_encoder[2].ffn.w3.weight, theirs.model.layers[2].mlp.down_proj.weight),
    ):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_gives_the_same_for_both_objectives() -> None:
    """A graph for each: the flag is a constant of the graph."""
    corpus = corpus_of([9, 30, 17, 12])
    model = build_masked_language_model(small_model(vocabulary_size=IDS.end_text_id, layers=1), CONTEXT)
    initialize(model, START, 0)
    masking = Masking(rate=0.3, mask_share=1.0, random_share=0.0, final_rate=None, drawn_up_to=None)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for each in (None, masking, None):
        batch = collate(packed(corpus), corpus, each)
        torch.testing.assert_close(summed_loss(compiled, batch), summed_loss(model, batch), rtol=1e-5, atol=1e-6)


def test_a_causal_stage_counts_the_pairs_that_it_sees_and_logits_of_all_tokens() -> None:
    recipe = tiny_recipe(stages=(tiny_stage(objective="causal"), tiny_stage()))
    by_hand = training_flops_per_token(recipe.model, np.mean(np.arange(1, 33)), 1.0)
    assert stage_flops_per_token(recipe, 0) == by_hand
    assert stage_flops_per_token(recipe, 1) == training_flops_per_token(recipe.model, 32, 0.2)
    local = tiny_recipe(model=tiny_model(**LOCAL), stages=recipe.stages[:1])
    whole = tiny_recipe(model=tiny_model(layers=4), stages=recipe.stages[:1])
    saved = stage_flops_per_token(whole, 0) - stage_flops_per_token(local, 0)
    assert saved == 12 * 16 * 2 * (16.5 - 4), "three tokens before it and itself, in two of four blocks"
