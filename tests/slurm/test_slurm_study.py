"""The study as users send it: the real command, dependencies, several nodes, several launchers."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ablations.launch.submit import Submitter, plan_jobs
from ablations.loading import papers
from ablations.plan import PlannedRun, PlanRow
from neobert.executors.preparation import open_specified
from neobert.processes import REPOSITORY
from neobert.runs.layout import Layout
from neobert.runs.run_file import write_run_file
from neobert.runs.submissions import read_submissions
from neobert.slurm import submit as submission
from neobert.slurm.profile import JOB_KINDS, Resources
from tests.ablations.status_worlds import EXECUTION, study_of
from tests.slurm.cluster import Cluster
from tests.slurm.studies import SHORT_HOURS, Study, as_on_login_node, run_command
from tests.support.tiny_runs import (
    SOURCE,
    assert_equal_weights,
    curve,
    finish,
    record,
    starts,
    tiny_model,
    tiny_run,
    write_tiny_run,
)
from tests.support.waiting import until

STUDY_SECONDS = 1800


def test_several_launchers_send_every_job_once_and_grids_wait_for_theirs(cluster: Cluster, tmp_path: Path) -> None:
    """M0 to M2 sent by three launchers at once, then M0 with its grid, which waits; one command takes all back."""
    flags = ("--cluster", "slurm", "--runs", str(tmp_path), "--cpus", "1", "--hours", "1")
    launch(cluster, 3, "--variant", "M0..M2", "--stages", "pretrain", *flags)
    launch(cluster, 1, "--variant", "M0", *flags)
    submissions = read_submissions(Layout(tmp_path))
    assert Counter(each.kind for each in submissions) == {"prepare": 2, "pretrain": 3, "glue": 2}
    grids = [each.job for each in submissions if each.kind == "glue"]
    assert all(cluster.states(job) == {"PENDING"} for job in grids)
    assert json.loads(launch(cluster, 1, "--variant", "M0", *flags, "--json")) == []
    launch(cluster, 1, "--variant", "M0..M2", "--cancel", "--runs", str(tmp_path))
    pretraining = [each.job for each in submissions if each.kind == "pretrain"]
    until(lambda: all(cluster.states(job) == {"CANCELLED"} for job in grids + pretraining), 60, "cancelled jobs")


@pytest.mark.parametrize(
    "resources", [{"memory_gb": 1}, {}, {"sbatch": ("mem-per-cpu=300M",)}], ids=["per node", "default", "per core"]
)
def test_what_the_shell_tells_slurms_clients_stops_no_job(
    cluster: Cluster, tmp_path: Path, resources: dict[str, Any]
) -> None:
    """Each of these variables alone makes srun refuse its step, or a job wait for what no node has."""
    study = Study.prepared(cluster, tmp_path, tiny_run(), **resources)
    job = study.send(
        SLURM_MEM_PER_CPU="2048",
        SLURM_MEM_PER_NODE="2048",
        SLURM_GRES="gpu:9",
        SLURM_NTASKS="7",
        SLURM_TIMELIMIT="nonsense",
        SLURM_CLUSTERS="elsewhere",
        SBATCH_GRES="gpu:9",
        SBATCH_MEM_PER_CPU="64000000",
    )
    study.wait_until_done()
    cluster.wait_for(job, {"COMPLETED"}, 60)


def test_what_a_login_shell_tells_srun_stops_no_job(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under --export=NONE SLURM takes the variables of a login shell into the job; a job's first line stands for it."""
    lines = "export SLURM_MEM_PER_CPU=2048 SLURM_GRES=gpu:9 SLURM_TIMELIMIT=nonsense"
    text = submission.sbatch_text
    monkeypatch.setattr(
        submission, "sbatch_text", lambda *given: text(*given).replace("# setup\n", f"# setup\n{lines}\n", 1)
    )
    study = Study.prepared(cluster, tmp_path, tiny_run(), memory_gb=1)
    job = study.send()
    study.wait_until_done()
    cluster.wait_for(job, {"COMPLETED"}, 60)


def test_two_folders_of_one_account_leave_each_others_jobs_alone(cluster: Cluster, tmp_path: Path) -> None:
    """The same command for two folders, one of them named like a command for a shell; one is cancelled again."""
    mine, theirs = tmp_path / "mine", tmp_path / "their's $(touch gotcha)"
    flags = ("--variant", "M0", "--stages", "pretrain", "--cluster", "slurm", "--cpus", "1", "--hours", "1")
    for root in (mine, theirs):
        launch(cluster, 1, *flags, "--runs", str(root))
    jobs = {root: [each.job for each in read_submissions(Layout(root))] for root in (mine, theirs)}
    assert [len(ids) for ids in jobs.values()] == [2, 2]
    assert json.loads(launch(cluster, 1, *flags, "--runs", str(mine), "--json")) == []
    launch(cluster, 1, "--variant", "M0", "--cancel", "--runs", str(mine))
    until(lambda: cluster.states(jobs[mine][1]) == {"CANCELLED"}, 60, "a cancelled job")
    cluster.wait_for(jobs[theirs][0], {"COMPLETED"}, 240)
    assert not any("CANCELLED" in cluster.states(job) for job in jobs[theirs])
    assert not list(tmp_path.rglob("gotcha")) and not list((cluster.folder / "jobs").glob("gotcha"))


def test_neither_a_copy_nor_a_damaged_file_nor_a_name_costs_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """A file of the copy loses a bit, and a job of the user is called like a folder in jobs/. Every command then finds
    the jobs of its own folder, and --cancel takes those alone."""
    mine, copy = tmp_path / "mine", tmp_path / "copy"
    flags = (
        "--variant",
        "M0",
        "--stages",
        "pretrain",
        "--cluster",
        "slurm",
        "--cpus",
        "1",
        "--sbatch",
        "begin=now+1hour",
    )
    precious = cluster.submit("sleep 600", "--job-name=precious")
    launch(cluster, 1, *flags, "--runs", str(mine))
    jobs = {each.job for each in read_submissions(Layout(mine))}
    (mine / "jobs" / "precious").mkdir()
    shutil.copytree(mine, copy)
    damaged = next(copy.glob("jobs/*/submission.json"))
    damaged.write_bytes(damaged.read_bytes().replace(b'"job": "', b'"jmb": "', 1))
    launch(cluster, 1, *flags, "--runs", str(copy))
    assert json.loads(launch(cluster, 1, *flags, "--runs", str(mine), "--json")) == []
    assert {each.job for each in read_submissions(Layout(mine))} == jobs
    launch(cluster, 1, "--variant", "M0", "--cancel", "--runs", str(copy))
    copied = {each.job for each in read_submissions(Layout(copy))} - jobs
    until(lambda: all(cluster.states(job) == {"CANCELLED"} for job in copied), 60, "cancelled jobs of the copy")
    assert len(jobs) == len(copied) == 2
    assert [cluster.states(job) for job in (*jobs, precious)] == [{"PENDING"}, {"PENDING"}, {"RUNNING"}]


def test_a_controller_that_has_just_started_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    """For some seconds it knows of no GPU and refuses every job that wants one."""
    flags = ("--variant", "M0", "--stages", "pretrain", "--cluster", "slurm", "--gpus", "8", "--runs", str(tmp_path))
    cluster.kill_controller()
    cluster.start_controller()
    launch(cluster, 1, *flags)
    assert len(read_submissions(Layout(tmp_path))) == 2


def test_a_grid_runs_behind_the_pre_training_that_it_needs(cluster: Cluster, tmp_path: Path) -> None:
    """A run of seconds and its grid, sent together: corpus, run, points and selection each start once."""
    layout, run = Layout(tmp_path), tiny_run()
    study = study_of(run, "rte").model_copy(update={"task_origin": open_specified(SOURCE).task_origin("rte")})
    write_tiny_run(tmp_path, run)
    write_run_file(layout, study, SOURCE, EXECUTION, {"variants": ["T"]})
    resources = Resources(hours=SHORT_HOURS, cpus_per_task=1)
    profile = dict.fromkeys(JOB_KINDS, resources)
    planned = (
        PlannedRun(run, layout.root / run.folder, "waiting"),
        PlannedRun(study, layout.root / study.folder, "waiting"),
    )
    row = PlanRow(ladder=papers(), name="T", heading="T", data_of="M0", scale="smoke", planned=planned, skipped={})
    with as_on_login_node(cluster):
        Submitter(layout, profile, papers(), "smoke", None).send(plan_jobs(layout, [row], profile))
    selection = layout.root / study.folder / "selection.json"
    until(selection.exists, STUDY_SECONDS, "the grid's selection")
    assert len(starts(tmp_path)) == len(set(starts(tmp_path))) == 1 + 1 + len(study.points) + 1


@pytest.mark.drill
def test_the_ladders_foot_goes_through_the_queue(cluster: Cluster, tmp_path: Path) -> None:
    """M0 to M2 with all grids at smoke scale, sent by three launchers at once."""
    flags = ("--variant", "M0..M2", "--cluster", "slurm", "--runs", str(tmp_path), "--cpus", "1", "--hours", "1")
    launch(cluster, 3, *flags)
    kinds = Counter(each.kind for each in read_submissions(Layout(tmp_path)))
    assert kinds == {"prepare": 2, "pretrain": 3, "glue": 6}
    assert_all_is_done_once(cluster, tmp_path, grids=3 * 8)
    assert json.loads(launch(cluster, 1, *flags, "--json")) == []


def launch(cluster: Cluster, launchers: int, *arguments: str) -> str:
    """Give run.py's command several times at once; what the last one printed."""
    processes = [run_command(cluster, *arguments) for _ in range(launchers)]
    said = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * launchers, said
    return said[-1][0]


def assert_all_is_done_once(cluster: Cluster, root: Path, *, grids: int) -> None:
    """Every unit starts once, every stage and grid closes, and the status command says so from files alone."""
    assert {row["state"] for row in status(root)} - {"done"} <= {"submitted", "running", "waiting"}
    until(lambda: len(list(root.glob("glue/*/studies/*/selection.json"))) == grids, STUDY_SECONDS, f"{grids} grids")
    until(lambda: len(list(root.glob("pretraining/*/done.json"))) == 3, STUDY_SECONDS, "three stages")
    sent = {submission.job for submission in read_submissions(Layout(root))}  # others ended as other tests wanted

    def states() -> set[str]:
        return {job.state for name, job in cluster.jobs().items() if name.split("_")[0] in sent}

    until(lambda: states() <= {"COMPLETED"}, 60, "the end of all jobs")
    assert len(starts(root)) == len(set(starts(root)))
    assert {row["state"] for row in status(root)} == {"done"}


def test_two_nodes_with_two_tasks_each_train_what_one_process_trains(cluster: Cluster, tmp_path: Path) -> None:
    """Four ranks over two nodes: the bits of four local processes, and one process's losses to 1e-5 relative."""
    run = tiny_run(model=tiny_model(dropout=0.0))
    study = Study.prepared(cluster, tmp_path / "slurm", run, nodes=2, tasks_per_node=2)
    job = study.send()
    study.wait_until_done()
    cluster.wait_for(job, {"COMPLETED"}, 60)
    assert record(study.root, run)["processes"] == 4
    for processes in (4, 1):
        write_tiny_run(tmp_path / str(processes), run, processes=processes)
        finish(tmp_path / str(processes), run.reference)
    assert_equal_weights(study.root, tmp_path / "4", run)
    assert curve(study.root, run) == pytest.approx(curve(tmp_path / "1", run), rel=1e-5)


def status(root: Path) -> list[dict[str, Any]]:
    """What the status command says, from files alone."""
    command = [sys.executable, "ablations/status.py", "--json", "--runs", str(root)]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(answer.stdout)
    return rows
