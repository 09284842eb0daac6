"""A step of pre-training on a pretended GPU: it waits for nothing, multiplies in bf16, and has the memory computed."""

import re
from typing import Any

import pytest

from tests.gpu_dry import passes
from tests.gpu_dry.conftest import Pretend
from tests.gpu_dry.passes import M0_FORM, Pass, dtypes

MEMORY_SHARE = 0.05
"""How far the model of memory may lie from the pretended peak."""

FORMS: dict[str, dict[str, Any]] = {"NeoBERT 8 × 768": {"layers": 8}, "M0 form 4 × 768": {"layers": 4, **M0_FORM}}
"""The model of memory at full depth is that of test_peaks.py."""
SMALL: dict[str, Any] = {"layers": 2, "slots": 8192}


@pytest.fixture(scope="module")
def steps(pretend: Pretend) -> dict[str, Pass]:
    return {name: pretend(passes.pretrain, **changes) for name, changes in FORMS.items()}


@pytest.fixture(scope="module")
def sound(pretend: Pretend) -> Pass:
    """A step of two blocks without a fault."""
    step: Pass = pretend(passes.pretrain, **SMALL)
    return step


@pytest.mark.parametrize("form", FORMS)
def test_a_step_waits_for_nothing_and_reading_its_numbers_waits_once(steps: dict[str, Pass], form: str) -> None:
    step = steps[form]
    assert step.feeding.waits == step.feeding.pageable == []
    assert step.work.waits == step.work.pageable == []
    assert len(step.reading.waits) == 1 and step.reading.waits[0].startswith("event.synchronize")


@pytest.mark.parametrize("form", FORMS)
def test_all_products_are_in_bf16(steps: dict[str, Pass], form: str) -> None:
    assert set(dtypes(steps[form].work)) == {"bfloat16"}


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_all_matrices_are_aligned_to_16_bytes(steps: dict[str, Pass], form: str) -> None:
    """Others take CUDA's slow kernels. The vocabulary of 30,522 is none such."""
    assert all(product.inner % 8 == product.columns % 8 == 0 for product in steps[form].work.products)


@pytest.mark.parametrize("form", FORMS)
def test_the_model_of_memory_is_right(steps: dict[str, Pass], form: str) -> None:
    assert steps[form].reckoned_bytes == pytest.approx(steps[form].work.peak_bytes, rel=MEMORY_SHARE)


def test_finding_out_where_a_loss_is_not_finite_takes_the_memory_of_the_step(pretend: Pretend) -> None:
    step, explanation = pretend(passes.explain_a_loss, layers=2)
    assert explanation <= step


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("a number is read in every block", r"_local_scalar_dense at faults.py:\d+"),
        ("a mask selects", "index_put_ by a mask"),
        ("a tensor comes from pageable memory", r"blocking copy of \(768,\) from pageable memory to cuda"),
    ],
)
def test_what_waits_is_noticed_with_its_place(pretend: Pretend, fault: str, seen: str) -> None:
    step: Pass = pretend(passes.pretrain, fault=fault, **SMALL)
    assert sum(bool(re.match(seen, wait)) for wait in step.work.waits) == 2


def test_memory_that_is_kept_is_noticed(pretend: Pretend, sound: Pass) -> None:
    step: Pass = pretend(passes.pretrain, fault="a block is kept", **SMALL)
    of_block = 2 * 768 * SMALL["slots"]
    assert step.work.peak_bytes - sound.work.peak_bytes == pytest.approx(2 * of_block, rel=0.5)


def test_products_in_another_dtype_are_noticed(pretend: Pretend) -> None:
    step: Pass = pretend(passes.pretrain, fault="products in fp32", **SMALL)
    assert dtypes(step.work)["float32"] > 0
