"""A file or folder that may go, its size and its age. Torch-free."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Garbage:
    """A file or folder that may go. `units` are those whose claims guard it."""

    path: Path
    bytes: int
    reason: str
    units: tuple[str, ...] = ()


def garbage_at(path: Path, reason: str, *units: str) -> Garbage:
    """A path as garbage, with its size."""
    return Garbage(path, size_bytes(path), reason, units)


def size_bytes(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; what vanishes meanwhile does not count."""
    total = 0
    for file in _files(path):
        try:
            total += file.lstat().st_size
        except FileNotFoundError:
            continue
    return total


def age_seconds(path: Path) -> float:
    """The age of the newest file in a folder, or of the file; none at all where it vanishes meanwhile."""
    try:
        return time.time() - max(file.lstat().st_mtime for file in (path, *_files(path)))
    except FileNotFoundError:
        return 0.0


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir() or path.is_symlink():
        yield path
    else:
        yield from (file for file in path.rglob("*") if not file.is_dir())
