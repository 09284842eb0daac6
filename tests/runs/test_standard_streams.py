"""Commands end as they should where a standard stream is closed, or nobody reads it to the end."""

import subprocess
import sys
from pathlib import Path

import pytest

from neobert.processes import REPOSITORY
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from tests.support.tiny_runs import beside, tiny_run, write_tiny_run

RUN = tiny_run()
CLOSED = (">&- 2>&- <&-", ">&-", "2>&-", "<&-")
READERS = ("2>&1 | true", "| true", "| head -1")


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in the repository, in which $python is this interpreter."""
    command = ["bash", "-o", "pipefail", "-c", line]
    environment = {"PATH": "/usr/bin:/bin", "python": sys.executable, **variables}
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


COMMANDS = (
    "$python ablations/status.py --runs $runs",
    "$python ablations/run.py --list --runs $runs",
    "$python reports/collect.py --runs $runs --out $out",
    "$python ablations/run.py --help",
)


def of_each(ways: tuple[str, ...]) -> list[tuple[str, str]]:
    """The first command in every way, and each other one in the first way."""
    return [*((COMMANDS[0], way) for way in ways), *((command, ways[0]) for command in COMMANDS[1:])]


@pytest.mark.parametrize(("command", "closed"), of_each(CLOSED))
def test_a_closed_stream_changes_no_exit_code(finished: Path, tmp_path: Path, command: str, closed: str) -> None:
    ended = shell(f"{command} {closed}", runs=str(finished), out=str(tmp_path / "out"))
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr


def test_a_worker_whose_streams_are_closed_writes_nothing_into_its_files(finished: Path, tmp_path: Path) -> None:
    """Else the first files that it opens would take the numbers of the streams, and get what is printed."""
    root = beside(tmp_path / "runs", finished)
    write_tiny_run(root, RUN)
    ended = shell(f"$python -m neobert.runs.worker --runs $runs {RUN.reference} {CLOSED[0]}", runs=str(root))
    assert ended.returncode == 0, ended.stderr
    assert read_record(Layout(root).pretraining(RUN.id) / "done.json")["state"] == "done"


@pytest.mark.parametrize(("command", "reader"), of_each(READERS))
def test_a_reader_that_leaves_early_gets_no_traceback(
    finished: Path, tmp_path: Path, command: str, reader: str
) -> None:
    ended = shell(f"{command} {reader}", runs=str(finished), out=str(tmp_path / "out"))
    assert ended.returncode == 0 and "Traceback" not in ended.stderr and "ignored" not in ended.stderr, ended.stderr


def test_a_refusal_that_nobody_reads_is_a_refusal() -> None:
    assert shell("$python ablations/run.py --variant M77 2>&1 | true").returncode == 2
    assert shell("$python ablations/run.py --variant M77 >&- 2>&- <&-").returncode == 2
