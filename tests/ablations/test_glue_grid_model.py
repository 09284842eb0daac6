"""The sweep command on external models: the same batches, grid, transfer, claims and records as for variants."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ablations import scales
from ablations.loading import papers
from neobert.files import read_lines
from neobert.glue.tasks import TASKS
from neobert.kinds.glue import GlueStudy
from neobert.runs.kinds import read_records
from neobert.runs.run_file import read_run_file
from reports.figures.glue_tables import table3
from reports.frames import read_frames
from reports.rows import read_study
from tests.ablations.test_glue_grid_command import sweep
from tests.ablations.toy_scale import toy
from tests.support import external_models as world
from tests.support.tiny_runs import starts
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]


FOUR_POINTS: dict[str, Any] = {
    "grid": {
        "batch_sizes": {32: 16},
        "learning_rates": {2e-5: 1e-3, 3e-5: 2e-3},
        "weight_decays": {1e-2: 1e-2, 1e-5: 0.0},
    },
    "finetuning": {**scales.SMOKE.finetuning, "epochs": 3, "train_examples": 300},
}
"""The command is killed once the second has begun; on a busy machine it may be at the third by then."""
SCRIPT = f"""
import sys
from tests.ablations.toy_scale import toy
with toy(**{FOUR_POINTS!r}):
    from sweeps import glue_grid
    glue_grid.main(sys.argv[1:])
"""


@pytest.mark.usefixtures("toy_scale")
def test_a_transferred_task_starts_from_the_models_own_best_mnli_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BERT, pairs with token types; the folder moves, nothing runs again, and what is new starts in the new place."""
    runs, folder = tmp_path / "runs", world.save(world.seeded(world.bert), tmp_path / "tiny-bert", token_types=True)
    arguments = ["--task", "rte", "--runs", str(runs)]
    capsys.readouterr()
    code, planned, _ = sweep(capsys, *arguments, "--model", str(folder), "--dry-run")
    assert code == 0 and not runs.exists() and {entry["state"] for entry in planned} == {"missing"}
    code, points, _ = sweep(capsys, *arguments, "--model", str(folder))
    assert code == 0 and [entry["trial"] for entry in points] == [entry["trial"] for entry in planned]
    assert Counter(entry["task"] for entry in points) == {"mnli": 2, "rte": 2}
    records, problems = read_records(runs)
    assert not problems and len(records) == 4
    for record in records:
        assert record["labels"]["model"] == "tiny-bert" and record["inputs"]["pretraining"].startswith("model-")
        assert record["labels"]["origin"].keys() >= {"config.json", "model.safetensors", "tokenizer.json"}
        assert record["config"]["max_tokens"] == record["config"]["context"] == world.CONTEXT
        assert record["config"]["starts_from"] == ("mnli" if record["config"]["task"] == "rte" else "pretraining")
    _assert_selections_say_what_decided(runs)
    _assert_it_has_a_row_below_ours(runs, max(entry["score"] for entry in points if entry["task"] == "rte"))

    moved = folder.rename(tmp_path / "elsewhere")
    of_mnli = ["--task", "mnli", *arguments[2:], "--model", str(moved)]
    code, again, _ = sweep(capsys, *of_mnli, "--seed", "0", "1")
    assert code == 0 and {entry["state"] for entry in again} == {"done"}
    assert {entry["trial"] for entry in points if entry["task"] == "mnli"} < {entry["trial"] for entry in again}
    assert sweep(capsys, *arguments, "--model", str(moved))[1] == points
    assert len(starts(runs)) == len(set(starts(runs)))


def _assert_selections_say_what_decided(runs: Path) -> None:
    """Rule, grid, start, split and nested estimate are data."""
    for path in runs.glob("glue/*/studies/*"):
        study = read_run_file(path).specification(GlueStudy)
        chosen = json.loads((path / "selection.json").read_text())
        assert chosen["grid"] == [point.model_dump() for point in study.points] and chosen["point"] in chosen["grid"]
        assert chosen["rule"].startswith("highest validation score")
        assert chosen["starts_from"]["task"] == ("mnli" if study.task == "rte" else None)
        assert chosen["scored_on"]["splits"] == list(TASKS[study.task].validation_splits)
        nested = chosen["nested"]
        assert nested["reason"] is None and 0 <= nested["score"] <= 1 and "half" in nested["halves"]


def _assert_it_has_a_row_below_ours(runs: Path, best: float) -> None:
    group = read_study(read_frames(papers(), runs), "smoke", "synthetic")
    table = table3(group)
    (row,) = group.external
    assert table.rows[-1][:2] == ("this study", "tiny-bert") and len(table.rows) - 1 in table.rules
    assert row.cells["rte"].score is not None and row.cells["rte"].score.mean == pytest.approx(100 * best, abs=0.01)
    assert row.average is None and not group.problems and all(not row.scored_tasks for row in group.rows)


def test_the_command_killed_at_its_second_point_repeats_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kill −9 of launcher and worker, then the same command again."""
    runs, folder = tmp_path / "runs", world.save(world.seeded(world.bert), tmp_path / "tiny-bert")
    words = ["--task", "cola", "--model", str(folder), "--runs", str(runs), "--cluster", "here"]
    first = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *words, "--workers", "1"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: len(list(read_lines(runs / "starts.jsonl"))) == 2, pause_seconds=0.01)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    finished = {path: path.stat().st_mtime_ns for path in runs.glob("glue/*/*.json")}
    capsys.readouterr()
    with toy(**FOUR_POINTS):
        code, points, _ = sweep(capsys, *words)
    assert code == 0 and {entry["state"] for entry in points} == {"done"}
    assert finished and all(path.stat().st_mtime_ns == written for path, written in finished.items())
    interrupted = [unit for unit, count in Counter(starts(runs)).items() if count > 1]
    assert len(interrupted) == 1 and not any(interrupted[0] == path.stem for path in finished)
