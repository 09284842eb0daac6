"""A field that is added to the recipe orphans nothing: in a copy of the tree, through the real commands."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neobert.identity import leaves
from tests.support.tree_copy import REPOSITORY, apply_blocks

CODE = ("ablations", "neobert", "reports", "sweeps")

TABLES = """
import sys
from matplotlib.figure import Figure
from reports import make_figures
Figure.savefig = lambda *words, **named: None
sys.exit(make_figures.main(sys.argv[1:]))
"""
"""The command, with figures that are not drawn."""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree in which `Data` has a field more, written in M0 and changed by one new variant."""
    root = tmp_path_factory.mktemp("changed")
    for name in CODE:
        shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "out", "UD_*"))
    assert len(apply_blocks(root, "a field")) == 2
    return root


def run(root: Path, *command: str) -> str:
    """What a command of a copy of the tree prints."""
    arguments = [sys.executable, *command]
    ended = subprocess.run(
        arguments, cwd=root, env={"PYTHONPATH": str(root), "PATH": ""}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def planned(root: Path, runs: Path, *flags: str) -> str:
    return run(root, "ablations/run.py", "--runs", str(runs), "--dry-run", "--json", *flags)


def ids_of(plan: str) -> set[str]:
    """Every id that a plan names."""
    return {str(value) for path, value in leaves(json.loads(plan)).items() if path.rsplit(".")[-1] == "id"}


def test_no_id_changes_and_another_value_is_another_id(changed: Path, tmp_path: Path) -> None:
    flags = ("--stages", "pretrain", "glue", "mteb", "--seed", "0", "1")
    before = planned(REPOSITORY, tmp_path, "--variant", "M0", "M8", "M10", *flags)
    assert planned(changed, tmp_path, "--variant", "M0", "M8", "M10", *flags) == before and len(ids_of(before)) > 20
    plain, deduplicated = (ids_of(planned(changed, tmp_path, "--variant", name)) for name in ("M8", "M8@deduplicated"))
    assert plain and deduplicated and plain.isdisjoint(deduplicated)


def test_records_from_before_give_the_reports_that_they_gave(changed: Path, tmp_path: Path) -> None:
    for name, root in {"before": REPOSITORY, "after": changed}.items():
        flags = ("--runs", str(root / "reports" / "pipeline_check"), "--compare")
        run(root, "-c", TABLES, *flags, "--out", str(tmp_path / name))
    before, after = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.suffix in (".csv", ".md")}
        for root in (tmp_path / "before", tmp_path / "after")
    )
    assert len(after) == 9
    assert [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)] == []
