"""What a plan is missing, cut into pieces of work that follow each other: corpora, stages, grids, tasks. Torch-free."""

import argparse
import json
import math
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ablations.costs import Machine
from ablations.flags import FLAGS_OF_RESOURCES
from ablations.ladder import TRANSFER_TASK
from ablations.plan import NamedRun, PlannedUnit, Row
from ablations.scales import execution_at
from neobert.console import logs, output, table
from neobert.data.preparation import is_tokenized
from neobert.identity import plain
from neobert.offline import offline_environment
from neobert.processes import REPOSITORY, available_cores, thread_variables, visible_gpus
from neobert.runs.claims import acquire, file_time
from neobert.runs.index import state_of, task_files, trial_files
from neobert.runs.layout import SUBMISSION_UNIT, Layout
from neobert.runs.specifications import (
    EXTERNAL_PREFIX,
    ContrastiveRun,
    EmbeddingEvaluation,
    Execution,
    GlueStudy,
    PretrainingRun,
    Run,
    run_folder,
)
from neobert.slurm.job import take_snapshot
from neobert.slurm.profile import (
    JobKind,
    Profile,
    Submission,
    note_submission,
    read_profile,
    read_submissions,
)
from neobert.slurm.submit import (
    Job,
    answers,
    cancel,
    is_inside_job,
    largest_array,
    live_jobs,
    refuse_folder,
    release_stranded,
    sbatch_text,
    submit,
    test,
)


@dataclass(frozen=True)
class Piece:
    """Work that one job (or array) does: references, those that must be over before it, and how many workers."""

    kind: JobKind
    label: str
    references: tuple[str, ...]
    needs: tuple[str, ...]
    workers: int


def pieces_of(layout: Layout, named: Iterable[NamedRun], profile: Profile) -> list[Piece]:
    """What the runs still miss, in an order in which nothing comes before what it needs; equal runs count once."""
    runs: dict[str, NamedRun] = {}
    for name, run in named:
        runs.setdefault(run.id, (name, run))
    missing = [each for each in runs.values() if _is_open(layout, each[1])]
    return [
        *_pretraining_pieces(layout, [(name, run) for name, run in missing if isinstance(run, PretrainingRun)]),
        *_glue_pieces(layout, list(runs.values()), profile.glue.points_per_worker),
        *(_contrastive_piece(name, run) for name, run in missing if isinstance(run, ContrastiveRun)),
        *(_embedding_piece(layout, name, run) for name, run in missing if isinstance(run, EmbeddingEvaluation)),
    ]


def _is_open(layout: Layout, run: Run) -> bool:
    return state_of(layout, run) != "done"


def _pretraining_pieces(layout: Layout, stages: Sequence[tuple[str, PretrainingRun]]) -> Iterator[Piece]:
    corpora: set[str] = set()
    for name, run in stages:
        label = f"{name}-{run.id}"
        needs = [] if run.previous is None else [f"pretraining/{run.previous}"]
        if not is_tokenized(layout, run):
            corpus = f"corpus/{run.data_id}/{run.id}"
            if run.data_id not in corpora:
                corpora.add(run.data_id)
                yield Piece("prepare", f"{run.recipe.data.corpus}-{run.data_id}", (corpus,), (), 1)
            needs.append(corpus)
        yield Piece("pretrain", label, (f"pretraining/{run.id}",), tuple(needs), 1)


def _contrastive_piece(name: str, run: ContrastiveRun) -> Piece:
    return Piece("pretrain", f"{name}-contrastive-{run.id}", (f"contrastive/{run.id}",), _weights(run.weights), 1)


def _embedding_piece(layout: Layout, name: str, evaluation: EmbeddingEvaluation) -> Piece:
    """An array with an element for each task that is left: tasks differ in size a thousandfold."""
    is_tuned = evaluation.encoder.protocol == "contrastive"
    needs = (f"contrastive/{evaluation.weights}",) if is_tuned else _weights(evaluation.weights)
    left = sum(not files.is_recorded for files in task_files(layout, evaluation))
    reference = str(run_folder(layout, evaluation).relative_to(layout.root))
    return Piece("mteb", f"{name}-{evaluation.weights}", (reference,), needs, max(1, left))


def _weights(run_id: str) -> tuple[str, ...]:
    """The work behind weights; nobody works on a model from elsewhere."""
    return () if run_id.startswith(EXTERNAL_PREFIX) else (f"pretraining/{run_id}",)


def _glue_pieces(layout: Layout, named: Sequence[NamedRun], points_per_worker: int) -> Iterator[Piece]:
    """The arrays of every model and seed, under the name that the model came with first."""
    names: dict[str, str] = {}
    grids: dict[tuple[str, int], list[GlueStudy]] = {}
    for name, run in named:
        if isinstance(run, GlueStudy):
            names.setdefault(run.weights, name)
            grids.setdefault((run.weights, run.seed), []).append(run)
    for (weights, _), group in grids.items():
        left = [study for study in group if _is_open(layout, study)]
        if left:
            yield from _grid_pieces(layout, names[weights], left, points_per_worker)


def _grid_pieces(layout: Layout, name: str, studies: Sequence[GlueStudy], points_per_worker: int) -> Iterator[Piece]:
    """One array for the tasks that start from pre-training, another behind it for those that start from a study."""
    first = [study for study in studies if study.starts_from.study is None]
    second = [study for study in studies if study.starts_from.study is not None]
    needs = [f"pretraining/{studies[0].weights}"]
    for suffix, group in (("", first), ("-transfer", second)):
        if group:
            label = f"{name}-{group[0].weights}{suffix}"
            workers = math.ceil(_open_points(layout, group) / points_per_worker)
            references = tuple(str(run_folder(layout, study).relative_to(layout.root)) for study in group)
            yield Piece("glue", label, references, tuple(needs), max(1, workers))
            needs.extend(reference for reference in references if reference.split("/")[1] == TRANSFER_TASK)


def _open_points(layout: Layout, studies: Sequence[GlueStudy]) -> int:
    return sum(not files.is_recorded for study in studies for files in trial_files(layout, study))


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


Place = Literal["here", "slurm"]
SLURM_ALONE = ("partition", "account", "qos", "constraint", "memory_gb", "hours", "sbatch", "max_running")
"""Flags that mean nothing where no job is submitted."""


def place_of(options: argparse.Namespace) -> Place:
    """Where the work runs.

    Raises:
        ValueError: SLURM is asked for inside a job, or where none answers, or this machine for what it has not.
    """
    place = _place_of(options)
    if place == "here":
        refuse_here(options)
    return place


def refuse_here(options: argparse.Namespace) -> None:
    """Check that this machine can do what flags and profile ask for.

    Raises:
        ValueError: it cannot; says what it has.
    """
    for flag in SLURM_ALONE if not is_inside_job() else ():
        if getattr(options, flag):
            name = f"--{flag.replace('_', '-')}"
            raise ValueError(f"{name} is asked of SLURM, and this runs here: leave it out, or use --cluster slurm")
    wanted = profile_of(options).pretrain
    if wanted.nodes > 1:
        raise ValueError(f"{wanted.nodes} nodes are asked for, and this runs here, on one: use --cluster slurm")
    if options.engine in ("zero1", "zero2") and wanted.tasks == 1:
        raise ValueError(f"--engine {options.engine} splits a model's training among GPUs: say how many with --gpus")
    if wanted.tasks == 1 and options.workers is None:
        return
    if gpus := len(visible_gpus()):
        for what, count in (("GPUs for a run are", wanted.tasks), ("workers are", options.workers or 1)):
            if count > gpus:
                has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
                raise ValueError(
                    f"{count} {what} asked for, and this machine has {has}: each process has one of its own"
                )
    elif wanted.tasks > available_cores():
        raise ValueError(
            f"{wanted.tasks} GPUs or processes are asked for, and this machine has no GPU and {available_cores()} cores"
        )


def _place_of(options: argparse.Namespace) -> Place:
    if options.cluster == "here" or (options.cluster == "auto" and is_inside_job()):
        return "here"
    if options.cluster == "slurm" and is_inside_job():
        raise ValueError("--cluster slurm inside a job would submit jobs from a job: use --cluster here")
    if answers():
        return "slurm"
    if options.cluster == "auto":
        if shutil.which("sbatch"):
            logs().print("SLURM does not answer (sinfo): this runs here", markup=False)
        return "here"
    raise ValueError(
        "--cluster slurm: sbatch is not there or the controller does not answer (sinfo): use --cluster here"
    )


def profile_of(options: argparse.Namespace) -> Profile:
    """The profile that flags and file make up.

    Raises:
        MissingData: there is no such file.
        ValueError: a key or value is refused.
    """
    flags: dict[str, Any] = {field: getattr(options, flag) for flag, field in FLAGS_OF_RESOURCES.items()}
    flags["sbatch"] = tuple(options.sbatch) if options.sbatch else None
    name = options.cluster_profile
    if name is None:
        return read_profile(None, flags)
    is_file = name.endswith(".toml") or "/" in name
    return read_profile(Path(name) if is_file else REPOSITORY / "clusters" / f"{name}.toml", flags)


def execution_on(profile: Profile, execution: Execution) -> Execution:
    """How a run executes as the pre-training job of a profile; a scale that pins one thread keeps it.

    Raises:
        ValueError: the engine cannot serve so many processes.
    """
    resources = profile.pretrain
    if resources.engine == "single" and resources.tasks > 1:
        raise ValueError(f"engine single trains in one process, and the job has {resources.tasks}: ddp, zero1 or zero2")
    changes: dict[str, Any] = {"processes": resources.tasks, "engine": resources.engine}
    if execution.threads > 1 and resources.cpus_per_task is not None:
        changes["threads"] = resources.cpus_per_task
    if resources.micro_batch_tokens is not None:
        changes["micro_batch_tokens"] = resources.micro_batch_tokens
    return execution.model_copy(update=changes)


def machine_on(profile: Profile, execution: Execution) -> Machine:
    """What a plan reckons with: the GPUs of the profile's pre-training job."""
    known = profile.pretrain
    return replace(
        Machine.of(execution),
        gpu_memory_gb=known.gpu_memory_gb,
        tokens_per_second_per_gpu=known.tokens_per_second_per_gpu,
        gpu=known.gpu,
    )


def planned_machine(options: argparse.Namespace) -> Machine:
    """The same for a plan that looks at no cluster: what flags and profile say.

    Raises:
        ValueError: this machine is meant, and has not what they ask for.
    """
    if options.cluster == "here":
        refuse_here(options)
    profile = profile_of(options)
    return machine_on(profile, execution_on(profile, execution_at(options.scale)))


def dispatch_of(options: argparse.Namespace, layout: Layout, execution: Execution) -> tuple[Dispatch, Execution]:
    """How jobs are made under the flags, and how what would execute so here does in them.

    Raises:
        ValueError: the profile, or the path of the folder of runs, is refused.
    """
    refuse_folder(layout.root)
    profile = profile_of(options)
    execution = execution_on(profile, execution)
    environment = thread_variables(execution.threads) | offline_environment()
    return Dispatch(layout, profile, environment, options.max_running), execution


def preview(options: argparse.Namespace, layout: Layout, runs: Sequence[NamedRun]) -> str:
    """The sbatch files that a submission would write."""
    dispatch, _ = dispatch_of(options, layout, execution_at(options.scale))
    return dispatch.preview(pieces_of(layout, runs, dispatch.profile))


def print_submissions(submissions: Sequence[Submission], *, as_json: bool) -> None:
    """What was submitted."""
    if as_json:
        print(json.dumps([plain(submission) for submission in submissions], indent=1))
        return
    cells = [
        (each.job, each.kind, each.name, str(each.elements or 1), ", ".join(each.after) or "—", each.logs)
        for each in submissions
    ]
    columns = ("job", "kind", "name", "workers", "after", "logs")
    output().print(
        table(f"{len(cells)} jobs submitted; python ablations/status.py shows how far they are", columns, cells)
    )
