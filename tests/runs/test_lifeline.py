"""Signals to a command reach its workers within a second, and no worker outlives its command, whatever ended that."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neobert.command_line import guarded
from neobert.files import read_lines
from neobert.processes import REPOSITORY, Terminated, allow_many_files, ended_by_signals
from tests.support.tiny_runs import (
    beside,
    curve,
    finish,
    tiny_model,
    tiny_run,
    tiny_stage,
    wait_for_steps,
    write_tiny_run,
)
from tests.support.waiting import until

FIRES = 8
PARENT = """
import sys
from pathlib import Path
from neobert.command_line import guarded
from neobert.processes import work_here, worker_environment

def work():
    return work_here(Path(sys.argv[1]), sys.argv[3:], environments=[worker_environment(1)] * int(sys.argv[2]),
                     watch=lambda: None)

sys.exit(guarded("test", work, Path(sys.argv[1])))
"""
CHILD = """
import signal, sys, time
import neobert.processes
def ask(number, frame):
    if sys.argv[1] == "obedient":
        sys.exit("saved after " + signal.Signals(number).name)
signal.signal(signal.SIGTERM, ask)
neobert.processes.GRACE_SECONDS = 2.0
neobert.processes.end_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
PARENT_OF_ONE = """
import os, sys
from pathlib import Path
from neobert.command_line import guarded
from neobert.processes import start_child, wait_for
child = start_child([sys.executable, "-c", *sys.argv[1:]], os.environ)
print(child.pid, flush=True)
sys.exit(guarded("test", lambda: max(wait_for([child])), Path()))
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def all_below(pid: int) -> list[int]:
    return [each for child in children_of(pid) for each in (child, *all_below(child))]


def wait_until_gone(pids: list[int], seconds: float) -> None:
    until(lambda: not [pid for pid in pids if is_alive(pid)], seconds)


@pytest.fixture
def training(tmp_path: Path, finished: Path) -> "Iterator[Callable[[], tuple[subprocess.Popen[str], Path]]]":
    """Starts a command whose worker trains for long with a second process; the command and the run's folder."""
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple["subprocess.Popen[str]", Path]:
        root = beside(tmp_path / "runs", finished)
        run = tiny_run(stages=(tiny_stage(steps=100_000, decay_steps=50_000),))
        folder = write_tiny_run(root, run, processes=2, checkpoint_interval_steps=100_000)
        command = [sys.executable, "-c", PARENT, str(root), "1", run.reference]
        started.append(subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True))
        wait_for_steps(root, run, 3)
        return started[0], folder

    yield start
    for each in started:
        for pid in (*all_below(each.pid), each.pid):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        each.communicate()


def test_a_signal_to_the_command_alone_ends_all_and_saves(
    training: "Callable[[], tuple[subprocess.Popen[str], Path]]",
) -> None:
    parent, folder = training()
    below = all_below(parent.pid)
    assert len(below) >= 2
    parent.terminate()
    _, words = parent.communicate(timeout=60)
    assert parent.returncode == 75 and "stopped by SIGTERM; the same command goes on" in words
    assert "asked to stop; saved after step" in words and "Traceback" not in words
    assert list((folder / "checkpoints").glob("step-*"))
    assert not [pid for pid in below if is_alive(pid)]


def test_nothing_outlives_a_command_that_is_killed(
    training: "Callable[[], tuple[subprocess.Popen[str], Path]]",
) -> None:
    """kill −9 of the command: its worker saves and ends, and so does the process that it trains with."""
    parent, folder = training()
    below = all_below(parent.pid)
    parent.kill()
    wait_until_gone(below, 30)
    assert list((folder / "checkpoints").glob("step-*"))


def test_nothing_outlives_a_worker_that_is_killed(
    training: "Callable[[], tuple[subprocess.Popen[str], Path]]",
) -> None:
    parent, _ = training()
    (worker,) = children_of(parent.pid)
    helpers = all_below(worker)
    os.kill(worker, signal.SIGKILL)
    wait_until_gone(helpers, 30)
    assert parent.wait(30) == 1


@pytest.fixture(autouse=True)
def signals_of_a_terminal() -> Iterator[None]:
    """What started the tests may have them ignore SIGHUP, as nohup does, or SIGINT, as a shell in the background."""
    before = {
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def command_with_child(hearing: str) -> tuple["subprocess.Popen[str]", int]:
    """A command that waits for a child which is ready, and the child's number."""
    command = [sys.executable, "-c", PARENT_OF_ONE, CHILD, hearing]
    parent = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "ready\n"
    return parent, child


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGTERM, 75, "test: stopped by SIGTERM; the same command goes on with what is missing"),
        (signal.SIGHUP, 75, "test: stopped by SIGHUP; the same command goes on with what is missing"),
        (signal.SIGINT, 130, "test: stopped; the same command goes on with what is missing"),
    ],
)
def test_a_signal_reaches_the_workers_within_a_second(number: signal.Signals, code: int, said: str) -> None:
    parent, child = command_with_child("obedient")
    begun = time.monotonic()
    parent.send_signal(number)
    _, words = parent.communicate(timeout=10)
    assert time.monotonic() - begun < 1 and not is_alive(child)
    assert (parent.returncode, words.splitlines()) == (code, ["saved after SIGTERM", said])


def test_a_second_interrupt_kills_workers_that_take_their_time() -> None:
    parent, child = command_with_child("deaf")
    parent.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert is_alive(child) and parent.poll() is None
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=10)
    assert parent.returncode == 130 and not is_alive(child)


@pytest.mark.parametrize("hearing", ["obedient", "deaf"])
def test_a_child_whose_parent_is_killed_is_asked_and_then_killed(hearing: str) -> None:
    parent, child = command_with_child(hearing)
    parent.kill()
    begun = time.monotonic()
    wait_until_gone([child], 10)
    seconds = time.monotonic() - begun
    assert seconds < 1.5 if hearing == "obedient" else seconds > 1.5
    _, words = parent.communicate()
    assert words.splitlines() == (["saved after SIGTERM"] if hearing == "obedient" else [])


def test_nohup_is_respected_and_handlers_are_given_back() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.05)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    own = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated, match="SIGTERM"), ended_by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) is own


def test_a_process_may_open_as_many_files_as_the_system_allows() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_of_several_signals_the_first_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A service manager sends SIGTERM and SIGHUP at once: the second does not cut the saving short."""

    def work() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.05)
            print("saved")
        return 0

    assert guarded("test", work, tmp_path) == 75
    assert capsys.readouterr() == (
        "saved\n",
        "test: stopped by SIGTERM; the same command goes on with what is missing\n",
    )


def disturb(command: list[str], starts: Path, chance: random.Random, *, at_work: bool) -> None:
    """Start a command and end it by some signal, after its worker has begun or before; nothing is left of it."""
    before = len(list(read_lines(starts)))
    parent = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    if at_work:
        until(lambda: len(list(read_lines(starts))) > before or parent.poll() is not None, 120)
    time.sleep(chance.uniform(0, 2))
    below = all_below(parent.pid)
    parent.send_signal(chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]))
    parent.wait(60)
    wait_until_gone(below, 60)


@pytest.mark.drill
@pytest.mark.parametrize("processes", [1, 2])
def test_a_command_under_fire_ends_with_the_bits_of_an_undisturbed_one(
    tmp_path: Path, finished: Path, processes: int
) -> None:
    """Ctrl-C, SIGTERM, SIGHUP and kill −9 at random moments, from the start of the command to its end: nothing outlives
    it, and the same command goes on until it is done."""
    run = tiny_run(model=tiny_model(dropout=0.0), stages=(tiny_stage(steps=1000, decay_steps=900),))
    calm, root = beside(tmp_path / "calm", finished), beside(tmp_path / "runs", finished)
    for folder in (calm, root):
        write_tiny_run(folder, run, processes=processes, checkpoint_interval_steps=20)
    finish(calm, run.reference)
    command = [sys.executable, "-c", PARENT, str(root), "1", run.reference]
    starts, chance = root / "starts.jsonl", random.Random(processes)
    for number in range(FIRES):
        disturb(command, starts, chance, at_work=number % 4 > 0)
    assert len(list(read_lines(starts))) >= FIRES // 2, "the run ended before it could be disturbed: give it more steps"
    assert subprocess.run(command, cwd=REPOSITORY, check=False).returncode == 0
    name = f"checkpoints/step-{1000:08d}/model.safetensors"
    assert (root / run.reference / name).read_bytes() == (calm / run.reference / name).read_bytes()
    assert curve(root, run) == curve(calm, run)
