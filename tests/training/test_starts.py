"""Continued pre-training: a run begins with the weights of another run or of an export, or refuses in a sentence."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ablations import run
from ablations.ladder import M0
from ablations.variant import Modification
from neobert import starts
from neobert.errors import EXIT_DONE, EXIT_MISSING, DamagedFile, MissingData
from neobert.executors import make_trainer
from neobert.export.__main__ import main as export
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from neobert.starts import start_files, start_from
from neobert.training import checkpoints
from neobert.training.distributed import ALONE
from tests.support.tiny_runs import tiny_model, tiny_recipe, tiny_run, tiny_stage, work, write_tiny_run
from tests.support.tree_copy import REPOSITORY

SHORT = {"steps": 4, "warmup_steps": 1, "decay_steps": 4}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    root, before = tmp_path_factory.mktemp("before"), tiny_run(stages=(tiny_stage(**SHORT),))
    folder = write_tiny_run(root, before)
    assert work(root, before.folder) == 0
    return folder


@pytest.fixture(scope="module")
def exported(finished: Path) -> Path:
    """Its export for transformers."""
    out = finished.parents[1] / "exported"
    assert export([str(finished), "--to", "hf", "--out", str(out)]) == 0
    return out


def adapted(place: Path, optimizer: Any = "fresh", **changes: object) -> PretrainingRun:
    """A run that starts from a folder, with another seed."""
    start = start_from(place, optimizer)
    return tiny_run(stages=(tiny_stage(**SHORT),), start=start, **{"seed": 1, **changes})


def last(folder: Path) -> checkpoints.Checkpoint:
    return checkpoints.load(folder / "checkpoints", 4)


def test_a_checkpoint_that_was_set_aside_is_no_start(finished: Path, tmp_path: Path) -> None:
    """As one that was found damaged, after which the run trained its last steps again."""
    folder = shutil.copytree(finished, tmp_path / finished.name)
    damaged = shutil.copytree(last(folder).folder, last(folder).folder.with_name("step-00000004.damaged-1"))
    save_file({"weight": torch.zeros(1)}, damaged / starts.WEIGHTS)
    assert start_from(folder) == start_from(finished)


@pytest.mark.parametrize("optimizer", ["fresh", "restored"])
def test_a_run_begins_where_another_ended(finished: Path, tmp_path: Path, optimizer: str) -> None:
    """With no more than its run.json, as in another process."""
    folder = write_tiny_run(tmp_path, run := adapted(finished, optimizer))
    starts._folders.clear()
    trainer = make_trainer(Layout(tmp_path), read_run_file(folder), ALONE)
    trainer.begin()
    weights, state = last(finished).weights(), last(finished).optimizer()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in trainer.model.state_dict().items())
    found = trainer.engine.optimizer_tensors()
    assert found.keys() == (state.keys() if optimizer == "restored" else set())
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.items())
    assert run.id != tiny_run(stages=run.recipe.stages, seed=1).id


def test_a_run_trains_on_from_an_export_wherever_it_lies(finished: Path, exported: Path, tmp_path: Path) -> None:
    run = adapted(exported)
    moved = Path(shutil.copytree(exported, tmp_path / "elsewhere"))
    assert adapted(moved).id == run.id
    root = tmp_path / "runs"
    folder = write_tiny_run(root, run)
    starts._folders.clear()
    assert work(root, run.folder) == 0
    weights, begun = last(finished).weights(), checkpoints.load(folder / "checkpoints", 0).weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in begun.items())
    assert not torch.equal(last(folder).weights()["decoder.bias"], weights["decoder.bias"])
    record = json.loads((folder / "done.json").read_text())
    assert record["config"]["recipe"]["start"] == {"weights": run.recipe.start.weights, "optimizer_state": None}


def test_what_a_run_cannot_start_from_is_refused(finished: Path, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="start 'nowhere' is no folder, and runs/pretraining holds no run of this id"):
        start_from("nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingData, match=r"has no model\.safetensors: give a run, an export, or a folder with both"):
        start_from(tmp_path / "empty")
    unfinished = write_tiny_run(tmp_path / "unfinished", tiny_run())
    with pytest.raises(MissingData, match="is a run that is not finished"):
        start_from(unfinished)
    with pytest.raises(ValueError, match="has no state of an optimizer: start from a run, or with a fresh optimizer"):
        start_from(exported, "restored")


def test_a_start_that_changed_is_refused(exported: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "copy"))
    start = start_from(folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({**weights, "decoder.bias": weights["decoder.bias"] + 1}, path)
    with pytest.raises(DamagedFile, match="is not what this run was planned to start from: plan it again"):
        start_files(start)
    assert start_from(folder) != start
    path.unlink()
    with pytest.raises(MissingData, match=r"has no model\.safetensors"):
        start_files(start)


def refused(root: Path, run: PretrainingRun) -> str:
    """Why a worker fails to begin a run."""
    folder = write_tiny_run(root, run)
    assert work(root, run.folder) == 1
    return str(json.loads((folder / "error.json").read_text())["error"])


def test_another_model_vocabulary_or_optimizer_is_refused_by_the_worker(
    finished: Path, exported: Path, tmp_path: Path
) -> None:
    deeper = refused(tmp_path, adapted(exported, model=tiny_model(layers=3)))
    assert 'Missing key(s) in state_dict: "model.transformer_encoder.2.' in deeper
    folder = Path(shutil.copytree(exported, tmp_path / "copy"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[200:202]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "its tokenizer has other ids for 2 of 512 tokens, such as" in refused(tmp_path / "b", adapted(folder))
    adam = tiny_recipe().optimization.model_copy(update={"optimizer": "adam"})
    sentence = refused(tmp_path, adapted(finished, "restored", optimization=adam))
    assert "cannot restore the state of adamw of" in sentence and "for adam: start with a fresh one" in sentence


def test_a_modification_names_a_folder(exported: Path) -> None:
    """A declared difference of a variant, by its content."""
    variant = M0.derive("M0-adapted", Modification("Continued", source="a test", start=str(exported)))
    assert variant.delta() == {"pretraining.start.weights": (None, start_from(exported).weights)}


TINY = """
from ablations.scales import SMOKE

SHAPES = {"trained": {(12, 768): (2, 16)}, "published": {(12, 768): (2, 16)}}
SCALES = {"tiny": replace(SMOKE, shapes=SHAPES, heads=2, documents=100, contexts={512: 32},
                          tokens_per_step={131_072: 64}, steps={1_000_000: 4})}
"""


def test_the_ladder_of_the_page_continues_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs" / "own-ladder.md").read_text().partition("## Continued pre-training")[2]
    text = page.partition("```python\n")[2].partition("```")[0] + TINY
    monkeypatch.chdir(tmp_path)
    base, own = tmp_path / "base.py", tmp_path / "own.py"
    own.write_text(text)
    assert run.main(["--ladder", str(own), "--list"]) == EXIT_MISSING
    assert "line 10: start 'runs/pretraining/0123456789ab' is no folder" in capsys.readouterr().err
    base.write_text(text.partition("CONTINUED = ")[0] + TINY)
    flags = ["--scale", "tiny", "--stages", "pretrain", "--cluster", "here"]
    assert run.main(["--ladder", str(base), "--variant", "all", *flags]) == EXIT_DONE, capsys.readouterr().err
    (before,) = (tmp_path / "runs" / "pretraining").iterdir()
    own.write_text(text.replace("0123456789ab", before.name))
    assert run.main(["--ladder", str(own), "--variant", "continued", "rate40", *flags]) == EXIT_DONE
    weights = last(before).weights()
    continued = [each for each in (tmp_path / "runs" / "pretraining").iterdir() if each != before]
    assert len(continued) == 2
    for folder in continued:
        begun = checkpoints.load(folder / "checkpoints", 0).weights()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in begun.items())
