"""Blocks that see a window of a document compute what transformers' ModernBERT computes, however rows are laid out."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import ModernBertConfig, ModernBertModel

from neobert.hub import NeoBERTConfig, NeoBERTModel
from neobert.model.attention import GatherIndex, packed_plan, padded_plan, whole_rows_plan
from neobert.model.build import build_encoder, build_masked_language_model, initialize
from neobert.model.encoder import Encoder
from neobert.model.size import training_flops_per_token
from neobert.recipe import gated_width
from tests.support.small_models import START, pack, padded_rows, random_document, small_model

CONTEXT = 40
LOCAL: dict[str, Any] = {
    "layers": 4,
    "attention_window": 6,
    "global_every": 3,
    "rotary_base": 160_000.0,
    "local_rotary_base": 10_000.0,
    "feedforward": "geglu",
    "norm": "layer_norm",
}


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """Blocks 0 and 3 are global, 1 and 2 local."""
    model = build_encoder(small_model(**LOCAL), CONTEXT).eval()
    initialize(model, START, 0)
    return model


def halves(weight: Tensor, heads: int) -> Tensor:
    """The rows of a fused projection as ModernBERT has them: query, key, value, then heads, whose even numbers come
    first in query and key, since it turns halves and not adjacent pairs."""
    query_key, value = weight.unflatten(0, (heads, 3, -1)).split((2, 1), dim=1)
    turned = query_key.unflatten(2, (-1, 2)).transpose(2, 3).flatten(2, 3)
    return torch.cat((turned, value), dim=1).transpose(0, 1).flatten(0, 2)


@torch.no_grad()
def modernbert_of(encoder: Encoder) -> ModernBertModel:
    """transformers' ModernBERT with the weights of the encoder, and a norm where ours has one and it has none."""
    model = small_model(**LOCAL)
    configuration = ModernBertConfig(
        vocab_size=model.vocabulary_size,
        hidden_size=model.width,
        intermediate_size=gated_width(model.feedforward_width),
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        global_attn_every_n_layers=model.global_every,
        local_attention=model.attention_window,
        norm_eps=model.norm_epsilon,
        norm_bias=True,
        pad_token_id=0,
        attn_implementation="eager",
    )
    theirs = ModernBertModel(configuration).eval()
    theirs.embeddings.norm = nn.Identity()
    theirs.embeddings.tok_embeddings.weight.copy_(encoder.encoder.weight)
    for block, layer in zip(encoder.transformer_encoder, theirs.layers, strict=True):
        layer.attn_norm, layer.mlp_norm = block.attention_norm, block.ffn_norm
        layer.attn.Wqkv.weight.copy_(halves(block.qkv.weight, model.heads))
        layer.attn.Wo.weight.copy_(block.wo.weight)
        layer.mlp.Wi.weight.copy_(block.ffn.w12.weight)
        layer.mlp.Wo.weight.copy_(block.ffn.w3.weight)
    theirs.final_norm = encoder.layer_norm
    return theirs


@torch.no_grad()
def test_states_are_those_of_modernbert(encoder: Encoder) -> None:
    ids, mask = padded_rows((30, 17))
    theirs = modernbert_of(encoder)(input_ids=ids, attention_mask=mask).last_hidden_state
    ours = encoder(ids, padded_plan(mask))
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], rtol=1e-4, atol=1e-5)
    whole = build_encoder(small_model(**LOCAL | {"attention_window": 2 * CONTEXT}), CONTEXT).eval()
    whole.load_state_dict(encoder.state_dict())
    assert not torch.allclose(whole(ids, padded_plan(mask))[0], ours[0], atol=1e-3), "the window decides something"


@torch.no_grad()
@pytest.mark.parametrize("layers", [3, 4], ids=["last block local", "last block global"])
def test_rows_of_documents_and_gathered_tokens_give_the_same(layers: int) -> None:
    encoder = build_encoder(small_model(**LOCAL | {"layers": layers}), CONTEXT).eval()
    initialize(encoder, START, 0)
    documents = [random_document(18), random_document(15, 1)]
    ids, numbers, places = pack([documents], CONTEXT)
    alone = torch.cat([encoder(each[None], whole_rows_plan(each[None]))[0] for each in documents])
    plan = packed_plan(numbers, places)
    torch.testing.assert_close(encoder(ids, plan)[0, : len(alone)], alone, rtol=0, atol=1e-5)
    asked = torch.tensor([[1, 16, 19, 30]])
    gathered = encoder(ids, plan, GatherIndex.at(asked, CONTEXT))
    torch.testing.assert_close(gathered, alone[asked[0]], rtol=0, atol=1e-5)
    in_a_run = GatherIndex(asked, cu_seqlens=torch.tensor([0, 2, 4, 4], dtype=torch.int32))
    torch.testing.assert_close(encoder(ids, plan, in_a_run), alone[asked[0]], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_exported_classes_give_the_same(encoder: Encoder, implementation: str) -> None:
    configuration = NeoBERTConfig.from_recipe(small_model(**LOCAL), CONTEXT, attn_implementation=implementation)
    theirs = NeoBERTModel(configuration).eval()
    theirs.load_state_dict(encoder.state_dict())
    ids, mask = padded_rows((30, 17))
    answer = theirs(input_ids=ids, attention_mask=mask, output_attentions=implementation == "eager")
    ours = encoder(ids, padded_plan(mask))
    torch.testing.assert_close(answer.last_hidden_state[mask.bool()], ours[mask.bool()], rtol=0, atol=1e-5)
    if implementation == "eager":
        distant = torch.ones(30, 30).triu(4).bool()
        seen = [bool(weights[0, :, distant].any()) for weights in answer.attentions]
        assert seen == [True, False, False, True], "attentions are those of each block, in order"
    with pytest.raises(ValueError, match="local blocks make their own masks"):
        theirs(input_ids=ids, attention_mask=torch.ones(2, 1, 30, 30))


def test_a_window_asks_for_local_blocks_and_counts_less_work() -> None:
    for wrong, said in (
        ({"attention_window": 6, "global_every": 1, "local_rotary_base": None}, "global_every 2 or more"),
        ({"attention_window": 0}, "a window of 2 tokens or more"),
        ({"attention_window": 5}, "is odd"),
        ({"positions": "learned"}, "local_rotary_base is for rotary positions"),
    ):
        with pytest.raises(ValueError, match=said):
            small_model(**LOCAL | wrong)
    local, whole = small_model(**LOCAL), small_model(layers=4, feedforward="geglu", norm="layer_norm")
    saved = training_flops_per_token(whole, 40, 0.2) - training_flops_per_token(local, 40, 0.2)
    assert saved == 12 * 24 * 2 * (40 - 7)


def test_a_compiled_model_gives_the_same() -> None:
    model = build_masked_language_model(small_model(**LOCAL), CONTEXT).eval()
    initialize(model, START, 0)
    ids, numbers, places = pack([[random_document(18), random_document(15, 1)]], CONTEXT)
    gather = GatherIndex.at(torch.tensor([[1, 16, 19, 30]]), CONTEXT)
    eager = model(ids, packed_plan(numbers, places), gather)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(ids, packed_plan(numbers, places), gather), eager, rtol=1e-4, atol=1e-5)
