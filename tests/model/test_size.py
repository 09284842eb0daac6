"""Counts without torch equal the built modules, and the paper's."""

import itertools

import pytest
import torch

from examples.parts import QKNorm
from neobert.model import size
from neobert.model.build import build_masked_language_model
from neobert.model.layers import FEEDFORWARDS, NORMS
from neobert.model.positions import POSITIONS
from neobert.recipe import gated_width
from tests.support.small_models import small_model

COMBINATIONS = list(itertools.product(POSITIONS, FEEDFORWARDS, NORMS))


@pytest.mark.parametrize(("positions", "feedforward", "norm"), COMBINATIONS)
@pytest.mark.parametrize(("block", "feedforward_width"), [("pre_norm", 60), ("post_norm", 61), (QKNorm, 64)])
def test_counts_are_those_of_the_built_module(positions, feedforward, norm, block, feedforward_width):
    model = small_model(
        positions=positions,
        feedforward=feedforward,
        norm=norm,
        block=block,
        feedforward_width=feedforward_width,
        layers=2,
    )
    with torch.device("meta"):
        network = build_masked_language_model(model, context=17)

    def count(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    counted = size.parameter_count(model, context=17)
    assert counted.total == count(network)
    assert counted.encoder == count(network.model)
    assert counted.embeddings == count(network.model.encoder)
    assert counted.positions == count(network.model.positional_embedding)
    assert counted.decoder == count(network.decoder)


@pytest.mark.parametrize(
    ("nominal", "hidden"), [(3072, 2048), (4224, 2816), (4032, 2688), (60, 40), (61, 40), (64, 48)]
)
def test_a_gated_feedforward_takes_two_thirds_rounded_up_to_eight(nominal, hidden):
    assert gated_width(nominal) == hidden


def test_flops_of_a_token_are_body_decoder_and_attention():
    """The three parts for NeoBERT at 1,024 tokens, in GFLOP: 1.189 + 0.141 + 0.264."""
    model = small_model(vocabulary_size=30_522, layers=28, width=768, heads=12, feedforward_width=3072)
    whole = size.training_flops_per_token(model, attended_tokens=1024, predicted_share=1.0)
    body = size.training_flops_per_token(model, attended_tokens=0, predicted_share=0.0)
    head = size.training_flops_per_token(model, attended_tokens=0, predicted_share=1.0) - body
    assert (body / 1e9, head / 1e9, (whole - body - head) / 1e9) == pytest.approx((1.189, 0.141, 0.264), abs=5e-4)
