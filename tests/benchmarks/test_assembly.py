"""The compiled step's Triton kernels assemble for GPUs that are not here."""

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks.contenders import neobert_recipe
from benchmarks.pretended_cuda import pretending_process
from benchmarks.roofline import CONTEXTS, first_batch
from neobert.errors import MissingData
from neobert.recipe import PretrainingPrecision
from tests.benchmarks.assembly import assemble_kernels

TRITON = Path(__file__).parents[2] / ".venv" / "triton"
"""Where `make drills` puts it: a torch for CPUs comes without."""

SLOTS = 4096
HOPPER, AMPERE = 90, 80
ANGLES = r"(tl_math|libdevice)\.(sin|cos|pow)\("
EXPONENTIALS = r"(tl_math|libdevice)\.exp2?\("


@pytest.mark.drill
@pytest.mark.parametrize("precision", ["bf16", "bf16_residual"])
def test_every_kernel_assembles_and_none_computes_angles(
    precision: PretrainingPrecision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cosines and sines are read from a table. Exponentials are found, so that the search is known to work."""
    if importlib.util.find_spec("triton") is None:
        if not TRITON.is_dir():
            pytest.skip("no Triton: `make drills` installs it")
        monkeypatch.syspath_prepend(TRITON)  # the process inherits it
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    recipe = neobert_recipe(precision, layers=2)
    batch = first_batch(recipe, CONTEXTS[0], SLOTS, "compiled")
    try:
        with pretending_process() as process:
            assembled = process.submit(assemble_kernels, tmp_path, recipe, batch, (HOPPER, AMPERE)).result()
    except MissingData as reason:
        pytest.skip(str(reason))
    for kernels in assembled.values():
        assert len(kernels) > 20
        assert all(kernel.machine_code_bytes > 0 for kernel in kernels)
        assert not any(re.search(ANGLES, kernel.source) for kernel in kernels)
        assert any(re.search(EXPONENTIALS, kernel.source) for kernel in kernels)
