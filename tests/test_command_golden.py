"""What commands print is what they printed: listings, plans, states and batch scripts, paths aside."""

import json
import re
import sys
from pathlib import Path

import pytest

from ablations import run, status
from neobert.runs.layout import Layout
from tests.ablations.fake_slurm import FakeSlurm
from tests.ablations.status_worlds import (
    checkpoint,
    declare,
    fail,
    finish_pretraining,
    finish_study,
    progress,
    study_of,
    submit,
)
from tests.support.golden_files import GoldenFiles
from tests.support.tiny_runs import tiny_run

TIMES = re.compile(r'"(heartbeat_at|heartbeat_seconds|submitted_at)": [\d.e+-]+')


def without_paths(text: str, runs: Path) -> str:
    return text.replace(str(runs), "RUNS").replace(sys.executable, "python")


@pytest.mark.parametrize("word", ["list", "--list"])
def test_the_ladder_as_json_is_golden(
    word: str, golden: GoldenFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([word, "--json", "--runs", str(tmp_path)]) == 0 and not list(tmp_path.iterdir())
    entries = json.loads(capsys.readouterr().out)
    golden.compare_entries("list.json", {entry["name"]: entry for entry in entries})


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("smoke", ["--variant", "M0", "M10", "--stages", "pretrain", "glue", "contrastive", "mteb"]),
        ("paper", ["--variant", "M9", "--scale", "paper", "--data", "hub", "--seed", "1"]),
    ],
)
def test_a_plan_as_json_is_golden(
    name: str, flags: list[str], golden: GoldenFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main([*flags, "--cluster", "here", "--dry-run", "--json", "--runs", str(tmp_path)]) == 0
    assert not list(tmp_path.iterdir()), "looking wrote something"
    rows = json.loads(without_paths(capsys.readouterr().out, tmp_path))
    golden.compare_entries(f"plan_{name}.json", {f"{row['variant']}, seed {row['seed']}": row for row in rows})


def test_a_folder_of_runs_as_json_is_golden(
    golden: GoldenFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = Layout(tmp_path)
    finished, at_work, failed, waiting = (tiny_run(seed=seed) for seed in range(4))
    for each in (finished, at_work, failed, waiting):
        declare(layout, each)
    finish_pretraining(layout, finished)
    study = study_of(finished)
    declare(layout, study)
    finish_study(layout, study)
    progress(layout, at_work, 12)
    checkpoint(layout, at_work, 10, seconds=5.0)
    fail(layout.pretraining(failed.id) / "error.json", failed.id, "OutOfMemoryError: 80 GiB")
    submit(layout, "7", waiting)
    assert status.main(["--json", "--runs", str(tmp_path)]) == 0
    rows = json.loads(TIMES.sub(r'"\1": 0', without_paths(capsys.readouterr().out, tmp_path)))
    golden.compare_entries("status.json", {f"{row['kind']} {row['id']}": row for row in rows})


def test_a_batch_script_is_golden(
    golden: GoldenFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The preview of NeoBERT's own run, with the profile that the repository brings; nothing is submitted."""
    slurm = FakeSlurm.make(tmp_path / "slurm").install(monkeypatch)
    monkeypatch.setattr("ablations.scaling.available_cores", lambda: 8)
    flags = ["--variant", "M9", "--scale", "paper", "--data", "hub", "--cluster", "slurm", "--cluster-profile", "h100"]
    assert run.main([*flags, "--dry-run", "--runs", str(tmp_path / "runs")]) == 0
    shown = without_paths(capsys.readouterr().out, tmp_path / "runs")
    golden.compare_text("sbatch.txt", shown[shown.index("# corpus-") :])
    assert not slurm.submitted() and not (tmp_path / "runs").exists()
