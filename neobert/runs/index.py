"""Index of a folder of runs: the progress, workers and failures of each run, from one scan of its files.

Records take precedence over claims, and claims over errors; submissions only add explanations. The scan queries no
scheduler and writes nothing.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from neobert.errors import EXIT_RUN_FAILED, DamagedFile, MissingData, RunFailed
from neobert.files import TEMPORARY_MARK, line_value, matching, names_in, read_json, reason_of
from neobert.runs.claims import LEASE_SECONDS, Owner, last_owner
from neobert.runs.kinds import KINDS, RUN_FOLDERS, closing_record, is_done, kind_of
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from neobert.runs.submissions import Submission, read_submissions
from neobert.runs.work import Part, Work

State = Literal["unreadable", "failed", "running", "submitted", "waiting", "missing", "done"]
STATES: tuple[State, ...] = get_args(State)
UNREADABLE = (RunFailed, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)
IDENTIFIER = re.compile(r"\b[0-9a-f]{12}\b")
TAIL_BYTES = 4096


@dataclass(frozen=True)
class PartHolder:
    """Process that holds a part of a run, or that held it last and never released it.

    `part` is the part's id, `heartbeat_seconds` the age of the last heartbeat.
    """

    part: str
    host: str
    pid: int
    job: str | None
    heartbeat_seconds: float
    is_live: bool


@dataclass(frozen=True)
class Failure:
    """Last failure of a part of a run; `part` is the part's id."""

    part: str
    name: str
    error: str
    traceback: str
    exit_code: int


@dataclass(frozen=True)
class WorkProgress:
    """Progress of a piece of work: its parts without a record, their workers, and their failures."""

    state: State
    pending: tuple[Part, ...] = ()
    workers: tuple[PartHolder, ...] = ()
    failures: tuple[Failure, ...] = ()
    heartbeat_at: float | None = None


@dataclass(frozen=True)
class Row:
    """Row of a listing: a run, or a corpus that a job was submitted for.

    A field is None if no file contains it. `stage` counts from 1; for a study it is the stage of its weights. `task` of
    an evaluation is its protocol. `state` follows the records: "submitted" is a waiting run with a SLURM job that has
    not begun it yet, "unreadable" is one whose files are torn or of another version. `done` and `total` count
    `counted`. `loss` is the newest training loss of unfinished training, `heldout_loss` that of the record, both in
    nats; `score` is that of a study's selected point. `seconds` is computing time so far. `gpu_hours` of an unfinished
    run is known if its job gives the number of GPUs; for studies it never is, since their records lack it. `workers`
    are the active ones and those that went silent; `heartbeat_at` (Unix seconds) is the newest heartbeat. `job` and
    `submitted_at` (Unix seconds) are those of the newest submission. `logs` and `folder` are relative to the folder of
    runs. `ladder` is the name of the user's ladder file from which the run was planned.
    """

    kind: str
    id: str
    folder: str
    state: State
    note: str = ""
    task: str | None = None
    stage: int | None = None
    variants: tuple[str, ...] = ()
    ladder: str | None = None
    seed: int | None = None
    scale: str | None = None
    data: str | None = None
    weights: str | None = None
    done: int | None = None
    total: int | None = None
    counted: str = "steps"
    tokens_per_second: float | None = None
    loss: float | None = None
    heldout_loss: float | None = None
    score: float | None = None
    seconds: float | None = None
    gpu_hours: float | None = None
    workers: tuple[PartHolder, ...] = ()
    heartbeat_at: float | None = None
    job: str | None = None
    submitted_at: float | None = None
    errors: tuple[Failure, ...] = ()
    logs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the run as in `--dry-run`, with its id."""
        stage = None if self.stage is None else f"stage {self.stage}"
        return " ".join(filter(None, (self.kind, self.task or stage, self.id)))

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name, with workers and errors as mappings."""
        workers = [dict(vars(worker)) for worker in self.workers]
        errors = [{key: value for key, value in vars(each).items() if key != "exit_code"} for each in self.errors]
        return {**vars(self), "workers": workers, "errors": errors}


@dataclass
class Index:
    """State of a folder of runs at one moment. Each folder is listed only once, to be fast with thousands of runs.

    Reading is lenient: unreadable files are reported in `problems` or in the note of a row, and the rest is shown.
    """

    layout: Layout
    now: float = field(default_factory=time.time)
    problems: list[str] = field(default_factory=list)
    _listings: dict[Path, frozenset[str]] = field(default_factory=dict)

    def names(self, folder: Path) -> frozenset[str]:
        """Return the names in a folder; empty if it does not exist. Raises OSError if it cannot be listed."""
        if folder not in self._listings:
            self._listings[folder] = frozenset(names_in(folder))
        return self._listings[folder]

    def _unlisted(self, error: OSError) -> None:
        self.problems.append(reason_of(error))

    def is_there(self, path: Path) -> bool:
        """Return whether a file or folder existed when its parent was listed."""
        return path.name in self.names(path.parent)

    @cached_property
    def claimed(self) -> frozenset[str]:
        """Names of all claims that were ever taken."""
        return self.names(self.layout.root / "claims")

    @cached_property
    def submissions(self) -> list[Submission]:
        """All submissions that can be read, oldest first."""
        try:
            return read_submissions(self.layout, self.problems.append)
        except OSError as error:
            self.problems.append(reason_of(error))
            return []

    @cached_property
    def newest_submission(self) -> dict[str, Submission]:
        """The newest submission of each run by its folder."""
        return {folder: one for one in self.submissions for folder in one.folders}

    def _submission_of(self, job: str | None) -> Submission | None:
        """Return the submission that a worker's job belongs to; all elements of an array share one."""
        return None if job is None else self._submission_by_job.get(job.partition("_")[0])

    @cached_property
    def _submission_by_job(self) -> dict[str, Submission]:
        return {one.job: one for one in self.submissions}

    def is_done(self, part: Part) -> bool:
        """Return whether a part has an intact record. Those of the seeds of a search's trial are left to workers."""
        return self.is_there(part.record) and part.is_recorded

    def progress(self, work: Work) -> WorkProgress:
        """Return the progress of a piece of work."""
        closing = work.closing(self.layout)
        if closing is not None and self.is_done(closing):
            return WorkProgress("done")
        open_parts = [part for part in work.parts(self.layout) if not self.is_done(part)]
        claimed = [part.id for part in open_parts if part.id in self.claimed]
        last = {part_id: last_owner(self.layout.claims(part_id)) for part_id in claimed}
        owners = {part_id: owner for part_id, owner in last.items() if owner is not None}
        # A part that nobody works on may have been recorded after its folder was listed.
        free = {part_id for part_id in claimed if part_id not in owners or not owners[part_id].is_live}
        pending = tuple(part for part in open_parts if not (part.id in free and part.is_done))
        if not pending:
            return WorkProgress("done")
        workers = _workers_of(owners)
        failures = tuple(_failure_at(part.error, part.id) for part in pending if self.is_there(part.error))
        heartbeat = max((self.now - owner.silent_seconds for owner in owners.values()), default=None)
        return WorkProgress(self._open_state(work, workers, failures), pending, workers, failures, heartbeat)

    def _open_state(self, work: Work, workers: Sequence[PartHolder], failures: Sequence[Failure]) -> State:
        """Return the state of work that is not done."""
        if any(worker.is_live for worker in workers):
            return "running"
        if failures:
            return "failed"
        return "waiting" if self.is_there(self.layout.root / work.reference / "run.json") else "missing"

    def rows(self) -> list[Row]:
        """Return the rows of all runs that have a folder or were submitted."""
        root = self.layout.root
        paths = (path for pattern in RUN_FOLDERS for path in matching(root, pattern, self._unlisted))
        found = [path.relative_to(root).as_posix() for path in paths if TEMPORARY_MARK not in str(path)]
        return [self.row(folder) for folder in dict.fromkeys([*found, *self.newest_submission])]

    def row(self, folder: str) -> Row:
        """Return the row of the run in a folder. If the run is unreadable, the note says why."""
        kind = kind_of(folder)
        if kind is None:
            return Row("pretraining", folder, folder, "unreadable", note="a job was submitted for no known run")
        named = KINDS[kind].names_in(folder) or {}
        row = Row(kind, named["id"], folder, "unreadable", task=named.get("task"), counted=KINDS[kind].counted)
        try:
            return self._with_submission(self._filled(row))
        except UNREADABLE as error:
            return replace(row, note=f"not readable: {type(error).__name__}: {reason_of(error)}")

    def _filled(self, row: Row) -> Row:
        """Fill a row from run.json, records, claims and errors."""
        place = self.layout.root / row.folder
        if row.kind == "corpus":
            reader = self.newest_submission[row.folder].folders[row.folder].split("/")[-1]
            run_file = read_run_file(self.layout.pretraining(reader))
            row = replace(row, ladder=run_file.labels.get("ladder"))
            return self._of_work(row, next(work for work in run_file.run.preparation if work.id == row.id))
        if not self.is_there(place / "run.json"):
            where = "no run.json" if self.is_there(place) else "no folder"
            return replace(row, state="missing", note=f"{where}: half-written, or removed")
        run_file = read_run_file(place)
        labels, run = run_file.labels, run_file.run
        variants = tuple(str(name) for name in labels.get("variants", ()))
        row = replace(row, variants=variants, ladder=labels.get("ladder"))
        row = replace(row, scale=labels.get("scale"), data=labels.get("data"), **run.columns)
        if run.id == row.id:
            return self._of_work(row, run)
        record = closing_record(self.layout, row.folder)
        if self.is_there(record):
            return _finished(row, run, run.read_closing(record))
        return replace(row, state="waiting", note="named by another numerics version: its parts are not known here")

    def _of_work(self, row: Row, work: Work) -> Row:
        row = replace(row, total=work.total, counted=work.counted)
        closing = work.closing(self.layout)
        if closing is not None and self.is_there(closing.record):
            return _finished(row, work, closing.read(closing.record))
        progress = self.progress(work)
        if progress.state == "done":
            return _finished(row, work, {} if closing is None else closing.read(closing.record))
        waits = [reference for reference in work.after if not is_done(self.layout, reference)]
        row = replace(
            row,
            state=progress.state,
            note="; ".join(f"after {reference.replace('/studies', '').replace('/', ' ')}" for reference in waits),
            workers=progress.workers,
            heartbeat_at=progress.heartbeat_at,
            errors=progress.failures,
        )
        if work.counted == "steps":
            return self._in_training(row)
        return replace(row, done=work.done(self.layout, progress.pending))

    def _in_training(self, row: Row) -> Row:
        """Add steps, rate, loss and costs of unfinished training, from its newest checkpoint and the steps since."""
        folder = self.layout.root / row.folder
        job = next((worker.job for worker in row.workers), None)
        submission = self._submission_of(job) or self.newest_submission.get(row.folder)
        gpus = None if submission is None else submission.gpus
        line = _newest_step_line(folder)
        done, seconds = _checkpointed(folder)
        if line is not None:
            seconds += max(0, line["step"] - done) * line["seconds"]
            done = line["step"]
        hours = None if gpus is None else seconds / 3600 * gpus
        row = replace(row, done=done, seconds=round(seconds, 1), gpu_hours=hours)
        if line is None:
            return row
        rate = line["real_tokens"] / line["seconds"] if line["seconds"] else None
        return replace(row, tokens_per_second=rate, loss=line["loss"])

    def _with_submission(self, row: Row) -> Row:
        """Add submission, logs and lost owners to a row. A job never changes the state of finished work."""
        newest = self.newest_submission.get(row.folder)
        if newest is not None:
            row = replace(row, job=newest.job, submitted_at=newest.at)
        if row.state == "done":
            return replace(row, logs=self._logs(newest, None))
        notes = [row.note, *(_lost(worker) for worker in row.workers if not worker.is_live)]
        if newest is not None and row.state != "running" and (row.heartbeat_at or 0.0) < newest.at:
            notes.append(f"job {newest.job} submitted {age(self.now - newest.at)} ago, not begun as far as files tell")
            if row.state in ("waiting", "missing"):
                row = replace(row, state="submitted")
        return replace(row, note="; ".join(filter(None, notes)), logs=self._logs_of_workers(row, newest))

    def _logs_of_workers(self, row: Row, newest: Submission | None) -> tuple[str, ...]:
        """Return the logs of the job of a row's workers, else of its newest submission."""
        jobs = [worker.job for worker in row.workers if worker.job is not None]
        if jobs:
            return self._logs(self._submission_of(jobs[0]) or newest, jobs[0])
        return self._logs(newest, None if newest is None else newest.job)

    def _logs(self, submission: Submission | None, job: str | None) -> tuple[str, ...]:
        """Return the log files of a job, or the log folder of its submission if no file is known to be the job's."""
        if submission is None:
            return ()
        paths = matching(self.layout.root / submission.logs, "*", self._unlisted)
        files = [path.name for path in paths if path.suffix in (".out", ".err")]
        own = [name for name in files if job is not None and name.startswith(f"{job}_")]
        return tuple(f"{submission.logs}/{name}" for name in own) or (submission.logs,)


def read_index(layout: Layout) -> Index:
    """Return the index of a folder of runs. Raises MissingData if the folder does not exist."""
    if not layout.root.is_dir():
        raise MissingData(f"there is no folder {layout.root}: name the folder of runs with --runs")
    return Index(layout)


def state_of(layout: Layout, work: Work) -> State:
    """Return the state of one run. For many runs use one `Index`, which lists each folder once."""
    return Index(layout).progress(work).state


def _newest_step_line(folder: Path) -> dict[str, Any] | None:
    """Return the newest intact metrics line of a step below a run's folder, None if there is none.

    Only the end of the newest attempt's file is read, and of older ones while no line is found.
    """
    for attempt in reversed(list(matching(folder / "attempts", "*/metrics.jsonl"))):
        with attempt.open("rb") as file:
            file.seek(max(0, attempt.stat().st_size - TAIL_BYTES))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"}\n")]
        for line in reversed(lines):
            content: dict[str, Any] | None = line_value(line, ("loss",))
            if content is not None:
                return content
    return None


def _checkpointed(folder: Path) -> tuple[int, float]:
    """Return steps and seconds of computing up to the newest readable checkpoint; zeros if there is none."""
    steps = sorted((path for path in (folder / "checkpoints").glob("step-*") if path.name[5:].isdigit()), reverse=True)
    for path in steps:
        try:
            return int(path.name[5:]), float(read_json(path / "state.json")["totals"]["seconds"])
        except (DamagedFile, OSError, KeyError, TypeError, ValueError):
            continue
    return 0, 0.0


def _failure_at(path: Path, part_id: str) -> Failure:
    """Return the failure in an error file. A torn file counts as a failure too."""
    try:
        content = read_json(path)
        code = int(content.get("exit_code", EXIT_RUN_FAILED))
        return Failure(part_id, str(content["name"]), str(content["error"]), str(content.get("traceback", "")), code)
    except OSError as error:
        return Failure(part_id, part_id, reason_of(error), "", EXIT_RUN_FAILED)
    except (DamagedFile, KeyError, TypeError, ValueError, AttributeError):
        return Failure(part_id, part_id, f"{path.name} is torn or of another version", "", EXIT_RUN_FAILED)


def _finished(row: Row, work: Work, record: Mapping[str, Any]) -> Row:
    return replace(row, **{"state": "done", "done": work.total, **work.result(record)})


def _workers_of(owners: Mapping[str, Owner]) -> tuple[PartHolder, ...]:
    """Return the owners that have not released their part: live ones first, then lost ones."""
    workers = [
        PartHolder(part_id, owner.host, owner.pid, owner.job, round(owner.silent_seconds, 1), owner.is_live)
        for part_id, owner in owners.items()
        if not owner.is_released
    ]
    return tuple(sorted(workers, key=lambda worker: (not worker.is_live, worker.heartbeat_seconds)))


def _lost(worker: PartHolder) -> str:
    job = "" if worker.job is None else f" (job {worker.job})"
    gone = f"silent for {age(worker.heartbeat_seconds)}" if worker.heartbeat_seconds >= LEASE_SECONDS else "gone"
    return f"owner on {worker.host}{job} {gone}"


def age(seconds: float) -> str:
    """Format an age in the largest unit that fits: 12 s, 5 min, 3 h, 2 d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@dataclass(frozen=True)
class Cause:
    """Failures whose texts differ only in the ids of runs, and the log paths of the affected runs."""

    error: str
    failures: tuple[Failure, ...]
    logs: tuple[str, ...]


def causes_of(rows: Sequence[Row]) -> list[Cause]:
    """Group failures by their text, most frequent first. A trial shared by several studies counts once."""
    failures: dict[str, dict[str, Failure]] = {}
    logs: dict[str, dict[str, None]] = {}
    for row in rows:
        for failure in row.errors:
            text = IDENTIFIER.sub("…", failure.error)
            failures.setdefault(text, {})[failure.part] = failure
            logs.setdefault(text, {}).update(dict.fromkeys(row.logs))
    causes = [
        Cause(next(iter(by_part.values())).error, tuple(by_part.values()), tuple(logs[text]))
        for text, by_part in failures.items()
    ]
    return sorted(causes, key=lambda cause: -len(cause.failures))
