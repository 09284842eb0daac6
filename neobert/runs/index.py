"""How far units of work are, read from files alone."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from neobert.errors import DamagedFile, MissingData
from neobert.files import TEMPORARY_MARK, line_value, read_json
from neobert.identity import identity, plain
from neobert.recipe import Point
from neobert.runs.claims import LEASE_SECONDS, Owner, is_claimed, last_owner
from neobert.runs.layout import MANIFEST, PARTIAL, Layout
from neobert.runs.optuna_view import GridPoint
from neobert.runs.records import is_published, read_record, read_sealed
from neobert.runs.specifications import (
    EXTERNAL_PREFIX,
    ContrastiveRun,
    EmbeddingEvaluation,
    EmbeddingRun,
    GlueStudy,
    PretrainingRun,
    Run,
    run_folder,
)
from neobert.slurm.profile import submissions_path

State = Literal["missing", "waiting", "running", "failed", "done"]
TAIL_BYTES = 4096


@dataclass(frozen=True)
class TrialFiles:
    """Where one GLUE trial leaves its files."""

    layout: Layout
    study: GlueStudy
    point: Point

    @property
    def id(self) -> str:
        """The trial's name."""
        return self.study.trial_id(self.point)

    @property
    def record(self) -> Path:
        """The record, written last."""
        return self.layout.trial(self.study.task, self.id)

    @property
    def predictions(self) -> Path:
        """Per-example predictions at the best evaluation."""
        return self.record.with_suffix(".npz")

    @property
    def weights(self) -> Path:
        """Weights at the best evaluation; kept for the best trial of a study."""
        return self.record.with_suffix(".safetensors")

    @property
    def error(self) -> Path:
        """The last failure."""
        return self.record.parent / "errors" / f"{self.id}.json"

    @property
    def is_recorded(self) -> bool:
        """Whether the record is there and whole."""
        return is_published(self.record)

    @property
    def grid_point(self) -> GridPoint:
        """The trial as a point of its grid."""
        claims = self.layout.claims(self.id)
        return GridPoint(self.study.shown_name, self.id, plain(self.point), self.record, self.error, claims)


def trial_files(layout: Layout, study: GlueStudy) -> list[TrialFiles]:
    """The files of all trials of a study, in the order of its grid."""
    return [TrialFiles(layout, study, point) for point in study.points]


@dataclass(frozen=True)
class TaskFiles:
    """Where one task of embeddings on one encoder leaves its files."""

    layout: Layout
    run: EmbeddingRun

    @cached_property
    def id(self) -> str:
        """The result's name."""
        return self.run.id

    @property
    def record(self) -> Path:
        """The record, written last."""
        return self.layout.embedding_task(self.run.task.name, self.id)

    @property
    def is_recorded(self) -> bool:
        """Whether the record is there and whole."""
        return is_published(self.record)

    @property
    def error(self) -> Path:
        """The last failure."""
        return self.record.parent / "errors" / f"{self.id}.json"


def task_files(layout: Layout, evaluation: EmbeddingEvaluation) -> list[TaskFiles]:
    """The files of all tasks of an evaluation, in its order."""
    return [TaskFiles(layout, run) for run in evaluation.runs()]


def is_closed(layout: Layout, study: GlueStudy) -> bool:
    """Whether the file that closes a study is there and whole."""
    return is_published(selection_path(layout, study), read_selection)


def read_selection(path: Path) -> dict[str, Any]:
    """What closes a study; one of an early version is not sealed.

    Raises:
        DamagedFile: it is torn, or was changed after it was written.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "trial" not in content or {"schema", "checksum"} & content.keys():
        return read_sealed(path)
    return content


def selection_path(layout: Layout, study: GlueStudy) -> Path:
    """The write-once file that closes a study."""
    return run_folder(layout, study) / "selection.json"


def state_of(layout: Layout, run: Run) -> State:
    """The state of a run, of a whole study, or of all tasks of an evaluation."""
    folder = run_folder(layout, run)
    if isinstance(run, GlueStudy):
        is_done, units = is_closed(layout, run), [(each.id, each.error) for each in trial_files(layout, run)]
    elif isinstance(run, EmbeddingEvaluation):
        open_tasks = [files for files in task_files(layout, run) if not files.is_recorded]
        is_done, units = not open_tasks, [(files.id, files.error) for files in open_tasks]
    else:
        is_done, units = is_published(folder / "done.json"), [(run.id, folder / "error.json")]
    if is_done:
        return "done"
    if any(is_claimed(layout.claims(unit_id)) for unit_id, _ in units):
        return "running"
    if any(error.exists() for _, error in units):
        return "failed"
    return "waiting" if (folder / "run.json").exists() else "missing"


def errors_of(layout: Layout, run: Run) -> Iterator[dict[str, Any]]:
    """The last failure of each unit of a run."""
    if isinstance(run, GlueStudy):
        paths = [files.error for files in trial_files(layout, run)]
    elif isinstance(run, EmbeddingEvaluation):
        paths = [files.error for files in task_files(layout, run) if not files.is_recorded]
    else:
        paths = [run_folder(layout, run) / "error.json"]
    for path in paths:
        if path.exists():
            yield read_json(path)


def set_failures_aside(layout: Layout, study: GlueStudy) -> int:
    """Move the errors of failed trials to errors/<id>.<n>.json, so that they run again; how many there were."""
    failed = [files for files in trial_files(layout, study) if files.error.exists() and not files.is_recorded]
    for files in failed:
        number = 1 + len(list(files.error.parent.glob(f"{files.id}.*.json")))
        files.error.rename(files.error.with_suffix(f".{number}.json"))
    return len(failed)


def last_step(layout: Layout, run: PretrainingRun | ContrastiveRun) -> dict[str, Any] | None:
    """The newest metrics line of a run in progress."""
    return newest_step_line(run_folder(layout, run))


def newest_step_line(folder: Path) -> dict[str, Any] | None:
    """The newest whole metrics line of a step below a run's folder; reads the end of one file, of more where a new
    attempt has none yet."""
    for attempt in sorted((folder / "attempts").glob("*/metrics.jsonl"), reverse=True):
        with attempt.open("rb") as file:
            file.seek(max(0, attempt.stat().st_size - TAIL_BYTES))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"}\n")]
        for line in reversed(lines):
            content: dict[str, Any] | None = line_value(line, ("loss",))
            if content is not None:
                return content
    return None


def encoded_task_path(layout: Layout, study: GlueStudy) -> Path:
    """Where the study's task lies in token ids; studies of equal task, tokenizer and length share it."""
    decisive = {"task": study.task_origin, "tokenizer": study.tokenizer_origin, "max_tokens": study.protocol.max_tokens}
    return layout.root / "data" / "glue" / f"{study.task}-{identity(decisive)}.safetensors"


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


RowState = Literal["unreadable", "failed", "running", "submitted", "waiting", "missing", "done"]
ROW_STATES: tuple[RowState, ...] = ("unreadable", "failed", "running", "submitted", "waiting", "missing", "done")


@dataclass(frozen=True)
class Worker:
    """Who holds a unit of a run, or held it last and never released it. `heartbeat_seconds` is the heartbeat's age."""

    unit: str
    host: str
    pid: int
    job: str | None
    heartbeat_seconds: float
    is_live: bool


@dataclass(frozen=True)
class Failure:
    """The last failure of a unit of a run."""

    unit: str
    name: str
    error: str
    traceback: str


@dataclass(frozen=True)
class Row:
    """A stage of pre-training, a GLUE study, contrastive fine-tuning, an evaluation on tasks of embeddings, or a corpus
    that a job was submitted for.

    None: no file says. `stage` counts from 1; that of a study is the stage of its weights. `task` of an evaluation is
    its protocol. `state` is the records' word: "submitted" is a waiting run that a SLURM job was submitted for and
    nobody has begun since, "unreadable" one whose files are torn or of another version. `done` of `total` count
    `counted`. `loss` is the newest training loss of unfinished training, `heldout_loss` that of the record, both in
    nats; `score` is that of a study's selected point. `seconds` is computing time so far. `gpu_hours` of unfinished
    runs is known where their job says how many GPUs it has; of studies never, since their records do not tell.
    `workers` are those at work and those that went silent; `heartbeat_at` (Unix seconds) is the last sign of anybody.
    `job` and `submitted_at` (Unix seconds) are those of the newest submission. `logs` are relative to the folder of
    runs, as is `folder`.
    """

    kind: Literal["corpus", "pretraining", "glue", "contrastive", "mteb"]
    id: str
    folder: str
    state: RowState
    note: str = ""
    task: str | None = None
    stage: int | None = None
    variants: tuple[str, ...] = ()
    seed: int | None = None
    scale: str | None = None
    data: str | None = None
    weights: str | None = None
    done: int | None = None
    total: int | None = None
    counted: Literal["steps", "points", "shards", "tasks"] = "steps"
    tokens_per_second: float | None = None
    loss: float | None = None
    heldout_loss: float | None = None
    score: float | None = None
    seconds: float | None = None
    gpu_hours: float | None = None
    workers: tuple[Worker, ...] = ()
    heartbeat_at: float | None = None
    job: str | None = None
    submitted_at: float | None = None
    errors: tuple[Failure, ...] = ()
    logs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The run as `--dry-run` calls it, with its id."""
        if self.kind in ("glue", "mteb"):
            return " ".join(filter(None, (self.kind, self.task, self.id)))
        return f"{self.kind} {self.id}" if self.stage is None else f"{self.kind} stage {self.stage} {self.id}"

    def as_json(self) -> dict[str, Any]:
        """The fields by name, workers and errors as mappings of theirs."""
        workers = [dict(vars(worker)) for worker in self.workers]
        return {**vars(self), "workers": workers, "errors": [dict(vars(failure)) for failure in self.errors]}


def age(seconds: float) -> str:
    """How long ago, in the largest unit that fits: 12 s, 5 min, 3 h, 2 d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def owners_of(tree: Tree, units: Iterable[str]) -> dict[str, Owner]:
    """Who held each unit last."""
    claimed = (unit for unit in units if unit in tree.claimed)
    owners = {unit: last_owner(tree.layout.claims(unit)) for unit in claimed}
    return {unit: owner for unit, owner in owners.items() if owner is not None}


def workers_of(owners: dict[str, Owner]) -> tuple[Worker, ...]:
    """Those at work first, then those that never released their unit."""
    workers = [
        Worker(unit, owner.host, owner.pid, owner.job, round(owner.silent_seconds, 1), owner.is_live)
        for unit, owner in owners.items()
        if not owner.is_released
    ]
    return tuple(sorted(workers, key=lambda worker: (not worker.is_live, worker.heartbeat_seconds)))


def heartbeat_of(tree: Tree, owners: dict[str, Owner]) -> float | None:
    """When the last sign of anybody came, in Unix seconds."""
    return max((tree.now - owner.silent_seconds for owner in owners.values()), default=None)


def failure_at(path: Path, unit: str) -> Failure | None:
    """The failure that an error file tells of; a torn file is a failure too."""
    try:
        content = read_json(path)
        return Failure(unit, str(content["name"]), str(content["error"]), str(content.get("traceback", "")))
    except FileNotFoundError:
        return None
    except (DamagedFile, OSError, KeyError, TypeError, AttributeError):
        return Failure(unit, unit, f"{path.name} is torn or of another version", "")


def corpus_row(tree: Tree, row: Row) -> Row:
    """The row of a corpus; shards are counted while it grows, and how many there will be nobody knows."""
    owners = owners_of(tree, [f"corpus-{row.id}"])
    folder = tree.layout.data(row.id)
    if MANIFEST in tree.names(folder):
        return replace(row, state="done")
    failure = failure_at(folder.parent / "errors" / f"{row.id}.json", row.id)
    workers = workers_of(owners)
    is_live = any(worker.is_live for worker in workers)
    growing = tree.names(folder.with_name(folder.name + PARTIAL))
    return replace(
        row,
        state="running" if is_live else "failed" if failure else "waiting",
        done=sum(name.startswith("shard-") and name.endswith(".json") for name in growing),
        workers=workers,
        heartbeat_at=heartbeat_of(tree, owners),
        errors=() if failure is None else (failure,),
    )


def study_row(tree: Tree, row: Row, content: dict[str, Any]) -> Row:
    """The row of a study whose run.json holds `content`.

    Raises:
        DamagedFile: the selection is torn, or was changed.
        KeyError, TypeError, ValueError: run.json lacks something.
    """
    study = content["study"]
    total = len(study["points"])
    row = replace(row, stage=study["stage"] + 1, seed=study["seed"], weights=study["weights"], total=total)
    selection = tree.layout.root / row.folder / "selection.json"
    if selection.exists():
        return replace(row, state="done", done=total, score=read_selection(selection)["score"])
    if "done.json" not in tree.names(tree.layout.pretraining(study["weights"])):  # before that no trial begins
        return replace(row, state="waiting", note=f"after pretraining {row.weights}", done=0)
    parsed = GlueStudy.read(study)
    if parsed.id != row.id:
        return replace(row, state="waiting", note="named by another numerics version: its points are not known here")
    unfinished = _unfinished(tree, row, parsed)
    return replace(unfinished, state="done", done=total) if selection.exists() else unfinished


def _unfinished(tree: Tree, row: Row, study: GlueStudy) -> Row:
    folder = tree.layout.root / "glue" / study.task
    names, errors = tree.names(folder), tree.names(folder / "errors")
    trials = trial_ids(study)
    pending = [trial for trial in trials if f"{trial}.json" not in names]
    owners = owners_of(tree, pending)
    workers = workers_of(owners)
    failures = [
        failure_at(folder / "errors" / f"{trial}.json", trial) for trial in pending if f"{trial}.json" in errors
    ]
    failures.append(failure_at(tree.layout.root / row.folder / "error.json", f"{study.id}-selection"))
    known = tuple(failure for failure in failures if failure is not None)
    is_live = any(worker.is_live for worker in workers)
    return replace(
        row,
        state="running" if is_live else "failed" if known else "waiting",
        note=_waits_for(tree, study),
        done=len(trials) - len(pending),
        workers=workers,
        heartbeat_at=heartbeat_of(tree, owners),
        errors=known,
    )


def _waits_for(tree: Tree, study: GlueStudy) -> str:
    start = study.starts_from
    if start.task is None or start.study is None:
        return ""
    is_closed = "selection.json" in tree.names(tree.layout.study(start.task, start.study))
    return "" if is_closed else f"after glue {start.task} {start.study}"


def trial_ids(study: GlueStudy) -> list[str]:
    """The names of a study's trials. A trial's name does not depend on the other points, so they are left out of what
    is hashed for each: sixty times sixty points would be most of an overview's time."""
    alone = study.model_copy(update={"points": ()})
    return [alone.trial_id(point) for point in study.points]


def pretraining_row(tree: Tree, row: Row, content: dict[str, Any]) -> Row:
    """The row of a run whose run.json holds `content`.

    Raises:
        DamagedFile: the record is torn or of another version.
        KeyError, TypeError, ValueError: run.json lacks something.
    """
    run = content["pretraining"]
    stages = run["recipe"]["stages"]
    row = replace(row, stage=len(stages), seed=run["recipe"]["seed"], total=stages[-1]["steps"])
    return _trained(tree, row, run["previous"], run["recipe"]["data"]["corpus"])


def contrastive_row(tree: Tree, row: Row, content: dict[str, Any]) -> Row:
    """The row of contrastive fine-tuning; an encoder from elsewhere needs no other run.

    Raises:
        DamagedFile, KeyError, TypeError, ValueError: as `pretraining_row`.
    """
    run = content["contrastive"]
    row = replace(row, seed=run["protocol"]["seed"], total=run["protocol"]["steps"])
    encoder = None if run["weights"].startswith(EXTERNAL_PREFIX) else run["weights"]
    return _trained(tree, row, encoder, None)


def _trained(tree: Tree, row: Row, previous: str | None, corpus: str | None) -> Row:
    folder = tree.layout.root / row.folder
    owners = owners_of(tree, [row.id]) if not (folder / "done.json").exists() else {}
    if (folder / "done.json").exists():  # asked again: the record may have come while the claim was read
        return _finished(row, read_record(folder / "done.json"), corpus)
    failure = failure_at(folder / "error.json", row.id)
    workers = workers_of(owners)
    live = [worker for worker in workers if worker.is_live]
    state: RowState = "running" if live else "failed" if failure else "waiting"
    is_ready = previous is None or (tree.layout.pretraining(previous) / "done.json").exists()
    row = replace(
        row,
        state=state,
        note="" if is_ready else f"after pretraining {previous}",
        workers=workers,
        heartbeat_at=heartbeat_of(tree, owners),
        errors=() if failure is None else (failure,),
    )
    return _with_progress(row, folder, _gpus(tree, row))


def _finished(row: Row, record: dict[str, Any], corpus: str | None) -> Row:
    """The row of a run with a record; the held-out loss is that on a corpus, or the mean over data sets of pairs."""
    losses = record["scores"]["heldout_loss"]
    seconds = record["seconds"]
    return replace(
        row,
        state="done",
        done=record["steps"],
        tokens_per_second=record["real_tokens"] / seconds if seconds else None,
        heldout_loss=losses.get(corpus) if corpus is not None else sum(losses.values()) / len(losses),
        seconds=seconds,
        gpu_hours=record["gpu_hours"],
    )


def _gpus(tree: Tree, row: Row) -> int | None:
    """How many GPUs work on the run, from its owner's job; None where no job tells."""
    job = next((worker.job for worker in row.workers), None)
    submission = tree.submission_of(job) or tree.newest_submission.get(row.folder)
    return None if submission is None else submission.gpus


def _with_progress(row: Row, folder: Path, gpus: int | None) -> Row:
    """Steps, rate, loss and costs of an unfinished run: what its newest checkpoint counted, and steps since."""
    line = newest_step_line(folder)
    done, seconds = _checkpointed(folder)
    if line is not None:
        seconds += max(0, line["step"] - done) * line["seconds"]
        done = line["step"]
    row = replace(row, done=done, seconds=round(seconds, 1), gpu_hours=None if gpus is None else seconds / 3600 * gpus)
    if line is None:
        return row
    rate = line["real_tokens"] / line["seconds"] if line["seconds"] else None
    return replace(row, tokens_per_second=rate, loss=line["loss"])


def _checkpointed(folder: Path) -> tuple[int, float]:
    """Steps and seconds of computing up to the newest checkpoint that says so."""
    steps = sorted((path for path in (folder / "checkpoints").glob("step-*") if path.name[5:].isdigit()), reverse=True)
    for path in steps:
        try:
            return int(path.name[5:]), float(read_json(path / "state.json")["totals"]["seconds"])
        except (DamagedFile, OSError, KeyError, TypeError, ValueError):
            continue
    return 0, 0.0


def evaluation_row(tree: Tree, row: Row, content: dict[str, Any]) -> Row:
    """The row of an evaluation whose run.json holds `content`.

    Raises:
        KeyError, TypeError, ValueError: run.json lacks something.
    """
    evaluation = EmbeddingEvaluation.read(content["mteb"])
    encoder, total = evaluation.encoder, len(evaluation.tasks)
    row = replace(row, seed=encoder.seed, weights=encoder.weights, total=total, task=encoder.protocol)
    if evaluation.id != row.id:
        return replace(row, state="waiting", note="named by another numerics version: its tasks are not known here")
    pending = [run for run in evaluation.runs() if f"{run.id}.json" not in tree.names(_folder(tree, run))]
    if not pending:
        return replace(row, state="done", done=total)
    return _evaluations_unfinished(tree, replace(row, done=total - len(pending)), evaluation, pending)


def _evaluations_unfinished(tree: Tree, row: Row, evaluation: EmbeddingEvaluation, pending: list[EmbeddingRun]) -> Row:
    owners = owners_of(tree, [run.id for run in pending])
    workers = workers_of(owners)
    failures = [failure_at(_folder(tree, run) / "errors" / f"{run.id}.json", run.id) for run in pending]
    known = tuple(failure for failure in failures if failure is not None)
    is_live = any(worker.is_live for worker in workers)
    return replace(
        row,
        state="running" if is_live else "failed" if known else "waiting",
        note=_evaluations_waits_for(tree, evaluation),
        workers=workers,
        heartbeat_at=heartbeat_of(tree, owners),
        errors=known,
    )


def _folder(tree: Tree, run: EmbeddingRun) -> Path:
    return tree.layout.embedding_task(run.task.name, run.id).parent


def _evaluations_waits_for(tree: Tree, evaluation: EmbeddingEvaluation) -> str:
    weights, is_tuned = evaluation.weights, evaluation.encoder.protocol == "contrastive"
    if not is_tuned and weights.startswith(EXTERNAL_PREFIX):
        return ""
    kind = "contrastive" if is_tuned else "pretraining"
    return "" if "done.json" in tree.names(tree.layout.root / kind / weights) else f"after {kind} {weights}"


UNREADABLE = (DamagedFile, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True)
class Overview:
    """Every run, and one sentence for each file that could not be read and belongs to no row."""

    rows: tuple[Row, ...]
    problems: tuple[str, ...]


def read_overview(layout: Layout) -> Overview:
    """Every run below a folder, worst files included.

    Raises:
        MissingData: there is no such folder.
    """
    if not layout.root.is_dir():
        raise MissingData(f"there is no folder {layout.root}: name the folder of runs with --runs")
    tree = Tree(layout)
    rows = [row_at(tree, folder) for folder in _row_folders(tree)]
    return Overview(tuple(rows), tuple(tree.problems))


def _row_folders(tree: Tree) -> list[str]:
    """Where every run lies that has a folder or was submitted, relative to the folder of runs."""
    found = [f"pretraining/{name}" for name in sorted(tree.names(tree.layout.root / "pretraining"))]
    found += [f"contrastive/{name}" for name in sorted(tree.names(tree.layout.root / "contrastive"))]
    for task in sorted(tree.names(tree.layout.root / "glue")):
        studies = sorted(tree.names(tree.layout.root / "glue" / task / "studies"))
        found += [f"glue/{task}/studies/{name}" for name in studies]
    evaluations = sorted(tree.names(tree.layout.root / "mteb" / "evaluations"))
    found += [f"mteb/evaluations/{name}" for name in evaluations]
    return list(dict.fromkeys([*(name for name in found if TEMPORARY_MARK not in name), *tree.newest_submission]))


def row_at(tree: Tree, folder: str) -> Row:
    """The row of one run; what makes it unreadable is its note."""
    match folder.split("/"):
        case ["pretraining", run_id]:
            return _told(tree, Row("pretraining", run_id, folder, "unreadable"), pretraining_row)
        case ["contrastive", run_id]:
            return _told(tree, Row("contrastive", run_id, folder, "unreadable"), contrastive_row)
        case ["glue", task, "studies", run_id]:
            return _told(tree, Row("glue", run_id, folder, "unreadable", task=task, counted="points"), study_row)
        case ["mteb", "evaluations", run_id]:
            return _told(tree, Row("mteb", run_id, folder, "unreadable", counted="tasks"), evaluation_row)
        case ["data", data_id]:
            return explained(tree, corpus_row(tree, Row("corpus", data_id, folder, "missing", counted="shards")))
    return Row("pretraining", folder, folder, "unreadable", note="a job was submitted for no known unit")


def _told(tree: Tree, row: Row, read: Callable[[Tree, Row, dict[str, Any]], Row]) -> Row:
    folder = tree.layout.root / row.folder
    try:
        content = read_sealed(folder / "run.json")
        return explained(tree, read(tree, labelled(row, content["labels"]), content))
    except FileNotFoundError as error:
        if Path(str(error.filename)).name != "run.json":
            return replace(row, note=f"{error.filename} vanished while it was read")
    except UNREADABLE as error:
        return replace(row, note=f"not readable: {type(error).__name__}: {error}")
    note = "no run.json: half-written, or removed" if folder.exists() else "no folder: half-written, or removed"
    return explained(tree, replace(row, state="missing", note=note))


def labelled(row: Row, labels: dict[str, Any]) -> Row:
    """The row with what run.json says for people."""
    variants = tuple(str(name) for name in labels.get("variants", ()))
    return replace(row, variants=variants, scale=labels.get("scale"), data=labels.get("data"))


def explained(tree: Tree, row: Row) -> Row:
    """The row with its submission, logs and lost owners; a job never changes what the records say of finished work."""
    newest = tree.newest_submission.get(row.folder)
    if row.state == "done":
        return replace(row, **_of_submission(newest), logs=tree.logs(newest, None))
    lost = [worker for worker in row.workers if not worker.is_live]
    notes = [row.note, *(_lost(worker) for worker in lost)]
    state: RowState = row.state
    if newest is not None and not _begun_since(row, newest):
        state = "submitted" if state in ("waiting", "missing") else state
        notes.append(f"job {newest.job} submitted {age(tree.now - newest.at)} ago, not begun as far as files tell")
    job = next((worker.job for worker in row.workers if worker.job is not None), None)
    logs = tree.logs(tree.submission_of(job) or newest, job or (newest.job if newest else None))
    return replace(row, state=state, note="; ".join(filter(None, notes)), **_of_submission(newest), logs=logs)


def _of_submission(submission: Submitted | None) -> dict[str, Any]:
    return {} if submission is None else {"job": submission.job, "submitted_at": submission.at}


def _begun_since(row: Row, submission: Submitted) -> bool:
    """Whether anybody worked on a unit of the run since its newest submission."""
    return row.state == "running" or (row.heartbeat_at is not None and row.heartbeat_at >= submission.at)


def _lost(worker: Worker) -> str:
    job = "" if worker.job is None else f" (job {worker.job})"
    gone = f"silent for {age(worker.heartbeat_seconds)}" if worker.heartbeat_seconds >= LEASE_SECONDS else "gone"
    return f"owner on {worker.host}{job} {gone}"


IDENTIFIER = re.compile(r"\b[0-9a-f]{12}\b")


@dataclass(frozen=True)
class Cause:
    """Failures with the same text but for the ids of runs in it, and the log paths of the runs they hit."""

    error: str
    failures: tuple[Failure, ...]
    logs: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The units that failed."""
        return tuple(failure.name for failure in self.failures)


def causes_of(rows: Sequence[Row]) -> list[Cause]:
    """The causes of all failures, most frequent first; a trial that studies share counts once."""
    failures: dict[str, dict[str, Failure]] = {}
    logs: dict[str, dict[str, None]] = {}
    for row in rows:
        for failure in row.errors:
            text = IDENTIFIER.sub("…", failure.error)
            failures.setdefault(text, {})[failure.unit] = failure
            logs.setdefault(text, {}).update(dict.fromkeys(row.logs))
    causes = [
        Cause(next(iter(units.values())).error, tuple(units.values()), tuple(logs[text]))
        for text, units in failures.items()
    ]
    return sorted(causes, key=lambda cause: -len(cause.failures))
