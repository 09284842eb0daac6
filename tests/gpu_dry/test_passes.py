"""What a pretended GPU sees: only what reads a result waits, products are in bf16, and memory is as computed."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu_dry import passes
from tests.gpu_dry.conftest import Pretend
from tests.gpu_dry.passes import M0_FORM, Pass, dtypes

MEMORY_SHARE = 0.05
"""How far the model of memory may lie from the pretended peak."""

FORMS: dict[str, dict[str, Any]] = {"NeoBERT 4 × 768": {"layers": 4}, "M0 form 2 × 768": {"layers": 2, **M0_FORM}}


@pytest.fixture(scope="module")
def steps(pretend: Pretend) -> dict[str, Pass]:
    return {name: pretend(passes.pretrain, **changes) for name, changes in FORMS.items()}


@pytest.mark.parametrize("form", FORMS)
def test_a_step_waits_for_nothing_and_reading_its_numbers_waits_once(steps: dict[str, Pass], form: str) -> None:
    step = steps[form]
    assert step.feeding.waits == step.feeding.pageable == []
    assert step.work.waits == step.work.pageable == []
    assert len(step.reading.waits) == 1 and step.reading.waits[0].startswith("event.synchronize")


@pytest.mark.parametrize("form", FORMS)
def test_products_are_in_bf16_with_rows_aligned_to_16_bytes(steps: dict[str, Pass], form: str) -> None:
    """Others take CUDA's slow kernels. The vocabulary of 30,522 is none such."""
    assert set(dtypes(steps[form].work)) == {"bfloat16"}
    assert all(product.inner % 8 == product.columns % 8 == 0 for product in steps[form].work.products)


@pytest.mark.parametrize("form", FORMS)
def test_the_model_of_memory_is_right(steps: dict[str, Pass], form: str) -> None:
    assert steps[form].reckoned_bytes == pytest.approx(steps[form].work.peak_bytes, rel=MEMORY_SHARE)


def test_what_waits_is_noticed_with_its_place_and_a_product_with_its_dtype(pretend: Pretend) -> None:
    counts = pretend(passes.faulty)
    seen = (r"_local_scalar_dense at passes.py:\d+", "index_put_ by a mask", r"blocking copy of \(3,\) from pageable")
    assert all(re.match(expected, wait) for expected, wait in zip(seen, counts.waits, strict=True)), counts.waits
    assert {product.dtype for product in counts.products} == {"float32"}


# Fine-tuning, contrastive steps, encoding and evaluations

LAYERS = 2
PASSES: dict[str, tuple[Callable[..., Pass], dict[str, Any]]] = {
    "an update of GLUE": (passes.fine_tune, {}),
    "an update of GLUE in rows of fixed sizes": (passes.fine_tune, {"fixed": True}),
    "a contrastive step": (passes.contrast, {}),
    "encoding": (passes.encode, {}),
    "encoding in M0's form": (passes.encode, M0_FORM),
    "held-out loss": (passes.measure_heldout_loss, {}),
}
READS_A_RESULT = {
    "encoding": r"blocking copy of \(200, 768\) to the CPU",
    "encoding in M0's form": r"blocking copy of \(200, 768\) to the CPU",
    "held-out loss": r"blocking copy of \(\d+,\) to the CPU",
}
"""What waits for the device, once, at the end of a pass."""


@pytest.fixture(scope="module")
def done(pretend: Pretend) -> dict[str, Pass]:
    return {name: pretend(function, LAYERS, **changes) for name, (function, changes) in PASSES.items()}


@pytest.mark.parametrize("name", PASSES)
def test_nothing_else_waits_but_what_reads_a_result(done: dict[str, Pass], name: str) -> None:
    found = done[name]
    assert found.feeding.waits == found.feeding.pageable == found.work.pageable == []
    waits = [] if name not in READS_A_RESULT else [READS_A_RESULT[name]]
    assert len(found.work.waits) == len(waits), found.work.waits
    assert all(re.match(expected, wait) for expected, wait in zip(waits, found.work.waits, strict=True))


def test_an_evaluation_of_glue_reads_each_split_once(done: dict[str, Pass]) -> None:
    assert len(done["an update of GLUE"].reading.waits) == 2  # MNLI's matched and mismatched


@pytest.mark.parametrize("name", PASSES)
def test_attention_of_this_packages_encoder_takes_variable_length_kernels_alone(
    done: dict[str, Pass], name: str
) -> None:
    """Those by row have a plan or a graph for every new shape. A score bias or fp32 would need them; a pretended GPU
    has products and a softmax in their place."""
    attention = {operator for operator in done[name].work.operators if "att" in operator or "_safe_softmax" in operator}
    assert attention <= {"_varlen_attn", "_varlen_attn_backward"}


@pytest.mark.parametrize("name", PASSES)
def test_their_products_are_in_bf16_but_for_cosines(done: dict[str, Pass], name: str) -> None:
    in_fp32 = 1 if name == "a contrastive step" else 0
    found = dtypes(done[name].work)
    assert found.pop("float32", 0) == in_fp32 and set(found) == {"bfloat16"}


def test_a_trial_takes_no_more_memory_than_is_reckoned_and_hardly_less(done: dict[str, Pass]) -> None:
    """By it several workers may share a GPU."""
    trial = done["an update of GLUE in rows of fixed sizes"]
    assert trial.work.peak_bytes <= trial.reckoned_bytes <= 1.1 * trial.work.peak_bytes
