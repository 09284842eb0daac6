"""Bring the files that a manifest lists. Whatever is killed here is completed by the same call.

A file is fetched into a staging folder, compared with the hub's checksum, flushed and renamed to its place, so that a
file in its place is always whole; the manifest is written before the first byte and after files arrived.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from neobert.data.hub_files import download, matches
from neobert.data.hub_selection import Selection, repository_of
from neobert.data.manifest import Entry, Manifest, has_size, write_manifest
from neobert.errors import DamagedFile, MissingData, RunFailed
from neobert.files import inside, sha256_of, sync_file, sync_folder, temporary_sibling
from neobert.grid.claims import acquire

WORK_FOLDER = ".prefetch"
FAILURES_PER_REPOSITORY = 3
"""So many files of a repository may fail before its others are left for the next call."""

_WRITE_SECONDS = 10.0
_REPORT_SECONDS = 10.0
_RESERVE_BYTES = 1 << 28


@dataclass(frozen=True)
class Arrived:
    """A file in its place: the SHA-256 of its bytes and the time of the file that was hashed."""

    name: str
    sha256: str
    modified_ns: int
    fetched: bool


@dataclass
class Progress:
    """Counts what arrived, keeps the manifest on the disk near to it, and says so now and then."""

    folder: Path
    manifest: Manifest
    files: int
    report: Callable[[str], None]
    arrived: int = 0
    fetched_bytes: int = 0
    written: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)

    def add(self, file: Arrived) -> None:
        """Note a file."""
        self.manifest = self.manifest.with_file(file.name, file.sha256, file.modified_ns)
        self.arrived += 1
        self.fetched_bytes += self.manifest.files[file.name].bytes if file.fetched else 0
        if time.monotonic() - self.written > _WRITE_SECONDS:
            self.write()
        if time.monotonic() - self.reported > _REPORT_SECONDS:
            self.reported = time.monotonic()
            self.report(f"{self.arrived} of {self.files} files, {self.fetched_bytes / 1e9:.2f} GB fetched")

    def write(self) -> None:
        """Write the manifest."""
        write_manifest(self.folder, self.manifest)
        self.written = time.monotonic()


def require_room(folder: Path, missing_bytes: int) -> None:
    """Check that the disk has room for so many bytes.

    Raises:
        ValueError: it has not.
    """
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if missing_bytes + _RESERVE_BYTES > free:
        raise ValueError(
            f"{missing_bytes / 1e9:.1f} GB are to come but the disk of {folder} has {free / 1e9:.1f} GB free: choose "
            f"another --data-dir, or cap each corpus with --most-bytes"
        )


@contextmanager
def sole_prefetch(folder: Path) -> Iterator[None]:
    """While it is open no other process selects for the folder or brings into it.

    Raises:
        RunFailed: another process is at it.
        DamagedFile: the folder's notes lie outside.
    """
    claim = acquire(inside(folder, f"{WORK_FOLDER}/claims"))
    if claim is None:
        raise RunFailed(f"another prefetch is at work on {folder}: wait for its end")
    with claim:
        yield


def bring(folder: Path, selection: Selection, *, workers: int, report: Callable[[str], None]) -> list[Exception]:
    """Make the folder hold what the selection lists; what could not be brought, and why. Call it as the sole one.

    Raises:
        OSError: the disk refuses.
    """
    staging = inside(folder, f"{WORK_FOLDER}/staging")
    shutil.rmtree(staging, ignore_errors=True)
    write_manifest(folder, selection.manifest)
    try:
        return _bring_all(folder, selection, staging, workers, report)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _bring_all(
    folder: Path, selection: Selection, staging: Path, workers: int, report: Callable[[str], None]
) -> list[Exception]:
    wanted = [
        (name, entry)
        for row in selection.rows
        if row.problem is None
        for name, entry in selection.manifest.below(row.item.folder).items()
        if not _is_known(folder / name, entry)
    ]
    progress = Progress(folder, selection.manifest, len(wanted), report)
    failures: Counter[str] = Counter()
    problems: list[Exception] = []
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_bring_one, folder, name, entry, staging, failures) for name, entry in wanted]
        try:
            for future in as_completed(futures):
                _collect(future, progress, problems)
        finally:
            pool.shutdown(cancel_futures=True)
            progress.write()
    return list({str(problem): problem for problem in problems}.values())


def _collect(future: "Future[Arrived | None]", progress: Progress, problems: list[Exception]) -> None:
    try:
        file = future.result()
    except (MissingData, DamagedFile) as error:
        problems.append(error)
    else:
        if file is not None:
            progress.add(file)


def _is_known(path: Path, entry: Entry) -> bool:
    """Whether the file's hash was taken and the file is the one it was taken from."""
    return entry.sha256 is not None and has_size(path, entry) and path.stat().st_mtime_ns == entry.modified_ns


def _bring_one(folder: Path, name: str, entry: Entry, staging: Path, failures: Counter[str]) -> Arrived | None:
    """Bring one file, or find that it is there; None where its repository failed too often."""
    path = inside(folder, name)
    if has_size(path, entry) and _holds(path, entry):
        return Arrived(name, entry.sha256 or sha256_of(path), path.stat().st_mtime_ns, fetched=False)
    if failures[entry.repository] >= FAILURES_PER_REPOSITORY:
        return None
    place = temporary_sibling(staging / "file")
    try:
        fetched = download(repository_of(entry), entry.revision, entry.file, place)
        if not (has_size(fetched, entry) and _holds(fetched, entry)):
            raise DamagedFile(f"{entry.repository} sent {entry.file} with other bytes than the hub states: run again")
        return _publish(fetched, path, name)
    except (MissingData, DamagedFile):
        failures[entry.repository] += 1
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _holds(path: Path, entry: Entry) -> bool:
    return matches(path, entry.checksum) if entry.checksum else sha256_of(path) == entry.sha256


def _publish(fetched: Path, path: Path, name: str) -> Arrived:
    sha256 = sha256_of(fetched)
    sync_file(fetched)
    path.parent.mkdir(parents=True, exist_ok=True)
    fetched.replace(path)
    sync_folder(path.parent)
    return Arrived(name, sha256, path.stat().st_mtime_ns, fetched=True)
