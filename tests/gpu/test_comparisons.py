"""What the tests on GPUs compare by, tried on a CPU: faults that are planted are noticed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.contenders import MODES, Mode, Setting, neobert_recipe, own_batches, pretraining_engine
from benchmarks.data import write_web_pages
from neobert.errors import EXIT_RUN_FAILED
from neobert.files import read_json
from neobert.model import attention, encoder
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.positions import ComplexRotation
from neobert.runs.run_file import SourceSpecification
from tests.gpu.steps import (
    ATTENTION_BOUND,
    TOKENS_PER_STEP,
    StepNumbers,
    contrastive_step,
    distance,
    exact,
    fitting_tokens,
    pretraining_step,
    tiny_setting,
    varied_batches,
    vectors_of,
)
from tests.gpu.test_one_gpu import TRIGONOMETRY
from tests.gpu.workers import (
    FAILING_STEP,
    LOST,
    Lines,
    assert_near,
    logged_steps,
    short_recipe,
    small_run,
    start_with_a_rank_that_fails,
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
    recipe = exact(setting).recipe
    model = build_masked_language_model(recipe.model, setting.documents.context)
    initialize(model, recipe.model.initialization, 0)
    engine = pretraining_engine(model.train(), recipe, setting.device)
    accumulate = engine._accumulate

    def scaled(batch: Any, total: torch.Tensor, *words: Any, last: bool) -> torch.Tensor:
        return accumulate(batch, total / scale, *words, last=last) / scale

    engine._accumulate = scaled  # type: ignore[method-assign]
    batches = own_batches(setting.documents, setting.documents_per_step, setting.device)[:8]
    measured = [engine.step([batch], 1e-3).measured() for batch in batches]
    return [{"loss": step.loss, "gradient_norm": step.gradient_norm} for step in measured]


def test_a_gradient_of_the_wrong_scale_shows_in_its_norm_and_in_no_loss(setting: Setting) -> None:
    """Ranks that average what they should sum divide it by their number."""
    right = steps_with(setting, 1)
    assert_near(steps_with(setting, 1), right, loss=0.002, gradient_norm=0.01)
    for scale in (1 / 2, 8):
        with pytest.raises(AssertionError, match="gradient_norm"):
            assert_near(steps_with(setting, scale), right, loss=0.002, gradient_norm=0.01)


def test_a_rank_on_web_pages_that_waits_for_one_that_fails_ends_with_its_reason(tmp_path: Path) -> None:
    """As on GPUs, but with gloo."""
    shape = {"layers": 1, "width": 32, "heads": 2, "feedforward_width": 64, "vocabulary_size": 512}
    write_web_pages(tmp_path / "pages", 200, shape["vocabulary_size"])
    source = SourceSpecification(name=str(tmp_path / "pages"), synthetic_documents=1)
    small = small_run(tmp_path, short_recipe(neobert_recipe("fp32", **shape), 4, 256, FAILING_STEP), source)
    folder = small.plan("failed", 2)
    assert [task.wait(100) for task in start_with_a_rank_that_fails(small, "failed", rank=1)] == [EXIT_RUN_FAILED] * 2
    assert LOST in read_json(folder / "error.json")["error"]
    (attempt,) = folder.glob("attempts/*")
    steps = logged_steps(attempt)
    assert steps and all(step["real_tokens"] > 0.8 * step["slots"] == 0.8 * 4 * 256 for step in steps)


def test_another_loss_is_noticed() -> None:
    lines = [{"loss": 2.0, "gradient_norm": 1.0}] * 3
    with pytest.raises(AssertionError, match="loss"):
        assert_near(lines, [*lines[:2], {"loss": 2.01, "gradient_norm": 1.0}], loss=0.002, gradient_norm=0.01)


def test_steps_that_vary_have_different_numbers_of_rows(setting: Setting) -> None:
    rows = [len(batch.token_ids) for batch in varied_batches(setting, 6)]
    most = max(len(batch.token_ids) for batch in setting.own_batches("eager"))
    assert len(set(rows)) > 1 and min(rows) >= 2 / 3 * most - 1 and max(rows) <= most


@pytest.mark.parametrize(("gigabytes", "part"), [(84, 1), (48, 2), (42, 4), (24, 8)])
def test_a_step_has_as_many_rows_as_fit_into_the_gpu(gigabytes: int, part: int) -> None:
    assert fitting_tokens(neobert_recipe("bf16"), gigabytes * 10**9) == TOKENS_PER_STEP // part


@pytest.mark.parametrize(
    ("kernel", "computes_angles"),
    [
        ("triton_poi_fused_cos_mul_sin_3", True),
        ("triton_per_fused__to_copy_add_embedding_mean_mul_pow_rsqrt_0", False),
        ("triton_red_fused__fused_rms_norm_backward_1", False),
    ],
)
def test_a_norm_that_is_named_after_its_square_computes_no_angles(kernel: str, computes_angles: bool) -> None:
    assert bool(TRIGONOMETRY.search(kernel)) == computes_angles
