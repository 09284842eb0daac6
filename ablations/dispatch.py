"""Send what a plan is missing to SLURM, once: corpora, training, behind it GLUE and tasks of embeddings as arrays."""

import math
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ablations.pieces import Piece
from ablations.plan import PlannedUnit, Row
from neobert.runs.claims import acquire, file_time
from neobert.runs.layout import Layout
from neobert.runs.specifications import PretrainingRun
from neobert.slurm.job import take_snapshot
from neobert.slurm.profile import SUBMISSION_UNIT, Profile, Submission, note_submission, read_submissions
from neobert.slurm.submit import Job, cancel, largest_array, live_jobs, release_stranded, sbatch_text, submit, test

PATIENCE_SECONDS = 150
LOCK_POLL_SECONDS = 0.2
SHARED_KINDS = ("glue", "mteb")
"""What the elements of an array share; one that finds nothing left leaves."""


class AtWork:
    """Which jobs work on what. A corpus may be named by any run that reads it."""

    def __init__(self) -> None:
        self._jobs: dict[str, list[str]] = {}

    def add(self, job: str, references: Sequence[str]) -> None:
        """A job works on references."""
        for reference in references:
            self._jobs.setdefault(_work_of(reference), []).append(job)

    def on(self, *references: str) -> tuple[str, ...]:
        """The jobs on any of the references, each once."""
        found = [job for reference in references for job in self._jobs.get(_work_of(reference), [])]
        return tuple(dict.fromkeys(found))


def _work_of(reference: str) -> str:
    kind, name, *_ = reference.split("/")
    return f"{kind}/{name}" if kind == "corpus" else reference


@dataclass(frozen=True)
class Dispatch:
    """How pieces become jobs: resources of each kind, variables of their environment, limits of arrays.

    What failed before the submission is tried again unless `leave_failed`.
    """

    layout: Layout
    profile: Profile
    environment: Mapping[str, str]
    most_running: int | None
    leave_failed: bool = False

    def jobs(self, piece: Piece, number: int, largest: int) -> list[Job]:
        """The job of a piece, or several where an array would be too long; numbered from `number`."""
        sizes = _split(piece.workers, largest)
        label = re.sub(r"[^A-Za-z0-9.@_-]", "_", piece.label)
        now = file_time(self.layout.claims(""))
        flags = ["--leave-failed"] if self.leave_failed else ["--failures-since", f"{now:.0f}"]
        if piece.kind in SHARED_KINDS:
            flags += ["--patience", str(PATIENCE_SECONDS)]
        environment = {**self.environment, "TOKENIZERS_PARALLELISM": str(piece.kind == "prepare").lower()}
        job = Job("", piece.kind, piece.references, tuple(flags), self.profile.of(piece.kind), environment)
        return [
            replace(
                job,
                name=f"{piece.kind}-{label}-{number + index:05d}",
                elements=size if size > 1 else None,
                most_running=self.most_running,
            )
            for index, size in enumerate(sizes)
        ]

    def send(self, pieces: Sequence[Piece]) -> list[Submission]:
        """Submit every piece that no living job works on; each stage once, however many launchers there are.

        Raises:
            ValueError: SLURM would refuse a job; nothing is submitted then.
            RunFailed: the controller does not answer.
        """
        with _locked(self.layout):
            earlier = read_submissions(self.layout)
            own, at_work = _living(self.layout, earlier), AtWork()
            for submission in own:
                at_work.add(submission.job, submission.references)
            release_stranded(each.job for each in own)
            new: list[Submission] = []
            snapshot, largest = take_snapshot(self.layout.root / "snapshots"), largest_array()
            for piece in {piece.kind: piece for piece in pieces}.values():
                test(self.jobs(piece, 0, largest)[0], snapshot, self.layout.root)
            for piece in pieces:
                left = tuple(reference for reference in piece.references if not at_work.on(reference))
                after = at_work.on(*piece.needs)
                if left:
                    for job in self.jobs(replace(piece, references=left), len(earlier) + len(new), largest):
                        new.append(self._submit(job, snapshot, after))
                        at_work.add(new[-1].job, left)
            return new

    def _submit(self, job: Job, snapshot: Path, after: tuple[str, ...]) -> Submission:
        root = self.layout.root
        job = replace(job, name=f"{job.name}-{uuid.uuid4().hex[:8]}")
        logs = self.logs(job)
        submission = Submission(
            job=submit(job, root, snapshot, logs, after),
            name=job.name,
            kind=job.kind,
            references=job.references,
            after=after,
            elements=job.elements,
            logs=str(logs.relative_to(root)),
            snapshot=str(snapshot.relative_to(root)),
            resources=job.resources.model_copy(update={"setup": ()}),  # it may hold secrets
            at=time.time(),
            runs=str(root),
        )
        note_submission(self.layout, submission)
        return submission

    def logs(self, job: Job) -> Path:
        """Where a job's output goes."""
        return self.layout.root / "jobs" / job.name

    def preview(self, pieces: Sequence[Piece]) -> str:
        """The sbatch files of all pieces, with names of pieces where ids of jobs will stand."""
        texts, at_work = [], AtWork()
        snapshot = self.layout.root / "snapshots" / "…"
        for number, piece in enumerate(pieces):
            after = at_work.on(*piece.needs)
            for job in self.jobs(piece, number, piece.workers):
                texts.append(f"# {job.name}\n{sbatch_text(job, snapshot, self.logs(job), after)}")
                at_work.add(f"<{job.name}>", piece.references)
        return "\n".join(texts)


def _split(workers: int, largest: int) -> list[int]:
    """Sizes of arrays, as equal as can be, that add up to `workers`."""
    parts = math.ceil(workers / largest)
    return [workers // parts + (index < workers % parts) for index in range(parts)]


@contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """Only one launcher of a folder of runs looks and submits at a time."""
    while (claim := acquire(layout.claims(SUBMISSION_UNIT))) is None:
        time.sleep(LOCK_POLL_SECONDS)
    with claim:
        yield


def _living(layout: Layout, submissions: Sequence[Submission]) -> list[Submission]:
    """Those of a folder's submissions whose jobs wait or run: id and name are as noted, since ids come back.

    What an earlier launcher had submitted but not noted when it died has no payload perhaps, and is cancelled.
    """
    alive = live_jobs()
    noted = {each.job: each.name for each in submissions}
    begun = {path.name for path in (layout.root / "jobs").glob("*")} - set(noted.values())
    if lost := [job for job, name in alive.items() if name in begun]:
        cancel(lost)
    return [each for each in submissions if alive.get(each.job) == each.name and _is_of(layout, each)]


def _is_of(layout: Layout, submission: Submission) -> bool:
    """Whether a job works on this folder, and not on the one that this is a copy of."""
    if submission.runs is None:
        return True
    try:
        return layout.root.samefile(submission.runs)
    except FileNotFoundError:
        return False


def jobs_to_cancel(layout: Layout, rows: Sequence[Row]) -> list[str]:
    """Living jobs that work on anything of the rows."""
    at_work = AtWork()
    for submission in _living(layout, read_submissions(layout)):
        at_work.add(submission.job, submission.references)
    return list(
        at_work.on(*(reference for row in rows for unit in row.units for reference in _references(layout, unit)))
    )


def _references(layout: Layout, unit: PlannedUnit) -> Iterator[str]:
    yield str(unit.folder.relative_to(layout.root))
    if isinstance(unit.run, PretrainingRun):
        yield f"corpus/{unit.run.data_id}"
