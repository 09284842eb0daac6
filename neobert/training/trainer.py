"""The training loop of every objective: restore, step, log, save and stop in all ranks together.

Every rank makes the same `Trainer` and calls `fit`. Only rank 0 writes metrics and checkpoints.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from neobert.errors import RunFailed
from neobert.execution import Execution, utc_now
from neobert.files import append_line
from neobert.processes import StopRequest, available_cores
from neobert.recipe import Contrastive, EngineWord, Optimization, Stage
from neobert.training import checkpoints
from neobert.training.accounting import Totals, TrainResult, forget_peak_memory
from neobert.training.checkpoints import Checkpoint
from neobert.training.compiling import compile_seconds, compiling_in_one_sentence
from neobert.training.distributed import Process, broadcast_from_rank0, choose_kernels, default_device, sum_over_ranks
from neobert.training.engine import Engine, Step, StepBatches, seed_step
from neobert.training.schedule import milestones, scheduled_rate

LOGGED_STEPS = 2000
PREFETCHED_STEPS = 2


Track = Callable[[int, Mapping[str, Any]], None]
"""Gets the numbers of a step besides the file of metrics."""

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
    end: Any = object()
    executor = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    try:
        pending = deque(executor.submit(next, items, end) for _ in range(depth))
        while (item := pending.popleft().result()) is not end:
            pending.append(executor.submit(next, items, end))
            yield item
    finally:
        # Without waiting: the garbage collector may close this in the executor's own thread, which cannot join itself.
        executor.shutdown(wait=False, cancel_futures=True)


class Trainer(ABC, Generic[MicroBatch]):
    """A training run in one rank: model, data and optimizer at some step of `stage`.

    Subclasses set `model`, `engine` and `stage`, and provide weights and data. Checkpoints are below `folder`.
    """

    model: torch.nn.Module
    engine: Engine[MicroBatch]
    stage: Stage | Contrastive

    def __init__(
        self, folder: Path, execution: Execution, process: Process, optimization: Optimization, seed: int
    ) -> None:
        self.checkpoints = folder / "checkpoints"
        self.execution = execution
        self.process = process
        self.optimization = optimization
        self.seed = seed
        choose_kernels(execution.deterministic)
        self.device = default_device()
        torch.set_num_threads(min(execution.threads, available_cores()))
        self.data_state: Mapping[str, Any] = {}
        self.totals = Totals()
        self.started_at: str | None = None
        self.compiled = False
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
        """Let the model be compiled if requested. `began_compiled`: whether earlier attempts did; None in the first."""

    def fit(
        self,
        metrics: Path,
        stop: StopRequest | None = None,
        *,
        check: Callable[[], None] = lambda: None,
        track: Track = lambda step, values: None,
    ) -> TrainResult:
        """Train to the end of the stage, or until any rank is asked to stop; all ranks save after the same steps.

        Args:
            metrics: folder in which rank 0 writes metrics.jsonl.
            check: called by rank 0 before each checkpoint is published; what it raises ends the training.
            track: is called with step and values of the same metrics.

        Raises:
            RunFailed: a loss or gradient is not finite.
        """
        stop = stop or StopRequest()
        forget_peak_memory(self.device)
        with closing(self.engine):
            log = _MetricsLog(metrics / "metrics.jsonl" if self.process.writes else None, self, track)
            begun = step = self.restore()
            if begun == 0:
                self._save_together(0, check)
            steps = self.steps(begun, stop)
            stopping = sum_over_ranks(int(stop.requested), self.process, self.device) > 0
            while not stopping and (taken := next(steps, None)) is not None:
                step = taken.number
                log.note(taken)
                stopping = stop.requested if self.process.count == 1 else taken.stop
                if step in self.milestones or stopping or self._save_is_due(step):
                    taken.measured()  # raises if not finite, before anything is saved
                    log.write()
                    self._save_together(step, check)
            if stopping:
                stop.request()  # the request may have come from another rank
            log.write()
            heldout = log.note_heldout_loss(step) if step == self.stage.steps else None
            return TrainResult(
                totals=self.totals,
                execution=self.execution,
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
        """Train the remaining steps, add them to the totals, and yield each.

        A step's metrics are read once the next one has been launched, so that the device always has work. A `stop`
        requested in any process is agreed on within two steps; the caller then saves and ends.

        Raises:
            RunFailed: a loss or gradient is not finite; names the step, the weights are those of the step before.
        """
        self.engine.model.train()
        data, previous = prefetch(self.data()), None
        for number in range(done + 1, self.stage.steps + 1):
            started = time.perf_counter()
            batches = next(data)
            seed_step(self.seed, number, self.process.rank)
            rate = self.learning_rate(number)
            with compiling_in_one_sentence():
                update = self.engine.step(batches.micro_batches, rate, stop=stop is not None and stop.requested)
            agreed = previous is not None and previous.measured().stop
            previous = Step(
                number=number,
                learning_rate=rate,
                real_tokens=batches.real_tokens,
                slots=batches.slots,
                attended_tokens=batches.attended_tokens,
                seconds=time.perf_counter() - started,
                stop=agreed,
                update=update,
            )
            compiling, self._compile_seconds = compile_seconds() - self._compile_seconds, compile_seconds()
            self.totals.add(previous, compiling)
            self.data_state = batches.state
            yield previous
        if previous is not None:
            previous.measured()

    def _save_is_due(self, step: int) -> bool:
        """Whether a checkpoint follows the step, by the clock of rank 0; the same in all ranks."""
        execution = self.execution
        if step % execution.checkpoint_interval_steps:
            return False
        is_old = time.monotonic() - self._saved_at >= execution.checkpoint_interval_seconds
        return bool(broadcast_from_rank0(int(is_old), self.process, self.device))

    def _save_together(self, step: int, check: Callable[[], None]) -> None:
        """Save in all ranks; if rank 0 fails, the others raise instead of hanging."""
        self._saved_at = started = time.monotonic()
        broadcast_from_rank0(1, self.process, self.device)  # raises if the step's own collectives were aborted
        saved = False
        try:
            self.save(step, check)
            saved = True
        finally:
            first_saved = broadcast_from_rank0(int(saved), self.process, self.device)
        if not first_saved:
            raise RunFailed(f"rank 0 could not save step {step}")
        self.totals.checkpoint_seconds += time.monotonic() - started

    def save(self, step: int, check: Callable[[], None] = lambda: None) -> None:
        """Write a checkpoint and prune old ones. All ranks take part; rank 0 writes. `check` is called before it
        publishes."""
        tensors = self.engine.optimizer_tensors(wanted=self.process.writes)
        if not self.process.writes:
            return
        weights, moments = _copied(self.model.state_dict()), _copied(tensors)
        state = {
            "data": self.data_state,
            "totals": dict(vars(self.totals)),
            "step": step,
            "compiled": self.compiled,
            "started_at": self.started_at,
        }
        checkpoints.save(self.checkpoints, step, weights, moments, state, check)
        checkpoints.prune(self.checkpoints, self.milestones, step)

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
    track: Track
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
        }
        self._append(self.path, step.number, "step", values)

    def note_heldout_loss(self, step: int) -> dict[str, Any] | None:
        if self.path is None:
            return None
        scores = self.trainer.heldout_scores()
        self._append(self.path, step, "heldout", scores)
        return scores

    def _append(self, path: Path, step: int, event: str, values: Mapping[str, Any]) -> None:
        append_line(path, {"step": step, "event": event, **values})
        self.track(step, values)
