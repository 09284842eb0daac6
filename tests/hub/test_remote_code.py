"""Exports that carry the model's code: transformers alone loads them, without this package, to the same outputs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

import neobert.hub
from neobert import own_code
from neobert.errors import EXIT_OFF, DamagedFile, MissingData
from neobert.export import remote_code
from neobert.export.__main__ import main
from neobert.model.layers import GELUFeedForward
from neobert.runs.run_file import read_run_file
from neobert.training import checkpoints
from tests.support.exported_runs import M0_FORM, export_start, neobert_folder, write_checkpoints
from tests.support.tiny_runs import tiny_run

OLDEST = os.environ.get("OLDEST_TRANSFORMERS")
SITE_PACKAGES = Path(torch.__file__).parents[1]
TEXTS = ["the cat sleeps", "a dog and a cat and a bird"]

WITHOUT_THE_PACKAGE = """
import importlib.util, sys
*paths, scratch, first, second = sys.argv[1:]
sys.path += paths
assert importlib.util.find_spec("neobert") is None
import torch, transformers
from safetensors.torch import load_file, save_file
from transformers import (AutoModel, AutoModelForMaskedLM, AutoModelForQuestionAnswering,
                          AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer)

for number, folder in enumerate((first, second)):
    out, saved = f"{scratch}/{number}.safetensors", f"{scratch}/{number}"
    tokens = load_file(out)
    again = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)({texts!r}, padding=True, return_tensors="pt")
    assert torch.equal(again["input_ids"], tokens["input_ids"])
    states = AutoModel.from_pretrained(folder, trust_remote_code=True)(**tokens).last_hidden_state
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)
    eager = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True, attn_implementation="eager")
    found = {"states": states, "logits": model(**tokens).logits, "eager": eager(**tokens).logits}
    for auto in (AutoModelForQuestionAnswering, AutoModelForTokenClassification):
        auto.from_pretrained(folder, trust_remote_code=True)
    torch.manual_seed(0)
    classifier = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True, num_labels=3)
    classifier.save_pretrained(saved)
    again = AutoModelForSequenceClassification.from_pretrained(saved, trust_remote_code=True)
    found["classes"] = again(**tokens).logits
    assert torch.equal(found["classes"], classifier(**tokens).logits)
    save_file({name: tensor.detach().contiguous() for name, tensor in found.items()}, out)
print(transformers.__version__)
"""


class Halved(GELUFeedForward):
    """Own code of these tests."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) / 2


def own_folder(root: Path) -> Path:
    """An unfinished run in M0's form with an own part and tied embeddings."""
    start = {**dict(M0_FORM.initialization), "embedding_scale": 0.1}  # of tied embeddings come the logits
    changes = {"feedforward": Halved, "block": "post_norm", "tied_embeddings": True, "initialization": start}
    return write_checkpoints(root, tiny_run(model=type(M0_FORM).model_validate({**dict(M0_FORM), **changes})), 0)


FORMS = {"NeoBERT form": neobert_folder, "M0 form with an own part": own_folder}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A run's folder of each form, by its name."""
    return {form: make(tmp_path_factory.mktemp("runs")) for form, make in FORMS.items()}


@pytest.fixture(scope="module")
def exports(runs: dict[str, Path], tmp_path_factory) -> dict[str, Path]:
    """Their exports."""
    folders = {form: tmp_path_factory.mktemp("exports") / "model.v1-x" for form in runs}
    return {form: export_start(run, folders[form], "hf", "--remote-code") for form, run in runs.items()}


@pytest.fixture(params=FORMS)
def exported(request, exports: dict[str, Path]) -> Path:
    return exports[request.param]


@pytest.mark.parametrize("oldest", [False, True], ids=["installed", "oldest"])
def test_it_loads_with_transformers_alone_to_equal_outputs(
    exports: dict[str, Path], tmp_path: Path, oldest: bool
) -> None:
    """All Auto classes, in an interpreter that cannot find this package; a saved copy carries the code on."""
    if oldest and OLDEST is None:
        pytest.skip("OLDEST_TRANSFORMERS names no folder with transformers 5.17: make test-compat")
    folders = list(exports.values())
    for number, folder in enumerate(folders):
        tokens = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
        save_file(dict(tokens), tmp_path / f"{number}.safetensors")
    paths = [str(Path(OLDEST).resolve())] * oldest if OLDEST else []
    code = WITHOUT_THE_PACKAGE.replace("{texts!r}", repr(TEXTS))
    command = [sys.executable, "-I", "-S", "-W", "error::UserWarning", "-c", code, *paths]
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [*command, str(SITE_PACKAGES), str(tmp_path), *map(str, folders)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split()[-1] == ("5.17.0" if oldest else transformers.__version__)
    for number, folder in enumerate(folders):
        found = load_file(tmp_path / f"{number}.safetensors")
        tokens = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = AutoModelForMaskedLM.from_pretrained(folder)(**tokens).logits
            expected = {
                "states": AutoModel.from_pretrained(folder)(**tokens).last_hidden_state,
                "logits": logits,
                "eager": logits,
                "classes": AutoModelForSequenceClassification.from_pretrained(tmp_path / str(number))(**tokens).logits,
            }
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)


def test_with_the_package_its_own_classes_load_and_what_they_save_names_no_code(exported: Path, tmp_path) -> None:
    model = AutoModelForMaskedLM.from_pretrained(exported, trust_remote_code=True)
    assert type(model) is neobert.hub.NeoBERTForMaskedLM
    model.save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


def test_the_code_is_the_packages_own_with_nothing_but_imports_changed(exports: dict[str, Path]) -> None:
    exported = exports["NeoBERT form"]
    for name, content in remote_code.remote_modules({}).items():
        assert (exported / f"{name}.py").read_text() == content
        source = Path(remote_code.__file__).parents[2] / f"{content.split()[1].replace('.', '/')}.py"
        own_imports = re.compile(r"from neobert[\w.]* import \([^)]*\)")
        on_one_line = own_imports.sub(lambda found: found[0].replace("\n", ""), source.read_text())
        unlike = set(content.splitlines()[1:]) ^ set(on_one_line.splitlines())
        assert all(re.match(r"\s*from (\.|neobert)", line) for line in unlike), unlike
        assert not re.search(r"^\s*(from|import) neobert", content, re.MULTILINE)
    card = (exported / "README.md").read_text()
    assert "## Use without the package" in card and "trust_remote_code=True" in card and "remote code within" in card


def test_nothing_but_the_model_and_what_describes_it_is_put_there() -> None:
    packages = {name.removeprefix("neobert_").partition("_")[0] for name in remote_code.remote_modules({})}
    assert packages == {"hub", "model", "recipe", "identity", "errors", "own", "exported"}


def test_imports_become_relative_in_the_form_that_the_loader_follows() -> None:
    source = "from neobert import recipe\n\ndef f():\n    from neobert.model.attention import (\n        take,\n    )\n"
    assert remote_code.relative(source) == (
        "from . import neobert_recipe as recipe\nfrom .neobert_recipe import __name__ as _\n\n"
        "def f():\n    from .neobert_model_attention import take\n"
    )
    with pytest.raises(AssertionError, match=r"import neobert\.recipe"):
        remote_code.relative("import neobert.recipe\n")


def test_code_that_does_not_load_or_computes_something_else_is_never_published(tmp_path, monkeypatch, capsys) -> None:
    run, files = neobert_folder(tmp_path / "runs"), remote_code.remote_modules({})
    lacking = {name: content for name, content in files.items() if name != "neobert_model_attention"}
    monkeypatch.setattr(remote_code, "remote_modules", lambda own: lacking)
    command = [str(run), "--to", "hf", "--remote-code", "--step", "0", "--out", str(tmp_path / "out")]
    assert main(command) == EXIT_OFF
    assert "does not load without this package: " in capsys.readouterr().err
    other = {name: content.replace("1.0 / base", "1.1 / base") for name, content in files.items()}
    monkeypatch.setattr(remote_code, "remote_modules", lambda own: other)
    assert main(command) == EXIT_OFF
    assert "the exported remote code differs from the run" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_sentence_transformers_reads_the_code_too(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    run = neobert_folder(tmp_path / "runs")
    out = export_start(run, tmp_path / "st", "sentence-transformers", "--remote-code")
    code = (
        "import sys; sys.path.append(sys.argv[1]); from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer(sys.argv[2], trust_remote_code=True, device='cpu')\n"
        "print(model.encode(['the cat sleeps']).shape)"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(SITE_PACKAGES), str(out)]
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0 and process.stdout.strip() == "(1, 16)", process.stderr


def test_own_parts_and_tied_embeddings_are_exported_with_their_code(runs, exports, tmp_path, monkeypatch) -> None:
    """Without the package from its files; with it, once the folder is trusted, whose sources have their digests."""
    form = "M0 form with an own part"
    out, recipe = shutil.copytree(exports[form], tmp_path / "out"), read_run_file(runs[form]).run.recipe
    config, card = json.loads((out / "config.json").read_text()), (out / "README.md").read_text()
    assert config["feedforward"] == recipe.model.feedforward and config["tie_word_embeddings"]
    assert "## Own code" in card and "trust_folder" in card and "remote code within" in card
    monkeypatch.setattr(own_code, "_sources", {})
    monkeypatch.setattr(own_code, "_loaded", {})
    with pytest.raises(ValueError, match=r"the source of Halved@\w+ is not known here: .*trust_folder\(FOLDER\)"):
        AutoModelForMaskedLM.from_pretrained(out)
    with pytest.raises(MissingData, match="needs no own code"):
        own_code.trust_folder(tmp_path)
    own_code.trust_folder(out)
    loaded = AutoModelForMaskedLM.from_pretrained(out)
    assert loaded.decoder.weight is loaded.model.encoder.weight
    saved = checkpoints.load(runs[form] / "checkpoints", 0).weights()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.state_dict().items())
    path = out / own_code.SOURCES
    path.write_text(path.read_text().replace("/ 2", "/ 3"))
    with pytest.raises(DamagedFile, match="was changed since it was named"):
        own_code.trust_folder(out)
