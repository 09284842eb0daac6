"""Jobs that were submitted to SLURM: the lines of submissions.jsonl, and the announcement in each job's folder."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, NonNegativeFloat, PositiveInt

from neobert.errors import DamagedFile
from neobert.files import (
    ABSENT,
    append_line,
    checksummed,
    is_local,
    json_bytes,
    line_value,
    mend_lines,
    read_checksummed,
    replace_file,
)
from neobert.identity import plain
from neobert.recipe import Value
from neobert.runs.layout import Layout
from neobert.runs.work import JobKind

logger = logging.getLogger(__name__)

ANNOUNCEMENT = "submission.json"


class Submission(Value):
    """Job (or array of `elements`) that SLURM accepted. Folders are relative to the folder of `runs`.

    `runs` distinguishes a copied folder, which has the lines but not the jobs; lines without it count as the folder's
    own. Fields of other versions are ignored. `job` is empty in an announcement, as SLURM has given no id yet.
    """

    model_config = ConfigDict(extra="ignore")

    job: str
    name: str
    kind: JobKind
    references: tuple[str, ...]
    after: tuple[str, ...]
    elements: PositiveInt | None
    logs: str
    snapshot: str
    resources: Mapping[str, Any]
    at: NonNegativeFloat
    runs: str | None = None

    @property
    def folders(self) -> dict[str, str]:
        """The references by the folder of their result. That of a corpus also names one of the runs that read it."""
        return {re.sub("^corpus/([^/]*)/[^/]*$", r"data/\1", each): each for each in self.references}

    @property
    def gpus(self) -> int | None:
        """Number of its GPUs; None if the line does not have it."""
        per_node = self.resources.get("gpus_per_node")
        return None if per_node is None else int(per_node) * int(self.resources.get("nodes") or 1)


def note_submission(layout: Layout, submission: Submission) -> None:
    """Append a submission. Call it right after SLURM accepted the job, while holding the submission claim."""
    mend_lines(layout.submissions, "job")
    append_line(layout.submissions, plain(submission))


def announce_submission(layout: Layout, submission: Submission) -> None:
    """Write a submission into its log folder. Call it before the job is submitted: a job without it is not ours."""
    replace_file(layout.root / submission.logs / ANNOUNCEMENT, json_bytes(checksummed(plain(submission))))


def read_announced(layout: Layout, name: str, job: str) -> Submission | None:
    """Return the submission that was announced under a name, with its job; None if there is none or it is damaged.
    Raises OSError if it cannot be read."""
    if not is_local(name):
        return None
    try:
        announced = Submission.model_validate(read_checksummed(layout.root / "jobs" / name / ANNOUNCEMENT))
    except (DamagedFile, *ABSENT, ValueError):
        return None
    return announced.model_copy(update={"job": job}) if announced.name == name else None


def read_submissions(layout: Layout, report: Callable[[str], None] = logger.warning) -> list[Submission]:
    """Return all submissions, oldest first. `report` gets a sentence for each line that is left out. Raises OSError if
    the file cannot be read."""
    path, found = layout.submissions, []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(Submission.model_validate(line_value(line) or {}))
        except ValueError:
            report(f"{path} line {number} is torn or of another version: left out")
    return found
