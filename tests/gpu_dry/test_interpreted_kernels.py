"""A whole compiled step of pre-training has the loss and the gradients of an eager one, with the kernels that inductor
writes for an H100. Triton's interpreter runs them on a CPU.

Torch for the CPU comes without Triton: `pip install --target FOLDER triton==3.7.1`, and NEOBERT_TRITON=FOLDER.
"""

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import product
from typing import Any

import pytest
import torch

from benchmarks.pretended_cuda import pretending_process
from neobert.errors import MissingData
from neobert.recipe import PretrainingPrecision
from tests.gpu_dry.interpreter import Passes, step

FAMILIES = [
    dict(zip(("positions", "norm", "feedforward"), names, strict=True))
    for names in product(("rotary", "learned"), ("rms_norm", "layer_norm"), ("swiglu", "gelu"))
]
ULPS = {"fp32": 8, "bf16": 2}
"""Distance of a gradient's numbers from those of an eager pass, in units of the last place of the largest one. In bf16
compiled kernels round less often than eager ones, so they must be as near to a pass in fp32."""


@pytest.fixture(scope="module")
def interpret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Passes]]:
    """Calls `interpreter.step` in a process that has Triton's interpreter and a pretended GPU."""
    with pytest.MonkeyPatch.context() as patch:
        if folder := os.environ.get("NEOBERT_TRITON"):
            patch.syspath_prepend(folder)
        if find_spec("triton") is None:
            pytest.skip("Triton is not installed: pip install --target FOLDER triton==3.7.1, and NEOBERT_TRITON=FOLDER")
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        try:
            with pretending_process() as process:
                yield lambda *arguments: process.submit(step, *arguments).result()
        except MissingData as reason:
            pytest.skip(str(reason))


def distances(found: Passes, precision: PretrainingPrecision, reference: str) -> dict[str, float]:
    """Ulps between the interpreted and another pass, by name; the loss as `loss`."""
    ulp = torch.finfo(torch.float32 if precision == "fp32" else torch.bfloat16).eps
    (loss, gradients), (exact_loss, exact) = found["interpreted"], found[reference]
    assert gradients.keys() == exact.keys()
    largest = {name: float(numbers.abs().max()) for name, numbers in exact.items()}
    assert all(largest.values())
    apart = {name: float((gradients[name] - exact[name]).abs().max()) / largest[name] / ulp for name in exact}
    return {"loss": abs(loss - exact_loss) / exact_loss / ulp, **apart}


@pytest.mark.drill
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("parts", FAMILIES, ids=lambda parts: ", ".join(parts.values()))
def test_drill_kernels_for_an_h100_compute_the_loss_and_gradients_of_eager_ones(
    interpret: Callable[..., Passes], parts: dict[str, Any], precision: PretrainingPrecision
) -> None:
    found = interpret(precision, parts)
    for reference in ("fp32", "eager"):
        apart = distances(found, precision, reference)
        assert all(ulps <= ULPS[precision] for ulps in apart.values()), (reference, apart)


@pytest.mark.drill
@pytest.mark.parametrize(
    ("written", "instead"),
    [(r'float\("-inf"\)', "0.0"), (r"libdevice\.rsqrt", "libdevice.sqrt")],
    ids=["columns beyond the vocabulary count", "another function"],
)
def test_drill_a_fault_in_a_kernel_is_seen(interpret: Callable[..., Passes], written: str, instead: str) -> None:
    apart = distances(interpret("fp32", FAMILIES[0], (written, instead)), "fp32", "eager")
    assert max(apart.values()) > 100 * ULPS["fp32"], apart


@pytest.mark.drill
def test_drill_a_store_beyond_a_buffer_is_seen(interpret: Callable[..., Passes]) -> None:
    with pytest.raises(AssertionError, match="written beyond a buffer"):
        interpret("fp32", FAMILIES[0], (r"(tl\.store\(.*), [xr0_]+mask\w*(?: & \w+)*\)", r"\1, None)"))
