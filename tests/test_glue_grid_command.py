"""The sweep command: on a finished variant, with what its tasks depend on, and nothing twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_run_command import toy_scale  # noqa: F401  (a fixture)

from ablations import run
from neobert.files import read_lines
from sweeps import glue_grid

ROOT = Path(__file__).parent.parent


@pytest.mark.usefixtures("toy_scale")
def test_a_transferred_task_brings_its_mnli_study_and_repeats_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["--variant", "M2", "--stages", "pretrain", "--runs", str(tmp_path), "--workers", "1"]) == 0
    capsys.readouterr()
    assert glue_grid.main(["--task", "rte", "--runs", str(tmp_path), "--workers", "1", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert {entry["task"] for entry in points} == {"mnli", "rte"}
    assert all(entry["score"] is not None for entry in points)
    arguments = ["--task", "mnli", "cola", "--variant", "M2", "--grid", "extended", "--runs", str(tmp_path)]
    assert glue_grid.main([*arguments, "--workers", "2", "--json"]) == 0
    extended = json.loads(capsys.readouterr().out)
    assert {entry["trial"] for entry in points if entry["task"] == "mnli"} < {entry["trial"] for entry in extended}
    starts = [line["unit"] for line in read_lines(tmp_path / "starts.jsonl")]
    assert len(starts) == len(set(starts))


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--task", "colla"], 2, "did you mean 'cola'"),
        (["--task", "cola", "--variant", "M5"], 3, "M5 is not pre-trained (missing): run `python ablations/run.py"),
        (["--task", "cola", "--variant", "M55"], 2, "did you mean 'M5'"),
        (["--task", "cola", "--grid", "huge"], 2, "huge"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_input_is_one_sentence_and_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    line = [sys.executable, str(ROOT / "sweeps" / "glue_grid.py"), *arguments, "--runs", str(tmp_path / "runs")]
    answer = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert answer.returncode == code and sentence in answer.stderr and "Traceback" not in answer.stderr
