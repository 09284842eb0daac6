"""Execution of a plan according to the flags: show it, submit it, or run it with workers on this machine."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from ablations.ladders import Ladder
from ablations.launch.checks import refuse, require_data, require_scorable_tasks, validate
from ablations.launch.flags import execution_of, kept_of, trusts_code
from ablations.launch.submit import (
    AtWork,
    execution_on,
    machine_on,
    place_of,
    plan_jobs,
    print_submissions,
    profile_of,
    submitter_of,
)
from ablations.paper_models import folder_or_repository
from ablations.plan import PlanRow, unfinished
from ablations.scaling import synthetic_documents
from neobert import processes
from neobert.command_line import refuse_no_folder
from neobert.console import Progress, Watch, logs
from neobert.data.preparation import open_specified, specify
from neobert.data.sources import Source
from neobert.errors import EXIT_DONE, EXIT_REQUEUE, EXIT_RUN_FAILED, DamagedFile
from neobert.external import ExternalModel
from neobert.files import children, is_there
from neobert.processes import available_cores, visible_gpus, worker_environment
from neobert.runs.index import Index, Row, age
from neobert.runs.kinds import Run
from neobert.runs.layout import Layout
from neobert.runs.records import read_record, why_no_commit
from neobert.runs.run_file import Execution, SourceSpecification, read_run_file
from neobert.runs.tracking import VARIABLE as TRACKER_VARIABLE
from neobert.runs.tracking import require_tracker
from neobert.runs.work import may_pass


@dataclass(frozen=True)
class Workspace:
    """The ladder and the flags of a command, its folder of runs, and the source that it opened.

    `specification` describes the source in run files. `execution` is the execution of the scale on this machine.
    """

    ladder: Ladder
    options: argparse.Namespace
    layout: Layout
    specification: SourceSpecification
    source: Source
    execution: Execution

    def write(self, rows: Sequence[PlanRow], execution: Execution) -> None:
        """Write the run.json of every run of the rows, before anything starts."""
        self.ladder.keep(self.layout)
        for row in rows:
            row.write(self.layout, self.source, self.specification, execution, kept_of(self.options))

    def external_model(self) -> ExternalModel:
        """Return the model that --model names. Raises MissingData or ValueError if it is not there or is no encoder."""
        from neobert.hub.external import resolve_model

        options = self.options
        return resolve_model(self.layout, folder_or_repository(options.model, options.data), trusts_code(options))


def open_workspace(ladder: Ladder, options: argparse.Namespace) -> Workspace:
    """Open the folder and the data that the flags name.

    Raises:
        MissingData, ValueError: as `open_source`; `--runs` is a file.
    """
    refuse_no_folder("--runs", options.runs)
    execution = execution_of(ladder, options)
    options.data = _chosen_data(options)
    unseen = vars(options).get("without_texts_of") or ()
    task_folders = {name: task.folder for name, task in ladder.own_tasks.items()}
    documents = synthetic_documents(ladder, options.scale)
    specification = specify(options.data, documents, unseen, task_folders=task_folders, corpora=ladder.corpora)
    layout = Layout(options.runs.resolve())
    return Workspace(ladder, options, layout, specification, open_specified(specification), execution)


def _chosen_data(options: argparse.Namespace) -> str:
    """Return the value of `--data`; the default is synthetic text. At the paper's scale there is none, and a plan
    counts the published data."""
    if options.data is not None:
        if not options.data.strip():
            raise ValueError("--data is empty: give synthetic, hub or a folder")
        return str(options.data)
    only_shows = options.dry_run or vars(options).get("list")
    if options.scale == "paper" and not only_shows:
        raise ValueError(
            "--scale paper needs --data: download the paper's data with `python ablations/prefetch.py --variant NAME "
            "--scale paper --data-dir DIR`, then add --data DIR (or --data synthetic, which reproduces nothing)"
        )
    return "hub" if options.scale == "paper" else "synthetic"


def run_or_submit(
    workspace: Workspace,
    rows: Sequence[PlanRow],
    show: Callable[[], None],
    *,
    leave_failed: bool = False,
    environment: Callable[[], Mapping[str, str]] = dict,
) -> int:
    """Show, submit or run the unfinished work of the rows; return the exit code.

    `show` prints the rows, for a dry run and after a local run. With `leave_failed`, parts that failed before are not
    retried. Workers and jobs get the variables that `environment` returns, which is called when all is checked and
    before anything is written.

    Raises:
        ValueError: flags, profile or plan are invalid.
        MissingData: data or an earlier run is not there.
    """
    if workspace.options.dry_run:
        require_scorable_tasks(rows, workspace.layout, workspace.source)
        show()
        return EXIT_DONE
    place = place_of(workspace.options)
    if reason := why_no_commit():
        logs().print(f"the commit of the code is not recorded: {reason}", markup=False, soft_wrap=True)
    require_data(rows, workspace.source)
    require_scorable_tasks(rows, workspace.layout, workspace.source)
    if workspace.options.track is not None:
        require_tracker(workspace.options.track)
    if place == "slurm":
        return _submit(workspace, rows, leave_failed=leave_failed, environment=environment)
    runs = unfinished(rows)
    flags, variables = ["--leave-failed"] if leave_failed else [], environment()
    code = _run_locally(workspace, rows, runs, flags, variables) if runs else EXIT_DONE
    show()
    return _report_failures(workspace.layout, runs) if code == EXIT_RUN_FAILED else code


def _submit(
    workspace: Workspace, rows: Sequence[PlanRow], *, leave_failed: bool, environment: Callable[[], Mapping[str, str]]
) -> int:
    """Submit missing work to SLURM and return immediately."""
    options, layout = workspace.options, workspace.layout
    submitter = submitter_of(workspace.ladder, options, layout, leave_failed=leave_failed)
    profile = submitter.profile
    execution = execution_on(profile, workspace.execution).model_copy(update={"threads": submitter.threads("pretrain")})
    for remark in refuse(validate(rows, layout, machine_on(profile, execution))):
        logs().print(remark, markup=False)

    def write(at_work: AtWork) -> None:
        """Write the run files but those of queued runs, whose jobs read them when they start or are requeued."""
        queued = {each.folder for row in rows for each in row.planned if at_work.on(each.run.reference)}
        queued = {folder for folder in queued if (folder / "run.json").exists()}
        idle = [replace(row, planned=tuple(each for each in row.planned if each.folder not in queued)) for row in rows]
        workspace.write(idle, execution)
        if queued:
            logs().print(f"{len(queued)} run(s) have a job already and execute as it was submitted", markup=False)

    submitter = replace(submitter, environment=_with_tracker(environment(), options))
    jobs = plan_jobs(layout, rows, profile)
    print_submissions(submitter.send(jobs, write) if jobs else [], as_json=options.json)
    return EXIT_DONE


def _with_tracker(environment: Mapping[str, str], options: argparse.Namespace) -> dict[str, str]:
    """Return variables for workers and jobs with that of the tracker that the flags name."""
    return {**environment, **({TRACKER_VARIABLE: options.track} if options.track else {})}


@dataclass(frozen=True)
class LocalPlan:
    """How workers share this machine: its GPUs, or else its cores.

    First `groups` workers train, each in `processes` processes; then `workers` do what takes one process each. Every
    process has `threads` threads.
    """

    gpus: Sequence[str]
    processes: int
    groups: int
    workers: int
    threads: int

    def phases(self, runs: Sequence[Run]) -> "list[tuple[list[Run], list[str | None]]]":
        """Return the runs of each phase and the GPUs that each of its workers sees (None: this machine has none)."""
        trains_together = {run.id for run in runs if self.processes > 1 and run.job == "pretrain"}
        together = [run for run in runs if run.id in trains_together]
        alone = [run for run in runs if run.id not in trains_together]
        phases = ((together, self._gpus_of(self.groups, self.processes)), (alone, self._gpus_of(self.workers, 1)))
        return [(batch, gpus) for batch, gpus in phases if batch]

    def _gpus_of(self, workers: int, processes: int) -> list[str | None]:
        if not self.gpus:
            return [None] * workers
        each = min(processes, len(self.gpus) // workers)
        return [",".join(self.gpus[index * each : (index + 1) * each]) for index in range(workers)]


def plan_locally(
    gpus: Sequence[str], cores: int, execution: Execution, open_parts: int, workers: int | None = None
) -> LocalPlan:
    """Return how workers share a machine with these GPUs and cores.

    Args:
        open_parts: number of parts to do; more workers would idle.
        workers: instead of one worker per GPU, or per `execution.threads` cores.
    """
    slots = len(gpus) or max(1, cores // execution.threads)
    workers = workers or max(1, min(slots, open_parts))
    groups = max(1, min(workers, slots // execution.processes))
    share = max(1, cores // max(workers, groups * execution.processes))
    # more threads than cores would be very slow
    return LocalPlan(gpus, execution.processes, groups, workers, threads=min(execution.threads, share))


def _run_locally(
    workspace: Workspace,
    rows: Sequence[PlanRow],
    runs: Sequence[Run],
    flags: Sequence[str],
    environment: Mapping[str, str],
) -> int:
    """Run with workers on this machine until everything is done or nothing more can run; return the highest exit code.

    Runs that train in several processes come first. `flags` and `environment` are added to the workers' command.
    """
    options, layout = workspace.options, workspace.layout
    execution = execution_on(profile_of(options), workspace.execution)
    open_parts = sum(run.open_parts(layout) for run in runs)
    shared = plan_locally(visible_gpus(), available_cores(), execution, open_parts, options.workers)
    workspace.write(rows, execution.model_copy(update={"threads": shared.threads}))
    if not shared.gpus and any(shared.processes > 1 and run.job == "pretrain" for run in runs):
        logs().print(f"no GPU here: {shared.processes} processes train together on its cores", markup=False)
    variables = worker_environment(shared.threads) | _with_tracker(environment, options)
    worst = EXIT_DONE
    for batch, gpus in shared.phases(runs):
        with Watch(partial(_progress, layout, batch)) as watch:
            code = processes.work_here(
                layout,
                [*flags, *(run.reference for run in batch)],
                environments=[variables | ({} if each is None else _on_gpus(each, len(gpus))) for each in gpus],
                watch=watch,
                interval_seconds=1.0,
            )
        if code == EXIT_REQUEUE:
            return code
        worst = max(worst, code)
    return worst


def _on_gpus(names: str, workers: int) -> dict[str, str]:
    """Return the variables of one of `workers` workers here, on these GPUs. It tokenises texts of MTEB with its
    share of the cores, as one thread is slower than a GPU."""
    share = str(max(1, available_cores() // workers))
    return {"CUDA_VISIBLE_DEVICES": names, "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": share}


def _report_failures(layout: Layout, runs: Sequence[Run]) -> int:
    """Print one line with the cause for each failed part; return the exit code that all of them share, else 1."""
    index = Index(layout)
    failures = [failure for run in runs for failure in index.progress(run).failures]
    for failure in failures:
        logs().print(f"failed: {failure.name}: {failure.error}", markup=False)
    codes = {failure.exit_code for failure in failures}
    return codes.pop() if len(codes) == 1 else EXIT_RUN_FAILED


def _progress(layout: Layout, runs: Sequence[Run]) -> tuple[str, list[Progress]]:
    """Return a summary of the runs' states, and the progress of each running one."""
    index = Index(layout)
    states = [index.progress(run).state for run in runs]
    running = [run for run, state in zip(runs, states, strict=True) if state == "running"]
    summary = (
        f"{states.count('done')} of {len(runs)} runs done, {len(running)} running, {states.count('failed')} failed"
    )
    return summary, [_progress_of(layout, run, index.row(run.folder)) for run in running]


def _progress_of(layout: Layout, run: Run, row: Row) -> Progress:
    details: tuple[str, ...] = ()
    if run.counted != "steps":
        details = _best_so_far(layout, run)
    elif row.loss is not None and row.done and row.total and row.seconds is not None:
        left = age((row.total - row.done) * row.seconds / row.done)
        details = (f"loss {row.loss:.3f}", f"{row.tokens_per_second or 0:,.0f} tokens/s", f"{left} left")
    name = f"{_owner(layout.root / run.folder)} {run.title}, seed {run.seed}"
    return Progress(name, run.counted, row.done or 0, row.total or 0, details)


def _best_so_far(layout: Layout, run: Run) -> tuple[str, ...]:
    """Return the best score of a grid so far, ×100 as in all tables; empty without one."""
    if run.counted != "grid points":
        return ()
    scores = [_score_of(part.record) for part in run.parts(layout) if not part.after and part.is_done]
    known = [score for score in scores if score is not None]
    return (f"best {100 * max(known):.1f}",) if known else ()


@cache
def _owner(folder: Path) -> str:
    """Return the first variant, or the model, that the run of a folder was planned for."""
    return (read_run_file(folder).owner if (folder / "run.json").exists() else "") or folder.name


@cache
def _score_of(record: Path) -> float | None:
    """Return the score of a published record, which never changes; None if it is undefined or unreadable."""
    try:
        score: float | None = read_record(record)["scores"].get("score")
    except DamagedFile:
        return None
    return score


def retry_failed(layout: Layout, runs: Iterable[Run], *, retry: bool) -> None:
    """Rename the errors of failed points to <name>.<n>.json so that the points run again, or print how to retry."""
    parts = (part for run in runs for part in run.parts(layout))
    failed = [part for part in parts if is_there(part.error) and not part.is_done and (retry or not may_pass(part))]
    if retry:
        for part in failed:
            number = 1 + len(children(part.error.parent, f"{part.error.stem}.*.json"))
            with suppress(FileNotFoundError):  # another command that retries was faster
                part.error.rename(part.error.with_suffix(f".{number}.json"))
        logs().print(f"{len(failed)} failed point(s) run again; their errors are kept beside them, with a number")
    elif failed:
        logs().print("points that failed before stay failed: --retry-failed runs them again", markup=False)
