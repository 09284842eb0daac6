"""Submission of a plan's missing work to SLURM: corpora and training, then GLUE and MTEB as arrays."""

import json
import math
import os
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ablations.ladders import Ladder
from ablations.launch.request import Place, Selection
from ablations.plan import PlanRow
from ablations.scales import Scale
from ablations.scaling import uses_one_thread
from neobert.console import output, table
from neobert.errors import DamagedFile, MissingData, RunFailed
from neobert.executors.preparation import specify
from neobert.files import is_there
from neobert.identity import plain
from neobert.processes import gpu_variables, offline_environment, thread_variables
from neobert.runs.claims import Claim, ClaimLost, acquire, file_time
from neobert.runs.layout import SUBMISSION_CLAIM, Layout
from neobert.runs.run_file import read_run_file
from neobert.runs.submissions import Submission, announce, read_announced
from neobert.runs.work import JobKind, Work
from neobert.slurm.job import take_snapshot
from neobert.slurm.profile import Profile
from neobert.slurm.submit import (
    Job,
    cancel,
    largest_array,
    live_jobs,
    refuse_folder,
    release_stranded,
    sbatch_text,
    submit,
    test,
)

PATIENCE_SECONDS = 150
LOCK_POLL_SECONDS = 0.2
MANY_PARTS = ("grid points", "tasks", "runs")
"""The units of work (`Work.counted`) that many workers share."""

LONGEST_LABEL = 200
"""Characters of a job's name before its numbers: a folder has this name, and file systems allow 255."""


# Jobs of a plan


@dataclass(frozen=True)
class PlannedJob:
    """Work for one job, or for an array of `workers` that share it; the work in `after` must be done first.

    `references` and `after` are those of work. Workers of a `shared` job exit when others have claimed the rest.
    """

    kind: JobKind
    label: str
    references: tuple[str, ...]
    after: tuple[str, ...]
    workers: int
    shared: bool = False


def plan_jobs(layout: Layout, rows: Sequence[PlanRow], profile: Profile) -> list[PlannedJob]:
    """Return the jobs for the unfinished work of the rows, in the order of dependencies; equal work counts once.

    Work in many parts (trials, tasks) with the same seed and the same dependencies shares one array.
    """
    groups: dict[tuple[Any, ...], list[Work]] = {}
    names: dict[str, str] = {}
    for row in rows:
        for planned in row.planned:
            work = planned.run
            if planned.state == "done" or work.id in names:
                continue
            names[work.id] = row.name
            for preparation in work.preparation:
                names.setdefault(preparation.id, row.name)
                if not all(part.is_done for part in preparation.parts(layout)):
                    groups.setdefault((preparation.kind, preparation.id), [preparation])
            group = (
                (work.kind, work.columns["seed"], work.after) if work.counted in MANY_PARTS else (work.kind, work.id)
            )
            groups.setdefault(group, []).append(work)
    prepared = {work.id: work.reference for works in groups.values() for work in works if work.job == "prepare"}
    jobs = []
    for works in groups.values():
        first = works[0]
        is_shared = first.counted in MANY_PARTS
        parts_per_worker = profile[first.job].points_per_worker if first.counted == "grid points" else 1
        open_parts = sum(work.open_parts(layout) for work in works)
        preparations = [prepared[each.id] for work in works for each in work.preparation if each.id in prepared]
        job = PlannedJob(
            kind=first.job,
            label=f"{first.kind}-{names[first.id]}-{first.columns.get('weights', first.id)}",
            references=tuple(work.reference for work in works),
            after=(*first.after, *preparations),
            workers=max(1, math.ceil(open_parts / parts_per_worker)) if is_shared else 1,
            shared=is_shared,
        )
        jobs.append(job)
    return jobs


class AtWork:
    """The jobs that work on each reference."""

    def __init__(self) -> None:
        self._jobs: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, job: str, references: Sequence[str]) -> None:
        """Note that a job works on references."""
        for reference in references:
            self._jobs[_work_of(reference)].append(job)

    def on(self, *references: str) -> tuple[str, ...]:
        """Return the jobs on any of the references, each once."""
        return tuple(dict.fromkeys(job for reference in references for job in self._jobs[_work_of(reference)]))


def _work_of(reference: str) -> str:
    """Return the reference; for a corpus without its run, which may be any run that reads the corpus."""
    return reference.rpartition("/")[0] if reference.startswith("corpus/") else reference


def tokenizer_variables(kind: JobKind, cores: int | None) -> dict[str, str]:
    """Return the variables for the threads of `tokenizers` in a job: all of its cores where it tokenises all the time,
    a corpus or the texts of MTEB, which a GPU encodes faster than one thread tokenises them."""
    if kind not in ("prepare", "mteb"):
        return {"TOKENIZERS_PARALLELISM": "false"}
    return {"TOKENIZERS_PARALLELISM": "true"} | ({"RAYON_NUM_THREADS": str(cores)} if cores else {})


@dataclass(frozen=True)
class Submitter:
    """Submits planned jobs at a scale of a ladder to SLURM, with the resources of each kind and limits of arrays.

    Work that failed before the submission is retried unless `leave_failed`. Jobs also get the variables `environment`.
    """

    layout: Layout
    profile: Profile
    ladder: Ladder
    scale: Scale
    most_running: int | None
    leave_failed: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def threads(self, kind: JobKind) -> int:
        """Return the threads of a task: the cores that its job asks for, or 1; small scales always use 1."""
        return 1 if uses_one_thread(self.ladder, self.scale) else self.profile[kind].cpus_per_task or 1

    def jobs(self, planned: PlannedJob, number: int, largest: int) -> list[Job]:
        """Return the job, or several if an array would exceed `largest`, numbered from `number`."""
        arrays = math.ceil(planned.workers / largest)
        sizes = [planned.workers // arrays + (index < planned.workers % arrays) for index in range(arrays)]
        label = re.sub(r"[^A-Za-z0-9.@_-]", "_", planned.label)[:LONGEST_LABEL]
        now = file_time(self.layout.claims(""))
        flags = ["--leave-failed"] if self.leave_failed else ["--failures-since", f"{now:.0f}"]
        if planned.shared:
            flags += ["--patience", str(PATIENCE_SECONDS)]
        environment = thread_variables(self.threads(planned.kind)) | offline_environment() | gpu_variables(os.environ)
        environment |= tokenizer_variables(planned.kind, self.profile[planned.kind].cpus_per_task)
        environment |= self.environment
        return [
            Job(
                name=f"{label}-{number + index:05d}",
                kind=planned.kind,
                references=planned.references,
                flags=tuple(flags),
                resources=self.profile[planned.kind],
                environment=environment,
                elements=size if size > 1 else None,
                most_running=self.most_running,
            )
            for index, size in enumerate(sizes)
        ]

    def send(
        self, planned_jobs: Sequence[PlannedJob], prepare: Callable[[AtWork], None] = lambda at_work: None
    ) -> list[Submission]:
        """Submit everything that no live job works on; each run once, even if several commands submit concurrently.

        `prepare` is called with the live jobs before anything is submitted.

        Raises:
            ValueError: SLURM would refuse a job; nothing is submitted then.
            RunFailed: the controller does not answer, or another command submits the rest.
        """
        with _submission_claim(self.layout) as claim:
            earlier = read_announced(self.layout)
            own, at_work = _living(self.layout, earlier), AtWork()
            for submission in own:
                at_work.add(submission.job, submission.references)
            release_stranded(each.job for each in own)
            new: list[Submission] = []
            snapshot, largest = take_snapshot(self.layout.root / "snapshots"), largest_array()
            for planned in {planned.kind: planned for planned in planned_jobs}.values():
                test(self.jobs(planned, 0, largest)[0], snapshot, self.layout.root)
            prepare(at_work)
            for planned in planned_jobs:
                left = tuple(reference for reference in planned.references if not at_work.on(reference))
                after = at_work.on(*planned.after)
                if left:
                    for job in self.jobs(replace(planned, references=left), len(earlier) + len(new), largest):
                        _require(claim)
                        new.append(self._submit(job, snapshot, after))
                        at_work.add(new[-1].job, left)
            return new

    def _submit(self, job: Job, snapshot: Path, after: tuple[str, ...]) -> Submission:
        root = self.layout.root
        job = replace(job, name=f"{job.name}-{uuid.uuid4().hex[:8]}")
        folder = self._logs(job)
        announced = Submission(
            job="",
            name=job.name,
            kind=job.kind,
            references=job.references,
            after=after,
            elements=job.elements,
            logs=str(folder.relative_to(root)),
            snapshot=str(snapshot.relative_to(root)),
            resources=plain(
                job.resources.with_masked_exports().model_copy(update={"setup": ()})
            ),  # it may hold secrets
            at=time.time(),
            runs=str(root),
        )
        announce(self.layout, announced)
        return announced.model_copy(update={"job": submit(job, root, snapshot, folder, after)})

    def _logs(self, job: Job) -> Path:
        return self.layout.root / "jobs" / job.name

    def preview(self, planned_jobs: Sequence[PlannedJob]) -> str:
        """Return the sbatch files of all jobs, with job names in place of job ids."""
        texts, at_work = [], AtWork()
        snapshot = self.layout.root / "snapshots" / "…"
        for number, planned in enumerate(planned_jobs):
            after = at_work.on(*planned.after)
            for job in self.jobs(planned, number, planned.workers):
                shown = replace(job, resources=job.resources.with_masked_exports())
                texts.append(f"# {job.name}\n{sbatch_text(shown, snapshot, self._logs(job), after)}")
                at_work.add(f"<{job.name}>", planned.references)
        return "\n".join(texts)


def _submission_claim(layout: Layout) -> Claim:
    """Wait for the claim on a folder's submissions: between sbatch and its payload a job looks lost."""
    while (claim := acquire(layout.claims(SUBMISSION_CLAIM))) is None:
        time.sleep(LOCK_POLL_SECONDS)
    return claim


def _require(claim: Claim) -> None:
    """Raise RunFailed if another command took over the submission, because this one was paused."""
    try:
        claim.check()
    except ClaimLost as error:
        raise RunFailed(
            "this command was paused, and another one submits to the same folder since: give the command again, which "
            "submits what is missing"
        ) from error


def _living(layout: Layout, announced: Sequence[Submission]) -> list[Submission]:
    """Return a folder's submissions whose jobs are pending or running. Id and name must match, as ids are reused.

    Call it while holding the submission claim. A job whose launcher died before it had its payload is cancelled.
    """
    alive = live_jobs()
    own = {each.name: each for each in announced if _is_of(layout, each)}
    lost = [job for job, name in alive.items() if name in own and own[name].job != job]
    if lost:
        cancel(lost)
    return [each for each in own.values() if alive.get(each.job) == each.name]


def _is_of(layout: Layout, submission: Submission) -> bool:
    """Return whether a job works on this folder, and not on a folder that this one was copied from."""
    with suppress(FileNotFoundError):
        return submission.runs is None or layout.root.samefile(submission.runs)
    return False


def cancel_jobs(
    layout: Layout,
    ladder: Ladder,
    names: Set[str],
    scale: Scale | None,
    data: str | None,
    seeds: Collection[int] | None,
) -> list[str]:
    """Cancel the live jobs of a ladder's variants, by the labels in run files; return their ids. None means any scale,
    any data or any seed.

    Preparations stay as long as jobs that are not cancelled wait for them.

    Raises:
        RunFailed: SLURM refuses or does not answer.
    """
    if not is_there(layout.root / "jobs"):
        return []
    source = None if data is None else specify(data, 1).name

    def is_named(reference: str) -> bool:
        folder = f"pretraining/{Path(reference).name}" if reference.startswith("corpus/") else reference
        try:
            run_file = read_run_file(layout.root / folder)
        except (DamagedFile, MissingData):
            return False
        labels = run_file.labels
        return (
            not names.isdisjoint(labels.get("variants", ()))
            and ladder.is_named(labels.get("ladder"), layout)
            and scale in (None, labels.get("scale"))
            and source in (None, run_file.source.name)
            and (seeds is None or run_file.run.seed in seeds)
        )

    with _submission_claim(layout):
        living = _living(layout, read_announced(layout))
        named = [each for each in living if any(map(is_named, each.references))]
        needed = {job for each in living if each not in named for job in each.after}
        jobs = [each.job for each in named if each.kind != "prepare" or each.job not in needed]
        if jobs:
            cancel(jobs)
    return jobs


def submitter_of(selection: Selection, place: Place, layout: Layout, *, leave_failed: bool = False) -> Submitter:
    """Return the submitter of a selection's jobs. Raises as `refuse_folder`."""
    refuse_folder(layout.root)
    return Submitter(layout, place.profile, selection.ladder, selection.scale, place.max_running, leave_failed)


def print_submissions(submissions: Sequence[Submission], *, as_json: bool) -> None:
    """Print the submitted jobs."""
    if as_json:
        print(json.dumps([plain(submission) for submission in submissions], indent=1))
        return
    cells = [
        (each.job, each.kind, each.name, each.elements or 1, ", ".join(each.after) or None, each.logs)
        for each in submissions
    ]
    title = f"{len(cells)} jobs submitted; python ablations/status.py shows how far they are"
    output().print(table(title, ("job", "kind", "name", "workers", "after", "logs"), cells))
