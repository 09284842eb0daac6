"""The commit in records is that of the code, or none, whatever git would say elsewhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neobert.processes import REPOSITORY

TELL = """
import json
from neobert.runs.records import code_state
print(json.dumps(code_state()))
"""


def git(folder: Path, *arguments: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=folder, env=own, check=True, capture_output=True, text=True).stdout.strip()


def committed(folder: Path) -> str:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "all")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A copy of the package, in no repository."""
    folder = tmp_path / "around" / "code"
    shutil.copytree(REPOSITORY / "neobert", folder / "neobert", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def told(code: Path, **variables: str) -> dict[str, object]:
    command = [sys.executable, "-P", "-B", "-c", TELL]
    environment = os.environ | {"PYTHONPATH": str(code), **variables}
    said = subprocess.run(command, cwd=code, env=environment, check=True, capture_output=True, text=True)
    state: dict[str, object] = json.loads(said.stdout)
    return state


def test_another_repository_or_setting_in_the_shell_says_nothing(code: Path, tmp_path: Path) -> None:
    commit = committed(code)
    other = tmp_path / "other"
    other.mkdir()
    assert committed(other) != commit
    (code / "benchmarks" / "results").mkdir(parents=True)
    (code / "benchmarks" / "results" / "another.json").touch()  # measurements are no change of the code
    assert told(code, GIT_DIR=str(other / ".git"), GIT_WORK_TREE=str(code)) == {"commit": commit, "dirty": False}
    (code / "neobert" / "own.py").touch()
    git(code, "config", "status.showUntrackedFiles", "no")
    assert told(code) == {"commit": commit, "dirty": True}


def test_a_repository_around_the_code_is_not_the_codes_own_and_git_may_be_missing(code: Path, tmp_path: Path) -> None:
    committed(code.parent)
    assert told(code) == {"commit": None, "dirty": None}
    git(code, "init", "--quiet")
    assert told(code)["commit"] is None
    assert told(code, PATH=str(tmp_path / "nothing")) == {"commit": None, "dirty": None}
