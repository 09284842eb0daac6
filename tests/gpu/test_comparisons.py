"""What the tests on GPUs compare by, tried on a CPU: faults that are planted are noticed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.pretraining import MODES, Mode, Setting
from neobert.model import attention, encoder
from neobert.model.positions import ComplexRotation
from tests.gpu.steps import (
    ATTENTION_BOUND,
    StepNumbers,
    contrastive_step,
    distance,
    exact,
    pretraining_step,
    tiny_setting,
    vectors_of,
)
from tests.gpu.workers import (
    Lines,
    assert_near,
)

Planted = tuple[Any, str, Callable[..., Any]]
attend, is_same_document = attention.attend, attention._is_same_document


@pytest.fixture(scope="module")
def setting() -> Setting:
    return tiny_setting()


@pytest.fixture(scope="module")
def right(setting: Setting) -> StepNumbers:
    return pretraining_step(exact(setting), "eager")


@pytest.mark.parametrize("mode", MODES)
def test_a_step_in_bf16_is_near_one_in_fp32(setting: Setting, right: StepNumbers, mode: Mode) -> None:
    pretraining_step(setting, mode).assert_near(right)


def attending(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Planted:
    """The fault of `change` done to the queries and keys of every block."""
    return encoder, "attend", lambda query, key, *others: attend(*change(query, key), *others)


FAULTS: dict[str, Planted] = {
    "uniform attention": attending(lambda query, key: (0 * query, key)),
    "scores that are a quarter too large": attending(lambda query, key: (1.25 * query, key)),
    "no gradient through keys": attending(lambda query, key: (query, key.detach())),
    "no rotation": (ComplexRotation, "rotate", lambda rotation, vectors: vectors),
    "documents of a row see each other": (attention, "_bias", lambda plan, gather: None),
    "borders that are two tokens late": (
        *(attention, "_is_same_document"),
        lambda of_queries, of_keys: is_same_document(of_queries, of_keys.roll(2, -1)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_in_bf16_with_a_fault_in_attention_is_refused(
    setting: Setting, right: StepNumbers, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the gradient of queries and keys, of which bf16 changes 1.6 % in 28 layers of NeoBERT's own width."""
    monkeypatch.setattr(*FAULTS[fault])
    found = pretraining_step(setting, "eager")
    assert distance(found.attention, right.attention) >= 4 * ATTENTION_BOUND
    with pytest.raises(AssertionError):
        found.assert_near(right)


def test_vectors_and_a_contrastive_step_in_bf16_are_near_those_in_fp32(setting: Setting) -> None:
    assert distance(vectors_of(setting, "bf16"), vectors_of(exact(setting), "fp32")) <= 0.05
    loss, gradient = contrastive_step(setting, "bf16")
    true_loss, true_gradient = contrastive_step(exact(setting), "fp32")
    assert loss == pytest.approx(true_loss, rel=0.05) and distance(gradient, true_gradient) <= 0.05


def steps_with(setting: Setting, scale: float) -> Lines:
    """Loss and gradient norm of eight steps with gradients times `scale`."""
    engine = exact(setting).own_engine("eager")
    accumulate = engine._accumulate

    def scaled(batch: Any, total: torch.Tensor, *words: Any, last: bool) -> torch.Tensor:
        return accumulate(batch, total / scale, *words, last=last) / scale

    engine._accumulate = scaled  # type: ignore[method-assign]
    measured = [engine.step([batch], 1e-3).measured() for batch in setting.own_batches("eager")[:8]]
    return [{"loss": step.loss, "gradient_norm": step.gradient_norm} for step in measured]


def test_a_gradient_of_the_wrong_scale_shows_in_its_norm_and_in_no_loss(setting: Setting) -> None:
    """Ranks that average what they should sum divide it by their number."""
    right = steps_with(setting, 1)
    assert_near(steps_with(setting, 1), right, loss=0.002, gradient_norm=0.01)
    for scale in (1 / 2, 8):
        with pytest.raises(AssertionError, match="gradient_norm"):
            assert_near(steps_with(setting, scale), right, loss=0.002, gradient_norm=0.01)
