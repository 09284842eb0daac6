"""Optimizers under the engine: whichever is taken, gradients are clipped, nothing that is not finite is applied, and
the state goes on bit for bit."""

import copy

import pytest
import torch
from torch import Tensor, nn

from ablations.loading import papers
from ablations.scaling import scaled_variant
from examples.optimizer import Muon
from neobert.errors import RunFailed
from neobert.model.build import build_masked_language_model, initialize
from neobert.recipe import Optimization
from neobert.training.engine import Engine, seed_step
from neobert.training.optimization import OPTIMIZERS, build_optimizer, set_learning_rate
from tests.support.small_models import language_model
from tests.support.tiny_runs import tiny_recipe

Batch = tuple[Tensor, Tensor]
RATE = 0.01


def sgd(model: nn.Module, recipe: Optimization) -> torch.optim.Optimizer:
    """What somebody might add, without any thought of clipping."""
    return torch.optim.SGD(model.parameters(), lr=recipe.peak_learning_rate, momentum=recipe.beta1)


@pytest.fixture(params=[*OPTIMIZERS, "added"])
def recipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Optimization:
    monkeypatch.setitem(OPTIMIZERS, "added", sgd)
    monkeypatch.setitem(OPTIMIZERS, "muon", Muon)
    fields = {"optimizer": request.param, "clip_norm": 0.1, "weight_decay": 0.1, "peak_learning_rate": RATE}
    return tiny_recipe().optimization.model_copy(update=fields)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)) for _ in range(2)])
    return nn.ModuleDict({"embedding": nn.Linear(8, 8), "transformer_encoder": blocks, "head": nn.Linear(8, 1)})


def objective(model: nn.Module, batch: Batch) -> Tensor:
    hidden = model["embedding"](batch[0])  # type: ignore[index]
    for block in model["transformer_encoder"]:  # type: ignore[index]
        hidden = hidden + block(hidden)
    return ((model["head"](hidden).squeeze(-1) - batch[1]) ** 2).sum()  # type: ignore[index]


def batches(count: int) -> list[Batch]:
    random = torch.Generator().manual_seed(1)
    return [(torch.randn(32, 8, generator=random), torch.randn(32, generator=random)) for _ in range(count)]


def engine_of(model: nn.Module, recipe: Optimization) -> Engine[Batch]:
    return Engine(model, objective, lambda batch: len(batch[1]), recipe, "fp32", torch.device("cpu"))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("clip_norm", [0.1, 1e4])
def test_an_update_is_torchs_clipping_and_that_optimizer(recipe: Optimization, clip_norm: float) -> None:
    recipe = recipe.model_copy(update={"clip_norm": clip_norm})
    model = small_model()
    reference = copy.deepcopy(model)
    engine, plain = engine_of(model, recipe), build_optimizer(reference, recipe)
    for batch in batches(4):
        norm = engine.step([batch], RATE).measured().gradient_norm
        (objective(reference, batch) / len(batch[1])).backward()
        expected = nn.utils.clip_grad_norm_(reference.parameters(), clip_norm)
        plain.step()
        plain.zero_grad()
        assert norm == pytest.approx(float(expected), rel=1e-5) and (norm > clip_norm) == (clip_norm < 1)
    for name, weight in weights_of(reference).items():
        torch.testing.assert_close(model.get_parameter(name), weight, rtol=1e-5, atol=1e-7)


def test_what_is_not_finite_changes_no_weight_and_no_state(recipe: Optimization) -> None:
    model = small_model()
    engine = engine_of(model, recipe)
    first, second = batches(2)
    engine.step([first], RATE).measured()
    weights, state = weights_of(model), copy.deepcopy(engine.optimizer_tensors())
    spoilt = engine.step([(first[0], first[1] * float("nan"))], RATE)
    engine.step([second], RATE)  # which was under way before anybody looked
    with pytest.raises(RunFailed, match="the loss is nan"):
        spoilt.measured()
    assert all(torch.equal(model.get_parameter(name), weight) for name, weight in weights.items())
    now = engine.optimizer_tensors()
    assert now.keys() == state.keys()
    assert all(torch.equal(now[key], state[key]) for key in state if not key.startswith("step/"))


@pytest.mark.parametrize("recipe", [*OPTIMIZERS, "added", "muon"], indirect=True)
def test_a_restored_state_goes_on_bit_for_bit(recipe: Optimization) -> None:
    """Muon keeps one moment of matrices and two of all else."""
    model, given = small_model(), batches(6)
    engine = engine_of(model, recipe)
    for batch in given[:3]:
        engine.step([batch], RATE).measured()
    resumed_model, kept = small_model(), copy.deepcopy(engine.optimizer_tensors())
    resumed_model.load_state_dict(model.state_dict())
    resumed = engine_of(resumed_model, recipe)
    resumed.restore_optimizer(kept)
    for each in (engine, resumed):
        for batch in given[3:]:
            each.step([batch], RATE / 2).measured()
    ended = weights_of(resumed_model)
    assert kept and all(torch.equal(model.get_parameter(name), weight) for name, weight in ended.items())


@pytest.mark.parametrize("name", ["M0", "M4"])
def test_without_gradients_a_step_shrinks_every_parameter_by_rate_and_decay(name: str) -> None:
    recipe = scaled_variant(papers(), papers().variants[name], "smoke", "trained")[0].pretraining
    decay = recipe.optimization.weight_decay
    assert decay == {"M0": 0, "M4": 0.01}[name]
    network = build_masked_language_model(recipe.model, recipe.longest_context)
    initialize(network, recipe.model.initialization, seed=0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.5)  # biases begin at 0, which no decay changes
            parameter.grad = torch.zeros_like(parameter)
    before, optimizer = weights_of(network), build_optimizer(network, recipe.optimization)
    set_learning_rate(optimizer, RATE)
    optimizer.step()
    assert any(".bias" in each for each in before) and any("norm" in each for each in before)
    for each, weight in before.items():
        torch.testing.assert_close(network.get_parameter(each).detach(), weight * (1 - RATE * decay), rtol=1e-7, atol=0)
        assert torch.equal(network.get_parameter(each), weight) == (decay == 0)


class CountingInGroups(torch.optim.SGD):
    """Counts its updates where several published optimizers do."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
        super().step()


class CountingInItself(torch.optim.SGD):
    steps = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.steps += 1
        super().step()


class KeepingOne(torch.optim.SGD):
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.state["all"]["mean"] = torch.ones(())  # type: ignore[index]
        super().step()


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (CountingInGroups, r"changes param_groups\[0\].step, which checkpoints do not have"),
        (CountingInItself, "changes self.steps, which checkpoints do not have"),
        (KeepingOne, "keeps state of something that is no parameter of the model"),
    ],
)
def test_what_a_checkpoint_would_lose_is_refused(
    kind: type[torch.optim.SGD], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPTIMIZERS, "added", lambda model, recipe: kind(model.parameters(), lr=RATE))
    engine = engine_of(small_model(), tiny_recipe().optimization.model_copy(update={"optimizer": "added"}))
    assert engine.optimizer_tensors() == {}, "nothing was lost yet"
    engine.step(batches(1), RATE).measured()
    with pytest.raises(ValueError, match=what):
        engine.optimizer_tensors()


@pytest.mark.parametrize("seed", [0, 20_261_126, 20_261_126_093_000, 2**70])
def test_dropout_can_be_seeded_by_every_seed_of_a_recipe(seed: int) -> None:
    drawn = set()
    for step in (1, 2):
        seed_step(seed, step, 0)
        drawn.add(torch.rand(()).item())
    assert len(drawn) == 2


def test_the_example_is_torchs_muon_by_projection_and_adamw() -> None:
    """The orthogonal update of query, key and value is that of three matrices."""
    recipe = tiny_recipe().optimization
    model = language_model()
    expected = copy.deepcopy(model)
    for weight in (*model.parameters(), *expected.parameters()):
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    others = [weight for name, weight in expected.named_parameters() if weight.ndim < 2 or "transformer" not in name]
    muon, adamw = Muon(model, recipe), build_optimizer(nn.ParameterList(others), recipe)
    first = expected.model.transformer_encoder[0].qkv.weight
    heads = model.model.transformer_encoder[0].heads
    rows = torch.arange(len(first)).view(heads, 3, -1)
    parts = [nn.Parameter(first.detach()[rows[:, part].flatten()]) for part in range(3)]
    settings = {"lr": recipe.peak_learning_rate, "weight_decay": recipe.weight_decay, "momentum": recipe.beta1}
    reference = torch.optim.Muon(parts, adjust_lr_fn="match_rms_adamw", **settings)
    assert first.grad is not None
    for _ in range(2):
        for part, own in enumerate(parts):
            own.grad = first.grad[rows[:, part].flatten()]
        for optimizer in (muon, reference, adamw):
            optimizer.step()
    of_model = dict(model.named_parameters())
    updated = model.model.transformer_encoder[0].qkv.weight.detach()
    for part, own in enumerate(parts):
        torch.testing.assert_close(updated[rows[:, part].flatten()], own.detach())
    for name, weight in expected.named_parameters():
        if any(weight is other for other in others):
            torch.testing.assert_close(of_model[name], weight)
        else:
            assert not torch.equal(of_model[name], weight)
