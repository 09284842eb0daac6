"""Where Optuna keeps studies: a journal beside the runs, SQLite, or a database server."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Self

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial

from neobert.errors import did_you_mean
from neobert.files import replace_file, set_aside, status_of

STORAGE_VARIABLE = "NEOBERT_GRID_STORAGE"
"""Environment variable with the storage of a launcher's workers, or one whose address has a password."""
FILES = {"journal": "optuna.journal", "sqlite": "optuna.db"}
LOCK_SECONDS = 10
"""The lock of a folder is broken if its holder is silent for so long."""
JOURNAL_LOCK_SECONDS = 3
"""The journal's own lock must be broken long before that of the folder, or that one would be broken while its owner
waits for this."""
SQLITE_TIMEOUT_SECONDS = 30


def storage_address(name: str, root: Path) -> str:
    """Return the full address of a storage: `journal`, `sqlite`, either with a file, or a URL of Optuna's.

    Raises ValueError for other words, and for a URL with a password, which would be visible to every user.
    """
    kind, separator, rest = name.partition(":")
    if kind in FILES:
        if rest.startswith("//"):
            return name
        path = Path(rest).resolve() if rest else root.resolve() / FILES[kind]
        return f"{kind}:///{path}" if kind == "sqlite" else f"{kind}:{path}"
    if not separator or "://" not in name:
        raise ValueError(
            f"unknown storage {name!r} ({did_you_mean(kind, FILES)}): give journal, sqlite or a URL of Optuna"
        )
    if ":" in name.partition("://")[2].rpartition("@")[0]:
        raise ValueError(f"--storage would show the password in its URL to everybody: set {STORAGE_VARIABLE} instead")
    return name


def address_of_environment(root: Path) -> str:
    """Return the address of the storage that the environment names; the default is the journal beside the runs."""
    named = os.environ.get(STORAGE_VARIABLE)
    return named if named and ":" in named else storage_address(named or "journal", root)


def cause_of(error: BaseException) -> str:
    """Return one line with the root cause of a storage's error, which drivers and Optuna wrap several times."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def is_transient(error: BaseException | None) -> bool:
    """Return whether waiting may help: the storage is locked, or its server or file system is away."""
    from sqlalchemy.exc import OperationalError

    while error is not None and not isinstance(error, OperationalError | OSError):
        error = error.__cause__
    return error is not None and "no such table" not in str(error)


@dataclass
class Storage:
    """An Optuna storage. Its file is opened anew if it was replaced or became shorter."""

    address: str
    _opened: BaseStorage | None = None
    _held: BinaryIO | None = None
    """The file, which is kept open: otherwise a file that replaces it could have its inode, and be taken for it."""
    _inode: int | None = None
    _size: int = 0

    @property
    def path(self) -> Path | None:
        """The file of a journal or of SQLite; None for a server."""
        kind, _, rest = self.address.partition(":")
        return Path(rest.removeprefix("///")) if kind in FILES else None

    def __str__(self) -> str:
        scheme, separator, rest = self.address.partition("://")
        return scheme + separator + rest.rpartition("@")[2]  # without a password

    @property
    def is_current(self) -> bool:
        """Whether the file is still the one that was opened; a server always is. Raises OSError if the system does not
        tell."""
        if self.path is None:
            return True
        status = status_of(self.path)
        return status is not None and status.st_ino == self._inode

    def open(self) -> BaseStorage:
        """Return the storage, and create it if it does not exist. Raises whatever its driver raises."""
        if self._opened is None or not self.is_current or self._size_now() < self._size:
            self.forget()
            self._hold()
            opened = self._connect()
            opened.get_all_studies()
            self._opened = opened
        self._size = self._size_now()
        return self._opened

    def _hold(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._held = self.path.open("ab")
            self._inode = os.fstat(self._held.fileno()).st_ino

    def _size_now(self) -> int:
        return 0 if self._held is None else os.fstat(self._held.fileno()).st_size

    def _connect(self) -> BaseStorage:
        from sqlalchemy.pool import NullPool

        kind, _, rest = self.address.partition(":")
        if kind == "journal":
            return JournalStorage(JournalFileBackend(rest, JournalFileOpenLock(rest, JOURNAL_LOCK_SECONDS)))
        settings: dict[str, Any] = {"poolclass": NullPool}  # an open connection would have to be closed, also in forks
        if kind == "sqlite":
            settings["connect_args"] = {"timeout": SQLITE_TIMEOUT_SECONDS}
        return RDBStorage(self.address, engine_kwargs=settings)

    def forget(self) -> None:
        """Open the storage anew the next time."""
        self._opened, self._inode = None, None
        if self._held is not None:
            self._held.close()
            self._held = None

    def __del__(self) -> None:
        self.forget()

    def set_aside(self, reason: str) -> None:
        """Rename the file, so that the next `open` makes a new one."""
        self.forget()
        assert self.path is not None
        for path in (self.path, self.path.with_name(f"{self.path.name}-journal")):
            if os.path.lexists(path):
                set_aside(path, reason)


@lru_cache(maxsize=4)
def storage_at(address: str) -> Storage:
    """Return the storage at an address, which all studies of a process share."""
    return Storage(address)


class LockLost(OSError):
    """The lock of a folder was broken: what was read under it may be out of date."""


class FolderLock:
    """The lock of a folder of runs. It keeps studies tidy; claims and records are exact without it.

    A holder that is silent for `LOCK_SECONDS` is taken for dead. One that was only slow, or stopped, asks before each
    write whether it still holds the lock.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "optuna.lock"
        self._file = -1

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = JournalFileOpenLock(str(self._path.with_suffix("")), LOCK_SECONDS)
        self._lock.acquire()
        self._file = os.open(self._path, os.O_RDONLY)  # kept open, so that no other lock gets its inode
        return self

    def keep(self) -> None:
        """Say that this process goes on. Raises LockLost if the lock was broken meanwhile."""
        status = status_of(self._path)
        if status is None or not os.path.samestat(status, os.fstat(self._file)):
            raise LockLost(f"the lock {self._path} was broken: this process was silent for {LOCK_SECONDS} seconds")
        os.utime(self._path)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, RuntimeError):  # a lock of another process is left to it
            self.keep()
            self._lock.release()
        os.close(self._file)


# Shortening a journal: each trial has many lines in it, all of which every worker reads when it starts

FEW_LINES = 10_000
"""So many are read in a fraction of a second."""
LINES_PER_TRIAL = 4
"""A journal with more of them is shortened to one for each trial. One that was shortened grows by some 20 for each
trial that runs, so it is not shortened again at every start."""


class Lines(BaseJournalBackend):
    """A journal in memory."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        return map(json.loads, self.lines[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.lines += [json.dumps(log, separators=(",", ":")) for log in logs]


def trials_in(storage: BaseStorage) -> list[FrozenTrial]:
    """Return the trials of all studies of a storage."""
    studies = (optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage))
    return [trial for study in studies for trial in study.get_trials(deepcopy=False)]


def is_long(journal: Path, trials: Sequence[FrozenTrial]) -> bool:
    """Return whether a journal with these trials has many more lines."""
    return journal.read_bytes().count(b"\n") > max(FEW_LINES, LINES_PER_TRIAL * len(trials))


def shorten(journal: Path, storage: BaseStorage, lock: FolderLock) -> None:
    """Replace a journal, which `storage` has read, by one with the same studies and trials. What others write to the
    old one meanwhile is lost, so the caller holds the lock. Raises LockLost."""
    lines = Lines()
    copy = JournalStorage(lines)
    for name in optuna.get_all_study_names(storage):
        optuna.copy_study(from_study_name=name, from_storage=storage, to_storage=copy)
        lock.keep()
    replace_file(journal, "".join(f"{line}\n" for line in lines.lines).encode())
