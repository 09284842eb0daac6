"""The ranks of a job attempt: where they meet, and the runs that rank 0 announces to the others.

Rank 0 is the worker. It takes claims, writes, and hosts a TCPStore, through which it announces runs to the other ranks
until all is done. They find the store by a file below `meetings/<key>/`, next to a claim that shows whether rank 0
is alive. SLURM may run a job twice at once (requeued while a zombie remains, or started on two nodes after a
controller's crash), so the key identifies one attempt of a job, and ranks of another attempt never join.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate, chain, repeat
from operator import mul
from typing import Self

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from neobert.errors import RunFailed
from neobert.execution import Execution
from neobert.files import json_bytes, read_json, replace_file
from neobert.identity import plain
from neobert.processes import Stopped, StopRequest, available_cores, read_count, start_child
from neobert.runs.claims import RELEASED, acquire, is_claimed, last_owner
from neobert.runs.layout import Layout
from neobert.training.distributed import Process, process_group, tell_failure

TIMEOUT = timedelta(minutes=5)
"""How long ranks wait for each other at the rendezvous, and for a heartbeat of rank 0."""

CONNECTION_TIMEOUT = timedelta(minutes=1)
"""Time-out for connecting to the store; its address is written once it listens, so only the network takes time."""

GOODBYE_SECONDS = 5.0
"""How long rank 0 keeps its store open for ranks that may not know yet that all is done."""

POLL_SECONDS = 0.1
MOST_POLL_SECONDS = 2.0
"""Longest pause between two looks for rank 0's file, which pauses approach: many ranks share a network file system."""


@dataclass(frozen=True)
class JobRank:
    """Rank of a process in one attempt of a job; `key` is a file name unique to the attempt."""

    key: str
    process: Process

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """Read the rank from the variables set by rank 0 (`variables`), else by SLURM; None for a single process.

        SLURM's variables count only within a step: in a batch script or an allocation's shell they describe no tasks.
        """
        if "NEOBERT_RENDEZVOUS" in environment:
            process = Process(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
            return cls(environment["NEOBERT_RENDEZVOUS"], process)
        if not {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"} <= environment.keys():
            return None
        count = read_count(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") or 1
        rank = read_count(environment, "SLURM_PROCID", least=0) or 0
        return cls(_slurm_key(environment), Process(rank, count)) if count > 1 else None

    def variables(self) -> dict[str, str]:
        """Return environment variables for a process on this machine; all but the key's are torchrun's."""
        rank, count = str(self.process.rank), str(self.process.count)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        return {"NEOBERT_RENDEZVOUS": self.key, **place}

    def __str__(self) -> str:
        return f"process {self.process.rank} of {self.process.count} of {self.key}"


def _slurm_key(environment: Mapping[str, str]) -> str:
    """Build the key from job, step, restarts and nodes; attempts with equal restart counts run on different nodes."""
    nodes = hashlib.sha256(environment.get("SLURM_JOB_NODELIST", "").encode()).hexdigest()[:8]
    restarts = environment.get("SLURM_RESTART_COUNT") or "0"
    key = f"slurm-{environment['SLURM_JOB_ID']}-{environment['SLURM_STEP_ID']}-{restarts}-{nodes}"
    return re.sub(r"[^\w.-]", "_", key)


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

    def end(self) -> None:
        """Announce that all is done, and give the ranks that joined time to read it before the store closes."""
        self.store.set("done", "")
        deadline = time.monotonic() + GOODBYE_SECONDS
        came = [rank for rank in range(1, self.process.count) if self.store.check([_arrival(rank)])]
        while not self.store.check([f"goodbye {rank}" for rank in came]) and time.monotonic() < deadline:
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


def own_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names by which other nodes may know this one: its own, and SLURM's name of the node."""
    return [socket.gethostname(), *([name] if (name := environment.get("SLURMD_NODENAME")) else [])]


def first_known(hosts: Sequence[str]) -> str:
    """Return the first name of a host that can be resolved here, else the first of all."""
    for host in hosts:
        with suppress(OSError):
            socket.getaddrinfo(host, None)
            return host
    return hosts[0]


@contextmanager
def host_ranks(layout: Layout, place: JobRank) -> Iterator[Rendezvous]:
    """Host the rendezvous as rank 0 of a job attempt; on exit the other ranks are told to end.

    Raises:
        RunFailed: another live process is rank 0 of this attempt.
    """
    folder = layout.meetings(place.key)
    claim = acquire(folder, TIMEOUT.total_seconds())
    if claim is None:
        raise RunFailed(f"two processes both claim to be rank 0 of {place.key}: end one of them")
    with claim:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        store.set("key", place.key)
        address = {"hosts": own_names(os.environ), "port": store.port}
        replace_file(folder / f"{claim.number}.json", json_bytes(address))
        rendezvous = Rendezvous(store, place.process)
        token = _hosted.set(rendezvous)
        try:
            yield rendezvous
            rendezvous.end()
        finally:
            _hosted.reset(token)


def find_rendezvous(layout: Layout, place: JobRank, timeout: timedelta = TIMEOUT) -> Rendezvous | None:
    """Connect to rank 0 of this job attempt as soon as it is alive; None if it has already ended.

    Raises:
        RunFailed: rank 0 gave no sign of life for `timeout`, or another process already has this rank.
    """
    folder, deadline = layout.meetings(place.key), time.monotonic() + timeout.total_seconds()
    pauses = chain(accumulate(repeat(1.5, 7), mul, initial=POLL_SECONDS), repeat(MOST_POLL_SECONDS))
    while not (
        (first := last_owner(folder, TIMEOUT.total_seconds()))
        and first.is_live
        and (folder / f"{first.number}.json").exists()
    ):
        if has_ended(layout, place):
            return None
        if time.monotonic() > deadline:
            raise RunFailed(f"{place} gives up: rank 0 sent no heartbeat for {timeout.total_seconds():g} s")
        time.sleep(next(pauses))
    address = read_json(folder / f"{first.number}.json")
    host = "127.0.0.1" if socket.gethostname() in address["hosts"] else first_known(address["hosts"])
    store = TCPStore(host, address["port"], is_master=False, timeout=CONNECTION_TIMEOUT)
    if store.get("key").decode() != place.key:
        raise RunFailed(f"the process at {host}:{address['port']} is not rank 0 of {place.key}")
    if store.add(_arrival(place.process.rank), 1) != 1:
        raise RunFailed(f"another process has already joined as {place}")
    store.set_timeout(TIMEOUT)
    return Rendezvous(store, place.process)


def has_ended(layout: Layout, place: JobRank) -> bool:
    """Whether rank 0 of this job attempt has ended normally."""
    folder = layout.meetings(place.key)
    return not is_claimed(folder, TIMEOUT.total_seconds()) and any(folder.glob(f"*.{RELEASED}"))


def compiler_variables(processes: int) -> dict[str, str]:
    """Return the variables that give each of `processes` on this machine its share of the cores to compile on. Inductor
    would start up to 32 processes in each."""
    return {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, available_cores() // processes))}


@contextmanager
def start_ranks_here(layout: Layout, run_id: str, count: int) -> Iterator[Rendezvous]:
    """Start ranks 1 … count − 1 on this machine, and make sure that none outlives rank 0.

    Raises:
        RunFailed: one of them ended with an error.
    """
    key = f"local-{uuid.uuid4().hex}"
    command = [sys.executable, "-P", "-m", "neobert.runs.worker", "--runs", str(layout.root), f"pretraining/{run_id}"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        with host_ranks(layout, JobRank(key, Process(0, count))) as rendezvous:
            for rank in range(1, count):
                variables = compiler_variables(count) | os.environ | JobRank(key, Process(rank, count)).variables()
                started.append(start_child(command, variables))
            yield rendezvous
        codes = [process.wait(TIMEOUT.total_seconds()) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
        shutil.rmtree(layout.meetings(key), ignore_errors=True)
    if any(codes):
        raise RunFailed(f"the other ranks of run {run_id} ended with exit codes {codes}")


def _arrival(rank: int) -> str:
    return f"arrived {rank}"
