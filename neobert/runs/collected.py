"""Files of a folder of runs, and collected folders: what reports read of one, in one archive.

An archive has records, run files, the points of searches, curves and ladders under their paths in the folder of runs.
A folder with an archive is read as the folder of runs itself.
"""

import gzip
import io
import shutil
import tarfile
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from neobert.errors import MissingData
from neobert.files import matching, reason_of, replace_file, stamp_of
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


class RunFiles:
    """The files of a folder of runs, collected or not; they lie below `root`.

    `problems` has a sentence for each folder that cannot be listed. An archive is unpacked into a temporary folder,
    again only if it changed.

    Raises:
        MissingData: the archive is damaged, or has files that would lie elsewhere.
    """

    def __init__(self, folder: Path) -> None:
        archive, self.root = folder / ARCHIVE, folder
        self.problems: list[str] = []
        if archive.exists():
            self._unpacked = _Unpacked.of(archive.absolute(), stamp_of(archive.stat()))
            self.root = self._unpacked.root

    def files(self, *patterns: str) -> Iterator[Path]:
        """Yield the files that match a pattern, sorted within each pattern."""
        for pattern in patterns:
            yield from matching(self.root, pattern, self._leave_out)

    def _leave_out(self, error: OSError) -> None:
        problem = f"{reason_of(error)}: what it holds is left out"
        if problem not in self.problems:
            self.problems.append(problem)


class _Unpacked:
    """The files of an archive in a temporary folder, which is removed with the last reader or the process."""

    def __init__(self, archive: Path) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="collected-"))
        weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)
        try:
            with gzip.open(archive) as packed, tarfile.open(fileobj=packed, mode="r|") as files:
                files.extractall(self.root, filter="data")
                while packed.read(1 << 20):  # to the end, where the checksum is
                    pass
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise MissingData(f"{archive} is damaged ({error}): restore it, or collect the runs again") from error

    @staticmethod
    @lru_cache(maxsize=4)
    def of(archive: Path, stamp: tuple[int, ...]) -> "_Unpacked":
        """Return the files of an archive, which is unpacked once as long as it does not change."""
        del stamp
        return _Unpacked(archive)


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
