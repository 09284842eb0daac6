"""The files of a folder of runs, each folder listed once: with thousands of runs every look at the disk counts.

All reading here is lenient: what is torn or strange is remembered as a problem, and the rest is shown.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from neobert.files import line_value
from neobert.launching.submissions import submissions_path
from neobert.layout import Layout


@dataclass(frozen=True)
class Submitted:
    """What submissions.jsonl says of a job: the folders it fills, its logs, the code it runs, how many GPUs it has.

    All paths are relative to the folder of runs.
    """

    job: str
    folders: tuple[str, ...]
    logs: str | None
    snapshot: str | None
    gpus: int | None
    at: float


@dataclass
class Tree:
    """Listings and submissions of a folder of runs as they were at one moment."""

    layout: Layout
    now: float = field(default_factory=time.time)
    problems: list[str] = field(default_factory=list)
    _listings: dict[Path, frozenset[str]] = field(default_factory=dict)

    def names(self, folder: Path) -> frozenset[str]:
        """The names in a folder; none where it does not exist."""
        if folder not in self._listings:
            self._listings[folder] = frozenset(self._list(folder))
        return self._listings[folder]

    def _list(self, folder: Path) -> list[str]:
        try:
            return os.listdir(folder)  # noqa: PTH208 (names alone; a Path each is ten times slower)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.problems.append(f"{folder}: {error.strerror}")
            return []

    @cached_property
    def claimed(self) -> frozenset[str]:
        """Units that somebody claimed at some time."""
        return self.names(self.layout.root / "claims")

    @cached_property
    def submissions(self) -> list[Submitted]:
        """All submissions that can be read, oldest first."""
        return list(self._read_submissions(submissions_path(self.layout)))

    @cached_property
    def newest_submission(self) -> dict[str, Submitted]:
        """The newest submission of each run by its folder."""
        return {folder: one for one in self.submissions for folder in one.folders}

    @cached_property
    def submission_of_job(self) -> dict[str, Submitted]:
        """Submissions by job; elements of an array share the array's."""
        return {one.job: one for one in self.submissions}

    def _read_submissions(self, path: Path) -> Iterator[Submitted]:
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            self.problems.append(f"{path}: {error.strerror}")
            return
        for number, line in enumerate(lines, start=1):
            try:
                yield submitted(line_value(line) or {})
            except (ValueError, KeyError, TypeError, AttributeError):
                self.problems.append(f"{path} line {number} is torn or of another version: left out")

    def submission_of(self, job: str | None) -> Submitted | None:
        """The submission that a worker's job belongs to."""
        return None if job is None else self.submission_of_job.get(job.partition("_")[0])

    def logs(self, submission: Submitted | None, job: str | None) -> tuple[str, ...]:
        """The log files of a job that is known by its name, else the folder where all of the submission's lie."""
        if submission is None or submission.logs is None:
            return ()
        files = sorted(
            name for name in self.names(self.layout.root / submission.logs) if name.endswith((".out", ".err"))
        )
        own = [name for name in files if job is not None and name.startswith(f"{job}_")]
        return tuple(f"{submission.logs}/{name}" for name in own) or (submission.logs,)


def submitted(line: dict[str, Any]) -> Submitted:
    """One line of submissions.jsonl, read from whatever version wrote it as far as an overview needs it.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it lacks the job or the runs.
    """
    resources = line.get("resources") or {}
    per_node = resources.get("gpus_per_node")
    gpus = None if per_node is None else int(per_node) * int(resources.get("nodes") or 1)
    folders = tuple(dict.fromkeys(_folder_of(str(reference)) for reference in line["references"]))
    return Submitted(str(line["job"]), folders, line.get("logs"), line.get("snapshot"), gpus, float(line["at"]))


def _folder_of(reference: str) -> str:
    """Where the work of a reference ends up; a corpus may be named by any run that reads it."""
    match reference.split("/"):
        case ["corpus", data_id, _]:
            return f"data/{data_id}"
    return reference
