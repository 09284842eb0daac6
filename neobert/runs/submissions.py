"""Jobs that were submitted to SLURM: one file in the log folder of each, beside the payloads that it runs."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, NonNegativeFloat, PositiveInt

from neobert.errors import DamagedFile
from neobert.files import checksummed, children, json_bytes, matching, read_checksummed, replace_file
from neobert.identity import plain
from neobert.recipe import Value
from neobert.runs.layout import Layout
from neobert.runs.work import JobKind

logger = logging.getLogger(__name__)

ANNOUNCEMENT = "submission.json"
PAYLOADS = "[0-9]*_submitted.pkl"
"""What submitit names the payloads of a job, or of the elements of an array: 17_submitted.pkl, 17_0_submitted.pkl."""


class Submission(Value):
    """Job (or array of `elements`) that was submitted. Folders are relative to the folder of `runs`.

    `job` is the id that SLURM gave it, by the names of its payloads; in the file it is empty. `runs` distinguishes a
    copied folder, which has the files but not the jobs. Fields of other versions are ignored.
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


def announce(layout: Layout, submission: Submission) -> None:
    """Write a submission into its log folder. Call it before the job is submitted: a job without it is not ours."""
    replace_file(layout.root / submission.logs / ANNOUNCEMENT, json_bytes(checksummed(plain(submission))))


def read_announced(layout: Layout, report: Callable[[str], None] = logger.warning) -> list[Submission]:
    """Return all submissions, oldest first. Those whose job has no payload yet, or that SLURM refused, have no `job`.
    `report` gets a sentence for each file that is left out. Raises OSError if one cannot be read."""
    found = []
    for path in matching(layout.root, f"jobs/*/{ANNOUNCEMENT}"):
        try:
            announced = Submission.model_validate(read_checksummed(path))
        except (DamagedFile, ValueError):
            report(f"{path} is torn or of another version: left out")
            continue
        if announced.name == path.parent.name:
            jobs = (payload.name.partition("_")[0] for payload in children(path.parent, PAYLOADS))
            found.append(announced.model_copy(update={"job": next(jobs, "")}))
    return sorted(found, key=lambda each: each.at)


def read_submissions(layout: Layout, report: Callable[[str], None] = logger.warning) -> list[Submission]:
    """Return the submissions whose jobs have a payload, as `read_announced`."""
    return [each for each in read_announced(layout, report) if each.job]
