"""Files of a folder of runs that may be read, and collected folders: what reports read of one, in one archive.

An archive has records, run files, the points of searches, curves and ladders under their paths in the folder of runs.
A folder with an archive is read as the folder of runs itself.
"""

import gzip
import io
import os
import shutil
import tarfile
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from neobert.errors import MissingData
from neobert.files import is_local, matching, reason_of, replace_file, stamp_of
from neobert.runs.kinds import RECORDS, RUN_FOLDERS

ARCHIVE = "runs.tar.gz"
CURVES = "pretraining/*/metrics.jsonl"
LADDERS = "ladders/*.py"
DOCUMENTS = (
    *(f"{folder}/run.json" for folder in RUN_FOLDERS),
    "glue/*/studies/*/selection.json",
    "glue/*/studies/*/asked/*.json",
    "glue/*/studies/*/trials/*.json",
    "glue/*/studies/*/trials/errors/*.json",
    "glue/*/errors/*.json",
    "pretraining/*/error.json",
    "models/*/model.json",
)
COLLECTED = (*RECORDS, *DOCUMENTS, CURVES, LADDERS)
"""Glob patterns of the files in an archive."""
MOST_BYTES = 64 * 2**20
"""Larger files are not read. The largest record of a study has some kB."""


class RunFiles:
    """The files of a folder of runs, collected or not, that may be read; they lie below `root`.

    `problems` has a sentence for each file that is left out: what is no regular file, or larger than any file of a
    study. An archive is unpacked into a temporary folder, again only if it changed.

    Raises:
        MissingData: the archive is damaged.
    """

    def __init__(self, folder: Path) -> None:
        archive, self.root = folder / ARCHIVE, folder
        self.problems: list[str] = []
        if reason := self.why_not(archive):
            self.problems.append(f"{reason}: left out")
        elif archive.exists():
            self._unpacked = _unpack(archive.absolute(), stamp_of(archive.stat()))
            self.root = self._unpacked.root
            self.problems += self._unpacked.problems

    def files(self, *patterns: str) -> Iterator[Path]:
        """Yield the files that match a pattern and may be read, sorted within each pattern."""
        for pattern in patterns:
            for path in matching(self.root, pattern, self._leave_out):
                if not (reason := self.why_not(path)):
                    yield path
                else:
                    self.problems.append(f"{reason}: left out")

    def _leave_out(self, error: OSError) -> None:
        problem = f"{reason_of(error)}: what it holds is left out"
        if problem not in self.problems:
            self.problems.append(problem)

    def why_not(self, path: Path) -> str:
        """Return the reason why a file below the folder may not be read; empty if it may, or is not there."""
        return _why_no_file(self.root, path) if os.path.lexists(path) else ""


class _Unpacked:
    """The files of an archive in a temporary folder, which is removed with the last reader or the process."""

    def __init__(self, archive: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="collected-"))
        self.problems: list[str] = []
        weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)
        for name, content in read_archive(archive, self.problems):
            try:
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                (self.root / name).write_bytes(content)
            except (OSError, UnicodeError) as error:  # a name that file systems refuse, or below another file
                self.problems.append(f"{name!r} of {ARCHIVE} cannot be unpacked ({error}): left out")


@lru_cache(maxsize=4)
def _unpack(archive: Path, stamp: tuple[int, ...]) -> _Unpacked:
    del stamp
    return _Unpacked(archive)


def read_archive(archive: Path, problems: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of an archive; links, other paths and large files become `problems`.

    Raises:
        MissingData: it is damaged.
    """
    try:
        with gzip.open(archive) as packed, tarfile.open(fileobj=packed, mode="r|") as files:
            for member in files:
                if not member.isfile() or not _is_collected(member.name) or member.size > MOST_BYTES:
                    problems.append(
                        f"{member.name!r} of {ARCHIVE} is too large, or none of the files that are collected: left out"
                    )
                    continue
                content = files.extractfile(member)
                assert content is not None, member.name
                yield member.name, content.read()
            while packed.read(MOST_BYTES):  # to the end, where the checksum is
                pass
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise MissingData(f"{archive} is damaged ({error}): restore it, or collect the runs again") from error


def write_archive(folder: Path, files: Mapping[str, bytes]) -> int:
    """Write the archive of a folder; equal files give equal bytes. Return its size."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    replace_file(folder / ARCHIVE, buffer.getvalue())
    return buffer.tell()


def _is_collected(name: str) -> bool:
    return is_local(name) and any(
        name.count("/") == pattern.count("/") and PurePosixPath(name).match(pattern) for pattern in COLLECTED
    )


def _why_no_file(root: Path, path: Path) -> str:
    """Return the reason why a path below a folder is no regular file; empty if it is one."""
    name = path.relative_to(root)
    try:
        status = path.stat()
    except OSError as error:
        return f"{name.as_posix()} cannot be read ({error.strerror})"
    if not path.is_file():
        return f"{name.as_posix()} is no regular file"
    if status.st_size > MOST_BYTES:
        return f"{name.as_posix()} has {status.st_size / 1e6:,.0f} MB, more than any file of a study"
    return ""
