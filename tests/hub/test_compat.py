"""The same folder under the oldest supported transformers and the installed one; `make test-compat` runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

from neobert.processes import REPOSITORY
from tests.support.exported_runs import RUN_FOLDERS, export_start

OLDEST = os.environ.get("OLDEST_TRANSFORMERS")
TEXTS = ["the cat sleeps", "a dog and a cat and a bird"]

LOAD_ELSEWHERE = """
import sys, torch, transformers, neobert.hub
from safetensors.torch import save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer
folder, out, *texts = sys.argv[1:]
tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
model, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
again = AutoModelForMaskedLM.from_pretrained(folder)
assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
with torch.no_grad():
    save_file({"logits": model(**tokens).logits, "input_ids": tokens["input_ids"]}, out)
print(transformers.__version__)
"""


@pytest.mark.skipif(
    OLDEST is None, reason="OLDEST_TRANSFORMERS names no folder with transformers 5.17: make test-compat"
)
@pytest.mark.parametrize("form", RUN_FOLDERS)
def test_oldest_and_installed_transformers_give_equal_outputs(form: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "exported", tmp_path / "logits.safetensors"
    export_start(RUN_FOLDERS[form](tmp_path), folder, "hf")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(OLDEST), str(REPOSITORY)])}
    command = [sys.executable, "-W", "error", "-c", LOAD_ELSEWHERE, str(folder), str(out), *TEXTS]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "5.17.0" != transformers.__version__
    found = load_file(out)
    tokens = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    assert torch.equal(found["input_ids"], tokens["input_ids"])
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(folder)(**tokens).logits
    torch.testing.assert_close(found["logits"], logits, rtol=0, atol=1e-6)
