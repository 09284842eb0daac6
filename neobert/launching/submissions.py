"""What was submitted to SLURM: one line a job in submissions.jsonl. A job's own state is never trusted over records."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import NonNegativeFloat, PositiveInt

from neobert.files import append_line
from neobert.identity import plain
from neobert.launching.profile import JobKind, Resources
from neobert.layout import Layout
from neobert.recipe import Value

SUBMISSION_UNIT = "submission"


class Submission(Value):
    """A job (or an array of `elements`) that SLURM accepted. Folders are relative to the folder of runs."""

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


def submissions_path(layout: Layout) -> Path:
    """The file that every submission is appended to."""
    return layout.root / "submissions.jsonl"


def note_submission(layout: Layout, submission: Submission) -> None:
    """Append a submission; call it right after SLURM accepted the job, while holding the submission's claim."""
    append_line(submissions_path(layout), plain(submission))


def read_submissions(layout: Layout) -> list[Submission]:
    """All submissions, oldest first; torn lines and those of another version are left out."""
    path = submissions_path(layout)
    return list(_readable(path.read_bytes().splitlines())) if path.exists() else []


def _readable(lines: Iterable[bytes]) -> Iterator[Submission]:
    for line in lines:
        with suppress(ValueError):
            yield Submission.model_validate_json(line)
