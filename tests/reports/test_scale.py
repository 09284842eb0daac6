"""Ten thousand records become all reports in 20 s of processor time."""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from neobert.runs.kinds import record_paths
from tests.ablations.papers_ladder import PAPERS_LADDER
from tests.reports.made_up_study import MadeUpStudy
from tests.reports.measurements import answer, ask

REPOSITORY = Path(__file__).resolve().parents[2]
GOAL_SECONDS = 20.0


def grids(study: MadeUpStudy) -> None:
    """The whole grids of the ladder with 16 seeds, and BLiMP."""
    study.write(seeds=range(16))
    random = np.random.default_rng(0)
    for name, seed in product(PAPERS_LADDER[:-1], range(16)):
        ask(study, name, seed, "blimp", answer(random.random(67), random.integers(1, 40, 67).astype(float)))


def runs_with_curves(study: MadeUpStudy) -> None:
    """Pre-training alone with its curves: the ladder with 1,000 seeds."""
    study.measured, study.frequency_loss = ("web", "wikibook"), 6.5
    for name in PAPERS_LADDER[:-1]:
        for seed in range(1000):
            study.pretrain(name, seed)
            study.metrics(name, seed, lines=30)


@pytest.mark.drill
@pytest.mark.parametrize(("fill", "goal_mebibytes"), [(grids, 500), (runs_with_curves, 700)])
def test_ten_thousand_records_become_all_reports_in_time_and_memory(
    fill: Callable[[MadeUpStudy], None], goal_mebibytes: int, tmp_path: Path
) -> None:
    """The curves are 300,000 lines: 200 MiB more than grids take."""
    study = MadeUpStudy(tmp_path / "runs", scale="proxy", data="corpus")
    fill(study)
    assert len(list(record_paths(study.root))) > 9_500
    command = [sys.executable, "reports/make_figures.py", "--runs", str(study.root), "--out", str(tmp_path / "out")]
    with subprocess.Popen([*command, "--compare"], cwd=REPOSITORY, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)  # of this child alone: others before it may have been larger
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    seconds, mebibytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    print(f"{seconds:.1f} s of processor time, at most {mebibytes:.0f} MiB")
    assert seconds <= GOAL_SECONDS and mebibytes <= goal_mebibytes
