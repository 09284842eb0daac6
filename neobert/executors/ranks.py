"""The ranks of a job attempt: where they meet, and the runs that rank 0 announces to the others.

Ranks find each other by torch's variables: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 is the worker. It
takes claims, writes, and hosts a TCPStore, through which it announces runs to the other ranks until all is done.
SLURM may run a job twice at once (requeued while a zombie remains, or started on two nodes after a controller's crash),
so the store has a key that identifies one attempt of a job, and ranks of another attempt never join.
"""

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from neobert.errors import RunFailed
from neobert.execution import Execution
from neobert.identity import plain
from neobert.processes import KEY_VARIABLE, Stopped, StopRequest, available_cores, read_count, start_child
from neobert.runs.layout import Layout
from neobert.training.distributed import Process, process_group, tell_failure

TIMEOUT = timedelta(minutes=5)
"""How long ranks wait for each other at the rendezvous."""

GOODBYE_SECONDS = 5.0
"""How long rank 0 keeps its store open for ranks that may not know yet that all is done."""

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class JobRank:
    """Rank of a process in one attempt of a job, which `key` identifies, and the address of rank 0. Port 0 is any."""

    key: str
    process: Process
    address: str = "127.0.0.1"
    port: int = 0

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """Read the rank from torch's variables; None for a single process."""
        if (count := read_count(environment, "WORLD_SIZE") or 1) == 1:
            return None
        if missing := sorted({"RANK", "MASTER_ADDR", "MASTER_PORT"} - environment.keys()):
            raise ValueError(f"WORLD_SIZE is {count}: set {', '.join(missing)} too, or unset it")
        address, port = environment["MASTER_ADDR"], read_count(environment, "MASTER_PORT") or 0
        key = environment.get(KEY_VARIABLE) or f"{address}:{port}"
        return cls(key, Process(read_count(environment, "RANK", least=0) or 0, count), address, port)

    def variables(self) -> dict[str, str]:
        """Return environment variables for a process on this machine; all but the key's are torchrun's."""
        rank, count = str(self.process.rank), str(self.process.count)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        return {KEY_VARIABLE: self.key, **place, "MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}

    def __str__(self) -> str:
        return f"process {self.process.rank} of {self.process.count} of {self.key}"


@dataclass(frozen=True)
class StartedRun:
    """A run that rank 0 has started; its ranks communicate through `store`."""

    id: str
    execution: Execution
    store: Store


class Rendezvous:
    """One rank's connection to the store of a job attempt; runs are numbered in the order of their start."""

    def __init__(self, store: TCPStore, process: Process) -> None:
        self.store = store
        self.process = process
        self._number = 0

    @contextmanager
    def lead(
        self,
        run_id: str,
        execution: Execution,
        stop: StopRequest,
        on_peer_failure: Callable[[str], None],
        timeout: timedelta = TIMEOUT,
    ) -> Iterator[None]:
        """Rank 0's side of a run: announce it, wait for all ranks, form the group, and destroy it at the end.

        `on_peer_failure` is called with the reason if another rank has failed, and this process is stuck in a
        collective and must end.

        Raises:
            RunFailed: some ranks did not join within `timeout`, or one of them failed; names them.
            Stopped: `stop` was requested before all ranks had joined.
        """
        run = PrefixStore(f"run {self._number}", self.store)
        self.store.set(f"started {self._number}", json.dumps({"id": run_id, "execution": plain(execution)}))
        self._number += 1
        try:
            self._wait_for_ranks(run, run_id, stop, timeout)
            run.set("go", "")
            with process_group(run, self.process, on_peer_failure):
                yield
        except Exception as error:
            first = tell_failure(run, f"process 0 on {socket.gethostname()}: {error}")
            if type(error) is RuntimeError or isinstance(error, dist.DistError):
                raise RunFailed(first) from error  # another rank's error explains better why the group broke
            raise
        finally:
            run.set("over", "")

    def _wait_for_ranks(self, run: Store, run_id: str, stop: StopRequest, timeout: timedelta) -> None:
        count, deadline = self.process.count, time.monotonic() + timeout.total_seconds()
        while missing := [rank for rank in range(1, count) if not run.check([_arrival(rank)])]:
            if stop.requested:
                raise Stopped("asked to stop before all ranks had joined")
            if time.monotonic() > deadline:
                ranks = ", ".join(map(str, missing))
                raise RunFailed(
                    f"{count - len(missing)} of {count} ranks of run {run_id} joined within "
                    f"{timeout.total_seconds():g} s; missing: {ranks}"
                )
            time.sleep(POLL_SECONDS / 4)

    def next_run(self) -> StartedRun | None:
        """Wait for the next run that rank 0 leads; None once rank 0 has announced that all is done.

        Raises:
            DistError: the store is gone, and rank 0 with it.
        """
        while True:
            started = f"started {self._number}"
            if self.store.check([started]):
                content, run = json.loads(self.store.get(started)), PrefixStore(f"run {self._number}", self.store)
                self._number += 1
                if not run.check(["over"]):
                    return StartedRun(content["id"], Execution.model_validate(content["execution"]), run)
            elif self.store.check(["done"]):
                self.store.set(f"goodbye {self.process.rank}", "")
                return None
            else:
                time.sleep(POLL_SECONDS)

    def end(self, timeout: timedelta = TIMEOUT) -> None:
        """Announce that all is done. The store stays open until all ranks have come, and a little longer for each of
        them to read it."""
        self.store.set("done", "")
        others = range(1, self.process.count)
        self._wait_for([_arrival(rank) for rank in others], timeout.total_seconds())
        came = [rank for rank in others if self.store.check([_arrival(rank)])]
        self._wait_for([f"goodbye {rank}" for rank in came], GOODBYE_SECONDS)

    def _wait_for(self, keys: Sequence[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while keys and not self.store.check(list(keys)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 4)

    @contextmanager
    def join(self, run: StartedRun) -> Iterator[None]:
        """A non-zero rank's side of a run: wait for all ranks, form the group, and destroy it at the end.

        Raises:
            RunFailed: rank 0 has given up waiting.
        """
        run.store.set(_arrival(self.process.rank), "")
        while not run.store.check(["go"]):
            if run.store.check(["over"]):
                raise RunFailed(tell_failure(run.store, "rank 0 ended before all ranks had joined"))
            time.sleep(POLL_SECONDS / 4)
        with process_group(run.store, self.process):
            yield


_hosted: ContextVar[Rendezvous | None] = ContextVar("rendezvous", default=None)


def hosted_rendezvous() -> Rendezvous | None:
    """Return the rendezvous that this process hosts as rank 0 of a job; None for a single process."""
    return _hosted.get()


@contextmanager
def host_ranks(place: JobRank, timeout: timedelta = TIMEOUT) -> Iterator[Rendezvous]:
    """Host the rendezvous as rank 0 of a job attempt; on exit the other ranks, for which it waits until then, are told
    to end.

    Raises:
        RunFailed: the port is taken, by another rank 0 or any other process.
    """
    try:
        store = TCPStore("127.0.0.1", place.port, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    except dist.DistNetworkError as error:
        raise RunFailed(
            f"{place} cannot listen on port {place.port}: another process is rank 0 too, or MASTER_PORT is taken"
        ) from error
    store.set("key", place.key)
    rendezvous = Rendezvous(store, place.process)
    token = _hosted.set(rendezvous)
    try:
        yield rendezvous
        rendezvous.end(timeout)
    finally:
        _hosted.reset(token)


def find_rendezvous(place: JobRank, timeout: timedelta = TIMEOUT) -> Rendezvous:
    """Connect to rank 0 of this job attempt as soon as it listens.

    Raises:
        RunFailed: it did not within `timeout`, it belongs to another attempt, or another process already has this rank.
    """
    where, deadline = f"{place.address}:{place.port}", time.monotonic() + timeout.total_seconds()
    while not _listens(place):
        if time.monotonic() > deadline:
            raise RunFailed(f"{place} gives up: rank 0 did not listen at {where} for {timeout.total_seconds():g} s")
        time.sleep(POLL_SECONDS)
    store = TCPStore(place.address, place.port, is_master=False, timeout=TIMEOUT)
    if store.get("key").decode() != place.key:
        raise RunFailed(f"the process at {where} is not rank 0 of {place.key}")
    if store.add(_arrival(place.process.rank), 1) != 1:
        raise RunFailed(f"another process has already joined as {place}")
    return Rendezvous(store, place.process)


def _listens(place: JobRank) -> bool:
    """Whether rank 0 can be reached. torch would try again too, but with warnings on stderr."""
    try:
        socket.create_connection((place.address, place.port), timeout=TIMEOUT.total_seconds()).close()
    except OSError:
        return False
    return True


@contextmanager
def start_ranks_here(layout: Layout, run_id: str, count: int) -> Iterator[Rendezvous]:
    """Start ranks 1 … count − 1 on this machine, and make sure that none outlives rank 0.

    Raises:
        RunFailed: one of them ended with an error.
    """
    command = [sys.executable, "-P", "-m", "neobert.runs.worker", "--runs", str(layout.root), f"pretraining/{run_id}"]
    started: list[subprocess.Popen[bytes]] = []
    # Each has its share of the cores to compile on: inductor would start up to 32 processes in each.
    compiling = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, available_cores() // count))}
    first = JobRank(f"local-{uuid.uuid4().hex}", Process(0, count))
    try:
        with host_ranks(first) as rendezvous:
            for rank in range(1, count):
                place = replace(first, process=Process(rank, count), port=rendezvous.store.port)
                started.append(start_child(command, compiling | os.environ | place.variables()))
            yield rendezvous
        codes = [process.wait(TIMEOUT.total_seconds()) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    if any(codes):
        raise RunFailed(f"the other ranks of run {run_id} ended with exit codes {codes}")


def _arrival(rank: int) -> str:
    return f"arrived {rank}"
