"""Exports in another interpreter: transformers alone loads those with code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

import neobert.hub
from neobert import own_code
from neobert.errors import EXIT_REFUSED, DamagedFile, MissingData
from neobert.export import huggingface
from neobert.export.__main__ import main
from neobert.runs.run_file import read_run_file
from neobert.training import checkpoints
from tests.support.exported_runs import M0_FORM, export_start, neobert_folder, write_checkpoints
from tests.support.own_parts import Halved
from tests.support.tiny_runs import tiny_run

SITE_PACKAGES = Path(torch.__file__).parents[1]
TEXTS = ["the cat sleeps", "a dog and a cat and a bird"]

WITHOUT_THE_PACKAGE = """
import importlib.util, sys
packages, folder, sentences, scratch = sys.argv[1:]
sys.path.append(packages)
assert importlib.util.find_spec("neobert") is None
import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification,
                          AutoModelForTokenClassification, AutoTokenizer)

tokens = load_file(f"{scratch}/tokens.safetensors")
again = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)(TEXTS, padding=True, return_tensors="pt")
assert torch.equal(again["input_ids"], tokens["input_ids"])
states = AutoModel.from_pretrained(folder, trust_remote_code=True)(**tokens).last_hidden_state
model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)
eager = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True, attn_implementation="eager")
found = {"states": states, "logits": model(**tokens).logits, "eager": eager(**tokens).logits}
AutoModelForTokenClassification.from_pretrained(folder, trust_remote_code=True)
torch.manual_seed(0)
classifier = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True, num_labels=3)
classifier.save_pretrained(f"{scratch}/saved")
again = AutoModelForSequenceClassification.from_pretrained(f"{scratch}/saved", trust_remote_code=True)
found["classes"] = again(**tokens).logits
assert torch.equal(found["classes"], classifier(**tokens).logits)
if importlib.util.find_spec("sentence_transformers"):
    from sentence_transformers import SentenceTransformer
    vectors = SentenceTransformer(sentences, trust_remote_code=True, device="cpu").encode(TEXTS)
    found["vectors"] = torch.from_numpy(vectors)
save_file({name: tensor.detach().contiguous() for name, tensor in found.items()}, f"{scratch}/out.safetensors")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return neobert_folder(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory) -> Path:
    return export_start(run, tmp_path_factory.mktemp("exports") / "model.v1-x", "hf", "--remote-code")


def test_it_loads_without_this_package_to_equal_outputs(run: Path, exported: Path, tmp_path: Path) -> None:
    """All Auto classes and sentence-transformers, in an interpreter that cannot find this package; a saved copy carries
    the code on."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    sentences = export_start(run, tmp_path / "sentences", "sentence-transformers", "--remote-code")
    tokens = AutoTokenizer.from_pretrained(exported)(TEXTS, padding=True, return_tensors="pt")
    save_file(dict(tokens), tmp_path / "tokens.safetensors")
    code = f"TEXTS = {TEXTS!r}\n{WITHOUT_THE_PACKAGE}"
    command = [sys.executable, "-I", "-S", "-W", "error::UserWarning", "-c", code]
    process = subprocess.run(
        [*command, str(SITE_PACKAGES), str(exported), str(sentences), str(tmp_path)],
        env=os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = load_file(tmp_path / "out.safetensors")
    with torch.no_grad():
        states = AutoModel.from_pretrained(exported)(**tokens).last_hidden_state
        logits = AutoModelForMaskedLM.from_pretrained(exported)(**tokens).logits
        classes = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")(**tokens).logits
    mask = tokens["attention_mask"].unsqueeze(-1)
    vectors = (states * mask).sum(1) / mask.sum(1)
    expected = {"states": states, "logits": logits, "eager": logits, "classes": classes, "vectors": vectors}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)


def test_with_the_package_its_own_classes_load_and_what_they_save_names_no_code(exported: Path, tmp_path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(exported, trust_remote_code=True)
    assert type(model) is neobert.hub.NeoBERTForMaskedLM
    model.save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


def test_the_code_is_the_packages_own_with_nothing_but_imports_changed(exported: Path) -> None:
    for name, content in huggingface.remote_modules().items():
        assert (exported / f"{name}.py").read_text() == content
        source = Path(huggingface.__file__).parents[2] / f"{content.split()[1].replace('.', '/')}.py"
        unlike = set(content.splitlines()[1:]) ^ set(source.read_text().splitlines())
        assert all(re.match(r"\s*from (\.|neobert)", line) for line in unlike), unlike
        assert not re.search(r"^\s*(from|import) neobert", content, re.MULTILINE)
    assert "`trust_remote_code=True`" in (exported / "README.md").read_text()


def test_own_parts_and_tied_embeddings_are_exported_with_their_text(tmp_path, monkeypatch, capsys) -> None:
    """The folder is read once it is trusted, and its text has the hash in its name."""
    start = {**dict(M0_FORM.initialization), "embedding_scale": 0.1}  # of tied embeddings come the logits
    changes = {"feedforward": Halved, "block": "post_norm", "tied_embeddings": True, "initialization": start}
    model = type(M0_FORM).model_validate({**dict(M0_FORM), **changes})
    run, out = write_checkpoints(tmp_path / "runs", tiny_run(model=model), 0), tmp_path / "out"
    command = [str(run), "--to", "hf", "--step", "0", "--out", str(out)]
    assert main([*command, "--remote-code"]) == EXIT_REFUSED
    assert "without own parts: leave it out" in capsys.readouterr().err
    assert main(command) == 0 and not list(out.glob("*.py"))
    config, card = json.loads((out / "config.json").read_text()), (out / "README.md").read_text()
    assert config["feedforward"] == read_run_file(run).run.recipe.model.feedforward and config["tie_word_embeddings"]
    assert "a user's own code" in card and "trust_folder" in card
    monkeypatch.setattr(own_code, "_sources", {})
    monkeypatch.setattr(own_code, "_modules", {})
    with pytest.raises(ValueError, match=r"the source of Halved@\w+ is not known here: .*trust_folder\(FOLDER\)"):
        AutoModelForMaskedLM.from_pretrained(out)
    with pytest.raises(MissingData, match="needs no own code"):
        own_code.trust_folder(tmp_path)
    own_code.trust_folder(out)
    loaded = AutoModelForMaskedLM.from_pretrained(out)
    assert loaded.decoder.weight is loaded.model.encoder.weight
    saved = checkpoints.load(run / "checkpoints", 0).weights()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.state_dict().items())
    path = out / own_code.SOURCES
    path.write_text(path.read_text().replace("/ 2", "/ 3"))
    with pytest.raises(DamagedFile, match="was changed since it was named"):
        own_code.trust_folder(out)
