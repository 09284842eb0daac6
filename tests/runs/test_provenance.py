"""The commit in records is that of the code, or none, whatever git would say elsewhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neobert.processes import REPOSITORY
from tests.ablations.fake_slurm import FakeSlurm, submit

TELL = """
import json
from neobert.runs.records import code_state, why_no_commit
print(json.dumps([code_state(), why_no_commit()]))
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


def told(code: Path, **variables: str) -> tuple[dict[str, object], str | None]:
    command = [sys.executable, "-P", "-B", "-c", TELL]
    environment = os.environ | {"PYTHONPATH": str(code), **variables}
    said = subprocess.run(command, cwd=code, env=environment, check=True, capture_output=True, text=True)
    state, reason = json.loads(said.stdout)
    return state, reason


def test_another_repository_or_setting_in_the_shell_says_nothing(code: Path, tmp_path: Path) -> None:
    commit = committed(code)
    other = tmp_path / "other"
    other.mkdir()
    assert committed(other) != commit
    for variables in (
        {"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(code)},
        {"GIT_WORK_TREE": str(other), "GIT_INDEX_FILE": str(other / ".git" / "index")},
        {"GIT_CEILING_DIRECTORIES": str(code)},
    ):
        assert told(code, **variables) == ({"commit": commit, "dirty": False}, None), variables
    (code / "neobert" / "own.py").touch()
    hidden = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "status.showUntrackedFiles", "GIT_CONFIG_VALUE_0": "no"}
    assert told(code, **hidden) == ({"commit": commit, "dirty": True}, None)
    git(code, "config", "status.showUntrackedFiles", "no")
    assert told(code) == ({"commit": commit, "dirty": True}, None)


def test_a_repository_around_the_code_is_not_the_codes_own(code: Path) -> None:
    committed(code.parent)
    state, reason = told(code)
    assert state == {"commit": None, "dirty": None} and f"is not the root of the repository {code.parent}" in str(
        reason
    )


def test_why_git_knows_no_commit_is_told(code: Path, tmp_path: Path) -> None:
    state, reason = told(code)
    assert state == {"commit": None, "dirty": None} and "not a git repository" in str(reason)
    assert "git cannot be run" in str(told(code, PATH=str(tmp_path / "nothing"))[1])
    git(code, "init", "--quiet")
    state, reason = told(code)
    assert state["commit"] is None and "HEAD" in str(reason)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_checkout_of_somebody_else_is_no_silence(code: Path) -> None:
    committed(code)
    for path in (code, *code.rglob("*")):
        os.chown(path, 65534, 65534)
    state, reason = told(code, HOME="/nowhere")
    assert state == {"commit": None, "dirty": None} and "dubious ownership" in str(reason)


def test_a_command_says_in_one_line_that_no_commit_is_recorded(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = f"the code in {'/long' * 60} is not the root of the repository /"
    monkeypatch.setattr("ablations.launch.execute.why_no_commit", lambda: reason)
    assert submit(tmp_path / "runs", "--stages", "pretrain") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "commit" in line or "/long" in line]
    assert lines == [f"the commit of the code is not recorded: {reason}"]
