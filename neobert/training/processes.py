"""Processes that train one model together: the first one hosts a meeting, the others join, and all form a group."""

import gc
import os
import shutil
import socket
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from neobert.errors import RunFailed
from neobert.layout import Layout
from neobert.lifeline import start_child
from neobert.specifications import Execution
from neobert.stopping import Stopped, StopRequest
from neobert.training.device import default_device
from neobert.training.tasks import POLL_SECONDS, TIMEOUT, Meeting, Process, Task, announced, leading

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
    command = [sys.executable, "-m", "neobert.work", "--runs", str(layout.root), f"pretraining/{run_id}"]
    return start_child(command, os.environ | task.variables())
