"""The Python interface: the same runs as those of the commands, and bad input in one sentence."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import ablations
from ablations import run, scales, status
from ablations.api import TrainedVariant
from ablations.launch import execute
from neobert.errors import MissingData, RunFailed
from tests.ablations.toy_scale import toy


@pytest.fixture(scope="module", autouse=True)
def toy_scale_here() -> Iterator[None]:
    """More steps, one point of the grid, and one evaluation."""
    grid = {"batch_sizes": {32: 32}, "learning_rates": {2e-5: 1e-3}, "weight_decays": {1e-2: 1e-2}}
    with toy(steps={1_000_000: 200, 50_000: 10}, grid=grid):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api") / "runs"


@pytest.fixture(scope="module")
def trained(folder: Path) -> TrainedVariant:
    return ablations.train("M9@steps0.1", runs=folder)


def test_a_run_made_from_python_is_that_of_the_command(
    trained: TrainedVariant, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both stages have the ids that the command plans, and it finds nothing left to do."""
    assert (
        run.main(["--variant", "M9@steps0.1", "--stages", "pretrain", "--runs", str(folder), "--list", "--json"]) == 0
    )
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["pretraining_id"], entry["state"], trained.name) == (trained.id, "done", "M9@steps0.1")
    assert status.main(["--runs", str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["id"]: row["state"] for row in rows} == {stage.id: "done" for stage in trained.stages}


def test_a_run_made_by_the_command_is_found(
    trained: TrainedVariant, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--variant", "M1", "--stages", "pretrain", "--cluster", "here", "--runs", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scales.RULES, "smoke", replace(scales.RULES["smoke"], steps={1_000_000: 8}))  # type: ignore[arg-type]
        assert run.main(flags) == 0
        monkeypatch.setattr(execute.processes, "work_here", lambda *_, **__: pytest.fail("it is done"))
        assert ablations.train("M1", runs=folder).metrics.step.tolist() == list(range(1, 9))
    assert ablations.train("M9@steps0.1", runs=folder).loss == trained.loss


def test_loss_and_metrics_are_those_of_the_run(trained: TrainedVariant, folder: Path) -> None:
    metrics = trained.metrics
    assert metrics[["stage", "step"]].to_numpy().tolist() == [[1, step] for step in range(1, 21)] + [[2, 1]]
    assert metrics.loss.notna().all()
    assert trained.loss == metrics.heldout_loss.iloc[-1]
    assert f"{trained.loss:.3f}" in repr(trained)
    records = ablations.load_records(folder)
    of_run = records.set_index("id").loc[trained.id]
    assert of_run.variants == ["M9@steps0.1"] and of_run["scores.heldout_loss.web"] == trained.loss


def test_evaluations_have_a_row_a_point(trained: TrainedVariant) -> None:
    scores = trained.evaluate("cola")
    assert set(scores.task) == {"cola"} and (scores.state == "done").all() and scores.score.between(-1, 1).all()
    pd.testing.assert_frame_equal(trained.evaluate("cola"), scores)


def test_a_built_model_has_the_initial_weights_of_the_run(trained: TrainedVariant) -> None:
    from safetensors.torch import load_file

    start = load_file(
        trained.workspace.layout.root / trained.stages[0].folder / "checkpoints/step-00000000/model.safetensors"
    )
    model = ablations.build("M9")
    assert isinstance(model, torch.nn.Module)
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())


def test_a_tracker_follows_a_run(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    tracked = ablations.train("M1@steps0.05", runs=folder, track="tensorboard")
    assert list((folder / "tracking" / "tensorboard" / tracked.id).glob("events*"))


def test_a_ladder_of_ones_own_is_known(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from ablations.ladder import M0\nfrom ablations.variant import Modification\n"
        "MINE = M0.derive('mine', Modification('wide', source='here', model={'heads': 8}))\n"
    )
    assert list(ablations.variants(file)) == ["M0", "mine"] and "mine" not in ablations.variants()
    assert isinstance(ablations.build("mine", "paper", ladder=file), torch.nn.Module)


def test_bad_input_is_one_sentence(trained: TrainedVariant, tmp_path: Path) -> None:
    for call, said in (
        (lambda: ablations.build("M77"), "there is no variant 'M77': did you mean 'M7'"),
        (lambda: ablations.build("M7", "smok"), "there is no scale 'smok': did you mean 'smoke'?"),
        (lambda: ablations.build("M7", seed=-1), "seed: expected a whole number from 0 to 4,294,967,295, got '-1'"),
        (lambda: ablations.train("M7", workers=0), "workers: expected a whole number from 1 to 2,147,483,647, got"),
        (lambda: ablations.train("M1", track="wandbb"), "did you mean 'wandb'"),  # type: ignore[arg-type]
        (lambda: trained.evaluate("colla"), "there is no task 'colla': did you mean 'cola'"),
        (lambda: trained.export("hff", tmp_path / "out"), "there is no target 'hff': did you mean 'hf'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            call()
    with pytest.raises(MissingData, match="there is no folder of runs"):
        ablations.load_records(tmp_path / "nowhere")
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        ablations.trian  # noqa: B018


def test_a_run_that_fails_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wild = replace(scales.RULES["smoke"], peak_learning_rates={1e-4: 1e30})
    monkeypatch.setitem(scales.RULES, "smoke", wild)  # type: ignore[arg-type]
    with pytest.raises(RunFailed, match=r"pretraining stage 1 .*: RunFailed: step 2: the loss is nan"):
        ablations.train("M1@steps0.05", runs=folder)
