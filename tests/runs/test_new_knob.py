"""A field that is added to the recipe orphans nothing: in a copy of the tree, through the real command."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from neobert.identity import leaves
from tests.support.tree_copy import REPOSITORY, apply_blocks


def planned(root: Path, runs: Path, *variants: str) -> list[dict[str, Any]]:
    """What run.py of a copy of the tree plans of each variant."""
    flags = ["--stages", "pretrain", "glue", "mteb", "--runs", str(runs), "--dry-run", "--json"]
    command = [sys.executable, "ablations/run.py", "--variant", *variants, *flags]
    own = {"PYTHONPATH": str(root), "PATH": ""}
    ended = subprocess.run(command, cwd=root, env=own, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    plans: list[dict[str, Any]] = json.loads(ended.stdout)
    return plans


def ids_of(plan: dict[str, Any]) -> set[str]:
    """Every id that a plan names."""
    return {str(value) for path, value in leaves(plan).items() if path.rsplit(".")[-1] == "id"}


def test_no_id_changes_and_another_value_is_another_id(tmp_path: Path) -> None:
    """`Data` has a field more, written in M0 and changed by one new variant."""
    for name in ("ablations", "neobert", "reports", "sweeps"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "out", "UD_*"))
    assert len(apply_blocks(tmp_path, "a field")) == 2
    before = planned(REPOSITORY, tmp_path / "runs", "M0", "M8", "M10")
    *after, deduplicated = planned(tmp_path, tmp_path / "runs", "M0", "M8", "M10", "M8@deduplicated")
    assert after == before and len(ids_of(before[0])) > 5
    assert ids_of(deduplicated) and ids_of(deduplicated).isdisjoint(ids_of(before[1]))
