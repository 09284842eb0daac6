"""Training runs: attempts under a claim in all ranks, and the files of finished runs.

Rank 0 owns the claim of the run and enters through `train`, the others through `join_runs`.
"""

import logging
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistError

from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED, DamagedFile, RunFailed
from neobert.executors.ranks import (
    TIMEOUT,
    JobRank,
    Rendezvous,
    StartedRun,
    find_rendezvous,
    hosted_rendezvous,
    start_ranks_here,
)
from neobert.files import clear_temporaries, is_there, line_bytes, matching, read_lines, replace_file, set_aside
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import Claim, acquire
from neobert.runs.layout import Layout
from neobert.runs.records import timed_provenance
from neobert.runs.run_file import RunFile, read_run_file
from neobert.runs.tracking import TrackedPart
from neobert.runs.work import write_failure
from neobert.training import checkpoints
from neobert.training.accounting import TrainResult, attention_record
from neobert.training.checkpoints import Checkpoint
from neobert.training.distributed import Process
from neobert.training.trainer import Trainer

logger = logging.getLogger(__name__)


def train(
    layout: Layout,
    run_file: RunFile,
    make_trainer: Callable[[RunFile, Process], Trainer[Any]],
    claim: Claim,
    stop: StopRequest,
) -> TrainResult:
    """Train a run to its end: in this process, with the other ranks of its job, or with ranks started here.

    `make_trainer` is called with the actual number of ranks in the run's execution.

    Raises:
        Stopped: `stop` was requested before the end; all progress is saved.
    """
    folder = layout.trained(run_file.id)
    (folder / "checkpoints").mkdir(exist_ok=True)
    clear_temporaries(folder / "checkpoints")
    rendezvous = hosted_rendezvous()
    count = rendezvous.process.count if rendezvous else run_file.execution.processes
    execution = run_file.execution.with_processes(count)
    run_file = run_file.model_copy(update={"execution": execution})
    (part,) = run_file.run.parts(layout)
    with ExitStack() as ranks, closing(TrackedPart(layout, run_file, part)) as tracker:
        if count > 1:
            rendezvous = rendezvous or ranks.enter_context(start_ranks_here(layout, run_file.id, count))

            def on_peer_failure(reason: str) -> None:
                write_failure(part, claim, RunFailed(reason))

            ranks.enter_context(rendezvous.lead(run_file.id, execution, stop, on_peer_failure))
        trainer = make_trainer(run_file, Process(0, count))
        attempt = folder / "attempts" / claim.token
        result = trainer.fit(attempt, stop, check=claim.check, track=tracker.log)
    if result.step < result.steps:
        message = f"asked to stop; saved after step {result.step} of {result.steps}"
        raise Stopped(message, progressed=result.step > result.begun)
    claim.check()
    return result


def join_runs(
    layout: Layout,
    place: JobRank,
    stop: StopRequest,
    make_trainer: Callable[[Layout, RunFile, Process], Trainer[Any]],
    timeout: timedelta = TIMEOUT,
) -> int:
    """Join every run that rank 0 starts, until it announces the end; return the exit code. For non-zero ranks.

    `make_trainer` returns the trainer of a run in this rank.

    Errors that all ranks agree on (a loss that is not finite, a failed save) end the run, but not this process. Any
    other error ends the process, because only that closes its connections; the others would wait for their time-out.
    A stop request reaches the other ranks within two steps. Between runs it is ignored: rank 0 decides when to end.
    """
    try:
        rendezvous = find_rendezvous(place, timeout)
        while run := rendezvous.next_run():
            _join_run(layout, rendezvous, run, stop, make_trainer)
    except DistError as error:
        logger.error(f"{place} gives up: rank 0 died ({error})")
        return EXIT_RUN_FAILED
    except RunFailed as error:
        logger.error(error)
        return EXIT_RUN_FAILED
    return EXIT_DONE


def _join_run(
    layout: Layout,
    rendezvous: Rendezvous,
    run: StartedRun,
    stop: StopRequest,
    make_trainer: Callable[[Layout, RunFile, Process], Trainer[Any]],
) -> None:
    folder, process = layout.trained(run.id), rendezvous.process
    where = f"process {process.rank} of {process.count}, run {run.id}"
    try:
        run_file = read_run_file(folder).model_copy(update={"execution": run.execution})
        with rendezvous.join(run):
            make_trainer(layout, run_file, process).fit(folder, stop)
    except Exception as error:
        if type(error) is not RunFailed:
            traceback.print_exception(error)
            raise RunFailed(f"{where} ends: {error}") from error
        logger.error(f"{where}: {error}")


def last_checkpoint(layout: Layout, run_id: str) -> Checkpoint:
    """Return the last checkpoint of a finished stage of pre-training or contrastive fine-tuning.

    Raises:
        DamagedFile: it is damaged or gone. It and the record are set aside, so that the run resumes from the newest
            checkpoint before it; an earlier checkpoint never replaces the last one.
        OSError: it cannot be read; nothing is set aside.
    """
    folder = layout.trained(run_id)
    steps = read_run_file(folder).run.total
    assert steps is not None, f"{run_id} trains no model"
    path = checkpoints.folder_of(folder / "checkpoints", steps)
    if checkpoints.is_valid(path):
        return Checkpoint(path, steps)
    claim = acquire(layout.claims(run_id))
    if claim is not None:
        with claim:  # check again: another process may have trained it meanwhile
            damaged = [] if checkpoints.is_valid(path) else [folder / "done.json", path]
            for each in (each for each in damaged if is_there(each, follow=False)):
                set_aside(each, f"{path}, the last checkpoint, does not match its checksums")
    before = checkpoints.newest(folder / "checkpoints")
    raise DamagedFile(
        f"the last checkpoint of run {run_id} is damaged or gone: its own command trains it again from step "
        f"{before.step if before else 0} of {steps}"
    )


def merge_metrics(folder: Path) -> list[dict[str, Any]]:
    """Merge the metrics of all attempts into one metrics.jsonl; of each step and event the last attempt's line is kept.

    Damaged lines are left out.
    """
    lines: dict[tuple[int, str], Any] = {}
    for path in matching(folder / "attempts", "*/metrics.jsonl"):
        for line in read_lines(path, "step"):
            lines[line["step"], _event_of(line)] = line
    ordered = [lines[key] for key in sorted(lines)]
    replace_file(folder / "metrics.jsonl", b"".join(map(line_bytes, ordered)))
    return ordered


def _event_of(line: Mapping[str, Any]) -> str:
    """Return what a line measured: "step" or "heldout". Attempts of earlier versions wrote no event."""
    return str(line.get("event", "step" if "loss" in line else "heldout"))


def training_loss(metrics: list[dict[str, Any]], steps: int) -> float | None:
    """Return the loss of the last step; None if its line was damaged."""
    return next((line["loss"] for line in metrics if line["step"] == steps and _event_of(line) == "step"), None)


def machine_record(result: TrainResult, device: torch.device) -> dict[str, Any]:
    """Return the record's keys about hardware, kernels and environment."""
    seconds = result.totals.seconds + result.totals.checkpoint_seconds
    hours = seconds / 3600 * result.execution.processes
    return {
        "gpu_hours": hours if device.type == "cuda" else 0.0,
        **attention_record(device),
        "threads": torch.get_num_threads(),
        "processes": result.execution.processes,
        "engine": result.execution.engine,
        "optimizer_state_bytes": result.optimizer_state_bytes,
        **timed_provenance(result.started_at),
    }
