"""Claims: locks on parts of runs, as numbered files with a heartbeat.

A part of a run, or anything else that only one process at a time may make (a tokenizer, a submission), has a folder of
claims 1, 2, 3, …; a process takes the part by exclusively creating the next number, and the highest number owns it. The
numbers only grow and serve as fencing tokens: a process that was paused past its lease finds a higher number than its
own and publishes nothing. No file is ever renamed or stolen, so two processes can never both take a part.

The age of a heartbeat is measured by the clock that stamps it. On NFS this is the file server's, so that machines whose
clocks differ agree on which owners are alive; where clients stamp files (Lustre), their clocks must agree to seconds.
"""

import os
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field

from neobert.files import ABSENT, children, is_there, publish_once

LEASE_SECONDS = 60.0
RELEASED = "released"
CLOCK_FILE = ".clock"
CLOCK_SECONDS = 30.0
"""How long a measured offset between the clocks of the file system and of this process is used."""

_offsets: dict[Path, tuple[float, float]] = {}
"""By folder: the file system's clock minus `time.monotonic()`, and the `time.monotonic()` of the measurement."""

_first_seen: dict[Path, tuple[int, float]] = {}
"""By claim with a heartbeat in the future: its stamp, and the `time.monotonic()` at which it was first seen."""


class ClaimLost(Exception):
    """Another process took over the part; nothing may be published any more."""


def measure_file_time(folder: Path) -> float:
    """Return the current time, in Unix seconds, by the clock with which the folder's file system stamps files.

    A file is touched for this every `CLOCK_SECONDS`. If that fails, this machine's clock is used.
    """
    offset, measured_at = _offsets.get(folder, (0.0, -CLOCK_SECONDS))
    if time.monotonic() - measured_at >= CLOCK_SECONDS:
        clock = folder / CLOCK_FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            clock.touch()  # without an explicit time, so that the file server uses its own
            now = clock.stat().st_mtime
        except OSError:
            return time.time()
        measured_at = time.monotonic()
        offset = now - measured_at
        _offsets[folder] = offset, measured_at
    return time.monotonic() + offset


def file_time(folder: Path) -> float:
    """Return the same as `measure_file_time`, but from its last measurement, however old. Writes nothing."""
    known = _offsets.get(folder)
    return time.time() if known is None else time.monotonic() + known[0]


def _silent_seconds(path: Path) -> float:
    """Return the age of a claim's last heartbeat. One in the future ages from when this process first saw it."""
    stamp = path.stat()
    age = file_time(path.parent.parent) - stamp.st_mtime
    if age >= 0:
        return age
    seen, since = _first_seen.get(path, (None, 0.0))
    if seen != stamp.st_mtime_ns:
        since = time.monotonic()
        _first_seen[path] = stamp.st_mtime_ns, since
    return time.monotonic() - since


def _highest(folder: Path) -> int:
    numbers = [int(path.name) for path in children(folder, "[0-9]*") if path.name.isascii() and path.name.isdecimal()]
    return max(numbers, default=0)


def _process_birth(pid: int) -> str | None:
    """Return the start time of a live local process in clock ticks, to recognise reused pids; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (*ABSENT, ProcessLookupError, PermissionError, IndexError):  # others do not tell that it has ended
        return None
    return None if fields[0] in "ZX" else fields[19]


def _is_hidden(pid: int) -> bool:
    """Return whether a pid is of another user's process that /proc does not show (mounted with hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not os.access(f"/proc/{pid}/stat", os.R_OK)
    except ProcessLookupError:
        pass
    return False


@cache
def _process_space() -> str | None:
    """Return the machine's boot id and pid namespace. Pids are only comparable between processes with equal values."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 (what it names is no path)
    except OSError:
        return None


def _job() -> str | None:
    """Return the SLURM job of this process, as in the names of SLURM's log files; None outside SLURM."""
    array, element = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{element}" if array and element else os.environ.get("SLURM_JOB_ID") or None


class ProcessMark(BaseModel):
    """Content of a claim file: the process that took the part. Fields of other versions are ignored."""

    host: str
    pid: int = Field(ge=0, lt=1 << 31)
    birth: str | None
    job: str | None = None
    space: str | None = None

    @classmethod
    def here(cls) -> Self:
        """Return the mark of this process."""
        pid = os.getpid()
        return cls(host=socket.gethostname(), pid=pid, birth=_process_birth(pid), job=_job(), space=_process_space())

    @property
    def is_dead(self) -> bool:
        """Whether the process has surely ended; of processes of other machines or containers nothing is sure."""
        is_here = self.space is not None and self.space == _process_space()
        return is_here and _process_birth(self.pid) != self.birth and not _is_hidden(self.pid)


@dataclass(frozen=True)
class Owner:
    """Last owner of a part. `silent_seconds` is the age of the last heartbeat.

    `is_live`: the owner may still be working.
    """

    number: int
    host: str
    pid: int
    job: str | None
    silent_seconds: float
    is_released: bool
    is_live: bool

    @property
    def is_lost(self) -> bool:
        """Whether the owner ended without releasing the part."""
        return not (self.is_live or self.is_released)


def _read_owner(path: Path, lease_seconds: float) -> Owner | None:
    """Return the owner in a claim file, None if the file is gone or torn, or is no file."""
    try:
        process = ProcessMark.model_validate_json(path.read_bytes())
        silent_seconds = _silent_seconds(path)
    except (FileNotFoundError, IsADirectoryError, ValueError):  # other errors may be temporary: a server is away
        return None
    is_released = is_there(path.with_name(f"{path.name}.{RELEASED}"))
    is_live = not is_released and not process.is_dead and silent_seconds < lease_seconds
    return Owner(int(path.name), process.host, process.pid, process.job, silent_seconds, is_released, is_live)


@dataclass
class Claim:
    """Claim on a part. Use it as a context manager, which releases the part at its end."""

    folder: Path
    number: int
    lease_seconds: float
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def token(self) -> str:
        """Token of the owner. A part never has the same token twice."""
        return f"{self.number:06d}"

    def check(self) -> None:
        """Raise ClaimLost if another process has taken over the part. Call it before each publish."""
        if _highest(self.folder) != self.number:
            raise ClaimLost(f"claim {self.number} of {self.folder.name} was taken over; nothing is published")

    def _beat(self) -> None:
        wait = self.lease_seconds / 4
        while not self._stop.wait(wait):
            try:
                os.utime(self.folder / str(self.number))
                wait = self.lease_seconds / 4
            except OSError:  # the file server may be away for a moment: try again soon; `check` decides
                wait = self.lease_seconds / 20

    def __enter__(self) -> Self:
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        publish_once(self.folder / f"{self.number}.{RELEASED}", b"")


def acquire(folder: Path, lease_seconds: float = LEASE_SECONDS) -> Claim | None:
    """Take a part. Returns None while another owner is alive."""
    folder.mkdir(parents=True, exist_ok=True)
    measure_file_time(folder.parent)
    number = _highest(folder)
    last = _read_owner(folder / str(number), lease_seconds)
    if last is not None and last.is_live:
        return None
    taken = publish_once(folder / str(number + 1), ProcessMark.here().model_dump_json().encode())
    return Claim(folder, number + 1, lease_seconds) if taken else None


def last_owner(folder: Path, lease_seconds: float = LEASE_SECONDS) -> Owner | None:
    """Return the last owner of a part, None if it was never claimed or the claim is torn. Writes nothing."""
    number = _highest(folder)
    return _read_owner(folder / str(number), lease_seconds) if number else None


def is_claimed(folder: Path, lease_seconds: float = LEASE_SECONDS) -> bool:
    """Return whether a part has a live claim. Writes nothing."""
    last = last_owner(folder, lease_seconds)
    return last is not None and last.is_live
