"""The start path outside of tests: workers are started as new processes, and files are written with fsync.

Other tests fork their workers and do not wait for disks (tests/conftest.py).
"""

import json
from pathlib import Path

import pytest

from ablations import run, status
from neobert.errors import EXIT_DONE
from tests.support.tiny_runs import starts

pytestmark = [pytest.mark.production, pytest.mark.usefixtures("toy_scale")]
FLAGS = ["--variant", "M1", "--stages", "pretrain", "--cluster", "here", "--workers", "2", "--json"]


def test_a_command_trains_each_run_once_with_workers_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs", str(tmp_path)]
    assert run.main([*FLAGS, "--seed", "0", "1", *runs]) == EXIT_DONE
    outcomes = json.loads(capfd.readouterr().out)
    assert [(each["seed"], each["state"]) for each in outcomes] == [(0, "done"), (1, "done")]
    first = starts(tmp_path)
    assert len(first) == len(set(first))
    assert run.main([*FLAGS, "--seed", "0", "1", *runs]) == EXIT_DONE
    assert starts(tmp_path) == first, "what is done is not done again"
    capfd.readouterr()
    assert status.main([*runs, "--json"]) == EXIT_DONE
    assert {row["state"] for row in json.loads(capfd.readouterr().out)} == {"done"}
