"""A study that an array of workers works through: whatever SLURM does to them, Optuna shows each record once."""

import shlex
import sys
from pathlib import Path
from random import Random

import pytest

from neobert.processes import REPOSITORY
from neobert.runs.layout import Layout
from tests.search.grid_worlds import assert_search_is_right, search_by, started, study_of, worker_arguments
from tests.slurm.cluster import Cluster
from tests.support.waiting import until

LEASE_SECONDS = 3.0


@pytest.mark.parametrize(
    ("points", "elements", "seconds", "faults"),
    [
        pytest.param(12, 4, 1.0, ("requeue", "power cut"), id="small"),
        # Preemption comes after a grace of 20 s, so the points take long, and it is not the last fault.
        pytest.param(60, 8, 10.0, ("preempt", "requeue", "power cut") * 2, id="full", marks=pytest.mark.drill),
    ],
)
def test_an_array_loses_and_repeats_no_point_of_a_search(
    cluster: Cluster, tmp_path: Path, points: int, elements: int, seconds: float, faults: tuple[str, ...]
) -> None:
    layout, search, chance = Layout(tmp_path), search_by("tpe", points, "median"), Random(0)
    worker = ["-m", "tests.search.grid_worlds", *worker_arguments(layout, 0, seconds, LEASE_SECONDS, search)]
    script = f"cd {REPOSITORY} && exec {shlex.join([sys.executable, *worker])}"
    job = cluster.submit(script, f"--array=0-{elements - 1}", "--requeue", "--cpus-per-task=6")
    for number, fault in enumerate(faults, start=1):
        until(lambda number=number: started(layout) >= number * points // (len(faults) + 1), 240, f"fault {number}")
        running = {name: each for name, each in cluster.jobs().items() if name.startswith(f"{job}_") and each.nodes}
        name = chance.choice(sorted(name for name, each in running.items() if each.state == "RUNNING"))
        node = running[name].nodes
        if fault == "requeue":
            assert not cluster.client("scontrol", "requeue", name).returncode
        elif fault == "preempt":
            cluster.submit("sleep 3", "--partition=high", f"--nodelist={node}", "--exclusive")
        else:
            cluster.nodes[node].power_cut()
            cluster.declare_down(node)
            if number < len(faults):
                cluster.revive(node)
    until(study_of(0, search=search).closing(layout).record.exists, 300, "the end of the search")
    cluster.wait_for(job, {"COMPLETED"}, 240)
    restarts = sum(each.restarts for name, each in cluster.jobs().items() if name.startswith(f"{job}_"))
    print(f"{points} points, {elements} elements, {len(faults)} faults: {started(layout)} starts, {restarts} restarts")
    assert restarts >= len(faults)
    assert not (tmp_path / "crashed.jsonl").exists()
    assert_search_is_right(layout, search)
