"""Execution of a plan: show it, submit it, or run it with workers on this machine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ablations.ladders import Ladder
from ablations.launch.checks import require_data, require_room, require_scorable_tasks, require_startable
from ablations.launch.costs import Machine
from ablations.launch.request import Place, Selection
from ablations.launch.submit import AtWork, plan_jobs, print_submissions, submitter_of
from ablations.paper_models import folder_or_repository
from ablations.plan import PlanRow, unfinished
from ablations.scales import Scale
from ablations.scaling import execution_at, synthetic_documents
from neobert import processes
from neobert.command_line import refuse_no_folder
from neobert.console import Progress, Watch, logs
from neobert.data.sources import Source
from neobert.errors import EXIT_DONE, EXIT_REQUEUE, EXIT_RUN_FAILED
from neobert.execution import Execution
from neobert.executors.preparation import open_specified, specify
from neobert.external import ExternalModel
from neobert.files import children, is_there
from neobert.processes import available_cores, visible_gpus, worker_environment
from neobert.runs.index import Index, Row, age
from neobert.runs.kinds import Run
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, read_run_file
from neobert.runs.tracking import VARIABLE as TRACKER_VARIABLE
from neobert.runs.tracking import require_tracker

MEASURED = ("heldout", "heldout_context")
"""Fields of the execution that say what pre-training measures. A run has one record, so it keeps those of its first
plan, except where a later one gives them."""


@dataclass(frozen=True)
class Workspace:
    """A selection with its folder of runs and the source that was opened, and how and where its runs execute.

    `specification` describes the source in run files. Fields of the `execution` that are `kept` stay as a run was
    planned first. With `dry_run` plans are only shown, `as_json` as JSON.
    """

    selection: Selection
    place: Place
    layout: Layout
    specification: SourceSpecification
    source: Source
    execution: Execution
    kept: tuple[str, ...] = MEASURED
    dry_run: bool = False
    as_json: bool = False

    @property
    def ladder(self) -> Ladder:
        return self.selection.ladder

    @property
    def scale(self) -> Scale:
        return self.selection.scale

    def write(self, rows: Sequence[PlanRow], execution: Execution) -> None:
        """Write the run.json of every run of the rows, before anything starts."""
        self.ladder.keep(self.layout)
        for row in rows:
            row.write(self.layout, self.source, self.specification, execution, self.kept)

    def external_model(self) -> ExternalModel:
        """Return the model of the selection. Raises MissingData or ValueError if it is not there or is no encoder."""
        from neobert.executors.external import resolve_model

        assert self.selection.model is not None
        name = folder_or_repository(self.selection.model, self.specification.name)
        return resolve_model(self.layout, name, self.selection.trusts_code)


def open_workspace(
    selection: Selection,
    place: Place,
    changes: Mapping[str, Any] = MappingProxyType({}),
    *,
    dry_run: bool = False,
    as_json: bool = False,
) -> Workspace:
    """Open the folder and the data of a selection. `changes` are to the execution of the scale on this machine.

    Raises:
        MissingData, ValueError: as `open_source`; the folder of runs is a file; contrastive fine-tuning is to be
            compiled.
    """
    refuse_no_folder("--runs", selection.runs)
    if changes.get("compile") == "on" and "contrastive" in selection.stages:
        raise ValueError(
            "--compile on does not reach contrastive fine-tuning, in which no two micro-batches have the same lengths: "
            "run the other stages with it first, and contrastive without"
        )
    ladder, scale = selection.ladder, selection.scale
    specification = specify(
        selection.named_data(only_shows=dry_run),
        synthetic_documents(ladder, scale),
        task_folders={name: task.folder for name, task in ladder.own_tasks.items()},
        corpora=ladder.corpora,
    )
    return Workspace(
        selection=selection,
        place=place,
        layout=Layout(selection.runs.resolve()),
        specification=specification,
        source=open_specified(specification),
        execution=execution_at(ladder, scale).model_copy(update=dict(changes)),
        kept=tuple(name for name in MEASURED if name not in changes),
        dry_run=dry_run,
        as_json=as_json,
    )


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
    layout, track = workspace.layout, workspace.place.track
    if workspace.dry_run:
        require_scorable_tasks(rows, layout, workspace.source)
        show()
        return EXIT_DONE
    workspace = replace(workspace, place=workspace.place.decided())
    require_data(rows, workspace.source)
    require_scorable_tasks(rows, layout, workspace.source)
    if track is not None:
        require_tracker(track)
    tracked = {TRACKER_VARIABLE: track} if track else {}
    if workspace.place.cluster == "slurm":
        return _submit(workspace, rows, leave_failed=leave_failed, environment=lambda: {**environment(), **tracked})
    require_room(rows, workspace.place.workers)
    runs = unfinished(rows)
    flags, variables = ["--leave-failed"] if leave_failed else [], {**environment(), **tracked}
    code = _run_locally(workspace, rows, runs, flags, variables) if runs else EXIT_DONE
    show()
    return _report_failures(layout, runs) if code == EXIT_RUN_FAILED else code


def _submit(
    workspace: Workspace, rows: Sequence[PlanRow], *, leave_failed: bool, environment: Callable[[], Mapping[str, str]]
) -> int:
    """Submit missing work to SLURM and return immediately."""
    layout, place = workspace.layout, workspace.place
    submitter = submitter_of(workspace.selection, place, layout, leave_failed=leave_failed)
    execution = place.execution(workspace.execution).model_copy(update={"threads": submitter.threads("pretrain")})
    require_startable(rows, layout, Machine.of(place, execution, workspace.scale))

    def write(at_work: AtWork) -> None:
        """Write the run files but those of queued runs, whose jobs read them when they start or are requeued."""
        queued = {each.folder for row in rows for each in row.planned if at_work.on(each.run.reference)}
        queued = {folder for folder in queued if (folder / "run.json").exists()}
        idle = [replace(row, planned=tuple(each for each in row.planned if each.folder not in queued)) for row in rows]
        workspace.write(idle, execution)
        if queued:
            logs().print(f"{len(queued)} run(s) have a job already and execute as it was submitted", markup=False)

    submitter = replace(submitter, environment=environment())
    jobs = plan_jobs(layout, rows, place.profile)
    print_submissions(submitter.send(jobs, write) if jobs else [], as_json=workspace.as_json)
    return EXIT_DONE


@dataclass(frozen=True)
class LocalPlan:
    """How workers share this machine: its GPUs, or else its cores.

    First `groups` workers train, each in `processes` processes; then `workers` do what takes one process each. If there
    are more of them than GPUs, fine-tuning comes last, and only its workers share GPUs. Every process has `threads`
    threads.
    """

    gpus: Sequence[str]
    processes: int
    groups: int
    workers: int
    threads: int

    def phases(self, runs: Sequence[Run]) -> "list[tuple[list[Run], list[str | None]]]":
        """Return the runs of each phase and the GPUs that each of its workers sees (None: this machine has none)."""
        together, alone, sharing = list[Run](), list[Run](), list[Run]()
        for run in runs:
            if self.processes > 1 and run.job == "pretrain":
                together.append(run)
            elif 0 < len(self.gpus) < self.workers and run.job == "glue":
                sharing.append(run)
            else:
                alone.append(run)
        each, groups = min(self.processes, len(self.gpus) // self.groups), range(self.groups)
        of_groups = [",".join(self.gpus[index * each : (index + 1) * each]) or None for index in groups]
        of_workers = list(islice(cycle(self.gpus or (None,)), self.workers))
        phases = ((together, of_groups), (alone, of_workers[: len(self.gpus) or None]), (sharing, of_workers))
        return [(batch, gpus) for batch, gpus in phases if batch]


def plan_locally(
    gpus: Sequence[str], cores: int, execution: Execution, open_parts: int, workers: int | None = None
) -> LocalPlan:
    """Return how workers share a machine with these GPUs and cores.

    Args:
        open_parts: number of parts to do; more workers would idle.
        workers: instead of one worker per GPU, or per `execution.threads` cores; only `require_room` allows more than
            GPUs.
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
    layout, place = workspace.layout, workspace.place
    execution = place.execution(workspace.execution)
    open_parts = sum(run.open_parts(layout) for run in runs)
    shared = plan_locally(visible_gpus(), available_cores(), execution, open_parts, place.workers)
    workspace.write(rows, execution.model_copy(update={"threads": shared.threads}))
    if not shared.gpus and any(shared.processes > 1 and run.job == "pretrain" for run in runs):
        logs().print(f"no GPU here: {shared.processes} processes train together on its cores", markup=False)
    variables = worker_environment(shared.threads) | dict(environment)
    worst = EXIT_DONE
    for batch, gpus in shared.phases(runs):
        with Watch(partial(_progress, layout, batch)) as watch:
            code = processes.work_here(
                layout.root,
                [*flags, *(run.reference for run in batch)],
                environments=[variables | ({} if each is None else _on_gpus(each, len(gpus))) for each in gpus],
                watch=watch,
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
    if row.loss is not None and row.done and row.total and row.seconds is not None:
        left = age((row.total - row.done) * row.seconds / row.done)
        details = (f"loss {row.loss:.3f}", f"{row.tokens_per_second or 0:,.0f} tokens/s", f"{left} left")
    name = f"{_owner(layout.root / run.folder)} {run.title}, seed {run.seed}"
    return Progress(name, run.counted, row.done or 0, row.total or 0, details)


@cache
def _owner(folder: Path) -> str:
    """Return the first variant, or the model, that the run of a folder was planned for."""
    return (read_run_file(folder).owner if (folder / "run.json").exists() else "") or folder.name


def retry_failed(layout: Layout, runs: Iterable[Run], *, retry: bool) -> None:
    """Rename the errors of failed points to <name>.<n>.json so that the points run again, or print how to retry."""
    parts = (part for run in runs for part in run.parts(layout))
    failed = [part for part in parts if is_there(part.error) and not part.is_done]
    if retry:
        for part in failed:
            number = 1 + len(children(part.error.parent, f"{part.error.stem}.*.json"))
            with suppress(FileNotFoundError):  # another command that retries was faster
                part.error.rename(part.error.with_suffix(f".{number}.json"))
        logs().print(f"{len(failed)} failed point(s) run again; their errors are kept beside them, with a number")
    elif failed:
        logs().print("points that failed before stay failed: --retry-failed runs them again", markup=False)
