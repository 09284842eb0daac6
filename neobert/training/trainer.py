"""Training runs: restore, step, log, save and stop in all ranks together, and the files of finished runs.

Every rank makes the same `Trainer` and calls `fit`. Only rank 0 owns the claim of the run and writes metrics and
checkpoints. Rank 0 enters through `train`, the others through `join_runs`.
"""

import logging
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch.distributed import DistError

from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED, DamagedFile, RunFailed
from neobert.files import (
    append_line,
    clear_temporaries,
    is_there,
    line_bytes,
    matching,
    mend_lines,
    read_lines,
    replace_file,
    set_aside,
)
from neobert.processes import Stopped, StopRequest, available_cores
from neobert.recipe import Contrastive, EngineWord, Optimization, Stage
from neobert.runs.claims import Claim, acquire
from neobert.runs.layout import Layout
from neobert.runs.records import utc_now
from neobert.runs.run_file import RunFile, read_run_file
from neobert.runs.tracking import Tracker
from neobert.runs.work import write_failure
from neobert.training import checkpoints
from neobert.training.accounting import Totals, TrainResult, forget_peak_memory, traced
from neobert.training.checkpoints import Checkpoint
from neobert.training.compiling import compile_seconds
from neobert.training.distributed import (
    TIMEOUT,
    JobRank,
    Process,
    Rendezvous,
    StartedRun,
    broadcast_from_rank0,
    choose_kernels,
    default_device,
    find_rendezvous,
    has_ended,
    hosted_rendezvous,
    start_ranks_here,
    sum_over_ranks,
)
from neobert.training.engine import Engine
from neobert.training.loop import Step, StepBatches, training_steps
from neobert.training.schedule import milestones, scheduled_rate

logger = logging.getLogger(__name__)

LOGGED_STEPS = 2000
PREFETCHED_STEPS = 2

Item = TypeVar("Item")
MicroBatch = TypeVar("MicroBatch")


def engine_class(word: EngineWord, processes: int) -> type[Engine[Any]]:
    """Return the engine class of a name; with one process always the plain `Engine`."""
    if processes == 1 or word in ("single", "ddp"):
        return Engine
    from neobert.training.zero import ZERO_ENGINES

    return ZERO_ENGINES[word]


def prefetch(items: Iterator[Item], depth: int = PREFETCHED_STEPS) -> Iterator[Item]:
    """Yield the same items, `depth` of them prepared ahead in a thread; errors are raised at the item that failed.

    Close or drop the generator to end the thread.
    """
    end = object()
    executor = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    makers: set[int] = set()

    def make() -> Any:
        makers.add(threading.get_ident())
        return next(items, end)

    try:
        pending = deque(executor.submit(make) for _ in range(depth))
        while (item := pending.popleft().result()) is not end:
            pending.append(executor.submit(make))
            yield item
    finally:
        # The garbage collector may close this in any thread, even in the executor's own, which cannot join itself.
        executor.shutdown(wait=threading.get_ident() not in makers, cancel_futures=True)


class Trainer(ABC, Generic[MicroBatch]):
    """A training run in one rank: model, data and optimizer at some step of `stage`.

    Subclasses set `model`, `engine` and `stage`, and provide weights and data.
    """

    model: torch.nn.Module
    engine: Engine[MicroBatch]
    stage: Stage | Contrastive

    def __init__(
        self, layout: Layout, run_file: RunFile, process: Process, optimization: Optimization, seed: int
    ) -> None:
        self.layout = layout
        self.run_file = run_file
        self.process = process
        self.checkpoints = layout.trained(run_file.id) / "checkpoints"
        self.optimization = optimization
        self.seed = seed
        choose_kernels(run_file.execution.deterministic)
        self.device = default_device()
        torch.set_num_threads(min(run_file.execution.threads, available_cores()))
        self.data_state: Mapping[str, Any] = {}
        self.totals = Totals()
        self.started_at: str | None = None
        self.compiled = False
        self.writer = checkpoints.Writer()
        self._compile_seconds = compile_seconds()
        self._saved_at = time.monotonic()

    @abstractmethod
    def begin(self) -> None:
        """Set model and optimizer to their initial values."""

    @abstractmethod
    def restore_data(self, state: Mapping[str, Any]) -> None:
        """Continue the data from `state`."""

    @abstractmethod
    def data(self) -> Iterator[StepBatches[MicroBatch]]:
        """Yield this rank's share of every remaining step."""

    @abstractmethod
    def heldout_scores(self) -> dict[str, Any]:
        """Return the scores on held-out data, `heldout_loss` in nats among them, for the metrics and the record."""

    def compile(self, began_compiled: bool | None) -> None:
        """Compile the model if requested. `began_compiled`: whether earlier attempts did; None in the first."""

    def fit(self, stop: StopRequest, claim: Claim | None, folder: Path, tracker: Tracker | None = None) -> TrainResult:
        """Train to the end of the stage, or until any rank is asked to stop; all ranks save after the same steps.

        Args:
            claim: None in all ranks but rank 0.
            folder: for the metrics of this attempt and, if requested, its trace.
            tracker: gets the same metrics.

        Raises:
            ClaimLost: another process owns the run now.
            RunFailed: a loss or gradient is not finite.
        """
        forget_peak_memory(self.device)
        with closing(self.engine), closing(self.writer):
            execution = self.run_file.execution
            log = _MetricsLog(folder / "metrics.jsonl" if claim else None, self, tracker)
            begun = step = self.restore()
            if begun == 0:
                self._save_together(0, claim)
            steps = self.steps(begun, stop)
            if claim and execution.trace_steps:
                steps = traced(steps, execution.trace_steps, folder / "trace.json", self.device)
            stopping = sum_over_ranks(int(stop.requested), self.process, self.device) > 0
            while not stopping and (taken := next(steps, None)) is not None:
                step = taken.number
                log.note(taken)
                stopping = stop.requested if self.process.count == 1 else taken.stop
                has_to = step in self.milestones or stopping
                if has_to or self._save_is_due(step):
                    taken.measured()  # raises if not finite, before anything is saved
                    log.write()
                    self._save_together(step, claim, wait=has_to or not execution.checkpoint_interval_seconds)
            if stopping:
                stop.request()  # the request may have come from another rank
            log.write()
            heldout = log.note_heldout_loss(step) if step == self.stage.steps else None
            return TrainResult(
                totals=self.totals,
                execution=execution,
                optimizer_state_bytes=self.engine.optimizer_state_bytes(),
                compiled=self.compiled,
                begun=begun,
                step=step,
                steps=self.stage.steps,
                heldout=heldout,
                started_at=self.started_at,
            )

    def restore(self) -> int:
        """Continue from the newest valid checkpoint, else from the stage's beginning; return the number of steps done.

        A run that began compiled resumes compiled, and an eager one eagerly, so resuming is bit-exact on a CPU. On CUDA
        gradients of embeddings and flash attention are summed in any order, unless the run is `deterministic`.
        """
        checkpoint = self.newest_checkpoint(self.checkpoints)
        if checkpoint is None:
            self.started_at = utc_now()
            self.begin()
            self.compile(None)
            return 0
        self.model.load_state_dict(checkpoint.weights())
        self.engine.restore_optimizer(checkpoint.optimizer())
        state = checkpoint.state()
        self.restore_data(state["data"])
        self.data_state = state["data"]
        self.totals = Totals(**state["totals"])
        self.started_at = state["started_at"]
        self.compile(state["compiled"])
        return checkpoint.step

    def newest_checkpoint(self, folder: Path) -> Checkpoint | None:
        """Return the checkpoint that rank 0 has found and verified, in all ranks."""
        found = checkpoints.newest(folder) if self.process.writes else None
        step = broadcast_from_rank0(-1 if found is None else found.step, self.process, self.device)
        return None if step < 0 else found or Checkpoint(checkpoints.folder_of(folder, step), step)

    def learning_rate(self, step: int) -> float:
        return scheduled_rate(step, self.optimization, self.stage)

    def steps(self, done: int, stop: StopRequest | None = None) -> Iterator[Step]:
        """Train the remaining steps, add them to the totals, and yield each; `stop` as in `training_steps`."""
        for step in training_steps(
            self.engine,
            prefetch(self.data()),
            self.learning_rate,
            first=done + 1,
            last=self.stage.steps,
            seed=self.seed,
            process=self.process.rank,
            stop=stop,
        ):
            self.totals.add(step)
            self.count_compile_seconds()
            self.data_state = step.data
            yield step

    def count_compile_seconds(self) -> None:
        """Add the time spent compiling since the last call, as new shapes are compiled within a step."""
        before, self._compile_seconds = self._compile_seconds, compile_seconds()
        self.totals.compile_seconds += self._compile_seconds - before

    def _save_is_due(self, step: int) -> bool:
        """Whether a checkpoint follows the step, by the clock of rank 0; the same in all ranks."""
        execution = self.run_file.execution
        if step % execution.checkpoint_interval_steps:
            return False
        is_old = time.monotonic() - self._saved_at >= execution.checkpoint_interval_seconds
        return bool(broadcast_from_rank0(int(is_old), self.process, self.device))

    def _save_together(self, step: int, claim: Claim | None, *, wait: bool = True) -> None:
        """Save in all ranks; if rank 0 fails, the others raise instead of hanging. Without `wait` training goes on
        while rank 0 writes, and a failure is raised at the next checkpoint."""
        self._saved_at = started = time.monotonic()
        broadcast_from_rank0(1, self.process, self.device)  # raises if the step's own collectives were aborted
        saved = False
        try:
            self.save(step, claim, wait=wait)
            saved = True
        finally:
            first_saved = broadcast_from_rank0(int(saved), self.process, self.device)
        if not first_saved:
            raise RunFailed(f"rank 0 could not save step {step}")
        self.totals.checkpoint_seconds += time.monotonic() - started

    def save(self, step: int, claim: Claim | None, *, wait: bool = True) -> None:
        """Write a checkpoint and prune old ones. All ranks take part; the owner of the claim writes, from copies, so
        that it need not `wait` for the end. Raises ClaimLost if another process owns the run now."""
        tensors = self.engine.optimizer_tensors(wanted=claim is not None)
        if claim is None:
            return
        self.writer.finish()  # before copying, so that two checkpoints are never in memory
        weights, moments = _copied(self.model.state_dict()), _copied(tensors)
        state = {
            "data": self.data_state,
            "totals": dict(vars(self.totals)),
            "step": step,
            "compiled": self.compiled,
            "started_at": self.started_at,
        }

        def write() -> None:
            checkpoints.save(self.checkpoints, step, weights, moments, state, claim)
            checkpoints.prune(self.checkpoints, self.milestones, step)

        self.writer.start(write)
        if wait:
            self.writer.finish()

    @cached_property
    def milestones(self) -> frozenset[int]:
        """Steps whose checkpoints are kept."""
        return milestones(self.stage.steps)


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return contiguous copies on the CPU, which share no memory; tied embeddings do."""
    contiguous = torch.contiguous_format
    return {name: tensor.to("cpu", copy=True, memory_format=contiguous) for name, tensor in tensors.items()}


@dataclass
class _MetricsLog:
    """Metrics of an attempt as JSON lines; without a path nothing is computed or written.

    A step's line is written once the next step has been launched, so that the device need not wait for the host.
    """

    path: Path | None
    trainer: Trainer[Any]
    tracker: Tracker | None = None
    pending: Step | None = None

    def note(self, step: Step) -> None:
        """Log a subset of steps that does not depend on where attempts began, and the held-out loss at milestones."""
        self.write()
        steps = self.trainer.stage.steps
        if step.number % max(1, steps // LOGGED_STEPS) == 0 or step.number in (1, steps):
            self.pending = step
        if step.number in self.trainer.milestones and step.number < steps:
            self.write()
            self.note_heldout_loss(step.number)

    def write(self) -> None:
        step, self.pending = self.pending, None
        if step is None or self.path is None:
            return
        measured = step.measured()
        values = {
            "loss": measured.loss,
            "learning_rate": step.learning_rate,
            "gradient_norm": measured.gradient_norm,
            "real_tokens": step.real_tokens,
            "slots": step.slots,
            "tokens_per_second": round(step.real_tokens / step.seconds, 3),
            "seconds": round(step.seconds, 6),
            "phase_seconds": {phase: round(seconds, 6) for phase, seconds in step.phase_seconds().items()},
        }
        self._append(self.path, step.number, values)

    def note_heldout_loss(self, step: int) -> dict[str, Any] | None:
        if self.path is None:
            return None
        scores = self.trainer.heldout_scores()
        self._append(self.path, step, scores)
        return scores

    def _append(self, path: Path, step: int, values: Mapping[str, Any]) -> None:
        append_line(path, {"step": step, **values})
        if self.tracker is not None:
            self.tracker.log(step, values)


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
    with ExitStack() as ranks, closing(Tracker(layout, run_file, part)) as tracker:
        if count > 1:
            rendezvous = rendezvous or ranks.enter_context(start_ranks_here(layout, run_file.id, count))

            def on_peer_failure(reason: str) -> None:
                write_failure(part, claim, RunFailed(reason))

            ranks.enter_context(rendezvous.lead(run_file.id, execution, stop, on_peer_failure))
        trainer = make_trainer(run_file, Process(0, count))
        result = trainer.fit(stop, claim, folder / "attempts" / claim.token, tracker)
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
        rendezvous = find_rendezvous(layout, place, timeout)
        while rendezvous and (run := rendezvous.next_run()):
            _join_run(layout, rendezvous, run, stop, make_trainer)
    except DistError as error:
        if has_ended(layout, place):
            return EXIT_DONE
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
            make_trainer(layout, run_file, process).fit(stop, None, folder)
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
    """Merge the metrics of all attempts into one metrics.jsonl; for each step the last attempt's line is kept.

    Files with damaged lines are set aside, and their other lines are merged.
    """
    lines: dict[tuple[int, bool], Any] = {}
    for path in matching(folder / "attempts", "*/metrics.jsonl"):
        mend_lines(path, "step")
        for line in read_lines(path, "step"):
            lines[line["step"], "loss" in line] = line
    ordered = [lines[key] for key in sorted(lines)]
    replace_file(folder / "metrics.jsonl", b"".join(map(line_bytes, ordered)))
    return ordered


def training_loss(metrics: list[dict[str, Any]], steps: int) -> float | None:
    """Return the loss of the last step; None if its line was damaged."""
    return next((line["loss"] for line in metrics if line["step"] == steps and "loss" in line), None)
