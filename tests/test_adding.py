"""docs/adding.md is true: in a copy of the tree, its blocks add a kind of work and a readout that all commands know."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.tree_copy import apply_blocks, fresh_clone, shell, shrink_smoke_scale

LOSS = "ccb255da3dbb"
"""Id of the record of M0's readout `loss` at the study scale."""
MOST_FILES = 8
"""A kind of work touches at most so many files."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with a kind of work and a readout more."""
    tree = fresh_clone(tmp_path_factory.mktemp("added") / "clone", without_studies=True)
    assert len(apply_blocks(tree, "a kind")) <= MOST_FILES
    apply_blocks(tree, "a readout")
    shrink_smoke_scale(tree)
    return tree


def python(tree: Path, arguments: str) -> str:
    """What a command of a copy prints."""
    said = shell(tree, f"{sys.executable} {arguments}")
    assert said.returncode == 0, said.stderr
    return said.stdout


COMMANDS = """
import json
from contextlib import redirect_stdout
from io import StringIO
from ablations import run, status
from reports import make_figures

def said(main, words):
    with redirect_stdout(StringIO()) as out:
        assert main(words.split()) == 0
    return json.loads(out.getvalue())

flags = "--variant M0 --stages pretrain norms --json"
found = said(run.main, flags), said(run.main, flags + " --dry-run"), said(status.main, "--json")
make_figures.main(["--runs", "runs", "--out", "out"])
print(json.dumps(found))
"""


def test_a_kind_is_planned_run_listed_and_reported(tree: Path) -> None:
    *_, last = python(tree, f"-c '{COMMANDS}'").splitlines()
    [outcome], [row], listed = json.loads(last)
    assert [(each["kind"], each["state"]) for each in row["stages"]] == [
        ("pretraining stage 1", "done"),
        ("norms", "done"),
    ]
    (path,) = (tree / "runs").glob("norms/*/done.json")
    record = json.loads(path.read_text())
    assert record["kind"] == "norms" and [record["id"]] == [each["id"] for each in outcome["norms"]]
    rows = {each["kind"]: each for each in listed}
    assert [rows["norms"][key] for key in ("state", "done", "total", "counted")] == ["done", 1, 1, "models"]
    (table,) = (tree / "out").glob("*/norms.md")
    assert f"| {record['inputs']['pretraining']} | {record['scores']['rms']:.4f} |" in table.read_text()


PLAN = """
import json
from pathlib import Path
from typing import Any
from ablations.loading import papers
from ablations.plan import plan
from neobert.data.sources import open_source
from neobert.evaluation.readouts import ASKED
from neobert.runs.layout import Layout

source = open_source("synthetic", synthetic_documents=16_000)
stages = ("pretraining", "readouts", "perplexity")
(row,) = plan(papers(), [papers().variants["M0"]], (0,), "study", source, Layout(Path("runs")), stages)
evaluations = [[run.id, run.readouts, [part.id for part in run.runs()]] for run in row.runs if run.kind == "readouts"]
print(json.dumps([evaluations, list(ASKED)]))
"""


def test_a_readout_is_an_evaluation_of_its_own_and_changes_no_id(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(PLAN, {})
    before, _ = json.loads(capsys.readouterr().out)
    after, asked = json.loads(python(tree, f"-c '{PLAN}'"))
    assert [names for _, names, _ in before] == [["loss"], ["perplexity"]] and before[0][2] == [LOSS]
    assert "document_loss" in asked
    assert [each for each in after if each[1] != ["document_loss"]] == before and len(after) == len(before) + 1
