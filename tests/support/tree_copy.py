"""A copy of the repository as a fresh clone has it, for tests that follow its instructions to the letter."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NOT_CLONED = (".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "out", "build", "dist", "*.egg-info")


STUDIES = ("pipeline_check", "real_glue")
needs_make = pytest.mark.skipif(
    shutil.which("make") is None or not Path(sys.prefix, "bin", "activate").exists(),
    reason="needs make and a virtual environment",
)


def fresh_clone(folder: Path, *, without_studies: bool = False) -> Path:
    """The files of the repository in `folder`, with this interpreter's environment as its .venv; without the committed
    records if asked."""
    ignored = shutil.ignore_patterns(*NOT_CLONED, *(STUDIES if without_studies else ()))

    def not_cloned(place: str, names: list[str]) -> set[str]:
        return ignored(place, names) | ({"runs"} if Path(place) == REPOSITORY else set())

    shutil.copytree(REPOSITORY, folder, ignore=not_cloned)
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def edit(path: Path, old: str, new: str) -> None:
    """Replace the only occurrence of a text in a file."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def apply_blocks(tree: Path, addition: str) -> set[str]:
    """Apply the blocks of docs/adding.md for an addition to a copy: new files, differences, and lines at the end of a
    file. Returns the paths of the changed files."""
    text = (REPOSITORY / "docs" / "adding.md").read_text(encoding="utf-8")
    changed: set[str] = set()
    for how, block in re.findall(rf"^<!-- {addition}, (.*?) -->\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        words = how.split()
        if how == "diff":
            subprocess.run(["patch", "--strip=1", "--fuzz=0"], cwd=tree, input=block, text=True, check=True)
            changed |= set(re.findall(r"^\+\+\+ b/(.*)$", block, re.MULTILINE))
        elif how.startswith("new file"):
            (tree / words[-1]).write_text(block, encoding="utf-8")
            changed.add(words[-1])
        else:
            with (tree / words[-1]).open("a", encoding="utf-8") as file:
                file.write(f"\n\n{block}")
            changed.add(words[-1])
    return changed


def shell(tree: Path, commands: str) -> subprocess.CompletedProcess[str]:
    """Commands in bash, as a person gives them after opening a terminal in a clone: the first that fails ends them."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", commands],
        cwd=tree,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )


def shrink_smoke_scale(tree: Path) -> None:
    """Let the smoke scale of a copy take seconds: a few steps of tiny models on little text."""
    edit(tree / "ablations" / "scales.py", RULES, SMALLER + RULES)


RULES = "RULES: Mapping[Scale, Rules] = "
SMALLER = """
_SHAPES = {(12, 768): (2, 16), (16, 1056): (3, 24), (16, 1008): (3, 16), (28, 768): (5, 16)}
SMOKE = replace(
    SMOKE,
    shapes={"trained": _SHAPES, "published": _SHAPES},
    heads=2,
    documents=600,
    steps={1_000_000: 6, 50_000: 3},
    grid={"batch_sizes": {32: 32}, "learning_rates": {2e-5: 1e-3}, "weight_decays": {1e-2: 1e-2}},
    finetuning={**SMOKE.finetuning, "epochs": 1, "train_examples": 64, "evaluations_per_epoch": 1},
)
"""
