"""Baselines of the paper load in the layouts in which they are published, or are refused in one sentence."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from neobert.errors import DamagedFile, MissingData
from neobert.executors.external import resolve_model
from neobert.external import locate
from neobert.hub.external import load_external
from neobert.runs.layout import Layout
from tests.support.external_models import bert, save, seeded, text_encoder
from tests.support.published_layouts import (
    nomic_hidden_states,
    nomic_weights,
    save_nomic,
    save_remote,
)

TEXTS = ["the cat sleeps", "a bird sees the old cat", "the cat sleeps"]


# NomicBERT


def test_nomicbert_as_published_computes_what_its_formula_says(tmp_path: Path) -> None:
    folder = save_nomic(tmp_path / "nomic")
    encoder, tokenizer = load_external(folder, "nomic")
    ((ids, types, _),) = tokenizer.frame_all([[TEXTS[1]], [TEXTS[0]]], max_tokens=40)
    assert types is not None and set(types) == {0, 1}
    token_ids, token_types = torch.tensor([ids]), torch.tensor([types])
    with torch.no_grad():
        found = encoder.eval()(token_ids, torch.ones_like(token_ids), token_types)[0]
    expected = nomic_hidden_states(nomic_weights(), token_ids[0], token_types[0])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_nomicbert_that_is_saved_again_is_one_of_transformers(tmp_path: Path) -> None:
    """As an export saves it: AutoModel finds every tensor by itself."""
    encoder, _ = load_external(save_nomic(tmp_path / "nomic"), "nomic")
    encoder.encoder.save_pretrained(tmp_path / "saved")
    again, report = AutoModel.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    found = again.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in encoder.encoder.state_dict().items())


def test_nomicbert_reads_as_many_tokens_as_its_positions_are_unscaled(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "runs")
    plain = resolve_model(layout, str(save_nomic(tmp_path / "plain", n_positions=40)))
    scaled = resolve_model(
        layout, str(save_nomic(tmp_path / "scaled", n_positions=40, rotary_scaling_factor=2, max_trained_positions=10))
    )
    assert (plain.context, scaled.context) == (40, 10) and plain.model_type == "nomic_bert"


@pytest.mark.parametrize(
    ("key", "value"), [("prenorm", True), ("qkv_proj_bias", True), ("rotary_emb_fraction", 0.5), ("causal", True)]
)
def test_what_the_native_class_does_not_do_is_refused(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"nomic sets {key} to {value!r}"):
        load_external(save_nomic(tmp_path / "nomic", **{key: value}), "nomic")


# Code in a folder


@pytest.mark.parametrize("repository", ["", "Alibaba-NLP/new-impl"])
def test_code_beside_a_model_runs_where_it_is_trusted(tmp_path: Path, repository: str) -> None:
    """Also where config.json names the repository that the files come from; tables that are not saved are computed."""
    folder = save_remote(tmp_path / "model", repository=repository)
    layout = Layout(tmp_path / "runs")
    with pytest.raises(ValueError, match="runs only with --trust-remote-code"):
        resolve_model(layout, str(folder))
    model = resolve_model(layout, str(folder), trusts_code=True)
    assert model.origin.keys() > {"configuration.py", "modeling.py"}
    encoder, _ = load_external(model.require_unchanged(), model.name, model.trusts_code)
    token_ids = torch.arange(10, 16)[None]
    hidden = load_file(folder / "model.safetensors")["embeddings.weight"][token_ids[0]]
    hidden = hidden * (1 + torch.arange(6).float().sin()[:, None])
    mixing = load_file(folder / "model.safetensors")["mixing.weight"]
    with torch.no_grad():
        found = encoder.eval()(token_ids, torch.ones_like(token_ids))[0]
    torch.testing.assert_close(found, hidden + hidden.mean(0) @ mixing.T, atol=1e-6, rtol=0)


def test_changed_code_is_another_model_and_is_not_run_by_a_worker(tmp_path: Path) -> None:
    folder, witness = save_remote(tmp_path / "model"), tmp_path / "executed"
    model = resolve_model(Layout(tmp_path / "runs"), str(folder), trusts_code=True)
    with (folder / "modeling.py").open("a") as code:
        code.write(f"\nopen({str(witness)!r}, 'w').close()\n")
    with pytest.raises(DamagedFile, match="are not those that"):
        text_encoder(model, tmp_path / "runs")
    assert not witness.exists()
    changed = resolve_model(Layout(tmp_path / "runs"), str(folder), trusts_code=True)
    assert changed.id != model.id and witness.exists()


def test_a_module_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = save_remote(tmp_path / "model", repository="org/code")
    (folder / "modeling.py").unlink()
    with pytest.raises(ValueError, match=r"has no modeling\.py of org/code.*prefetch"):
        resolve_model(Layout(tmp_path / "runs"), str(folder), trusts_code=True)


@pytest.mark.parametrize("place", ["{}/other", "../other", "other"])
def test_code_outside_the_folder_is_not_run(tmp_path: Path, place: str) -> None:
    folder = save_remote(tmp_path / "model")
    (tmp_path / "other.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\nclass New: ...\n")
    content = json.loads((folder / "config.json").read_text())
    content["auto_map"]["AutoModel"] = f"{place.format(tmp_path)}.New"
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"has no .*other\.py, which its auto_map names"):
        resolve_model(Layout(tmp_path / "runs"), str(folder), trusts_code=True)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["org/model", "org/model@main", "org/model@abc1234"])
def test_code_of_the_hub_is_run_at_a_commit_alone(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="org/model@<40 hexadecimal digits>"):
        locate(name, trusts_code=True)


def test_a_model_of_the_hub_is_named_by_repository_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, from the cache as huggingface_hub lays it out: at the commit that is named or that main stands at. Code
    is part of the id."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    layout, cached = Layout(tmp_path / "runs"), tmp_path / "models--org--model"
    coded, *plain = (digit * 40 for digit in "cab")
    save_remote(cached / "snapshots" / coded)
    model = resolve_model(layout, f"org/model@{coded}", trusts_code=True)
    assert model.name == "org/model" and model.origin["revision"] == coded
    assert model.origin.keys() == {"repository", "revision", "configuration.py", "modeling.py"}
    with pytest.raises(MissingData, match="the hub gave no such model"):
        resolve_model(layout, f"org/model@{'d' * 40}", trusts_code=True)
    (cached / "refs").mkdir()
    ids = {model.id}
    for commit in plain:
        save(seeded(bert), cached / "snapshots" / commit)
        (cached / "refs" / "main").write_text(commit)
        model = resolve_model(layout, "org/model")
        assert model.origin == {"repository": "org/model", "revision": commit} and model.name == "org/model"
        ids.add(model.id)
    assert len(ids) == 3
