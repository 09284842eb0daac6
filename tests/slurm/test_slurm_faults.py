"""Whatever happens to jobs and nodes: every result is published once and equals the undisturbed one to the bit."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.studies import Study, long_run, undisturbed
from tests.support.waiting import until

RUN = long_run()


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of the run when nothing happens."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), RUN)


def test_a_warned_job_saves_comes_back_and_goes_on(cluster: Cluster, tmp_path: Path, expected: dict[str, Any]) -> None:
    """What SLURM sends before a time limit: the job is requeued once and ends with the undisturbed bits."""
    study, job = Study.underway(cluster, tmp_path, RUN)
    cluster.signal(job, "USR2")
    study.wait_until_done()
    cluster.wait_for(job, {"COMPLETED"}, 60)
    assert cluster.jobs()[job].restarts == 1
    assert study.owners == 2
    assert study.outcome() == expected


@pytest.mark.drill
def test_a_time_limit_ends_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """A real limit of two minutes (SLURM warns up to one early): warned, saved, requeued, as often as it takes."""
    run = long_run(12_000)
    study = Study.prepared(cluster, tmp_path, run, hours=2 / 60, grace_seconds=20)
    job = study.send()
    study.wait_until_done(900)
    assert cluster.jobs()[job].restarts >= 1
    assert study.outcome() == undisturbed(tmp_path / "undisturbed", run)


def test_a_preempted_job_goes_on_where_it_was(cluster: Cluster, tmp_path: Path, expected: dict[str, Any]) -> None:
    """A partition of higher priority takes the node; the job saves within the grace time and comes back."""
    study, job = Study.underway(cluster, tmp_path, RUN, sbatch=("nodelist=node1",))
    cluster.submit("sleep 3", "--partition=high", "--nodelist=node1", "--exclusive")
    study.wait_until_done()
    assert cluster.jobs()[job].restarts == 1
    assert study.outcome() == expected


def test_a_killed_task_is_sent_again_by_the_same_command(
    cluster: Cluster, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """kill −9 of the task: SLURM does not requeue it; the command submits what has no record and it goes on."""
    study, first = Study.underway(cluster, tmp_path, RUN)
    assert study.send_all() == []
    cluster.signal(first, "KILL")
    cluster.wait_for(first, {"FAILED", "CANCELLED"}, 60)
    second = study.send()
    assert second != first
    study.wait_until_done()
    assert study.outcome() == expected


def test_a_cancelled_job_stays_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    study, job = Study.underway(cluster, tmp_path, RUN)
    cluster.client("scancel", job)
    cluster.wait_for(job, {"CANCELLED"}, 60)
    assert cluster.jobs()[job].restarts == 0
    assert not study.is_done


def test_a_job_without_progress_does_not_come_back(cluster: Cluster, tmp_path: Path) -> None:
    """Warned before anything was saved, it would waste every further time limit: it fails and says so."""
    study = Study.prepared(cluster, tmp_path, RUN)
    foreign = study.layout.claims(RUN.id)
    foreign.mkdir(parents=True)
    (foreign / "1").write_text('{"host": "elsewhere", "pid": 1, "birth": "1"}')  # an owner that lives, so it must wait
    job = study.send()
    cluster.wait_for(job, {"RUNNING"}, 60)
    until(lambda: any((study.root / "jobs").glob("*/*_log.out")), 30, "its log")
    until(lambda: "Loading pickle" in study.logs(), 30, "its start")
    time.sleep(6)  # torch is imported before signals are listened to
    cluster.signal(job, "USR2")
    cluster.wait_for(job, {"FAILED"}, 60)
    assert "before any progress" in study.logs()


@pytest.mark.drill
def test_a_node_that_loses_power_costs_a_checkpoint_interval(
    cluster: Cluster, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """NODE_FAIL: SLURM requeues the job elsewhere, the claim of the dead runs out, the work goes on."""
    study, job = Study.underway(cluster, tmp_path, RUN)
    node = cluster.jobs()[job].nodes
    cluster.nodes[node].power_cut()
    cluster.declare_down(node)
    study.wait_until_done(300)
    assert cluster.jobs()[job].restarts == 1
    assert cluster.jobs()[job].nodes != node
    assert study.owners == 2
    assert study.outcome() == expected


@pytest.mark.drill
def test_an_orphan_and_its_requeued_copy_publish_once(
    cluster: Cluster, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """slurmd is killed: the old task runs on beside the copy. One of them publishes, nothing is mixed."""
    study, job = Study.underway(cluster, tmp_path, RUN)
    node = cluster.jobs()[job].nodes
    cluster.nodes[node].kill_slurmd()
    cluster.declare_down(node)
    study.wait_until_done(300)
    cluster.wait_for(job, {"COMPLETED"}, 120)
    assert study.outcome() == expected


@pytest.mark.drill
def test_a_frozen_orphan_that_wakes_up_publishes_nothing(
    cluster: Cluster, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """The old task is stopped past its lease while the copy goes on; awake again, it finds itself fenced."""
    study, job = Study.underway(cluster, tmp_path, long_run(6_000))
    node = cluster.jobs()[job].nodes
    pids = cluster.nodes[node].run("pgrep", "-f", "^[^ ]*python[^ ]* -u -m submitit").split()
    cluster.nodes[node].kill_slurmd()
    for pid in pids:
        cluster.nodes[node].run("kill", "-STOP", pid)
    cluster.declare_down(node)
    until(lambda: study.owners == 2, 240, "the copy's claim")
    for pid in pids:
        cluster.nodes[node].run("kill", "-CONT", pid)
    study.wait_until_done(300)
    assert study.outcome() == undisturbed(tmp_path / "undisturbed", study.run)
    assert "taken over" in study.logs()


@pytest.mark.drill
def test_half_a_job_that_is_lost_is_no_success(cluster: Cluster, tmp_path: Path) -> None:
    """One of two nodes dies: whatever SLURM calls the job, there is no record, and the same command goes on."""
    run = long_run()
    study, job = Study.underway(cluster, tmp_path / "hit", run, nodes=2, sbatch=("no-kill", "nodelist=node1,node2"))
    cluster.nodes["node2"].power_cut()
    cluster.declare_down("node2")
    until(lambda: study.owners == 2 or job not in live(cluster), 120, "the end of the broken group")
    if not study.is_done:
        cluster.restore()
        study.send_all()
        study.wait_until_done(400)
    whole = Study.prepared(cluster, tmp_path / "whole", run, nodes=2)
    whole.send()
    whole.wait_until_done(400)
    assert study.outcome() == whole.outcome()


def live(cluster: Cluster) -> set[str]:
    return {job.job for job in cluster.jobs().values() if job.state in {"RUNNING", "PENDING", "COMPLETING"}}


@pytest.mark.drill
def test_a_controller_that_runs_a_job_twice_gets_one_result(
    cluster: Cluster, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """kill −9 of slurmctld just after the start: it remembers a waiting job, and starts it a second time."""
    study = Study.prepared(cluster, tmp_path, RUN, sbatch=("begin=now+20",))
    job = study.send()
    cluster.wait_until_saved(job)
    cluster.wait_for(job, {"RUNNING"}, 60)
    cluster.kill_controller()
    cluster.start_controller()
    study.wait_until_done(300)
    assert study.outcome() == expected
    assert len((study.root / "starts.jsonl").read_text().splitlines()) == study.owners


@pytest.mark.drill
def test_a_job_that_the_controller_forgot_is_sent_again(
    cluster: Cluster, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """kill −9 of slurmctld just after a start: it forgets the job, or knows it as waiting, starts it again beside the
    running copy, and then holds it. The same command sends it anew or releases it."""
    study = Study.prepared(cluster, tmp_path, RUN)
    job = study.send()
    cluster.wait_for(job, {"RUNNING"}, 60)
    cluster.kill_controller()
    cluster.start_controller()
    until(lambda: "idle" in cluster.node_states().values(), 60, "nodes that are back")

    def the_same_command_ends_it() -> bool:
        if not study.is_done:
            study.send_all()
        return study.is_done

    until(the_same_command_ends_it, 300, "the record")
    assert study.outcome() == expected
