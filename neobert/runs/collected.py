"""Collected folders: what reports read of a folder of runs, as a few tables that can be committed or sent.

A line of a table holds one file of the folder of runs, {"path": its path there, "content": what it contains}, and the
lines are sorted by path. `sha256.json` lists the SHA-256 of each of these files and has a checksum of its own. Readers
get the files unpacked, so that a collected folder is read as any other.
"""

import hashlib
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from neobert.errors import DamagedFile, MissingData, name_first
from neobert.files import (
    checksum_of,
    checksummed,
    inside,
    is_local,
    is_there,
    json_bytes,
    matching,
    read_json,
    reason_of,
    replace_file,
    stamp_of,
    status_of,
)
from neobert.runs.kinds import RECORDS, RUN_FOLDERS
from neobert.runs.records import publish_sealed

DIGESTS = "sha256.json"
CURVES = "pretraining/*/metrics.jsonl"
RESAMPLES = "glue/*/resamples/*.json"
RUN_FILES = tuple(f"{folder}/run.json" for folder in RUN_FOLDERS)
LADDERS = "ladders/*.py"
DECLARATIONS = "declarations/*.json"
DOCUMENTS = (
    "forecasts/*.json",
    "glue/*/studies/*/selection.json",
    "glue/*/errors/*.json",
    "pretraining/*/error.json",
    "models/*/model.json",
)
TABLES: Mapping[str, tuple[str, ...]] = {
    "records.jsonl": RECORDS,
    "runs.jsonl": (*RUN_FILES, *DOCUMENTS, LADDERS, DECLARATIONS),
    "curves.jsonl": (CURVES,),
    "resamples.jsonl": (RESAMPLES,),
}
"""Glob patterns of the files that each table holds. No file matches those of two tables."""

MOST_LINE_BYTES = 64 * 2**20
"""Longer lines, and larger JSON files, are not read. The largest record of the committed studies has 15 kB."""

MOST_NAME_BYTES = 255


class Collected:
    """The tables of a collected folder.

    `files` has the content of every file by its path, of those that are whole and as listed; `problems` has a sentence
    for each other one; `links` has the table and line of each, `records.jsonl#L12`.

    Raises:
        MissingData: `sha256.json` cannot be read, or was changed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[str] = []
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self._lines: dict[str, dict[str, bytes]] = {table: {} for table in TABLES}
        self._listed = _read_digests(root)
        for table in TABLES:
            if is_there(root / table, follow=False):
                self._read(table)
        if missing := [path for path in self._listed or () if path not in self.links]:
            self.problems.append(f"{len(missing)} file(s) listed in {DIGESTS} are not there: {name_first(missing)}")

    def write(self, files: Mapping[str, bytes]) -> int:
        """Add files to the tables, or replace them there; return the size of the folder's tables in bytes.

        Each table is replaced as a whole, and the list of digests last: if the writer is killed, what was there stays,
        and what is new is read after it has been collected again.

        Raises:
            DamagedFile: a link leads out of the folder.
        """
        listed = {path: _sha256(content) for path, content in self.files.items()} | (self._listed or {})
        changed = set()
        for path, content in files.items():
            table = table_of(path)
            assert table is not None, path
            line = _line(path, content)
            if self._lines[table].get(path) != line:
                changed.add(table)
            self._lines[table][path] = line
            listed[path] = _sha256(_bytes_of(path, json.loads(line)["content"]))
        for table in changed:
            replace_file(inside(self.root, table), b"".join(line for _, line in sorted(self._lines[table].items())))
        replace_file(inside(self.root, DIGESTS), json_bytes(checksummed({"files": listed})))
        return sum(len(line) for lines in self._lines.values() for line in lines.values())

    def _read(self, table: str) -> None:
        if reason := why_no_file(self.root, self.root / table):
            self.problems.append(f"{reason}: left out")
            return
        for number, line in enumerate(_read_lines(self.root / table), start=1):
            try:
                path, content = _parse(line)
            except (ValueError, RecursionError):
                self.problems.append(f"line {number} of {table} is damaged: left out")
                continue
            if path in self.links or table_of(path) != table:
                self.problems.append(f"line {number} of {table} holds {path}, which does not belong there: left out")
                continue
            self._lines[table][path] = line
            self.links[path] = f"{table}#L{number}"
            if reason := self._why_another(path, content):
                self.problems.append(f"{reason}: left out")
            else:
                self.files[path] = content

    def _why_another(self, path: str, content: bytes) -> str:
        if self._listed is None:
            return ""
        if path not in self._listed:
            return f"{path} is not listed in {DIGESTS} (remove that if the file belongs to the folder)"
        if self._listed[path] != _sha256(content):
            return f"{path} is not the file that was collected (its SHA-256 is not that in {DIGESTS})"
        return ""


class RunFiles:
    """The files of a folder of runs, collected or not, that may be read; they lie below `root`.

    `problems` has a sentence for each file that is left out. The folder may be a link itself, and links in it may lead
    to other places in it. What lies elsewhere is left out, and so is what is no regular file: a folder from somebody
    else may hold links to private files of its reader. A collected folder is unpacked into a temporary one, again only
    if it changed.

    Raises:
        MissingData: `sha256.json` of a collected folder cannot be read, or was changed.
    """

    def __init__(self, folder: Path) -> None:
        stamps = tuple(map(_stamp, (folder / name for name in (*TABLES, DIGESTS))))
        self._unpacked = _unpack(folder.absolute(), stamps) if any(stamps[:-1]) else None
        self._folder = folder
        self.root = self._unpacked.root if self._unpacked else folder
        self.problems = list(self._unpacked.problems) if self._unpacked else []

    def files(self, *patterns: str) -> Iterator[Path]:
        """Yield the files that match a pattern and may be read, sorted within each pattern."""
        for pattern in patterns:
            for path in matching(self.root, pattern, self._leave_out):
                if not (reason := self.why_not(path)):
                    yield path
                elif (problem := f"{reason}: left out") not in self.problems[-1:]:  # once for all of a linked folder
                    self.problems.append(problem)

    def _leave_out(self, error: OSError) -> None:
        problem = f"{reason_of(error)}: what it holds is left out"
        if problem not in self.problems:
            self.problems.append(problem)

    def why_not(self, path: Path) -> str:
        """Return the reason why a file below the folder may not be read; empty if it may, or is not there."""
        return why_no_file(self.root, path) if os.path.lexists(path) else ""

    def link(self, path: Path) -> str:
        """Return where a file lies in the folder: its path, or the table and the line, `records.jsonl#L12`."""
        name = path.relative_to(self.root).as_posix()
        return self._unpacked.links[name] if self._unpacked else name

    def holder(self, path: Path) -> Path:
        """Return the file on the disk that holds a file of the folder."""
        return self._folder / str(table_of(path.relative_to(self.root).as_posix())) if self._unpacked else path

    def publish(self, path: Path, content: Mapping[str, Any]) -> bool:
        """Write a sealed file once. Returns False if an intact one exists."""
        is_new = publish_sealed(path, content)
        if is_new and self._unpacked:
            Collected(self._folder).write({path.relative_to(self.root).as_posix(): path.read_bytes()})
        return is_new


class _Unpacked:
    """The files of a collected folder in a temporary folder, which is removed with the last reader or the process."""

    def __init__(self, folder: Path) -> None:
        collected = Collected(folder)
        self.root = Path(tempfile.mkdtemp(prefix="collected-"))
        weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)
        self.links, self.problems = collected.links, collected.problems
        for path, content in collected.files.items():
            try:
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                (self.root / path).write_bytes(content)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                self.problems.append(f"{path} lies below another file, or is a folder of others: left out")


@lru_cache(maxsize=4)
def _unpack(folder: Path, stamps: tuple[object, ...]) -> _Unpacked:
    del stamps
    return _Unpacked(folder)


def _stamp(path: Path) -> tuple[int, ...] | None:
    status = status_of(path, follow=False)
    return None if status is None else stamp_of(status)


def why_no_file(root: Path, path: Path) -> str:
    """Return the reason why a path below a folder is no regular file inside it; empty if it is one."""
    name = path.relative_to(root)
    real = os.path.realpath(root)
    if not _is_below(real, path):
        outside = next(part for part in (*reversed(name.parents), name) if not _is_below(real, root / part))
        return f"{outside.as_posix()} is a link out of the folder"
    try:
        status = path.stat()
    except OSError as error:
        return f"{name.as_posix()} cannot be read ({error.strerror})"
    if not path.is_file():
        return f"{name.as_posix()} is no regular file"
    if path.suffix == ".json" and status.st_size > MOST_LINE_BYTES:
        return f"{name.as_posix()} has {status.st_size / 1e6:,.0f} MB, more than any record"
    return ""


def _is_below(real: str, path: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(real)


def _read_digests(root: Path) -> dict[str, str] | None:
    path = root / DIGESTS
    if not is_there(path, follow=False):
        return None
    advice = f"restore {path}, or remove it to read files that nothing vouches for"
    if reason := why_no_file(root, path):
        raise MissingData(f"{reason}: {advice}")
    try:
        content = read_json(path)
    except (DamagedFile, OSError) as error:
        raise MissingData(f"{DIGESTS} cannot be read: {advice}") from error
    if not isinstance(content, dict) or content.get("checksum") != checksum_of(content):
        raise MissingData(f"{DIGESTS} was changed after it was written: {advice}")
    files = content.get("files")
    if not isinstance(files, dict) or not all(isinstance(sha256, str) for sha256 in files.values()):
        raise MissingData(f"{DIGESTS} lists no digests: {advice}")
    return files


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a table. One that is too long comes in pieces, none of which is JSON."""
    with path.open("rb") as file:
        yield from iter(lambda: file.readline(MOST_LINE_BYTES), b"")


def _parse(line: bytes) -> tuple[str, bytes]:
    entry = json.loads(line)
    if not isinstance(entry, dict) or set(entry) != {"path", "content"} or not isinstance(entry["path"], str):
        raise ValueError("no path and content")
    if any(len(name.encode()) > MOST_NAME_BYTES for name in entry["path"].split("/")):
        raise ValueError("a name that file systems refuse")
    return entry["path"], _bytes_of(entry["path"], entry["content"])


def _line(path: str, content: bytes) -> bytes:
    return json.dumps({"path": path, "content": _value_of(path, content)}).encode() + b"\n"


def _value_of(path: str, content: bytes) -> Any:
    """Return the content of a file as it is in a line: JSON, a list of the lines of JSON, or text."""
    match PurePosixPath(path).suffix:
        case ".json":
            return json.loads(content)
        case ".jsonl":
            return [json.loads(line) for line in content.splitlines()]
        case _:
            return content.decode(errors="surrogateescape")


def _bytes_of(path: str, value: Any) -> bytes:
    """Return the content of a file from that of its line. Raises ValueError if it cannot be that of such a file."""
    match PurePosixPath(path).suffix:
        case ".json":
            return json_bytes(value)
        case ".jsonl" if isinstance(value, list):
            return b"".join(json.dumps(line, sort_keys=True).encode() + b"\n" for line in value)
        case ".py" if isinstance(value, str):
            return value.encode(errors="surrogateescape")
    raise ValueError(f"no content of {path}")


def table_of(path: str) -> str | None:
    """Return the table that a file belongs to; None if it belongs to none."""
    if not is_local(path):
        return None
    matching = (table for table, patterns in TABLES.items() if any(_matches(path, each) for each in patterns))
    return next(matching, None)


def _matches(path: str, pattern: str) -> bool:
    return path.count("/") == pattern.count("/") and PurePosixPath(path).match(pattern)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
