"""Block layouts: post-norm against torch's own, a block of a user's own on every path, tied embeddings."""

import pytest
import torch
from torch import nn

from examples.parts import QKNorm
from neobert.model.attention import GatherIndex, packed_plan, whole_rows_plan
from neobert.model.build import build_encoder, build_masked_language_model, initialize
from neobert.model.encoder import Block
from neobert.model.heads import MaskedLanguageModel
from neobert.model.size import parameter_count
from neobert.runs.layout import Layout
from neobert.training import checkpoints
from tests.support.small_models import BERT_FORM, CONTEXT, START, pack, random_document, small_model
from tests.support.tiny_runs import claimed


def valued(network: MaskedLanguageModel) -> MaskedLanguageModel:
    """Initial weights, and vectors other than 1."""
    initialize(network, START, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return network.eval()


@torch.no_grad()
def test_post_norm_is_that_of_torch() -> None:
    model = small_model(**BERT_FORM, block="post_norm")
    encoder = valued(build_masked_language_model(model, CONTEXT)).model
    ids = random_document(9)[None]
    hidden = encoder.positional_embedding.add(encoder.encoder(ids), torch.arange(9)[None], 9)
    for block in encoder.transformer_encoder:
        layer = nn.TransformerEncoderLayer(
            *(model.width, model.heads, model.feedforward_width),
            dropout=0.0,
            activation="gelu",
            layer_norm_eps=model.norm_epsilon,
            batch_first=True,
            norm_first=False,
        )
        for parameter in layer.parameters():
            parameter.zero_()
        by_kind = block.qkv.weight.unflatten(0, (model.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        layer.self_attn.in_proj_weight.copy_(by_kind)
        layer.self_attn.out_proj.weight.copy_(block.wo.weight)
        layer.linear1.weight.copy_(block.ffn[0].weight)
        layer.linear2.weight.copy_(block.ffn[2].weight)
        layer.norm1.load_state_dict(block.attention_norm.state_dict())
        layer.norm2.load_state_dict(block.ffn_norm.state_dict())
        hidden = layer.train()(hidden)  # evaluation has a kernel of its own
    torch.testing.assert_close(encoder(ids, whole_rows_plan(ids)), hidden, rtol=0, atol=1e-5)


@pytest.mark.parametrize("block", ["post_norm", QKNorm])
@torch.no_grad()
def test_a_block_gives_the_same_states_packed_alone_and_at_some_places(block: object) -> None:
    encoder = valued(build_masked_language_model(small_model(block=block), CONTEXT)).model
    documents = [random_document(length, length) for length in (5, 3, 7)]
    ids, numbers, places = pack([documents[:2], documents[2:]], CONTEXT)
    packed = encoder(ids, packed_plan(numbers, places))
    for document, row, number in zip(documents, (0, 0, 1), (0, 1, 0), strict=True):
        alone = encoder(document[None], whole_rows_plan(document[None]))[0]
        torch.testing.assert_close(packed[row, numbers[row] == number], alone, rtol=0, atol=1e-5)
    columns = torch.tensor([[0, 4], [1, 5]])
    gathered = encoder(ids, packed_plan(numbers, places), GatherIndex.at(columns, CONTEXT))
    expected = packed.gather(1, columns[..., None].expand(-1, -1, packed.shape[-1])).flatten(0, 1)
    torch.testing.assert_close(gathered, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_norms_of_query_and_key_come_before_the_rotation_in_every_form() -> None:
    """Compiled models have the dimensions of a head in another order."""
    network = valued(build_masked_language_model(small_model(block=QKNorm), CONTEXT))
    block, positions = network.model.transformer_encoder[0], torch.arange(9)[None]
    hidden, plan = torch.randn(1, 9, 24), whole_rows_plan(torch.zeros(1, 9))
    found = [
        block.attention(hidden, plan, network.model.positional_embedding.rotation(positions, form), None)
        for form in ("complex", "real", "halves")
    ]
    plain = Block.attention(
        build_encoder(small_model(), CONTEXT).transformer_encoder[0].requires_grad_(False),
        *(hidden, plan, network.model.positional_embedding.rotation(positions, "complex"), None),
    )
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=0, atol=1e-5)
    assert not torch.allclose(plain, found[0], atol=1e-3)


def test_tied_embeddings_are_one_matrix_on_disk_and_back(tmp_path) -> None:
    model = small_model(tied_embeddings=True)
    network = valued(build_masked_language_model(model, CONTEXT))
    assert network.decoder.weight is network.model.encoder.weight
    untied = valued(build_masked_language_model(small_model(), CONTEXT))
    assert torch.equal(network.model.encoder.weight, untied.model.encoder.weight), "drawn as embeddings"
    assert sum(parameter.numel() for parameter in network.parameters()) == parameter_count(model, CONTEXT).total
    with claimed(Layout(tmp_path), "tied") as claim:
        weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        checkpoints.save(tmp_path / "checkpoints", 1, weights, {}, {"step": 1}, claim.check)
    again = build_masked_language_model(model, CONTEXT)
    again.load_state_dict(checkpoints.load(tmp_path / "checkpoints", 1).weights())
    assert again.decoder.weight is again.model.encoder.weight
    assert all(torch.equal(tensor, network.state_dict()[name]) for name, tensor in again.state_dict().items())
