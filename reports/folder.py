"""The files of a folder of runs that reports read and copy: regular files inside it, unchanged since collected.

A folder of runs from somebody else may hold links to private files of its reader, and files that were changed after
they were collected.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neobert.errors import DamagedFile, MissingData, name_first
from neobert.files import checksum_of, checksummed, json_bytes, read_json, replace_file, sha256_of
from neobert.runs.kinds import RECORDS, RUN_FOLDERS

DIGESTS = "sha256.json"
"""File of a collected folder with the SHA-256 of every other file that was collected."""

MOST_JSON_BYTES = 64 * 2**20
"""Larger JSON files are not read. The largest record of the committed studies has 15 kB."""

CURVES = "pretraining/*/metrics.jsonl"
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
COLLECTED = (*RECORDS, *RUN_FILES, *DOCUMENTS, CURVES, "glue/*/*.resampled.npz", LADDERS, DECLARATIONS)
"""Patterns of the files of a collected folder."""


class RunsFolder:
    """The files of a folder of runs that may be read; `problems` has a sentence for each one that `files` left out.

    The folder may be a link itself, and links in it may lead to other places in it. What lies elsewhere is left out,
    and so is what is no regular file. In a folder with `sha256.json` each file must be the one that is listed there.
    `listed` has the SHA-256 by path relative to the folder, None without that file.

    Raises:
        MissingData: `sha256.json` cannot be read, or was changed.
    """

    def __init__(self, root: Path) -> None:
        self.root, self._real = root, os.path.realpath(root)
        self.problems: list[str] = []
        self.listed = self._read_list()

    def files(self, *patterns: str) -> Iterator[Path]:
        """Yield the files that match a pattern and may be read, sorted within each pattern."""
        for pattern in patterns:
            for path in sorted(self.root.glob(pattern)):
                reason = self.why_not(path)
                if not reason:
                    yield path
                    continue
                problem = f"{reason}: left out"
                if problem not in self.problems[-1:]:  # once for all files of a linked folder
                    self.problems.append(problem)

    def why_not(self, path: Path) -> str:
        """Return the reason why a file below the folder may not be read; empty if it may, or is not there."""
        return (self._why_no_file(path) or self._why_another(path)) if os.path.lexists(path) else ""

    def missing(self) -> list[str]:
        """Return one sentence if any listed files are not there."""
        names = [name for name in self.listed or () if not os.path.lexists(self.root / name)]
        return [f"{len(names)} file(s) listed in {DIGESTS} are not there: {name_first(names)}"] if names else []

    def add_to_list(self, path: Path) -> None:
        """List a file that was just written, if the folder has a list."""
        if self.listed is not None:
            self.listed[self._name(path)] = sha256_of(path)
            replace_file(self.root / DIGESTS, digests_bytes(self.listed))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _has(self, path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._real)

    def _why_no_file(self, path: Path) -> str:
        if not self._has(path):
            name = path.relative_to(self.root)
            links = [part for part in (*reversed(name.parents), name) if not self._has(self.root / part)]
            return f"{links[0].as_posix()} is a link out of the folder"
        try:
            status = path.stat()
        except OSError as error:
            return f"{self._name(path)} cannot be read ({error.strerror})"
        if not stat.S_ISREG(status.st_mode):
            return f"{self._name(path)} is no regular file"
        if path.suffix == ".json" and status.st_size > MOST_JSON_BYTES:
            return f"{self._name(path)} has {status.st_size / 1e6:,.0f} MB, more than any record"
        return ""

    def _why_another(self, path: Path) -> str:
        if self.listed is None:
            return ""
        name = self._name(path)
        if name not in self.listed:
            return f"{name} is not listed in {DIGESTS} (remove that if the file belongs to the folder)"
        try:
            is_same = sha256_of(path) == self.listed[name]
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        return "" if is_same else f"{name} is not the file that was collected (its SHA-256 is not that in {DIGESTS})"

    def _read_list(self) -> dict[str, str] | None:
        path = self.root / DIGESTS
        if not os.path.lexists(path):
            return None
        advice = f"restore {path}, or remove it to read files that nothing vouches for"
        if reason := self._why_no_file(path):
            raise MissingData(f"{reason}: {advice}")
        try:
            content = read_json(path)
        except (DamagedFile, OSError) as error:
            raise MissingData(f"{DIGESTS} cannot be read: {advice}") from error
        if not _is_whole(content):
            raise MissingData(f"{DIGESTS} was changed after it was written: {advice}")
        return dict(content["files"])


def _is_whole(content: Any) -> bool:
    if not isinstance(content, dict) or content.get("checksum") != checksum_of(content):
        return False
    files = content.get("files")
    return isinstance(files, dict) and all(isinstance(sha256, str) for sha256 in files.values())


def digests_bytes(digests: Mapping[str, str]) -> bytes:
    """Return the content of `sha256.json`: {path relative to the folder: SHA-256}, with a checksum of its own."""
    return json_bytes(checksummed({"files": dict(digests)}))
