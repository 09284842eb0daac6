"""Files that are there and cannot be read: without permission, also for root."""

import ctypes
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = 0x20080522
OVERRIDES = (1 << 1) | (1 << 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root opens every file."""


@contextmanager
def hidden(path: Path) -> Iterator[None]:
    """Hide a file or folder from this thread, and give it back as it was."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with _as_others():
            yield
    finally:
        path.chmod(mode)


@contextmanager
def _as_others() -> Iterator[None]:
    """Give up root's right to open every file in this thread."""
    if os.geteuid() != 0:
        yield
        return
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION, 0)
    rights = (ctypes.c_uint32 * 6)()
    assert library.capget(header, rights) == 0
    without = (ctypes.c_uint32 * 6)(*rights)
    without[0] &= ~OVERRIDES
    assert library.capset(header, without) == 0
    try:
        yield
    finally:
        assert library.capset(header, rights) == 0


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of the last change of everything below a folder: equal if nothing was touched. Folders change with
    what lies in them."""
    found = {path.relative_to(root).as_posix(): path.lstat() for path in sorted(root.rglob("*"))}
    is_folder = {name: stat.S_ISDIR(status.st_mode) for name, status in found.items()}
    return {name: (each.st_ino, 0 if is_folder[name] else each.st_mtime_ns) for name, each in found.items()}
