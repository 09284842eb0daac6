"""Claims: one owner at a time, dead owners make way, paused owners are fenced."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED, DamagedFile, RunFailed
from neobert.executors import preparation
from neobert.files import replace_file
from neobert.processes import Stopped, StopRequest
from neobert.runs import claims, worker
from neobert.runs.layout import Layout
from neobert.runs.work import Part


def taken(folder: Path, lease_seconds: float = claims.LEASE_SECONDS) -> claims.Claim:
    claim = claims.acquire(folder, lease_seconds)
    assert claim is not None
    return claim


def taken_elsewhere(folder: Path) -> Path:
    """The claim of an owner on another machine, whom only a heartbeat shows to be alive."""
    folder.mkdir(parents=True)
    (folder / "1").write_text(json.dumps({"host": "elsewhere", "pid": 1, "birth": "1"}))
    return folder / "1"


def change(claim: claims.Claim, **fields: str | int) -> Path:
    """Let the file of a claim say something else."""
    path = claim.folder / str(claim.number)
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return path


def test_a_held_part_is_refused_to_everybody_else(tmp_path: Path) -> None:
    with taken(tmp_path / "part"):
        assert claims.acquire(tmp_path / "part") is None
        assert claims.is_claimed(tmp_path / "part")
    assert not claims.is_claimed(tmp_path / "part")
    assert claims.acquire(tmp_path / "part") is not None


def test_processes_that_race_never_hold_a_part_together(tmp_path: Path) -> None:
    """Four processes run over the same parts; whoever holds one finds itself alone in it."""
    context = get_context("fork")
    processes = [
        context.Process(target=_hold_alone, args=(tmp_path, 15, tmp_path / f"clashes-{number}")) for number in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert not list(tmp_path.glob("clashes-*"))


def _hold_alone(folder: Path, parts: int, clashes: Path) -> None:
    for part in range(parts):
        claim = claims.acquire(folder / str(part))
        if claim is None:
            continue
        with claim:
            marker = folder / f"inside-{part}"
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                clashes.touch()
            time.sleep(0.001)
            marker.unlink()


def test_a_dead_owner_makes_way_at_once(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from neobert.runs.claims import acquire
assert acquire(Path({str(tmp_path / "part")!r})) is not None
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    claim = claims.acquire(tmp_path / "part")
    assert claim is not None and claim.number == 2


def test_an_owner_on_another_machine_makes_way_when_its_lease_is_over(tmp_path: Path) -> None:
    folder = tmp_path / "part"
    owner = taken_elsewhere(folder)
    assert claims.acquire(folder, lease_seconds=30) is None
    past = time.time() - 31
    os.utime(owner, (past, past))
    assert claims.acquire(folder, lease_seconds=30) is not None


def test_an_owner_paused_past_its_lease_publishes_nothing(tmp_path: Path) -> None:
    first = taken(tmp_path / "part")
    first.check()
    os.utime(change(first, host="elsewhere"), (0, 0))
    second = taken(tmp_path / "part")
    assert second.token > first.token
    with pytest.raises(claims.ClaimLost, match="taken over"):
        first.check()
    second.check()


def test_a_heartbeat_keeps_a_claim_alive_past_its_lease(tmp_path: Path) -> None:
    claim = taken(tmp_path / "part", lease_seconds=0.4)
    change(claim, host="elsewhere")
    with claim:
        time.sleep(0.9)
        assert claims.acquire(tmp_path / "part", lease_seconds=0.4) is None


def test_a_reused_pid_is_not_taken_for_the_owner(tmp_path: Path) -> None:
    change(taken(tmp_path / "part"), birth="12")
    assert claims.acquire(tmp_path / "part") is not None


def test_another_users_process_that_proc_hides_counts_until_its_lease_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /proc is mounted with hidepid: there is no entry, but signals are refused and not lost."""

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(pid, number)

    first = taken(tmp_path / "part")
    gone = subprocess.Popen(["true"])
    gone.wait()
    path = change(first, pid=gone.pid)
    monkeypatch.setattr(os, "kill", refuse)
    assert claims.acquire(tmp_path / "part") is None
    os.utime(path, (0, 0))
    assert claims.acquire(tmp_path / "part") is not None


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "12"}, "12"),
        ({"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "2"}, "12_2"),
    ],
)
def test_a_claim_says_which_job_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], job: str | None
) -> None:
    """The job is named as SLURM's log files name it: an element of an array by array and element."""
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    taken(tmp_path / "part")
    assert json.loads((tmp_path / "part" / "1").read_text())["job"] == job
    owner = claims.last_owner(tmp_path / "part")
    assert owner is not None and (owner.job, owner.is_live, owner.is_released) == (job, True, False)


def test_the_last_owner_is_told_from_one_that_was_lost(tmp_path: Path) -> None:
    """A claim of before jobs were noted reads as well; a torn one names nobody."""
    folder = tmp_path / "part"
    assert claims.last_owner(folder) is None
    past = time.time() - 300
    os.utime(taken_elsewhere(folder), (past, past))
    lost = claims.last_owner(folder)
    assert lost is not None and lost.is_lost and not lost.is_live and not lost.is_released and lost.job is None
    assert 299 < lost.silent_seconds < 400
    (folder / "1.released").touch()
    released = claims.last_owner(folder)
    assert released is not None and released.is_released and not released.is_lost
    (folder / "2").write_text("{")
    assert claims.last_owner(folder) is None


OWNER = {"host": "elsewhere", "pid": 1, "birth": "1", "space": claims._process_space()}


@pytest.mark.parametrize(
    "content",
    [
        None,
        "[" * 100_000,
        json.dumps(OWNER | {"host": ["elsewhere"]}),
        json.dumps(OWNER | {"pid": "1/../1\0"}),
        json.dumps(OWNER | {"pid": 1 << 40}),
    ],
    ids=["folder", "deep", "host", "path as pid", "too large pid"],
)
def test_a_claim_that_no_process_wrote_names_nobody_and_makes_way(tmp_path: Path, content: str | None) -> None:
    """Beside it lie names that are digits to Unicode but not to `int`, or not in ASCII."""
    folder = tmp_path / "claims" / "part"
    folder.mkdir(parents=True)
    if content is None:
        (folder / "5").mkdir()
    else:
        (folder / "5").write_text(content)
    for name in ("1²", "7²", "９"):
        (folder / name).touch()
    assert claims.last_owner(folder) is None and not claims.is_claimed(folder)
    with taken(folder) as claim:
        assert claim.number == 6
        claim.check()
        assert claims.acquire(folder) is None


@pytest.fixture
def hours_off(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Sets this machine's clock so many hours ahead of the file system's, which the kernel stamps here."""
    true_time = time.time
    monkeypatch.setattr(claims, "_offsets", {})
    monkeypatch.setattr(claims, "_first_seen", {})

    def set_clock(hours: float) -> None:
        monkeypatch.setattr(time, "time", lambda: true_time() + 3600 * hours)

    yield set_clock


@pytest.mark.parametrize("hours", [-24.0, 0.1, 24.0])
def test_a_taker_whose_clock_is_off_steals_nothing(
    tmp_path: Path, hours_off: Callable[[float], None], hours: float
) -> None:
    folder = tmp_path / "claims" / "part"
    owner = taken_elsewhere(folder)
    hours_off(hours)
    assert claims.acquire(folder) is None and claims.is_claimed(folder)
    past = owner.stat().st_mtime - claims.LEASE_SECONDS - 1
    os.utime(owner, (past, past))
    assert claims.acquire(folder) is not None


@pytest.mark.parametrize("ahead_seconds", [60, 86_400])
def test_a_dead_owner_whose_stamp_lies_in_the_future_makes_way_after_one_lease(
    tmp_path: Path, ahead_seconds: float
) -> None:
    """As where a file server's clock was set back: the stamp is worth what it changes."""
    folder = tmp_path / "claims" / "part"
    owner = taken_elsewhere(folder)
    later = time.time() + ahead_seconds
    os.utime(owner, (later, later))
    assert claims.acquire(folder, lease_seconds=0.3) is None
    time.sleep(0.2)
    os.utime(owner, (later + 1, later + 1))  # a heartbeat
    time.sleep(0.2)
    assert claims.acquire(folder, lease_seconds=0.3) is None
    time.sleep(0.4)
    assert claims.acquire(folder, lease_seconds=0.3) is not None


def test_a_live_owner_of_another_pid_namespace_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers of one machine may share its name, and a pid of one is another process, or none, in the other."""
    folder = tmp_path / "claims" / "part"
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(claims, "_process_space", lambda: "another namespace")
        elsewhere.setattr(claims, "_process_birth", lambda pid: "1")
        assert claims.acquire(folder) is not None
    assert claims.acquire(folder) is None


@dataclass
class ScriptedWaits:
    """An event that is never set until it was waited for so many times; what it was asked to wait."""

    most: int
    seconds: list[float] = field(default_factory=list)

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return len(self.seconds) > self.most


def test_a_heartbeat_that_fails_is_tried_again_within_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file server is away for two heartbeats: the claim is touched again before its lease is over."""
    claim = taken(tmp_path / "claims" / "part", lease_seconds=60.0)
    waits = ScriptedWaits(most=5)
    beats: list[float] = []

    def utime(path: Path) -> None:
        assert path == claim.folder / "1"
        if len(waits.seconds) in (2, 3):
            raise OSError(116, "Stale file handle")
        beats.append(sum(waits.seconds))

    monkeypatch.setattr(claim, "_stop", waits)
    monkeypatch.setattr(os, "utime", utime)
    claim._beat()
    monkeypatch.undo()
    assert len(beats) == 3
    assert all(later - earlier < claim.lease_seconds / 2 for earlier, later in itertools.pairwise([0.0, *beats]))
    assert waits.seconds[0] == waits.seconds[1] == waits.seconds[-1] >= claim.lease_seconds / 10, "no needless load"


@dataclass
class Failing:
    """Stands for work whose parts always fail, and counts the attempts."""

    attempts: list[str] = field(default_factory=list)
    after: tuple[str, ...] = ()
    grows: bool = False

    def execute(self, layout: Layout, run_file: object, part: Part, *_: object) -> None:
        self.attempts.append(part.id)
        raise ValueError("never")


def execute(layout: Layout, run_file: object, part: Part, *others: object) -> None:
    """What workers execute here: the work itself, which is none of the project's."""
    part.work.execute(layout, run_file, part, *others)  # type: ignore[attr-defined]


def parts_of(work: Any, folder: Path, names: str) -> list[Any]:
    """Parts of some work with one letter each, as a worker takes them."""
    return [
        (None, Part(work=work, id=name, title=name, record=folder / name, error=folder / f"{name}.error"))
        for name in names
    ]


@pytest.mark.parametrize("hours", [-1.0, 1.0])
def test_a_worker_whose_clock_is_off_tries_a_failing_part_once(
    tmp_path: Path, hours_off: Callable[[float], None], hours: float
) -> None:
    hours_off(hours)
    failing = Failing()
    parts = parts_of(failing, tmp_path, "a")
    replace_file(tmp_path / "a.error", b"{}")  # of a run before
    time.sleep(0.05)
    assert worker.Worker(Layout(tmp_path), parts, StopRequest(), execute=execute).run() == EXIT_RUN_FAILED
    assert failing.attempts == ["a"]


def test_a_part_that_lost_its_owner_comes_after_all_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may have killed it, for want of memory, and would kill one worker after the other."""
    os.utime(taken_elsewhere(Layout(tmp_path).claims("a")), (0, 0))
    parts = parts_of(Failing(), tmp_path, "abc")
    assert worker.Worker(Layout(tmp_path), parts, StopRequest(), execute=execute).run() == EXIT_RUN_FAILED
    assert [line[0] for line in capsys.readouterr().err.splitlines()] == ["b", "c", "a"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_worker_ends_once_its_gpu_fails_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """An error of CUDA that stays would fail every other part within moments."""

    def synchronize() -> None:
        if is_lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with …")

    cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    failing = Failing()
    parts = parts_of(failing, tmp_path, "ab")
    with pytest.raises(RunFailed, match=r"failed for good \(CUDA error.*encountered\)") if is_lost else nullcontext():
        assert worker.Worker(Layout(tmp_path), parts, StopRequest(), execute=execute).run() == EXIT_RUN_FAILED
    assert failing.attempts == (["a"] if is_lost else ["a", "b"])
    assert (tmp_path / "a.error").exists() and not claims.is_claimed(Layout(tmp_path).claims("a"))


@pytest.mark.parametrize("variables", [{"SLURM_GPUS_ON_NODE": "2"}, {"SLURM_JOB_GPUS": "0,1"}])
def test_a_job_whose_gpus_cannot_be_used_does_not_train_on_the_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
) -> None:
    """It does where its GPUs are hidden from torch."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(StopRequest, "listen", lambda self: None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused, no_run = "but torch can use none on", "run.json"
    for reference, visible, said in (
        ("pretraining/a", "0", refused),
        ("pretraining/a", "", no_run),
        ("corpus/a/a", "0", no_run),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert worker.main(["--runs", str(tmp_path), reference]) == 3
        assert said in capsys.readouterr().err
    assert not (tmp_path / "claims").exists()


@dataclass(frozen=True, kw_only=True)
class DoneElsewhere(Part):
    """Another node has published its record, which a client of NFS shows once the folder is opened."""

    opened: set[Path]

    @property
    def is_done(self) -> bool:
        return self.record.parent in self.opened


def test_what_another_node_just_finished_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: set[Path] = set()
    for user in (worker, preparation):
        monkeypatch.setattr(user, "refresh", opened.add)
    again: Any = Failing()
    places = {"record": tmp_path / "a/b", "error": tmp_path / "error"}
    parts: list[Any] = [(None, DoneElsewhere(work=again, id="part", title="a part", opened=opened, **places))]
    assert (
        worker.Worker(Layout(tmp_path), parts, StopRequest(), execute=execute).run() == EXIT_DONE and not again.attempts
    )

    def open_whole() -> str:
        if tmp_path / "data" / "pairs" in opened:
            return "pairs"
        raise FileNotFoundError

    def make(damage: DamagedFile | None) -> None:
        raise AssertionError("made twice")

    (tmp_path / "data" / "pairs").mkdir(parents=True)
    claim = Layout(tmp_path).claims("pairs")
    assert preparation.prepare_once(claim, "pairs", StopRequest(), open_whole, make) == "pairs"


def test_a_long_call_into_a_library_is_left_when_somebody_asks_to_stop() -> None:
    stop = StopRequest()
    assert stop.outlive(lambda: 3, "a sum") == 3
    with pytest.raises(ZeroDivisionError):
        stop.outlive(lambda: 1 // 0, "a quotient")
    stop.request()
    began = time.monotonic()
    with pytest.raises(Stopped, match="asked to stop while waiting for sleep"):
        stop.outlive(lambda: time.sleep(60), "sleep")
    assert time.monotonic() - began < 10
