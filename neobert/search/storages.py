"""The journal beside the runs, in which Optuna keeps their studies, and the lock under which they are made to agree."""

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Self

from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from neobert.files import set_aside, status_of

JOURNAL = "optuna.journal"
LOCK_SECONDS = 10
"""The lock of a folder is broken if its holder is silent for so long."""
JOURNAL_LOCK_SECONDS = 3
"""The journal's own lock must be broken long before that of the folder, or that one would be broken while its owner
waits for this."""


@dataclass
class Journal:
    """A journal of Optuna. It is opened anew if its file was replaced or became shorter."""

    path: Path
    _opened: BaseStorage | None = None
    _held: BinaryIO | None = None
    """The file, which is kept open: otherwise a file that replaces it could have its inode, and be taken for it."""
    _inode: int | None = None
    _size: int = 0

    @property
    def is_current(self) -> bool:
        """Whether the file is still the one that was opened. Raises OSError if the system does not tell."""
        status = status_of(self.path)
        return status is not None and status.st_ino == self._inode

    def open(self) -> BaseStorage:
        """Return the storage, and create it if it does not exist. Raises OSError if it cannot be used, and what Optuna
        raises if it is damaged."""
        if self._opened is None or not self.is_current or self._size_now() < self._size:
            self.forget()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._held = self.path.open("ab")
            self._inode = os.fstat(self._held.fileno()).st_ino
            path = str(self.path)
            opened = JournalStorage(JournalFileBackend(path, JournalFileOpenLock(path, JOURNAL_LOCK_SECONDS)))
            opened.get_all_studies()
            self._opened = opened
        self._size = self._size_now()
        return self._opened

    def _size_now(self) -> int:
        return 0 if self._held is None else os.fstat(self._held.fileno()).st_size

    def forget(self) -> None:
        """Open the journal anew the next time."""
        self._opened, self._inode = None, None
        if self._held is not None:
            self._held.close()
            self._held = None

    def __del__(self) -> None:
        self.forget()

    def set_aside(self, reason: str) -> None:
        """Rename the file, so that the next `open` makes a new one."""
        self.forget()
        set_aside(self.path, reason)


@lru_cache(maxsize=4)
def journal_of(root: Path) -> Journal:
    """Return the journal of a folder of runs, which all studies of a process share."""
    return Journal(root.resolve() / JOURNAL)


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
