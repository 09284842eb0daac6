"""The emulated cluster behaves as a SLURM of many machines does: what the tests of dispatch rest on."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, reason_not_to_start
from tests.slurm.configuration import Options
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


def wait_for_requeue(cluster: Cluster, job: str, seconds: float = 90) -> None:
    """Wait until the second copy of ``job`` runs."""
    until(lambda: (now := cluster.jobs()[job]).restarts == 1 and now.state == "RUNNING", seconds, f"{job} runs again")


def test_a_job_runs_on_the_node_it_asks_for(cluster: Cluster, folder: Path) -> None:
    job = cluster.submit("hostname > where", "--nodelist=node2")
    cluster.wait_for(job, {"COMPLETED"}, 60)
    assert cluster.jobs()[job].nodes == "node2"
    assert lines(folder / "where") == ["node2"]


def test_more_gpus_than_a_node_has_are_refused_at_submission(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="Requested node configuration is not available"):
        cluster.submit("true", "--gres=gpu:9")


def test_an_unknown_partition_is_refused_at_submission(cluster: Cluster) -> None:
    with pytest.raises(RuntimeError, match="invalid partition"):
        cluster.submit("true", "--partition=none")


def test_an_array_has_at_most_max_array_size_elements(cluster: Cluster) -> None:
    size = cluster.options.max_array_size
    with pytest.raises(RuntimeError, match="Invalid job array specification"):
        cluster.submit("true", f"--array=0-{size}")
    array = cluster.submit("true", f"--array=0-{size - 1}")
    cluster.wait_for(array, {"COMPLETED"}, 90)
    assert {f"{array}_{element}" for element in range(size)} <= cluster.jobs().keys()


def test_jobs_on_one_node_are_given_different_gpus(cluster: Cluster, folder: Path) -> None:
    for name in ("first", "second"):
        running(cluster, f"echo $CUDA_VISIBLE_DEVICES > {name}; sleep 600", "--gres=gpu:2", "--nodelist=node1")
    until(lambda: lines(folder / "first") and lines(folder / "second"), 60, "both jobs wrote")
    first, second = (set(lines(folder / name)[0].split(",")) for name in ("first", "second"))
    assert len(first) == len(second) == 2
    assert not first & second


def test_two_nodes_with_two_tasks_each_are_four_ranks_that_find_each_other(cluster: Cluster, folder: Path) -> None:
    task = "getent hosts node1 node2 && echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NTASKS $(hostname) > $SLURM_PROCID"
    job = cluster.submit(f"srun sh -c '{task}'", "--nodelist=node1,node2", "--ntasks-per-node=2")
    cluster.wait_for(job, {"COMPLETED"}, 60)
    ranks = [lines(folder / str(rank))[0] for rank in range(4)]
    assert ranks == ["0 0 4 node1", "1 1 4 node1", "2 0 4 node2", "3 1 4 node2"]


def test_accounting_tells_how_a_job_ended_until_it_stops(cluster: Cluster) -> None:
    job = cluster.submit("exit 3")
    cluster.wait_for(job, {"FAILED"}, 60)
    ask = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State,ExitCode")
    until(lambda: cluster.client(*ask).stdout == "FAILED|3:0\n", 60, "sacct says so")
    cluster.stop_accounting()
    assert cluster.client(*ask).returncode != 0


def test_the_job_of_a_crashed_node_ends_unsignalled_and_runs_again_elsewhere(cluster: Cluster, folder: Path) -> None:
    job, lost = running(cluster, REQUEUES, "--signal=USR2@5")
    wait_for_more(folder / lost)
    cluster.crash(lost)
    written = lines(folder / lost)
    cluster.declare_down(lost)
    wait_for_requeue(cluster, job)
    assert cluster.jobs()[job].nodes != lost
    assert lines(folder / lost) == written
    assert not lines(folder / "told")
    assert cluster.node_states()[lost] == "drained"
    cluster.revive(lost)
    assert cluster.node_states()[lost] == "idle"


@pytest.mark.drill
def test_the_controller_finds_out_by_itself_that_a_node_has_crashed(cluster: Cluster) -> None:
    job, lost = running(cluster, BEATS)
    cluster.crash(lost)
    wait_for_requeue(cluster, job, 180)
    assert cluster.jobs()[job].nodes != lost


def test_the_task_of_a_killed_slurmd_runs_on_beside_its_requeued_copy(cluster: Cluster, folder: Path) -> None:
    job, lost = running(cluster, BEATS)
    wait_for_more(folder / lost)
    cluster.kill_slurmd(lost)
    cluster.declare_down(lost)
    wait_for_requeue(cluster, job)
    second = cluster.jobs()[job].nodes
    assert second != lost
    wait_for_more(folder / lost)
    wait_for_more(folder / second)
    assert set(lines(folder / lost)) == {"none"}
    assert set(lines(folder / second)) == {"1"}


def test_before_its_time_limit_a_job_is_told_and_can_requeue_itself(cluster: Cluster, folder: Path) -> None:
    """SLURM looks at time limits twice a minute, so that the signal may come up to a minute before the moment given."""
    job, _ = running(cluster, REQUEUES, "--time=1", "--signal=USR2@60")
    wait_for_requeue(cluster, job, 150)
    assert lines(folder / "told")


def test_a_preempted_job_is_told_and_runs_again_after_the_job_that_wanted_its_node(
    cluster: Cluster, folder: Path
) -> None:
    job, node = running(cluster, REQUEUES, "--exclusive", "--nodelist=node1", "--signal=USR2@5")
    wait_for_more(folder / node)
    urgent = cluster.submit("true", "--exclusive", f"--nodelist={node}", "--partition=high")
    cluster.wait_for(urgent, {"COMPLETED"}, 90)
    wait_for_requeue(cluster, job)
    assert lines(folder / "told") == ["told"]


@pytest.mark.drill
def test_a_preempted_job_that_does_not_listen_is_requeued_after_its_grace(cluster: Cluster) -> None:
    job, node = running(cluster, f"trap '' TERM; {BEATS}", "--exclusive", "--nodelist=node1")
    urgent = cluster.submit("true", "--exclusive", f"--nodelist={node}", "--partition=high")
    cluster.wait_for(urgent, {"COMPLETED"}, 120)
    wait_for_requeue(cluster, job)


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


def test_an_environment_for_subprocesses_holds_nothing_of_a_job_outside(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SBATCH_PARTITION", "none")
    assert [name for name in cluster.environment if name.startswith(("SLURM", "SBATCH"))] == ["SLURM_CONF"]


def test_a_machine_without_slurm_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("tests.slurm.cluster.PATH", str(tmp_path))
    reason = reason_not_to_start(Options(accounting=False))
    assert reason is not None
    assert "slurmctld" in reason and "slurmdbd" not in reason


def test_only_root_can_start_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "root" in (reason_not_to_start(Options()) or "")


def test_two_clusters_run_side_by_side(cluster: Cluster) -> None:
    with Cluster(replace(cluster.options, nodes=1, accounting=False)) as other:
        job = other.submit("hostname")
        other.wait_for(job, {"COMPLETED"}, 60)
        folder = other.folder
    assert not folder.exists()
    assert set(cluster.node_states().values()) == {"idle"}
