"""Processes that train one run: SLURM's tasks find those of their own copy of the job, stop together, and give up."""

import json
import signal
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from tiny_runs import (
    STEPS,
    beside,
    curve,
    ends,
    final_weights,
    finish,
    reference,
    slurm_tasks,
    tiny_model,
    tiny_run,
    tiny_stage,
    wait_for_steps,
    write_tiny_run,
)

from neobert.errors import RunFailed
from neobert.files import read_lines
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import acquire
from neobert.runs.layout import Layout
from neobert.runs.specifications import Execution, PretrainingRun, read_run_file
from neobert.training.distributed import Meeting, Process, Task, Waiting, default_device, hosted, leading
from neobert.training.helping import help_along
from neobert.training.trainer import engine_class

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_JOB_NODELIST": "node[1-2]",
}
EXECUTION = Execution(threads=1, processes=2, micro_batch_tokens=128, checkpoint_interval_steps=5)
HELPER = Task("slurm-7-0-0-x", Process(1, 2))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PretrainingRun]:
    """A run without dropout, finished by two processes of this machine."""
    root, run = tmp_path_factory.mktemp("local"), tiny_run(model=tiny_model(dropout=0.0))
    write_tiny_run(root, run, processes=2)
    code, said = finish(root, reference(run))
    assert code == 0, said
    return root, run


def assert_equal_weights(first: Path, second: Path, run: PretrainingRun) -> None:
    """Bit for bit."""
    ours, theirs = final_weights(first, run), final_weights(second, run)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_step_of_slurm_says_who_a_process_is() -> None:
    task = Task.of_environment(STEP)
    assert task is not None and task.process == Process(3, 4) and "/" not in task.key
    assert Task.of_environment({**STEP, "SLURM_NTASKS": "1"}) is None
    assert Task.of_environment({}) is None


def test_a_batch_script_or_a_shell_of_an_allocation_is_no_task() -> None:
    outside = {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}
    assert Task.of_environment(outside) is None


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_JOB_ID": "8"},
        {"SLURM_STEP_ID": "1"},
        {"SLURM_RESTART_COUNT": "1"},
        {"SLURM_JOB_NODELIST": "node[3-4]"},
    ],
)
def test_another_copy_of_a_job_has_another_key(change: dict[str, str]) -> None:
    """SLURM_RESTART_COUNT alone does not tell copies apart: a controller's crash may start a job twice without it."""
    tasks = [Task.of_environment(environment) for environment in (STEP, STEP | change, STEP | {"SLURM_PROCID": "0"})]
    keys = [task.key for task in tasks if task is not None]
    assert keys[0] != keys[1] and keys[0] == keys[2]


def test_a_helper_started_here_knows_its_place_even_inside_a_step_of_slurm() -> None:
    assert Task.of_environment(STEP | HELPER.variables()) == HELPER


@pytest.mark.parametrize(("local_rank", "gpus", "taken"), [("2", 4, 2), ("2", 1, 0), ("0", 8, 0)])
def test_a_task_takes_its_gpu_or_the_only_one_it_sees(
    monkeypatch: pytest.MonkeyPatch, local_rank: str, gpus: int, taken: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("SLURM_LOCALID", local_rank)
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert default_device() == torch.device("cuda", taken)
    assert current == [taken], "events and streams would belong to another"


def test_no_task_shares_the_gpu_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="sees 2 GPUs, one for each of those before it"):
        default_device()


def test_two_tasks_of_slurm_train_stage_after_stage_as_local_processes_do(
    local: tuple[Path, PretrainingRun], tmp_path: Path
) -> None:
    """Bit for bit; run.json says one process, the step two. The helper goes from the first meeting to the second."""
    root, run = beside(tmp_path / "slurm", local[0]), local[1]
    second = tiny_run(
        previous=run, model=run.recipe.model, stages=(tiny_stage(steps=2, warmup_steps=0, decay_steps=0),)
    )
    write_tiny_run(root, run)
    write_tiny_run(root, second)
    codes, said = ends(slurm_tasks(root, reference(run), reference(second), count=2))
    assert codes == [0, 0], said
    assert curve(root, run) == curve(local[0], run)
    assert_equal_weights(root, local[0], run)
    records = [json.loads((root / reference(each) / "done.json").read_text()) for each in (run, second)]
    assert [record["processes"] for record in records] == [2, 2]
    assert len(list(read_lines(root / "starts.jsonl"))) == 2


def test_four_tasks_of_which_two_get_no_rows_train_the_same(local: tuple[Path, PretrainingRun], tmp_path: Path) -> None:
    """8 rows a step in micro-batches of 4: losses agree with two processes to 1e-5 relative."""
    root, run = beside(tmp_path / "slurm", local[0]), local[1]
    write_tiny_run(root, run)
    codes, said = ends(slurm_tasks(root, reference(run), count=4))
    assert codes == [0, 0, 0, 0], said
    assert curve(root, run) == pytest.approx(curve(local[0], run), rel=1e-5)


def test_of_two_copies_of_a_job_one_trains_and_its_tasks_do_not_mix(
    local: tuple[Path, PretrainingRun], tmp_path: Path
) -> None:
    root, run = beside(tmp_path / "slurm", local[0]), local[1]
    write_tiny_run(root, run)
    copies = [slurm_tasks(root, reference(run), count=2, nodes=nodes) for nodes in ("node[1-2]", "node[2-3]")]
    codes, said = ends([process for copy in copies for process in copy])
    assert codes == [0, 0, 0, 0], said
    assert said == "", "somebody went to a meeting that was not theirs"
    assert len(list(read_lines(root / "starts.jsonl"))) == 1
    assert_equal_weights(root, local[0], run)


def test_a_stop_that_reaches_one_helper_alone_ends_all_after_the_same_step(
    local: tuple[Path, PretrainingRun], tmp_path: Path
) -> None:
    root, run = beside(tmp_path / "slurm", local[0]), local[1]
    write_tiny_run(root, run, checkpoint_interval_steps=1000)
    tasks = slurm_tasks(root, reference(run), count=2)
    wait_for_steps(root, run, 2)
    for number in (signal.SIGSTOP, signal.SIGUSR2, signal.SIGCONT):  # the pause keeps the run from ending meanwhile
        tasks[1].send_signal(number)
    codes, said = ends(tasks)
    assert codes == [75, 0] and "saved after step" in said, said
    last = [line["step"] for line in read_lines(root / reference(run) / "attempts" / "000001" / "metrics.jsonl")][-1]
    assert last < STEPS and (root / reference(run) / "checkpoints" / f"step-{last:08d}").exists()
    codes, said = ends(slurm_tasks(root, reference(run), count=2, job="8"))
    assert codes == [0, 0], said
    assert_equal_weights(root, local[0], run)


def test_a_killed_helper_fails_the_attempt_and_the_next_start_goes_on(
    local: tuple[Path, PretrainingRun], tmp_path: Path
) -> None:
    root, run = beside(tmp_path / "slurm", local[0]), local[1]
    write_tiny_run(root, run)
    tasks = slurm_tasks(root, reference(run), count=2)
    wait_for_steps(root, run, 7)
    tasks[1].kill()
    codes, said = ends(tasks)
    assert codes == [1, -signal.SIGKILL] and (root / reference(run) / "error.json").exists(), said
    codes, said = ends(slurm_tasks(root, reference(run), count=2, job="8"))
    assert codes == [0, 0], said
    assert_equal_weights(root, local[0], run)


def test_a_helper_without_a_sign_of_life_gives_up_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert help_along(Layout(tmp_path), HELPER, StopRequest(), timeout=timedelta(seconds=0.3)) == 1
    said = capsys.readouterr().err
    assert said == f"process 1 of 2 of {HELPER.key} gives up: the first process gave no sign of life for 0.3 s\n"


def test_a_helper_goes_home_when_the_first_process_has_ended(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with leading(layout, HELPER.key):
        pass
    assert Waiting(layout, HELPER).next_meeting() is None


def test_a_helper_waits_longer_than_its_timeout_while_the_first_process_lives(tmp_path: Path) -> None:
    """The first process may wait for another copy's claim for hours."""
    layout, answers = Layout(tmp_path), []
    waiting = Waiting(layout, HELPER, timedelta(seconds=0.2))
    with leading(layout, HELPER.key):
        thread = threading.Thread(target=lambda: answers.append(waiting.next_meeting()))
        thread.start()
        thread.join(timeout=0.8)
        assert thread.is_alive()
    thread.join(timeout=30)
    assert answers == [None]


def test_a_helper_does_not_wait_for_a_first_process_that_is_dead(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    folder = layout.meetings(HELPER.key)
    assert acquire(folder) is not None
    owner = json.loads((folder / "1").read_text())
    (folder / "1").write_text(json.dumps(owner | {"birth": "not its birth"}))
    with pytest.raises(RunFailed, match="gave no sign of life"):
        Waiting(layout, HELPER, timedelta(seconds=0.3)).next_meeting()


def test_the_note_of_a_killed_first_process_is_followed_by_nobody(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    folder = layout.meetings(HELPER.key)
    folder.mkdir(parents=True)
    note = Meeting(host="gone", port=1, run="r", claim=1, key=HELPER.key, execution=EXECUTION)
    (folder / "r-1.json").write_text(note.model_dump_json())
    with pytest.raises(RunFailed, match="gave no sign of life"):
        Waiting(layout, HELPER, timedelta(seconds=0.3)).next_meeting()
    with leading(layout, HELPER.key):
        assert not list(folder.glob("*.json"))


def test_one_copy_of_a_job_has_one_first_process(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with (
        leading(layout, HELPER.key),
        pytest.raises(RunFailed, match="only one may run"),
        leading(layout, HELPER.key),
    ):
        pass


def test_a_meeting_to_which_not_all_come_names_who_is_missing(tmp_path: Path) -> None:
    layout, first = Layout(tmp_path), Task(HELPER.key, Process(0, 3))
    timeout = timedelta(seconds=0.3)
    with (
        pytest.raises(RunFailed, match=r"1 of 3 processes of run r met within 0\.3 s; missing: 1, 2"),
        hosted(layout, first, "r", 1, EXECUTION, StopRequest(), timeout),
    ):
        pass
    assert not list(layout.meetings(first.key).glob("*.json")), "nobody may come to what is over"


def test_a_stop_before_all_have_met_made_no_progress(tmp_path: Path) -> None:
    stop = StopRequest()
    stop.request()
    with (
        pytest.raises(Stopped) as stopped,
        hosted(Layout(tmp_path), Task(HELPER.key, Process(0, 2)), "r", 1, EXECUTION, stop),
    ):
        pass
    assert not stopped.value.progressed


def test_a_single_engine_refuses_more_processes() -> None:
    with pytest.raises(ValidationError, match=r"'single' trains in one process, not in 2: choose ddp, zero1 or zero2"):
        EXECUTION.with_processes(1).model_copy(update={"engine": "single"}).with_processes(2)


def test_in_one_process_every_engine_is_the_plain_one() -> None:
    assert {engine_class(word, 1) for word in ("single", "ddp", "zero1", "zero2")} == {engine_class("ddp", 2)}


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


def test_a_run_file_from_before_there_were_engines_still_reads(tmp_path: Path) -> None:
    path = write_tiny_run(tmp_path, tiny_run()) / "run.json"
    content = json.loads(path.read_text())
    del content["execution"]["engine"]
    path.write_text(json.dumps(content | {"schema": 1, "checksum": None}))
    assert read_run_file(path.parent).execution.engine == "ddp"
