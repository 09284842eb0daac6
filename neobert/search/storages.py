"""Where Optuna keeps studies: a journal beside the runs, SQLite, or a database server."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from neobert.errors import did_you_mean
from neobert.files import set_aside

STORAGE_VARIABLE = "NEOBERT_GRID_STORAGE"
"""Environment variable with the storage of a launcher's workers, or one whose address has a password."""
FILES = {"journal": "optuna.journal", "sqlite": "optuna.db"}
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
    _stamp: tuple[int, int] = (0, 0)

    @property
    def path(self) -> Path | None:
        """The file of a journal or of SQLite; None for a server."""
        kind, _, rest = self.address.partition(":")
        return Path(rest.removeprefix("///")) if kind in FILES else None

    def __str__(self) -> str:
        scheme, separator, rest = self.address.partition("://")
        return scheme + separator + rest.rpartition("@")[2]  # without a password

    def _stamp_now(self) -> tuple[int, int]:
        try:
            status = self.path.stat() if self.path else None
        except FileNotFoundError:
            status = None
        return (status.st_ino, status.st_size) if status else (0, 0)

    @property
    def is_current(self) -> bool:
        """Whether the file is still the one that was opened."""
        return self._stamp_now()[0] == self._stamp[0]

    def open(self) -> BaseStorage:
        """Return the storage, and create it if it does not exist. Raises whatever its driver raises."""
        now = self._stamp_now()
        if self._opened is None or now[0] != self._stamp[0] or now[1] < self._stamp[1]:
            self._opened = self._connect()
            self._opened.get_all_studies()
        self._stamp = self._stamp_now()
        return self._opened

    def _connect(self) -> BaseStorage:
        from sqlalchemy.pool import NullPool

        kind, _, rest = self.address.partition(":")
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "journal":
            return JournalStorage(JournalFileBackend(rest, JournalFileOpenLock(rest, JOURNAL_LOCK_SECONDS)))
        settings: dict[str, Any] = {"poolclass": NullPool}  # an open connection would have to be closed, also in forks
        if kind == "sqlite":
            settings["connect_args"] = {"timeout": SQLITE_TIMEOUT_SECONDS}
        return RDBStorage(self.address, engine_kwargs=settings)

    def forget(self) -> None:
        """Open the storage anew the next time."""
        self._opened = None

    def set_aside(self, reason: str) -> None:
        """Rename the file, so that the next `open` makes a new one."""
        self.forget()
        assert self.path is not None
        for path in (self.path, self.path.with_name(f"{self.path.name}-journal")):
            if os.path.lexists(path):
                set_aside(path, reason)


def storage_in_memory() -> Storage:
    """Return a new storage in memory."""
    return Storage("memory:", InMemoryStorage())


@lru_cache(maxsize=4)
def storage_at(address: str) -> Storage:
    """Return the storage at an address, which all studies of a process share."""
    return Storage(address)
