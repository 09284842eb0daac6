"""Muon is torch.optim.Muon on separate query, key, value, gate and value projections, however matrices fuse them."""

import copy
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from neobert.model.encoder import Block, query_key_value
from neobert.model.heads import MaskedLanguageModel
from neobert.model.layers import FEEDFORWARDS, FusedRows, GatedFeedForward, fused_rows
from neobert.model.positions import Rotation
from neobert.training import muon, optimization
from neobert.training.muon import ADAMW_RMS, COEFFICIENTS, ITERATIONS, Muon, orthogonalize
from neobert.training.optimization import build_optimizer
from tests.support.small_models import FORMS, language_model
from tests.support.tiny_runs import tiny_recipe

RATE, DECAY, MOMENTUM = 0.01, 0.1, 0.9
RECIPE = tiny_recipe().optimization.model_copy(
    update={"optimizer": "muon", "peak_learning_rate": RATE, "weight_decay": DECAY, "beta1": MOMENTUM}
)
WIDTH, HEADS = 24, 3
SMALL = 0.01
"""How much smaller the gradients of queries are than those of values: 40 to 650 times were seen in training."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows_of(name: str, rows: int) -> Mapping[str, list[int]]:
    """The rows of each projection, counted out: of a fused qkv by head, of a fused w12 one half each."""
    if name.endswith("qkv.weight"):
        size = WIDTH // HEADS
        return {
            part: [(head * 3 + place) * size + row for head in range(HEADS) for row in range(size)]
            for place, part in enumerate(("query", "key", "value"))
        }
    if name.endswith("w12.weight"):
        return {"gate": list(range(rows // 2)), "value": list(range(rows // 2, rows))}
    return {"whole": list(range(rows))}


def matrices_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The matrices of the blocks by name."""
    named = model.named_parameters()
    return {name: weight for name, weight in named if "transformer_encoder" in name and weight.ndim == 2}


def give_gradients(model: nn.Module, seed: int) -> None:
    for number, weight in enumerate(model.parameters()):
        weight.grad = normal(*weight.shape, seed=1000 * seed + number).to(weight.dtype)


def give_small_gradients_to_queries(model: nn.Module) -> None:
    give_gradients(model, 0)
    for name, weight in matrices_of(model).items():
        if name.endswith("qkv.weight") and weight.grad is not None:
            weight.grad[rows_of(name, len(weight))["query"]] *= SMALL


@pytest.fixture(params=FORMS)
def model(request: pytest.FixtureRequest) -> MaskedLanguageModel:
    return language_model(**FORMS[request.param]).double()


def test_an_update_is_torchs_of_each_projection(model: MaskedLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three updates in fp64, where torch's iteration does not round to bf16 first."""
    monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    matrices = matrices_of(model)
    apart = {
        (name, part): nn.Parameter(weight.detach()[rows].clone())
        for name, weight in matrices.items()
        for part, rows in rows_of(name, len(weight)).items()
    }
    options = {"lr": RATE, "weight_decay": DECAY, "momentum": MOMENTUM, "adjust_lr_fn": "match_rms_adamw"}
    theirs = torch.optim.Muon(list(apart.values()), **options)  # type: ignore[arg-type]
    ours = build_optimizer(model, RECIPE)
    for seed in range(3):
        give_gradients(model, seed)
        for (name, part), weight in apart.items():
            gradient = matrices[name].grad
            assert gradient is not None
            weight.grad = gradient[rows_of(name, len(gradient))[part]].clone()
        ours.step()
        theirs.step()
    for (name, part), weight in apart.items():
        fused = matrices[name].detach()
        torch.testing.assert_close(fused[rows_of(name, len(fused))[part]], weight.detach(), rtol=1e-11, atol=1e-13)
        buffer = ours.state[matrices[name]]["momentum_buffer"]
        assert torch.equal(buffer[rows_of(name, len(fused))[part]], theirs.state[weight]["momentum_buffer"])


def test_a_projection_with_small_gradients_moves_as_far_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a fused matrix is orthogonalized whole, queries hardly move, because values take the basis."""

    def moves(layouts: Callable[[nn.Module], dict[Tensor, FusedRows]]) -> dict[str, float]:
        monkeypatch.setattr(optimization, "fused_rows", layouts)
        model = language_model()
        before = copy.deepcopy(matrices_of(model))
        give_small_gradients_to_queries(model)
        build_optimizer(model, RECIPE.model_copy(update={"weight_decay": 0.0})).step()
        found = {}
        for name, weight in matrices_of(model).items():
            change = (weight - before[name]).detach()
            for part, rows in rows_of(name, len(weight)).items():
                found[f"{name} {part}"] = float(change[rows].square().mean().sqrt()) / RATE
        return found

    apart, whole = moves(fused_rows), moves(lambda model: {})
    assert len(apart) == len(whole) == 3 * (3 + 1 + 2 + 1)
    low, high = 0.68 * ADAMW_RMS, 1.21 * ADAMW_RMS
    assert all(low < distance < high for distance in apart.values())
    queries = [name for name in whole if name.endswith("query")]
    assert queries and all(whole[name] < 0.1 * low for name in queries)


# The iteration


def test_a_batch_is_iterated_like_each_of_its_matrices() -> None:
    matrices = normal(5, 8, 12)
    apart = torch.cat([orthogonalize(matrix[None]) for matrix in matrices])
    torch.testing.assert_close(orthogonalize(matrices), apart, rtol=1e-11, atol=1e-13)


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(0, 12), st.floats(-6, 6))
def test_singular_values_become_about_one(seed: int, rows: int, more: int, exponent: float) -> None:
    matrix = normal(1, rows, rows + more, seed=seed) * 10**exponent
    values, after = (torch.linalg.svdvals(each[0]) for each in (matrix, orthogonalize(matrix)))
    amplified = COEFFICIENTS[0] ** ITERATIONS
    assert (after < 1.21).all()
    assert (after[values >= 0.002 * matrix.norm()] > 0.68).all()
    assert (after <= 1.0001 * amplified * values / matrix.norm()).all()


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_as_many_iterations_as_there_are_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square projections, and those of the feed-forward, whichever way they lie, however many blocks there are."""
    shapes: list[tuple[int, ...]] = []

    def watched(matrices: Tensor) -> Tensor:
        shapes.append(tuple(matrices.shape))
        return orthogonalize(matrices)

    monkeypatch.setattr(muon, "orthogonalize", watched)
    for layers in (1, 4):
        model = language_model(layers=layers)
        give_gradients(model, 0)
        build_optimizer(model, RECIPE).step()
    assert shapes == [(4, 24, 24), (3, 24, 40), (16, 24, 24), (12, 24, 40)]


def test_a_matrix_without_gradient_is_left_alone() -> None:
    weights = [nn.Parameter(normal(4, 4, seed=seed)) for seed in range(2)]
    before = weights[1].detach().clone()
    weights[0].grad = normal(4, 4)
    optimizer = Muon(dict.fromkeys(weights, FusedRows()), lr=RATE, weight_decay=DECAY, momentum=MOMENTUM)
    optimizer.step()
    assert torch.equal(weights[1], before) and list(optimizer.state) == [weights[0]]


# Layouts


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_joining_undoes_splitting(projections: int, groups: int, size: int, columns: int) -> None:
    layout, matrix = FusedRows(projections, groups), normal(projections * groups * size, columns)
    parts = layout.split(matrix)
    assert parts.shape == (projections, groups * size, columns)
    assert torch.equal(layout.join(parts), matrix)


def test_queries_keys_and_values_are_those_of_the_model(model: MaskedLanguageModel) -> None:
    layouts, hidden = fused_rows(model), normal(2, 5, WIDTH)
    for block in model.model.transformer_encoder:
        assert isinstance(block, Block)
        used = query_key_value(block.qkv, block.heads, hidden, Rotation())
        split = layouts[block.qkv.weight].split(block.qkv.weight)
        assert len(split) == len(used)
        for weight, vectors in zip(split, used, strict=True):
            torch.testing.assert_close((hidden @ weight.T).unflatten(-1, (HEADS, -1)), vectors)


GATED = [name for name, kind in FEEDFORWARDS.items() if isinstance(kind(8, 24), GatedFeedForward)]


@pytest.mark.parametrize("name", GATED)
def test_gate_and_value_are_those_of_the_model(name: str) -> None:
    feedforward, hidden = FEEDFORWARDS[name](WIDTH, 60).double(), normal(2, 5, WIDTH)
    assert isinstance(feedforward, GatedFeedForward)
    gate, value = fused_rows(feedforward)[feedforward.w12.weight].split(feedforward.w12.weight)
    gated = feedforward.w3(feedforward.activation(hidden @ gate.T) * (hidden @ value.T))
    torch.testing.assert_close(gated, feedforward(hidden))


def test_every_fused_matrix_of_a_model_says_its_layout(model: MaskedLanguageModel) -> None:
    names = {name for name, weight in model.named_parameters() if weight in fused_rows(model)}
    assert names == {name for name in matrices_of(model) if name.endswith(("qkv.weight", "w12.weight"))}
