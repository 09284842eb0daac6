"""What was submitted to SLURM: one line a job in submissions.jsonl. A job's own state is never trusted over records."""

import sys
from contextlib import suppress
from pathlib import Path

from pydantic import NonNegativeFloat, PositiveInt

from neobert.files import append_line, damaged_lines, mend_lines, read_lines
from neobert.identity import plain
from neobert.launching.profile import JobKind, Resources
from neobert.layout import Layout
from neobert.recipe import Value

SUBMISSION_UNIT = "submission"


class Submission(Value):
    """A job (or an array of `elements`) that SLURM accepted. Folders are relative to the folder of `runs`.

    A copy of the folder has the lines as well, but not the jobs. Lines from before it was noted are taken for its own.
    """

    job: str
    name: str
    kind: JobKind
    references: tuple[str, ...]
    after: tuple[str, ...]
    elements: PositiveInt | None
    logs: str
    snapshot: str
    resources: Resources
    at: NonNegativeFloat
    runs: str | None = None


def submissions_path(layout: Layout) -> Path:
    """The file that every submission is appended to."""
    return layout.root / "submissions.jsonl"


def note_submission(layout: Layout, submission: Submission) -> None:
    """Append a submission; call it right after SLURM accepted the job, while holding the submission's claim."""
    mend_lines(submissions_path(layout), "job")
    append_line(submissions_path(layout), plain(submission))


def read_submissions(layout: Layout) -> list[Submission]:
    """All submissions, oldest first; damaged lines are told and left out, those of another version left out."""
    path, found = submissions_path(layout), []
    for number in damaged_lines(path):
        print(f"{path} line {number} is damaged: the job that it told of is not known", file=sys.stderr)
    for line in read_lines(path):
        with suppress(ValueError):
            found.append(Submission.model_validate(line))
    return found
