"""The start path outside of tests: workers are started as new processes, and files are written with fsync.

Other tests fork their workers and do not wait for disks (tests/conftest.py).
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ablations import run, status
from neobert import processes
from neobert.errors import EXIT_DONE
from tests.support.forking import ForkedProcess
from tests.support.tiny_runs import starts

pytestmark = [pytest.mark.production, pytest.mark.usefixtures("toy_scale")]
FLAGS = ["--variant", "M1", "--stages", "pretrain", "--cluster", "here", "--workers", "2", "--json"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The processes that the command starts."""
    children: list[object] = []
    start = processes.start_child

    def noted(command: Sequence[str], *arguments: Any, **options: Any) -> Any:
        children.append(start(command, *arguments, **options))
        return children[-1]

    monkeypatch.setattr(processes, "start_child", noted)
    return children


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that this process waits for."""
    descriptors: list[int] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        descriptors.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", noted)
    return descriptors


def test_a_command_trains_each_run_once_with_workers_of_its_own(
    tmp_path: Path, started: list[object], synced: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs", str(tmp_path)]
    assert run.main([*FLAGS, "--seed", "0", "1", *runs]) == EXIT_DONE
    outcomes = json.loads(capfd.readouterr().out)
    assert [(each["seed"], each["state"]) for each in outcomes] == [(0, "done"), (1, "done")]
    assert len(started) == 2 and synced
    assert all(isinstance(child, subprocess.Popen) and not isinstance(child, ForkedProcess) for child in started)
    first = starts(tmp_path)
    assert len(first) == len(set(first))
    assert run.main([*FLAGS, "--seed", "0", "1", *runs]) == EXIT_DONE
    assert starts(tmp_path) == first, "what is done is not done again"
    capfd.readouterr()
    assert status.main([*runs, "--json"]) == EXIT_DONE
    assert {row["state"] for row in json.loads(capfd.readouterr().out)} == {"done"}
