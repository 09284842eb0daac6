"""Processes that train one run: SLURM's tasks find those of their own copy of the job, stop together, and give up."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from torch.distributed import DistError, HashStore

from neobert.errors import RunFailed
from neobert.execution import Execution
from neobert.executors import make_trainer
from neobert.executors.ranks import JobRank, Rendezvous, find_rendezvous, host_ranks
from neobert.executors.training import join_runs
from neobert.files import read_json, read_lines
from neobert.processes import Stopped, StopRequest
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from neobert.slurm.job import set_rank_variables
from neobert.training import checkpoints, distributed
from neobert.training.distributed import Process, set_up_device
from neobert.training.trainer import engine_class
from tests.slurm.configuration import free_ports
from tests.support import forking
from tests.support.tiny_runs import (
    STEPS,
    Trainable,
    assert_equal_weights,
    beside,
    claimed,
    curve,
    ends,
    final_weights,
    finish,
    record,
    slurm_tasks,
    tiny_model,
    tiny_run,
    tiny_stage,
    trainer_of,
    wait_for_steps,
    work,
    write_tiny_run,
)

STEP = {
    "SUBMITIT_EXECUTOR": "slurm",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_NODELIST": "node[1-2]",
}
EXECUTION = Execution(threads=1, processes=2, micro_batch_tokens=128, checkpoint_interval_steps=5)
BRIEF = timedelta(seconds=0.3)
HOST = """
import sys, time
from neobert.executors.ranks import JobRank, host_ranks
from neobert.training.distributed import Process
with host_ranks(JobRank("attempt", Process(0, 2))) as rendezvous:
    print(rendezvous.store.port, flush=True)
    time.sleep(60)
"""


def first_of(count: int) -> JobRank:
    """Rank 0 of some, which listens on a port that is free."""
    return JobRank("attempt", Process(0, count))


def beside_first(rendezvous: Rendezvous, rank: int = 1) -> JobRank:
    """Another rank of the attempt."""
    place = first_of(rendezvous.process.count)
    return replace(place, process=Process(rank, place.process.count), port=rendezvous.store.port)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Trainable:
    """A run without dropout, finished by two processes of this machine."""
    root, run = tmp_path_factory.mktemp("local"), tiny_run(model=tiny_model(dropout=0.0))
    write_tiny_run(root, run, processes=2)
    finish(root, run.reference)
    return root, run


@pytest.fixture
def apart(local: Trainable, tmp_path: Path) -> Trainable:
    """The same run in another folder, at its start; the corpus is there."""
    root = beside(tmp_path / "slurm", local[0])
    write_tiny_run(root, local[1])
    return root, local[1]


def named(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> JobRank | None:
    """The rank that a task of a job reads from its variables."""
    monkeypatch.setattr(os, "environ", dict(environment))
    set_rank_variables()
    return JobRank.of_environment(os.environ)


def test_a_step_of_slurm_says_who_a_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    task = named(monkeypatch, STEP)
    assert task is not None and (task.process, task.address) == (Process(3, 4), "node1") and task.port < 32768
    assert os.environ["LOCAL_RANK"] == "1" and "CUDA_VISIBLE_DEVICES" not in os.environ
    handed_on = first_of(4).variables()
    assert named(monkeypatch, STEP | handed_on) == task, "those of the shell that submitted the job"
    assert named(monkeypatch, {**STEP, **handed_on, "SLURM_NTASKS": "1"}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_JOB_ID": "8"},
        {"SLURM_STEP_ID": "1"},
        {"SLURM_RESTART_COUNT": "1"},
        {"SLURM_JOB_NODELIST": "node[3-4]"},
    ],
)
def test_another_copy_of_a_job_has_another_key_and_port(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    """SLURM_RESTART_COUNT alone does not tell copies apart: a controller's crash may start a job twice without it."""
    tasks = [named(monkeypatch, environment) for environment in (STEP, STEP | change, STEP | {"SLURM_PROCID": "0"})]
    (one, other, first) = [(task.key, task.port) for task in tasks if task is not None]
    assert one[0] != other[0] and one[1] != other[1] and one == first


def test_ranks_are_read_from_torchs_variables() -> None:
    second = JobRank("attempt", Process(1, 2), "node1", 29500)
    assert JobRank.of_environment(second.variables()) == second
    assert JobRank.of_environment({}) is None and JobRank.of_environment({"RANK": "0", "WORLD_SIZE": "1"}) is None
    with pytest.raises(ValueError, match="WORLD_SIZE is 2: set MASTER_ADDR, MASTER_PORT, RANK too, or unset it"):
        JobRank.of_environment({"WORLD_SIZE": "2"})


@pytest.mark.parametrize(("local_rank", "gpus", "taken"), [("2", 4, 2), ("2", 1, 0), ("0", 8, 0)])
def test_a_task_takes_its_gpu_or_the_only_one_it_sees(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, gpus: int, taken: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("SLURM_LOCALID", local_rank)
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    cudnn: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", cudnn.append)
    kernels: list[torch.device] = []
    monkeypatch.setattr(distributed, "choose_flash_attention", kernels.append)
    assert set_up_device() == torch.device("cuda", taken)
    assert current == kernels == [torch.device("cuda", taken)]
    assert current == [torch.device("cuda", taken)], "events and streams would belong to another"
    assert cudnn == [False], "it would plan for every new shape"


def test_no_task_shares_the_gpu_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="local rank 2 sees 2 GPUs"):
        set_up_device()


def test_five_tasks_of_which_two_get_no_rows_train_as_one_process_does(local: Trainable, tmp_path: Path) -> None:
    """A step has three rows. Every task joins in every collective, or none would end; without rows with a gradient of
    zero. Losses and norms of gradients agree to 1e-5 relative, and with them the weights."""
    stage = tiny_stage(tokens_per_step=96, steps=6, warmup_steps=1, decay_steps=5)
    run = tiny_run(model=tiny_model(dropout=0.0), stages=(stage,))
    alone, together = (beside(tmp_path / name, local[0]) for name in ("alone", "together"))
    for root in (alone, together):
        write_tiny_run(root, run)
    finish(alone, run.reference)
    codes, said = ends(slurm_tasks(together, run.reference, count=5))
    assert codes == [0] * 5, said
    lines = [read_lines(root / run.reference / "metrics.jsonl") for root in (alone, together)]
    one, five = ([line for line in each if "loss" in line] for each in lines)
    assert len(five) == 6 and record(together, run)["processes"] == 5
    for name in ("loss", "gradient_norm"):
        assert [line[name] for line in five] == pytest.approx([line[name] for line in one], rel=1e-5)
    ours, theirs = final_weights(together, run), final_weights(alone, run)
    for name, weight in theirs.items():
        assert (ours[name] - weight).norm() <= 1e-5 * weight.norm()


def test_of_two_copies_of_a_job_one_trains_each_stage_as_local_processes_do(local: Trainable, apart: Trainable) -> None:
    """Bit for bit; run.json says one process, the step two. Ranks of the copies do not mix."""
    root, run = apart
    stage = tiny_stage(steps=2, warmup_steps=0, decay_steps=0)
    second = tiny_run(previous=run, model=run.recipe.model, stages=(stage,))
    write_tiny_run(root, second)
    units = run.reference, second.reference
    copies = [slurm_tasks(root, *units, count=2, nodes=nodes) for nodes in ("node[1-2]", "node[2-3]")]
    codes, said = ends([process for copy in copies for process in copy])
    assert codes == [0, 0, 0, 0], said
    assert said == "", "a rank joined another attempt"
    assert len(list(read_lines(root / "starts.jsonl"))) == 2
    assert curve(root, run) == curve(local[0], run)
    assert_equal_weights(root, local[0], run)
    assert [record(root, each)["processes"] for each in (run, second)] == [2, 2]


def test_two_processes_give_the_losses_of_one_and_take_over_in_the_middle(local: Trainable, tmp_path: Path) -> None:
    """Gloo on CPU: losses agree to 1e-5 relative without dropout; a run begun alone goes on with two, same order."""
    run, alone = local[1], beside(tmp_path / "alone", local[0])
    write_tiny_run(alone, run)
    assert work(alone, run.reference) == 0
    assert curve(local[0], run) == pytest.approx(curve(alone, run), rel=1e-5)
    lines = [read_lines(root / run.reference / "metrics.jsonl") for root in (alone, local[0])]
    assert all(one.get("real_tokens") == two.get("real_tokens") for one, two in zip(*lines, strict=True))
    mixed = beside(tmp_path / "mixed", local[0])
    folder = write_tiny_run(mixed, run) / "checkpoints"
    folder.mkdir()
    (folder / "step-00000020").symlink_to(alone / run.reference / "checkpoints" / "step-00000020")
    codes, said = ends(slurm_tasks(mixed, run.reference, count=2))
    assert codes == [0, 0], said
    assert curve(mixed, run) == pytest.approx(curve(alone, run)[20:], rel=1e-5)


def test_a_stop_that_reaches_one_rank_alone_ends_all_after_the_same_step(local: Trainable, apart: Trainable) -> None:
    root, run = apart
    write_tiny_run(root, run, checkpoint_interval_steps=1000)
    tasks = slurm_tasks(root, run.reference, count=2)
    wait_for_steps(root, run, 2)
    for number in (signal.SIGSTOP, signal.SIGUSR2, signal.SIGCONT):  # the pause keeps the run from ending meanwhile
        tasks[1].send_signal(number)
    codes, said = ends(tasks)
    assert codes == [75, 0] and "saved after step" in said, said
    last = [line["step"] for line in read_lines(root / run.reference / "attempts" / "000001" / "metrics.jsonl")][-1]
    assert last < STEPS and (root / run.reference / "checkpoints" / f"step-{last:08d}").exists()
    codes, said = ends(slurm_tasks(root, run.reference, count=2, job="8"))
    assert codes == [0, 0], said
    assert_equal_weights(root, local[0], run)


def test_a_killed_rank_fails_the_attempt_and_the_next_start_goes_on(local: Trainable, apart: Trainable) -> None:
    root, run = apart
    tasks = slurm_tasks(root, run.reference, count=2)
    wait_for_steps(root, run, 7)
    tasks[1].kill()
    codes, said = ends(tasks)
    assert codes == [1, -signal.SIGKILL] and (root / run.reference / "error.json").exists(), said
    codes, said = ends(slurm_tasks(root, run.reference, count=2, job="8"))
    assert codes == [0, 0], said
    assert_equal_weights(root, local[0], run)


@pytest.mark.parametrize(("rank", "can_be_aborted"), [(0, True), (1, False)])
def test_ranks_in_a_collective_that_hangs_end_when_another_has_failed(
    apart: Trainable, rank: int, can_be_aborted: bool
) -> None:
    """As NCCL's does, which waits for a rank that is gone; destroying its group waits too. The error of the rank that
    failed is left for status."""
    root, run = apart
    arguments = [str(root), run.reference, str(rank), str(can_be_aborted)]
    first = replace(first_of(2), port=free_ports(1)[0])
    places = [{**os.environ, **replace(first, process=Process(number, 2)).variables()} for number in range(2)]
    tasks = [forking.start_worker(arguments, place, program="tests.training.hanging_ranks") for place in places]
    said = [task.communicate(timeout=200)[1].decode() for task in tasks]
    assert [task.returncode for task in tasks] == [1, 1] and "destroying the group hangs" not in "".join(said), said
    error = read_json(root / run.reference / "error.json")
    assert "the gradient is lost" in error["error"] and error["exit_code"] == 1


def test_a_rank_is_dead_after_a_minute_of_checks_without_a_sign_of_life() -> None:
    """A time-out in seconds would end ranks that were suspended together."""
    store, number = HashStore(), count(1)
    checks = int(distributed.VANISHED_SECONDS / distributed.WATCH_SECONDS)

    def wait(seconds: float) -> bool:
        """The second rank sends two heartbeats, the last one just in time."""
        check = next(number)
        if check in (1, checks + 1):
            store.add("alive 1", 1)
        return check > 4 * checks

    failure = distributed._wait_for_failure(store, Process(0, 2), SimpleNamespace(wait=wait))
    assert failure == "rank 1 sent no heartbeat for 60 s" and next(number) == 2 * checks + 3


def test_no_step_is_saved_whose_collectives_were_aborted(local: Trainable, monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's do not raise in the rank that aborts them, but later ones do."""
    trainer = trainer_of(*local)
    before = checkpoints.steps_on_disk(trainer.checkpoints)

    def fail(*_: object) -> int:
        raise RuntimeError("aborted")

    monkeypatch.setattr("neobert.training.trainer.broadcast_from_rank0", fail)
    with claimed(Layout(local[0]), "x") as claim, pytest.raises(RuntimeError, match="aborted"):
        trainer._save_together(7, claim.check)
    assert checkpoints.steps_on_disk(trainer.checkpoints) == before


# How ranks meet


def test_a_rank_that_cannot_reach_the_first_gives_up_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = JobRank("attempt", Process(1, 2), port=free_ports(1)[0])
    assert join_runs(Layout(tmp_path), place, StopRequest(), make_trainer, timeout=BRIEF) == 1
    where = f"127.0.0.1:{place.port}"
    said = f"process 1 of 2 of attempt gives up: rank 0 did not listen at {where} for 0.3 s\n"
    assert capsys.readouterr().err == said


def test_a_rank_waits_while_the_first_lives_and_the_first_for_a_late_rank(tmp_path: Path) -> None:
    """The first one may wait for another claim for hours, or find that all is done before others have come."""
    codes: list[int] = []

    def come(place: JobRank) -> None:
        codes.append(join_runs(Layout(tmp_path), place, StopRequest(), make_trainer, timeout=BRIEF))

    with host_ranks(first_of(3)) as rendezvous:
        early, late = (threading.Thread(target=come, args=[beside_first(rendezvous, rank)]) for rank in (1, 2))
        early.start()
        early.join(timeout=0.8)
        assert early.is_alive()
        threading.Timer(0.5, late.start).start()
    early.join(timeout=30)
    late.join(timeout=30)
    assert codes == [0, 0]


def test_a_rank_gives_up_when_the_first_dies() -> None:
    first = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE)
    assert first.stdout is not None
    place = JobRank("attempt", Process(1, 2), port=int(first.stdout.readline()))
    second = find_rendezvous(place, BRIEF)
    first.kill()
    first.communicate()
    with pytest.raises(DistError):
        second.next_run()
    with pytest.raises(RunFailed, match="did not listen"):
        find_rendezvous(place, BRIEF)


def test_one_attempt_of_a_job_has_one_process_a_rank_and_none_of_another_attempt() -> None:
    """A requeued job may have a rank of its last attempt left."""
    with host_ranks(first_of(2)) as rendezvous:
        place = beside_first(rendezvous)
        again = replace(place, process=Process(0, 2))
        with pytest.raises(RunFailed, match=f"cannot listen on port {place.port}"), host_ranks(again):
            pass
        with pytest.raises(RunFailed, match="is not rank 0 of the last attempt"):
            find_rendezvous(replace(place, key="the last attempt"))
        second = find_rendezvous(place)
        with pytest.raises(RunFailed, match=f"another process has already joined as {place}"):
            find_rendezvous(place)
        second.store.set("goodbye 1", "")


def test_a_run_to_which_not_all_come_names_who_is_missing() -> None:
    with host_ranks(first_of(3), BRIEF) as rendezvous:
        with (
            pytest.raises(RunFailed, match=r"1 of 3 ranks of run r joined within 0\.3 s; missing: 1, 2"),
            rendezvous.lead("r", EXECUTION, StopRequest(), print, BRIEF),
        ):
            pass
        late = find_rendezvous(beside_first(rendezvous))
        rendezvous.store.set("done", "")
        assert late.next_run() is None, "nobody may come to what is over"


def test_a_rank_that_came_to_a_run_that_was_given_up_comes_to_the_next() -> None:
    """It must not wait for the process group, which is never formed."""
    found: list[str] = []

    def come(place: JobRank) -> None:
        rendezvous = find_rendezvous(place)
        while (run := rendezvous.next_run()) is not None:
            try:
                with rendezvous.join(run):
                    found.append("a group")
            except RunFailed as error:
                found.append(str(error))

    with host_ranks(first_of(3), BRIEF) as rendezvous:
        thread = threading.Thread(target=come, args=[beside_first(rendezvous)], daemon=True)
        thread.start()
        for run_id in ("r", "s"):
            with (
                pytest.raises(RunFailed, match=f"2 of 3 ranks of run {run_id} joined"),
                rendezvous.lead(run_id, EXECUTION, StopRequest(), print, timedelta(seconds=1)),
            ):
                pass
    thread.join(timeout=30)
    for run_id, said in zip("rs", found, strict=True):
        assert f"2 of 3 ranks of run {run_id} joined within 1 s; missing: 2" in said


def test_a_stop_before_all_have_met_made_no_progress() -> None:
    stop = StopRequest()
    stop.request()
    with (
        host_ranks(first_of(2), BRIEF) as rendezvous,
        pytest.raises(Stopped) as stopped,
        rendezvous.lead("r", EXECUTION, stop, print),
    ):
        pass
    assert not stopped.value.progressed


def test_a_single_engine_refuses_more_processes() -> None:
    """And in one process every engine is the plain one."""
    assert {engine_class(word, 1) for word in ("single", "ddp", "zero1", "zero2")} == {engine_class("ddp", 2)}
    with pytest.raises(ValidationError, match=r"'single' trains in one process, not in 2: choose ddp, zero1 or zero2"):
        EXECUTION.with_processes(1).model_copy(update={"engine": "single"}).with_processes(2)


def test_the_newest_execution_of_a_run_counts_and_its_identity_stays(tmp_path: Path) -> None:
    run = tiny_run()
    folder = write_tiny_run(tmp_path, run)
    first = (folder / "run.json").read_bytes()
    assert not (folder / "execution.json").exists()
    write_tiny_run(tmp_path, run, processes=2, engine="zero1")
    assert read_run_file(folder).execution.engine == "zero1" and read_run_file(folder).execution.processes == 2
    write_tiny_run(tmp_path, run)
    assert read_run_file(folder).execution.engine == "ddp" and read_run_file(folder).execution.processes == 1
    assert (folder / "run.json").read_bytes() == first
