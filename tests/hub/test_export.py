"""`python -m neobert.export`: whole folders that compute what the run computes, or none."""

import json
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

import neobert.hub  # noqa: F401 - registers the classes
from neobert import own_code
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_OFF, EXIT_REFUSED, DamagedFile, MissingData
from neobert.export import checkpoint
from neobert.export.__main__ import main
from neobert.runs.run_file import read_run_file
from neobert.training import checkpoints
from tests.support.exported_runs import M0_FORM, m0_folder, write_checkpoints
from tests.support.own_parts import Halved
from tests.support.tiny_runs import STEPS, finish, tiny_run, write_tiny_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run with its milestones."""
    root = tmp_path_factory.mktemp("runs")
    run = tiny_run()
    folder = write_tiny_run(root, run)
    finish(root, run.reference)
    return folder


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("exports") / "hf"
    assert main([str(trained), "--to", "hf", "--out", str(out)]) == EXIT_DONE
    return out


def test_the_folder_holds_what_transformers_needs_and_nothing_else(exported: Path) -> None:
    names = {path.name for path in exported.iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert [path.name for path in exported.parent.iterdir()] == ["hf"]


def test_it_reloads_through_the_auto_classes_to_the_runs_weights(trained: Path, exported: Path) -> None:
    weights = load_file(trained / "checkpoints" / f"step-{STEPS:08d}" / "model.safetensors")
    model, info = AutoModelForMaskedLM.from_pretrained(exported, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert model.state_dict().keys() == weights.keys()
    tokenizer = AutoTokenizer.from_pretrained(exported)
    tokens = tokenizer(["the cat", "a [MASK] that sleeps"], ["a dog", "x"], padding=True, return_tensors="pt")
    assert set(tokens) == {"input_ids", "attention_mask"}
    assert tokens["input_ids"][1, 2] == tokenizer.mask_token_id and tokenizer.model_max_length == 32
    assert model(**tokens).logits.isfinite().all()


@pytest.mark.parametrize("step", [0, STEPS // 4])
def test_every_milestone_is_exported_with_its_own_weights(trained: Path, tmp_path: Path, step: int, capsys) -> None:
    out = tmp_path / "out"
    assert main([str(trained), "--to", "hf", "--out", str(out), "--step", str(step)]) == EXIT_DONE
    said = json.loads(capsys.readouterr().out)
    assert said["step"] == step and 0 <= said["parity"]["vectors"] <= 1e-5
    expected = load_file(trained / "checkpoints" / f"step-{step:08d}" / "model.safetensors")
    assert torch.equal(load_file(out / "model.safetensors")["decoder.bias"], expected["decoder.bias"])
    assert "None are recorded for this step, a checkpoint on the way" in (out / "README.md").read_text()


def test_the_card_says_what_the_model_is(trained: Path, exported: Path) -> None:
    card = (exported / "README.md").read_text()
    record = json.loads((trained / "done.json").read_text())
    metadata = ModelCard(card).data
    assert (metadata.license, metadata.library_name, metadata.pipeline_tag) == ("mit", "transformers", "fill-mask")
    assert "synthetic" in metadata.tags and "\n\n**A check of the pipeline, not for use:**" in card
    for corpus, loss in record["scores"]["heldout_loss"].items():
        assert f"| held-out loss on {corpus}, nats per masked token | {loss:.4f} |" in card
    assert f"step {STEPS}" in card and "| token slots read | 6.144k |" in card
    for section in ("Use", "Model", "Scores", "Recipe", "Limits", "Parity", "Licence", "Citation"):
        assert f"\n\n## {section}\n\n" in card and "{" not in card.split("## Recipe")[0]
    recipe = json.loads(re.search(r"## Recipe\n\n```json\n(.*?)```", card, re.DOTALL).group(1))
    assert recipe["model"]["width"] == 16 and recipe["masking"]["rate"] == 0.2


def test_own_parts_and_tied_embeddings_are_exported_with_their_text(tmp_path, monkeypatch) -> None:
    """The folder is read once it is trusted, and its text has the hash in its name."""
    start = {**dict(M0_FORM.initialization), "embedding_scale": 0.1}  # of tied embeddings come the logits
    changes = {"feedforward": Halved, "block": "post_norm", "tied_embeddings": True, "initialization": start}
    model = type(M0_FORM).model_validate({**dict(M0_FORM), **changes})
    run, out = write_checkpoints(tmp_path / "runs", tiny_run(model=model), 0), tmp_path / "out"
    command = [str(run), "--to", "hf", "--step", "0", "--out", str(out)]
    assert main(command) == EXIT_DONE
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


# Refusals and parity


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["RUN", "--out", "EMPTY"], EXIT_REFUSED, "exists: name a new folder"),
        (["EMPTY"], EXIT_MISSING, "holds no run.json"),
        (["UNFINISHED"], EXIT_MISSING, "is not finished: name a checkpoint with --step (there: 0)"),
        (["RUN", "--step", "7"], EXIT_MISSING, "no checkpoint of step 7 (there: 0,"),
    ],
)
def test_what_cannot_be_exported_ends_with_a_sentence_and_its_code(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, said: str
) -> None:
    places = {"RUN": trained, "EMPTY": tmp_path / "empty"}
    places["EMPTY"].mkdir()
    if "UNFINISHED" in flags:
        places["UNFINISHED"] = m0_folder(tmp_path)
    given = [str(places.get(flag, flag)) for flag in flags]
    out = [] if "--out" in flags else ["--out", str(tmp_path / "out")]
    assert main([*given, *out, "--to", "hf"]) == code
    assert said in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("weights", "tensor decoder.bias"),
        ("function", "differs from the run by"),
        ("tokenizer", "differs from the run"),
    ],
)
def test_an_export_that_differs_is_never_published(
    damage: str, said: str, trained: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    original = checkpoint.open_checkpoint

    def damaged(folder: Path, step: int | None) -> checkpoint.ExportSource:
        opened = original(folder, step)
        if damage == "weights":
            with torch.no_grad():
                opened.model.decoder.bias[3] += 1e-6
        elif damage == "function":
            opened.model.config.rotary_base = 100.0
        else:
            opened.tokenizer.backend_tokenizer.post_processor = None
        return opened

    monkeypatch.setattr(checkpoint, "open_checkpoint", damaged)
    assert main([str(trained), "--to", "hf", "--out", str(tmp_path / "out")]) == EXIT_OFF
    assert said in capsys.readouterr().err and list(tmp_path.iterdir()) == []
