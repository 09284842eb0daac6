"""The emulated cluster behaves as a SLURM of many machines does: what the drills rest on; warnings and preemption
are tested with the project's own jobs."""

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.configuration import LARGEST_ARRAY
from tests.support.waiting import until

# Every copy of the job writes its restart count into a file named after its node, again and again.
BEATS = "while :; do echo ${SLURM_RESTART_COUNT-none} >> $SLURMD_NODENAME; sleep 0.2; done"
# Told to stop (USR2), a task asks for the requeue of its job, as dispatch does.
REQUEUES = """srun sh -c 'trap "echo told >> told; exec scontrol requeue $SLURM_JOB_ID" USR2; """ + BEATS + "'"


@pytest.fixture
def folder(cluster: Cluster) -> Path:
    """Where jobs run and leave what they write; empty."""
    folder = cluster.folder / "jobs"
    for path in folder.iterdir():
        path.unlink()
    return folder


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def running(cluster: Cluster, script: str, *options: str) -> tuple[str, str]:
    """A new job that runs by now, and its node."""
    job = cluster.submit(script, *options)
    cluster.wait_for(job, {"RUNNING"}, 60)
    return job, cluster.jobs()[job].nodes


def wait_for_more(path: Path) -> None:
    """Wait until ``path`` has more lines than now."""
    before = len(lines(path))
    until(lambda: len(lines(path)) > before, 60, f"another line of {path.name}")


def wait_for_requeue(cluster: Cluster, job: str) -> None:
    """Wait until the second copy of ``job`` runs."""
    until(lambda: (now := cluster.jobs()[job]).restarts == 1 and now.state == "RUNNING", 90, f"{job} runs again")


def test_more_gpus_than_a_node_has_are_refused_at_submission(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="Requested node configuration is not available"):
        cluster.submit("true", "--gres=gpu:9")


def test_an_array_has_at_most_max_array_size_elements(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="Invalid job array specification"):
        cluster.submit("true", f"--array=0-{LARGEST_ARRAY}")
    array = cluster.submit("true", f"--array=0-{LARGEST_ARRAY - 1}")
    cluster.wait_for(array, {"COMPLETED"}, 90)
    assert {f"{array}_{element}" for element in range(LARGEST_ARRAY)} <= cluster.jobs().keys()


def test_the_job_of_a_crashed_node_ends_unsignalled_and_runs_again_elsewhere(cluster: Cluster, folder: Path) -> None:
    job, lost = running(cluster, REQUEUES, "--signal=USR2@5")
    wait_for_more(folder / lost)
    cluster.nodes[lost].power_cut()
    written = lines(folder / lost)
    cluster.declare_down(lost)
    wait_for_requeue(cluster, job)
    assert cluster.jobs()[job].nodes != lost
    assert lines(folder / lost) == written
    assert not lines(folder / "told")
    assert cluster.node_states()[lost] == "drained"
    cluster.revive(lost)
    assert cluster.node_states()[lost] == "idle"


def test_the_task_of_a_killed_slurmd_runs_on_beside_its_requeued_copy(cluster: Cluster, folder: Path) -> None:
    job, lost = running(cluster, BEATS)
    wait_for_more(folder / lost)
    cluster.nodes[lost].kill_slurmd()
    cluster.declare_down(lost)
    wait_for_requeue(cluster, job)
    second = cluster.jobs()[job].nodes
    assert second != lost
    wait_for_more(folder / lost)
    wait_for_more(folder / second)
    assert set(lines(folder / lost)) == {"none"}
    assert set(lines(folder / second)) == {"1"}


def test_jobs_outlive_their_controller(cluster: Cluster, folder: Path) -> None:
    job, node = running(cluster, BEATS + " & until [ -e end ]; do sleep 0.2; done; kill $!")
    next_job = cluster.submit("true", f"--dependency=afterany:{job}")
    cluster.wait_until_saved(next_job)
    cluster.kill_controller()
    wait_for_more(folder / node)
    cluster.start_controller()
    (folder / "end").touch()
    cluster.wait_for(next_job, {"COMPLETED"}, 90)
    assert cluster.jobs()[job].state == "COMPLETED"
    assert set(lines(folder / node)) == {"none"}
