"""Ten thousand records become all reports in 20 s of processor time."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from neobert.runs.kinds import record_paths
from tests.ablations.papers_ladder import PAPERS_LADDER
from tests.reports.made_up_study import MadeUpStudy
from tests.reports.measurements import answer, ask

REPOSITORY = Path(__file__).resolve().parents[2]
GOAL_SECONDS, GOAL_MEBIBYTES = 20.0, 500
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""
"""Prints processor time and memory of a command. A small process starts it: the peak of a child counts the memory that
it shares with its parent until it executes."""


@pytest.mark.drill
def test_ten_thousand_records_become_all_reports_in_time_and_memory(tmp_path: Path) -> None:
    study = MadeUpStudy(tmp_path / "runs", scale="proxy", data="corpus")
    study.write(seeds=range(16))
    random = np.random.default_rng(0)
    for name, seed in product(PAPERS_LADDER[:-1], range(16)):
        ask(study, name, seed, "blimp", answer(random.random(67), random.integers(1, 40, 67).astype(float)))
    assert len(list(record_paths(study.root))) > 9_500
    command = [sys.executable, "reports/make_figures.py", "--runs", str(study.root), "--out", str(tmp_path / "out")]
    measured = [sys.executable, "-c", MEASURE, *command, "--compare"]
    ended = subprocess.run(measured, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    seconds, mebibytes = map(float, ended.stdout.split())
    print(f"{seconds:.1f} s of processor time, at most {mebibytes:.0f} MiB")
    assert seconds <= GOAL_SECONDS and mebibytes <= GOAL_MEBIBYTES
