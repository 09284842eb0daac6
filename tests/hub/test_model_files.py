"""A model's id covers every file that is read: nothing else of its folder decides anything, and nothing outside it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from neobert.errors import MissingData
from neobert.executors.external import resolve_model
from neobert.external import external_id, locate, model_files, tokenizer_files
from neobert.hub.external import load_external
from neobert.runs.layout import Layout
from tests.support import external_models as world

TEXTS = ["the cat sleeps", "a bird sees the old cat"]
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
DECOYS = {
    "adapter_config.json": b'{"base_model_name_or_path": "elsewhere", "peft_type": "LORA"}',
    "adapter_model.safetensors": b"no tensors",
    "generation_config.json": b"{",
    "chat_template.jinja": b"{{ nothing }}",
    "preprocessor_config.json": b"{",
    "model.fp16.safetensors": b"no tensors",
    "tokenizer.model.v3": b"no pieces",
    "modeling_bert.py": b"raise SystemExit('executed')",
    "requirements.txt": b"nothing==0",
    "1_Pooling/weights.bin": b"nothing",
}
"""What transformers, tokenizers or peft would look at in some folders, spoiled."""


def sharded(folder: Path, names: list[str]) -> Path:
    """The same model with its tensors in files of these names behind an index."""
    world.save(world.seeded(world.bert), folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {name: list(weights)[place :: len(names)] for place, name in enumerate(names)}
    for name, keys in parts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        save_file({key: weights[key] for key in keys}, folder / name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: name for name, keys in parts.items() for key in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def sentence_folder(folder: Path) -> Path:
    world.save(world.seeded(world.bert), folder, token_types=True)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9, "do_lower_case": false}')
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "the "}}')
    return folder


BUILD = {
    "one file": lambda folder: world.save(world.seeded(world.bert), folder),
    "shards": lambda folder: sharded(folder, ["model-00001-of-00002.safetensors", "sub/b.safetensors"]),
    "sentence-transformers": sentence_folder,
}


@pytest.fixture(params=BUILD)
def built(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of each kind."""
    return BUILD[request.param](tmp_path / "model")


def test_the_files_of_the_id_are_the_model(tmp_path: Path, built: Path) -> None:
    """A copy of them alone has the id and the vectors, and so has the folder among files that would spoil it."""
    folder, layout = built, Layout(tmp_path / "runs")
    model = resolve_model(layout, str(folder))
    assert model.id.startswith("model-") and not layout.root.exists(), "looking at a model writes nothing"
    vectors = world.text_encoder(model, layout.root).encode(TEXTS)
    for name in model.origin:
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, tmp_path / "copy" / name)
    for name, content in DECOYS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for place in (folder, tmp_path / "copy"):
        again = resolve_model(layout, str(place))
        assert again.id == model.id
        assert np.array_equal(world.text_encoder(again, layout.root).encode(TEXTS), vectors)


def test_every_file_of_the_id_counts(built: Path) -> None:
    """A file of the tokenizer, and no other, also changes that of the tokenizer."""
    folder = built
    before = locate(str(folder))
    assert set(before.origin) == set(model_files(folder, "model"))
    for name in before.origin:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content + b" ")
        after = locate(str(folder))
        assert external_id(after.origin) != external_id(before.origin), name
        assert (after.tokenizer_origin != before.tokenizer_origin) == (name in tokenizer_files(folder))
        (folder / name).write_bytes(content)
    assert locate(str(folder)) == before


def test_ids_of_records_that_are_there_stay_as_they_are(tmp_path: Path) -> None:
    """The name of a plain folder, from the digests of its files, as records have had it since they were first made."""
    files = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    assert external_id({name: f"{place:064x}" for place, name in enumerate(files)}) == "model-dc5c4559363c"
    assert set(locate(str(world.save(world.seeded(world.bert), tmp_path / "model"))).origin) == set(files)


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "/tmp/other.safetensors", "a/../../b.safetensors", "..\\b", "c.bin", "d.safetensors"],
)
def test_an_index_that_names_something_else_than_weights_in_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = sharded(tmp_path / "model", ["model-00001-of-00001.safetensors"])
    shutil.copy(folder / "model-00001-of-00001.safetensors", tmp_path / "other.safetensors")
    (folder / "c.bin").write_bytes(b"a pickle")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"][next(iter(index["weight_map"]))] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for read in (lambda: locate(str(folder)), lambda: load_external(folder, "model")):
        with pytest.raises(MissingData, match=f"names {re.escape(name)}, which is no safetensors file in the folder"):
            read()


@pytest.mark.parametrize("content", ["[]", "{}", "{", "[" * 100_000], ids=lambda content: content[:2])
def test_an_index_that_is_none_is_to_be_fetched_again(tmp_path: Path, content: str) -> None:
    folder = sharded(tmp_path / "model", ["a.safetensors"])
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match="fetch it again"):
        locate(str(folder))


def test_a_configuration_that_names_its_own_weights_is_refused(tmp_path: Path) -> None:
    folder = world.save(world.seeded(world.bert), tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "transformers_weights": "other.safetensors"}))
    with pytest.raises(ValueError, match="names its weights itself"):
        locate(str(folder))
