"""Tasks that train a model together: which copy of a job each belongs to, and the notes by which they meet. Torch-free.

SLURM may run a job twice at once (requeued beside its zombie, or started on two nodes after a controller's crash), so
tasks know each other by the key of their own copy. Below `meetings/<key>/` the first task holds a claim while it lives,
lays down a note for each run that it trains, and releases the claim when all is over; the others wait for the notes.
"""

import hashlib
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Self

from pydantic import PositiveInt

from neobert.errors import RunFailed
from neobert.files import json_bytes, read_json, replace_file
from neobert.grid.claims import RELEASED, acquire, owner
from neobert.identity import plain
from neobert.layout import Layout
from neobert.recipe import Value
from neobert.specifications import Execution

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
