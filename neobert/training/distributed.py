"""Tasks that train a model together: which copy of a job each belongs to, and the notes by which they meet. Torch-free.

SLURM may run a job twice at once (requeued beside its zombie, or started on two nodes after a controller's crash), so
tasks know each other by the key of their own copy. Below `meetings/<key>/` the first task holds a claim while it lives,
lays down a note for each run that it trains, and releases the claim when all is over; the others wait for the notes.
"""

import gc
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist
from pydantic import PositiveInt
from torch.distributed import PrefixStore, Store, TCPStore

from neobert.errors import RunFailed
from neobert.files import json_bytes, read_json, replace_file
from neobert.identity import plain
from neobert.processes import Stopped, StopRequest, start_child
from neobert.recipe import Value
from neobert.runs.claims import RELEASED, acquire, owner
from neobert.runs.layout import Layout
from neobert.runs.specifications import Execution

TIMEOUT = timedelta(minutes=5)
"""How long tasks wait for each other: at a meeting, in a collective, and for a sign of life of the first one."""

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Process:
    """Place of this process among `count`; the one of rank 0 owns the claim and writes."""

    rank: int
    count: int

    @property
    def writes(self) -> bool:
        """Whether this process publishes."""
        return self.rank == 0


@dataclass(frozen=True)
class Task:
    """This process's place in a copy of a job; `key` is a file name that no other copy has."""

    key: str
    process: Process

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """The place that the first process (`variables`) or else SLURM gave; None for a process on its own.

        Outside a step (in a batch script or an allocation's shell) SLURM's variables name no tasks.
        """
        if "NEOBERT_MEETING" in environment:
            process = Process(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
            return cls(environment["NEOBERT_MEETING"], process)
        if not {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"} <= environment.keys():
            return None
        count = int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1)
        return cls(_slurm_key(environment), Process(int(environment["SLURM_PROCID"]), count)) if count > 1 else None

    def variables(self) -> dict[str, str]:
        """What tells a process started here that it is this task; but for the first name they are torchrun's."""
        rank = str(self.process.rank)
        return {
            "NEOBERT_MEETING": self.key,
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": str(self.process.count),
            "LOCAL_WORLD_SIZE": str(self.process.count),
        }


def _slurm_key(environment: Mapping[str, str]) -> str:
    """Job, step, restarts and nodes: a copy that the restart count does not tell apart runs on other nodes."""
    nodes = hashlib.sha256(environment.get("SLURM_JOB_NODELIST", "").encode()).hexdigest()[:8]
    restarts = environment.get("SLURM_RESTART_COUNT") or "0"
    key = f"slurm-{environment['SLURM_JOB_ID']}-{environment['SLURM_STEP_ID']}-{restarts}-{nodes}"
    return re.sub(r"[^\w.-]", "_", key)


class Meeting(Value):
    """A note of the first task: where the others find it, for which run and under which claim they train along."""

    host: str
    port: PositiveInt
    run: str
    claim: PositiveInt
    key: str
    execution: Execution

    @property
    def address(self) -> str:
        """The host as this process reaches it."""
        return "127.0.0.1" if self.host == socket.gethostname() else self.host


@contextmanager
def announced(layout: Layout, meeting: Meeting) -> Iterator[None]:
    """Lay down the note of a meeting, and take it away when that has ended."""
    note = layout.meetings(meeting.key) / f"{meeting.run}-{meeting.claim}.json"
    replace_file(note, json_bytes(plain(meeting)))
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


@contextmanager
def leading(layout: Layout, key: str) -> Iterator[None]:
    """Live as the first task of a copy of a job; the end of it sends the others home.

    Raises:
        RunFailed: another process lives as the first task of this copy.
    """
    folder, lease_seconds = layout.meetings(key), TIMEOUT.total_seconds()
    if owner(folder, lease_seconds) is None:
        for note in folder.glob("*.json"):  # of a first process that was killed
            note.unlink(missing_ok=True)
    claim = acquire(folder, lease_seconds)
    if claim is None:
        raise RunFailed(f"two processes take themselves for the first task of {key}: only one may run")
    with claim:
        yield


@dataclass
class Waiting:
    """A helper that waits for meetings of its copy of the job; it goes to each one once."""

    layout: Layout
    task: Task
    timeout: timedelta = TIMEOUT
    attended: set[str] = field(default_factory=set)

    def next_meeting(self) -> Meeting | None:
        """The next meeting, or None when the first task has said that all is over.

        Raises:
            RunFailed: the first task gave no sign of life for `timeout`, or died.
        """
        folder = self.layout.meetings(self.task.key)
        deadline, seen = time.monotonic() + self.timeout.total_seconds(), False
        while True:
            if owner(folder, TIMEOUT.total_seconds()) is not None:
                seen = True
                if (meeting := self._new_note(folder)) is not None:
                    return meeting
            elif any(folder.glob(f"*.{RELEASED}")):
                return None
            elif seen or time.monotonic() > deadline:
                raise RunFailed(self._given_up(seen))
            time.sleep(POLL_SECONDS)

    def _new_note(self, folder: Path) -> Meeting | None:
        for note in sorted(folder.glob("*.json")):
            if note.name not in self.attended:
                self.attended.add(note.name)
                try:
                    return Meeting.model_validate(read_json(note))
                except FileNotFoundError:  # over before this process came
                    continue
        return None

    def _given_up(self, seen: bool) -> str:
        rank, count = self.task.process.rank, self.task.process.count
        why = "died" if seen else f"gave no sign of life for {self.timeout.total_seconds():g} s"
        return f"process {rank} of {count} of {self.task.key} gives up: the first process {why}"


def default_device() -> torch.device:
    """The GPU of this process, which becomes its current one, or the CPU where there is none.

    A process takes the GPU of its local rank, or the only one that it sees (SLURM may show each task its own alone).

    Raises:
        ValueError: it sees several GPUs, all of which are those of processes before it.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
    count = torch.cuda.device_count()
    if 1 < count <= local_rank:
        raise ValueError(f"process {local_rank} of this machine sees {count} GPUs, one for each of those before it")
    index = local_rank if count > 1 else 0
    torch.cuda.set_device(index)  # streams, events and memory are those of the current one
    return torch.device("cuda", index)


CONNECTION_TIMEOUT = timedelta(minutes=1)
"""A note is laid down once its store listens, so reaching it takes no longer than the network does."""

FAILURE = "failure"


@contextmanager
def hosted(
    layout: Layout,
    task: Task,
    run_id: str,
    claim: int,
    execution: Execution,
    stop: StopRequest,
    timeout: timedelta = TIMEOUT,
) -> Iterator[None]:
    """The first process's side of a group: announce a meeting, wait until all are there, and part when done.

    Raises:
        RunFailed: some did not come within `timeout`, or one of them failed; says which.
        Stopped: `stop` was requested before all were there.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    store.set("key", task.key)
    meeting = Meeting(
        host=socket.gethostname(), port=store.port, run=run_id, claim=claim, key=task.key, execution=execution
    )
    with announced(layout, meeting):
        _wait_for_all(store, task.process.count, run_id, stop, timeout)
        try:
            with _group(store, task.process, timeout):
                yield
        except Exception as error:
            _raise_failure_of_helper(store, error)
            raise


def _wait_for_all(store: Store, count: int, run_id: str, stop: StopRequest, timeout: timedelta) -> None:
    deadline = time.monotonic() + timeout.total_seconds()
    while missing := [rank for rank in range(1, count) if not store.check([_arrival(rank)])]:
        if stop.requested:
            raise Stopped("asked to stop before all processes had met")
        if time.monotonic() > deadline:
            ranks = ", ".join(map(str, missing))
            raise RunFailed(
                f"{count - len(missing)} of {count} processes of run {run_id} met within "
                f"{timeout.total_seconds():g} s; missing: {ranks}"
            )
        time.sleep(POLL_SECONDS / 4)


def _raise_failure_of_helper(store: Store, error: Exception) -> None:
    """What a helper saw explains better why the group broke than the broken connection does."""
    if isinstance(error, RuntimeError) and store.check([FAILURE]):
        raise RunFailed(store.get(FAILURE).decode()) from error


@contextmanager
def joined(meeting: Meeting, task: Task) -> Iterator[None]:
    """A helper's side of a group: join the meeting that the first process announced, and part when done.

    Raises:
        RunFailed: the meeting is another copy's, or this rank is there already.
    """
    store = TCPStore(meeting.address, meeting.port, is_master=False, timeout=CONNECTION_TIMEOUT)
    if store.get("key").decode() != task.key:
        raise RunFailed(f"the meeting at {meeting.host}:{meeting.port} is not one of {task.key}")
    if store.add(_arrival(task.process.rank), 1) != 1:
        raise RunFailed(f"another process already trains run {meeting.run} as rank {task.process.rank}")
    store.set_timeout(TIMEOUT)
    try:
        with _group(store, task.process, TIMEOUT):
            yield
    except Exception as error:
        with suppress(RuntimeError):  # the first process may be gone, and with it the store
            store.set(FAILURE, f"process {task.process.rank} on {socket.gethostname()}: {error}")
        raise


def _arrival(rank: int) -> str:
    return f"arrived/{rank}"


@contextmanager
def _group(store: Store, process: Process, timeout: timedelta) -> Iterator[None]:
    """A group, not destroyed while a wrapped model still refers to it: that may abort the process at its exit."""
    backend = "nccl" if default_device().type == "cuda" else "gloo"
    members = PrefixStore("group", store)
    dist.init_process_group(backend, store=members, rank=process.rank, world_size=process.count, timeout=timeout)
    try:
        yield
        dist.barrier()  # the store is the first process's: nobody may still need it
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        gc.collect()
        dist.destroy_process_group()


def said_by_first(value: int, process: Process, device: torch.device) -> int:
    """What the first process says in place of `value`; the processes must ask together.

    A sum, to which the others add nothing: the first process hears from all of them, and notices where one is gone. A
    broadcast to a process that was killed just before may wait for it until the time-out.
    """
    if process.count == 1:
        return value
    said = torch.tensor(value if process.rank == 0 else 0, device=device)
    dist.all_reduce(said)
    return int(said.item())


@contextmanager
def helpers_here(layout: Layout, run_id: str, count: int) -> Iterator[Task]:
    """Start the processes of rank 1 … count − 1 on this machine, and make sure that none outlives the first.

    Raises:
        RunFailed: a helper ended with an error.
    """
    key = f"local-{uuid.uuid4().hex}"
    first = Task(key, Process(0, count))
    started: list[subprocess.Popen[bytes]] = []
    try:
        with leading(layout, key):
            started += [_start_helper(layout, run_id, Task(key, Process(rank, count))) for rank in range(1, count)]
            yield first
        codes = [helper.wait(TIMEOUT.total_seconds()) for helper in started]
    finally:
        for helper in started:
            helper.kill()
            helper.wait()
        shutil.rmtree(layout.meetings(key), ignore_errors=True)
    if any(codes):
        raise RunFailed(f"helper processes of run {run_id} ended with exit codes {codes}")


def _start_helper(layout: Layout, run_id: str, task: Task) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "neobert.runs.worker", "--runs", str(layout.root), f"pretraining/{run_id}"]
    return start_child(command, os.environ | task.variables())
