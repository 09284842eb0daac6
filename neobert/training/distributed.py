"""Ranks: the processes that train one model together, how they meet, and the process group that they form.

Rank 0 is the worker. It takes claims, writes, and hosts a TCPStore through which it tells the other ranks which runs to
join, until all is done. They find the store by a file below `meetings/<key>/`, beside a claim that says whether rank 0
lives. SLURM may run a job twice at once (requeued beside its zombie, or started on two nodes after a controller's
crash), so the key names one attempt of a job, and the ranks of another one never join.
"""

import gc
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

from neobert.errors import EXIT_RUN_FAILED, RunFailed
from neobert.files import json_bytes, read_json, replace_file
from neobert.identity import plain
from neobert.model.attention import activate_fa3
from neobert.processes import Stopped, StopRequest, start_child
from neobert.runs.claims import RELEASED, acquire, is_claimed, last_owner
from neobert.runs.layout import Layout
from neobert.runs.run_file import Execution

TIMEOUT = timedelta(minutes=5)
"""How long ranks wait for each other to meet, and for a sign of life of rank 0."""

COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""How long a collective waits for a rank that lives: it may be compiling, which takes minutes for a deep model."""

WATCH_SECONDS = 2.0
"""How often a rank gives a sign of life, and looks for failures of the others."""

VANISHED_SECONDS = 60.0
"""Without a sign of life for so long a rank counts as dead."""

ABORT_SECONDS = 10.0
"""How long a rank may take to leave a collective that was aborted, before its process ends."""

CONNECTION_TIMEOUT = timedelta(minutes=1)
"""The address is written once the store listens, so reaching it takes no longer than the network does."""

GOODBYE_SECONDS = 5.0
"""How long rank 0 keeps its store for ranks that may not have heard yet that all is done."""

POLL_SECONDS = 0.1
FAILURE = "failure"


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
class JobRank:
    """The place of a process in one attempt of a job; `key` is a file name that no other attempt has."""

    key: str
    process: Process

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self | None:
        """The place that rank 0 (`variables`) or else SLURM gave; None for a process on its own.

        Outside a step (in a batch script or an allocation's shell) SLURM's variables name no tasks.
        """
        if "NEOBERT_RENDEZVOUS" in environment:
            process = Process(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
            return cls(environment["NEOBERT_RENDEZVOUS"], process)
        if not {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"} <= environment.keys():
            return None
        count = int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1)
        return cls(_slurm_key(environment), Process(int(environment["SLURM_PROCID"]), count)) if count > 1 else None

    def variables(self) -> dict[str, str]:
        """What tells a process of this machine its place; all but the key are torchrun's."""
        rank, count = str(self.process.rank), str(self.process.count)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        return {"NEOBERT_RENDEZVOUS": self.key, **place}

    def __str__(self) -> str:
        return f"process {self.process.rank} of {self.process.count} of {self.key}"


def _slurm_key(environment: Mapping[str, str]) -> str:
    """Job, step, restarts and nodes: an attempt that the restart count does not tell apart runs on other nodes."""
    nodes = hashlib.sha256(environment.get("SLURM_JOB_NODELIST", "").encode()).hexdigest()[:8]
    restarts = environment.get("SLURM_RESTART_COUNT") or "0"
    key = f"slurm-{environment['SLURM_JOB_ID']}-{environment['SLURM_STEP_ID']}-{restarts}-{nodes}"
    return re.sub(r"[^\w.-]", "_", key)


def choose_kernels(deterministic: bool) -> None:
    """Let a GPU give the same bits every time, or be fast; before its first product of matrices.

    Everything that models are trained with here has a deterministic form; torch refuses what has none.
    """
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs writes
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts


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
    device = torch.device("cuda", index)
    activate_fa3(device)
    return device


@dataclass(frozen=True)
class StartedRun:
    """A run that rank 0 has started; `store` holds what its ranks tell each other."""

    id: str
    execution: Execution
    store: Store


class Rendezvous:
    """The store of one attempt of a job, as one of its ranks sees it; runs are numbered in the order of their start."""

    def __init__(self, store: TCPStore, place: JobRank) -> None:
        self.store = store
        self.place = place
        self.process = place.process
        self._number = 0

    @contextmanager
    def lead(
        self,
        run_id: str,
        execution: Execution,
        stop: StopRequest,
        leave: Callable[[str], None],
        timeout: timedelta = TIMEOUT,
    ) -> Iterator[None]:
        """Rank 0's side of a run: tell the others, wait until all have come, form the group, and part when done.

        `leave` is told why this process ends, where a collective cannot be left although another rank has failed.

        Raises:
            RunFailed: some did not come within `timeout`, or one of them failed; says which.
            Stopped: `stop` was requested before all were there.
        """
        run = PrefixStore(f"run {self._number}", self.store)
        self.store.set(f"started {self._number}", json.dumps({"id": run_id, "execution": plain(execution)}))
        self._number += 1
        try:
            self._wait_for_ranks(run, run_id, stop, timeout)
            with _group(run, self.process, leave):
                yield
        except Exception as error:
            first = _tell_failure(run, f"process 0 on {socket.gethostname()}: {error}")
            if type(error) is RuntimeError or isinstance(error, dist.DistError):
                raise RunFailed(first) from error  # what another rank saw explains better why the group broke
            raise
        finally:
            run.set("over", "")

    def _wait_for_ranks(self, run: Store, run_id: str, stop: StopRequest, timeout: timedelta) -> None:
        count, deadline = self.process.count, time.monotonic() + timeout.total_seconds()
        while missing := [rank for rank in range(1, count) if not run.check([_arrival(rank)])]:
            if stop.requested:
                raise Stopped("asked to stop before all processes had met")
            if time.monotonic() > deadline:
                ranks = ", ".join(map(str, missing))
                raise RunFailed(
                    f"{count - len(missing)} of {count} processes of run {run_id} met within "
                    f"{timeout.total_seconds():g} s; missing: {ranks}"
                )
            time.sleep(POLL_SECONDS / 4)

    def next_run(self) -> StartedRun | None:
        """The next run that rank 0 leads, None when it has said that all is done.

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
        """Say that all is done, and give the ranks that came the time to hear it before the store is gone."""
        self.store.set("done", "")
        deadline = time.monotonic() + GOODBYE_SECONDS
        came = [rank for rank in range(1, self.process.count) if self.store.check([_arrival(rank)])]
        while not self.store.check([f"goodbye {rank}" for rank in came]) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 4)

    @contextmanager
    def join(self, run: StartedRun) -> Iterator[None]:
        """Another rank's side of a run: form the group, and part when done."""
        run.store.set(_arrival(self.process.rank), "")
        try:
            with _group(run.store, self.process):
                yield
        except Exception as error:
            with suppress(dist.DistError):  # rank 0 may be gone, and the store with it
                _tell_failure(run.store, f"process {self.process.rank} on {socket.gethostname()}: {error}")
            raise


_hosted: ContextVar[Rendezvous | None] = ContextVar("rendezvous", default=None)


def hosted_rendezvous() -> Rendezvous | None:
    """The rendezvous that this process hosts as rank 0 of a job; None for a process on its own."""
    return _hosted.get()


@contextmanager
def host_ranks(layout: Layout, place: JobRank) -> Iterator[Rendezvous]:
    """Be rank 0 of an attempt of a job; leaving sends the other ranks home.

    Raises:
        RunFailed: another process lives as rank 0 of this attempt.
    """
    folder = layout.meetings(place.key)
    claim = acquire(folder, TIMEOUT.total_seconds())
    if claim is None:
        raise RunFailed(f"two processes take themselves for the first of {place.key}: only one may run")
    with claim:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        store.set("key", place.key)
        address = {"host": socket.gethostname(), "port": store.port}
        replace_file(folder / f"{claim.number}.json", json_bytes(address))
        rendezvous = Rendezvous(store, place)
        token = _hosted.set(rendezvous)
        try:
            yield rendezvous
            rendezvous.end()
        finally:
            _hosted.reset(token)


def find_rendezvous(layout: Layout, place: JobRank, timeout: timedelta = TIMEOUT) -> Rendezvous | None:
    """Connect to rank 0 of this attempt of the job as soon as it lives; None where it has ended already.

    Raises:
        RunFailed: rank 0 gave no sign of life for `timeout`, or another process has this place already.
    """
    folder, deadline = layout.meetings(place.key), time.monotonic() + timeout.total_seconds()
    while not (
        (first := last_owner(folder, TIMEOUT.total_seconds()))
        and first.is_live
        and (folder / f"{first.number}.json").exists()
    ):
        if has_ended(layout, place):
            return None
        if time.monotonic() > deadline:
            raise RunFailed(f"{place} gives up: the first one gave no sign of life for {timeout.total_seconds():g} s")
        time.sleep(POLL_SECONDS)
    address = read_json(folder / f"{first.number}.json")
    host = "127.0.0.1" if address["host"] == socket.gethostname() else address["host"]
    store = TCPStore(host, address["port"], is_master=False, timeout=CONNECTION_TIMEOUT)
    if store.get("key").decode() != place.key:
        raise RunFailed(f"the process at {address['host']}:{address['port']} is not the first one of {place.key}")
    if store.add(_arrival(place.process.rank), 1) != 1:
        raise RunFailed(f"another process takes part as {place} already")
    store.set_timeout(TIMEOUT)
    return Rendezvous(store, place)


def has_ended(layout: Layout, place: JobRank) -> bool:
    """Whether rank 0 of this attempt of the job has left in good order."""
    folder = layout.meetings(place.key)
    return not is_claimed(folder, TIMEOUT.total_seconds()) and any(folder.glob(f"*.{RELEASED}"))


@contextmanager
def start_ranks_here(layout: Layout, run_id: str, count: int) -> Iterator[Rendezvous]:
    """Start the ranks 1 … count − 1 on this machine, and make sure that none outlives rank 0.

    Raises:
        RunFailed: one of them ended with an error.
    """
    key = f"local-{uuid.uuid4().hex}"
    command = [sys.executable, "-m", "neobert.runs.worker", "--runs", str(layout.root), f"pretraining/{run_id}"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        with host_ranks(layout, JobRank(key, Process(0, count))) as rendezvous:
            for rank in range(1, count):
                started.append(start_child(command, os.environ | JobRank(key, Process(rank, count)).variables()))
            yield rendezvous
        codes = [process.wait(TIMEOUT.total_seconds()) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
        shutil.rmtree(layout.meetings(key), ignore_errors=True)
    if any(codes):
        raise RunFailed(f"processes that trained run {run_id} with this one ended with exit codes {codes}")


@contextmanager
def _group(store: Store, process: Process, leave: Callable[[str], None] = lambda reason: None) -> Iterator[None]:
    """The process group of a run. It is not destroyed while a wrapped model still refers to it, which may abort the
    process at its exit."""
    device = default_device()
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("group", store),
        rank=process.rank,
        world_size=process.count,
        timeout=COLLECTIVE_TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    try:
        with _watch(store, process, leave):
            yield
            dist.barrier()  # all have left the collectives before the first one tears its connections down
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        gc.collect()
        dist.destroy_process_group()


def _tell_failure(store: Store, reason: str) -> str:
    """Let the other ranks know why this one fails; what was told first, which stays."""
    return store.compare_set(FAILURE, "", reason).decode()


@contextmanager
def _watch(store: Store, process: Process, leave: Callable[[str], None]) -> Iterator[None]:
    """Within, this rank ends soon after another one has failed or died.

    Gloo's collectives fail where a connection is closed. NCCL's wait for their time-out, and the host in them: they are
    aborted, and where the main thread does not leave them even so, the process ends.
    """
    ended = threading.Event()
    watch = _PeerWatch(store.clone(), process)  # type: ignore[attr-defined]  # its stubs lack it

    def look() -> None:
        while not ended.wait(WATCH_SECONDS):
            if (reason := watch.failure_of_others()) is not None:
                break
        else:
            return
        with suppress(RuntimeError):  # gloo has no abort, and needs none
            if (group := dist.group.WORLD) is not None:
                group.abort()
        if not ended.wait(ABORT_SECONDS):
            print(f"process {process.rank} of {process.count} ends: {reason}", file=sys.stderr, flush=True)
            leave(reason)
            os._exit(EXIT_RUN_FAILED)

    thread = threading.Thread(target=look, name="peer watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(WATCH_SECONDS)


class _PeerWatch:
    """Gives signs of life of a rank and, in rank 0, counts those of the others."""

    def __init__(self, store: Store, process: Process) -> None:
        self.store = store
        self.process = process
        self._counted: dict[int, tuple[int, float]] = {}

    def failure_of_others(self) -> str | None:
        """Why this rank has to end; None while all live and none has failed."""
        try:
            self.store.add(_life(self.process.rank), 1)
            if self.process.writes:
                self._look_for_the_dead()
            return self.store.get(FAILURE).decode() if self.store.check([FAILURE]) else None
        except dist.DistError as error:
            return f"the first process died ({error})"

    def _look_for_the_dead(self) -> None:
        now = time.monotonic()
        for rank in range(1, self.process.count):
            count = self.store.add(_life(rank), 0)
            if count != self._counted.get(rank, (None, now))[0]:
                self._counted[rank] = count, now
            elif now - self._counted[rank][1] > VANISHED_SECONDS:
                _tell_failure(self.store, f"process {rank} gave no sign of life for {VANISHED_SECONDS:g} s")


def sum_over_ranks(value: int, process: Process, device: torch.device) -> int:
    """The sum of what the ranks say; they must ask together.

    Each hears from all others and notices where one is gone. A broadcast to a process that was killed just before may
    wait for it until the time-out.
    """
    if process.count == 1:
        return value
    total = torch.tensor(value, device=device)
    dist.all_reduce(total)
    return int(total.item())


def said_by_first(value: int, process: Process, device: torch.device) -> int:
    """What rank 0 says in place of `value`; the ranks must ask together."""
    return sum_over_ranks(value if process.writes else 0, process, device)


def _life(rank: int) -> str:
    return f"alive {rank}"


def _arrival(rank: int) -> str:
    return f"arrived {rank}"
