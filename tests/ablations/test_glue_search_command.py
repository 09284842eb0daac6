"""Searches by the sweep command: real trials of a sampler, with their selection, and combinations that are refused."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from ablations import run
from neobert.kinds.glue import GlueStudy
from neobert.runs.index import Index
from neobert.runs.layout import Layout
from neobert.runs.records import read_record, read_sealed
from neobert.runs.run_file import read_run_file
from sweeps import glue_grid

SPACES = """
from optuna.distributions import CategoricalDistribution, FloatDistribution
from ablations.ladder import M0, M1

GRIDS = {
    "wide": {
        "batch_size": CategoricalDistribution((16, 32)),
        "learning_rate": FloatDistribution(1e-5, 1e-2, log=True),
        "weight_decay": FloatDistribution(0.0, 0.1),
    }
}
"""


@pytest.fixture(scope="module")
def trained(toy_scale_of_module: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with M2."""
    root = tmp_path_factory.mktemp("searched")
    with redirect_stdout(StringIO()):
        assert run.main(["--variant", "M2", "--stages", "pretrain", "--runs", str(root), "--workers", "1"]) == 0
    return root


def search(root: Path, *arguments: str) -> int:
    return glue_grid.main([*arguments, "--runs", str(root), "--workers", "1"])


def test_a_search_tries_its_points_with_all_seeds_and_the_next_task_starts_from_its_best(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--task", "rte", "--sampler", "random", "--trials", "2", "--seed", "0", "1"]
    assert search(trained, *arguments) == 0
    said = capsys.readouterr().out
    assert "best of the search" in said
    assert "rte: 2 of 2 points chosen by the sampler random; a search, not the whole grid" in " ".join(said.split())
    layout = Layout(trained)
    studies = {path.parent.parent.parent.name: path.parent for path in trained.glob("glue/*/studies/*/run.json")}
    assert studies.keys() == {"mnli", "rte"}
    mnli, rte = (read_run_file(studies[task]).specification(GlueStudy) for task in ("mnli", "rte"))
    assert rte.starts_from.study == mnli.id
    for study in (mnli, rte):
        selection = read_sealed(study.closing(layout).record)
        means = {
            json.dumps(record["point"], sort_keys=True): record["scores"]["score"]
            for record in (read_record(each.record) for each in study.search_trials(layout))
        }
        assert len(means) == 2 and selection["search"]["sampler"] == "random" and selection["pruned"] == []
        assert means[json.dumps(selection["point"], sort_keys=True)] == max(means.values())
        assert {trial.study.seed for trial in study.trials(layout) if trial.is_done} == {0, 1}
        assert len(list(trained.glob(f"glue/{study.task}/*.json"))) == 4
        row = Index(layout).row(study.folder)
        assert (row.state, row.done, row.total) == ("done", 2, 2)
    assert [path.stem for path in trained.glob("glue/mnli/*.safetensors")] == [
        read_sealed(mnli.closing(layout).record)["trial"]
    ]
    records = {path: path.stat().st_mtime_ns for path in trained.rglob("*.json")}
    assert search(trained, *arguments, "--json") == 0
    assert {entry["state"] for entry in json.loads(capsys.readouterr().out)} == {"done"}
    assert {path: path.stat().st_mtime_ns for path in records if path.name != "run.json"} == {
        path: stamp for path, stamp in records.items() if path.name != "run.json"
    }


def test_a_space_of_the_ladder_is_searched_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.py"
    file.write_text(SPACES)
    arguments = ["--task", "cola", "--ladder", str(file), "--variant", "M0", "--grid", "wide", "--dry-run"]
    assert search(tmp_path, *arguments, "--sampler", "tpe", "--trials", "3") == 0
    assert "0 of 3 points" in " ".join(capsys.readouterr().out.split())
    assert search(tmp_path, *arguments) == 2
    assert "--grid wide has ranges in the place of points" in " ".join(capsys.readouterr().err.split())
