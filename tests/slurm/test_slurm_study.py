"""The study as users send it: the real command, dependencies, several nodes, several launchers."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cluster import Cluster
from safetensors.numpy import load_file
from studies import Study, long_run, run_command

from neobert.files import read_lines
from neobert.launching.here import REPOSITORY
from neobert.launching.submissions import read_submissions
from neobert.layout import Layout
from tests.tiny_runs import finish, reference, write_tiny_run

Until = Callable[..., object]
STUDY_SECONDS = 900


def test_the_ladders_foot_goes_through_the_queue(cluster: Cluster, tmp_path: Path, until: Until) -> None:
    """M0 to M2 at smoke scale, sent by three launchers at once: every unit starts once, every grid closes, and the
    same command afterwards has nothing to submit."""
    flags = ("--variant", "M0..M2", "--cluster", "slurm", "--runs", str(tmp_path), "--cpus", "1", "--hours", "1")
    launchers = [run_command(cluster, *flags) for _ in range(3)]
    said = [launcher.communicate(timeout=120) for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0, 0], said
    submissions = read_submissions(Layout(tmp_path))
    assert Counter(each.kind for each in submissions) == {"prepare": 2, "pretrain": 3, "glue": 6}

    assert {row["state"] for row in status(tmp_path)} <= {"submitted", "running", "waiting"}

    until(lambda: len(list(tmp_path.glob("glue/*/studies/*/selection.json"))) == 3 * 8, STUDY_SECONDS, "24 grids")
    for submission in submissions:
        cluster.wait_for(submission.job, {"COMPLETED"}, 60)
    starts = Counter(line["unit"] for line in read_lines(tmp_path / "starts.jsonl"))
    assert set(starts.values()) == {1}
    assert {row["state"] for row in status(tmp_path)} == {"done"}
    again = run_command(cluster, *flags, "--json")
    assert json.loads(again.communicate(timeout=120)[0]) == []


def test_two_nodes_with_two_tasks_each_train_what_one_process_trains(cluster: Cluster, tmp_path: Path) -> None:
    """Four ranks over two nodes: bits of four local processes, and one process's weights within 1e-5."""
    run = long_run(120)
    study = Study.prepared(cluster, tmp_path / "slurm", run, nodes=2, tasks_per_node=2)
    job = study.send()
    study.wait_until_done()
    cluster.wait_for(job, {"COMPLETED"}, 60)
    assert study.record()["processes"] == 4
    assert weights(study.root, run) == weights(alone(tmp_path / "local", run, 4), run)
    one = weights(alone(tmp_path / "one", run, 1), run)
    for name, tensor in weights(study.root, run).items():
        np.testing.assert_allclose(tensor.array, one[name].array, rtol=0, atol=1e-5, err_msg=name)


def status(root: Path) -> list[dict[str, Any]]:
    """What the status command says, from files alone."""
    command = [sys.executable, "ablations/status.py", "--json", "--runs", str(root)]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(answer.stdout)
    return rows


class Bits:
    """An array that equals another to the bit."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bits) and bool(np.array_equal(self.array, other.array))

    __hash__ = None  # type: ignore[assignment]


def weights(root: Path, run: Any) -> dict[str, Bits]:
    """The final weights of a run."""
    folder = Layout(root).pretraining(run.id) / "checkpoints" / f"step-{run.recipe.stages[-1].steps:08d}"
    return {name: Bits(array) for name, array in load_file(folder / "model.safetensors").items()}


def alone(root: Path, run: Any, processes: int) -> Path:
    """The run on this machine with some processes."""
    write_tiny_run(root, run, processes=processes)
    code, said = finish(root, reference(run))
    assert code == 0, said
    return root
