"""Files that are either whole or absent: tmp, fsync, rename, fsync of the folder."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neobert.errors import DamagedFile

TEMPORARY_MARK = ".tmp-"


def temporary_sibling(path: Path) -> Path:
    """A name beside `path` that no other process uses and that `clear_temporaries` knows."""
    return path.with_name(f"{path.name}{TEMPORARY_MARK}{uuid.uuid4().hex[:12]}")


def sync_folder(folder: Path) -> None:
    """Make renames and links inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flush a file that a library wrote to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write_temporary(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(path)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old or the new content, never a part."""
    temporary = _write_temporary(path, content)
    temporary.replace(path)
    sync_folder(path.parent)


def publish_once(path: Path, content: bytes) -> bool:
    """Write a file that may never change again; False where somebody published it first."""
    temporary = _write_temporary(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync_folder(path.parent)
    return True


def publish_folder(temporary: Path, final: Path) -> None:
    """Rename a finished temporary folder into place after flushing every file in it."""
    for file in sorted(temporary.rglob("*")):
        if file.is_file():
            sync_file(file)
    sync_folder(temporary)
    temporary.rename(final)
    sync_folder(final.parent)


def append_line(path: Path, value: Any) -> None:
    """Append one JSON line with a single write, so that concurrent writers never mix within a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(value, sort_keys=True) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[Any]:
    """The JSON lines of a file; a torn last line (its writer was killed) is left out."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def json_bytes(value: Any) -> bytes:
    """Readable JSON with a stable order and no NaN."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        DamagedFile: the file is torn or no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedFile(f"{path} is not readable as JSON ({error}): remove it to compute it again") from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def clear_temporaries(folder: Path, of: str = "*") -> None:
    """Remove what killed writers left in a folder, all or `of` one name; only for whoever owns the claim of that."""
    for path in folder.glob(f"{of}{TEMPORARY_MARK}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
