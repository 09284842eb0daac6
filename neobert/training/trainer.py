"""An iterator's next items made in a thread, while the last ones are used."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, Generic, TypeVar

import torch

from neobert.errors import DamagedFile, RunFailed
from neobert.files import append_line, clear_temporaries, line_bytes, mend_lines, read_lines, replace_file, set_aside
from neobert.processes import Stopped, StopRequest
from neobert.recipe import Contrastive, Optimization, Stage
from neobert.runs.claims import Claim, acquire
from neobert.runs.layout import Layout
from neobert.runs.specifications import ContrastiveRun, EngineWord, PretrainingRun, RunFile, read_run_file
from neobert.training import checkpoints
from neobert.training.accounting import Totals, forget_peak_memory, traced
from neobert.training.checkpoints import Checkpoint
from neobert.training.compiling import compile_seconds
from neobert.training.distributed import Process, Task, default_device, helpers_here, hosted, said_by_first
from neobert.training.engine import Engine
from neobert.training.loop import Step, StepBatches, training_steps
from neobert.training.schedule import learning_rate

Item = TypeVar("Item")

DEPTH = 2
POLL_SECONDS = 0.05


class _End:
    """What comes behind the last item: the reason why there is none, None for the iterator's own end."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(items: Iterator[Item], depth: int = DEPTH) -> Iterator[Item]:
    """The same items, up to `depth` of them made before they are asked for; an error comes where it arose.

    Close the result, or let it go, to end the thread.
    """
    ready: Queue[Item | _End] = Queue(maxsize=depth)
    closing = threading.Event()
    thread = threading.Thread(target=_make, args=(items, ready, closing), name="ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        closing.set()
        with suppress(Empty):
            while True:
                ready.get_nowait()
        if threading.current_thread() is not thread:  # the collector may let go of the result in any thread
            thread.join()


def _make(items: Iterator[Item], ready: "Queue[Item | _End]", closing: threading.Event) -> None:
    error: BaseException | None = None
    try:
        for item in items:
            if not _put(item, ready, closing):
                return
    except BaseException as raised:
        error = raised
    _put(_End(error), ready, closing)


def _put(item: "Item | _End", ready: "Queue[Item | _End]", closing: threading.Event) -> bool:
    """Wait for room; whether there was any before the end."""
    while not closing.is_set():
        with suppress(Full):
            ready.put(item, timeout=POLL_SECONDS)
            return True
    return False


MILESTONES = 4

MicroBatch = TypeVar("MicroBatch")


def engine_class(word: EngineWord, processes: int) -> type[Engine[Any]]:
    """The engine of a name; in one process there is nothing to split."""
    if processes == 1 or word in ("single", "ddp"):
        return Engine
    from neobert.training.zero import ZERO_ENGINES

    return ZERO_ENGINES[word]


class Trainer(ABC, Generic[MicroBatch]):
    """Model, data and optimizer in one process, at some step of `stage`. Subclasses set `model` and `engine`."""

    model: torch.nn.Module
    engine: Engine[MicroBatch]
    stage: Stage | Contrastive

    def __init__(
        self, layout: Layout, run_file: RunFile, process: Process, folder: Path, optimization: Optimization, seed: int
    ) -> None:
        self.layout = layout
        self.run_file = run_file
        self.process = process
        self.folder = folder
        self.optimization = optimization
        self.seed = seed
        self.device = default_device()
        torch.set_num_threads(run_file.execution.threads)
        self.data_state: Mapping[str, Any] = {}
        self.totals = Totals()
        self.compiled = False
        self._compile_seconds = compile_seconds()

    @abstractmethod
    def begin(self) -> None:
        """Give model and optimizer the values that they start from."""

    @abstractmethod
    def go_to(self, data_state: Mapping[str, Any]) -> None:
        """Let the data continue from where `data_state` was taken."""

    @abstractmethod
    def data(self) -> Iterator[StepBatches[MicroBatch]]:
        """This process's share of every step that is left."""

    @abstractmethod
    def heldout_scores(self) -> dict[str, Any]:
        """What the curve notes of held-out data: `heldout_loss` in nats at least."""

    def arrange(self, compiled: bool | None) -> None:
        """Get ready to step; `compiled` is what earlier attempts did, None at the start."""

    def restore(self) -> int:
        """Continue from the newest valid checkpoint, else from where the stage begins; the number of steps done.

        What began compiled goes on compiled, and what did not does not: the same bits come out of it.
        """
        checkpoint = self.newest_checkpoint(self.folder / "checkpoints")
        if checkpoint is None:
            self.begin()
            self.arrange(None)
            return 0
        self.model.load_state_dict(checkpoint.weights())
        self.engine.adopt(checkpoint.optimizer())
        state = checkpoint.state()
        self.go_to(state["data"])
        self.data_state = state["data"]
        self.totals = Totals.restored(state["totals"])
        self.arrange(state.get("compiled", False))
        return checkpoint.step

    def newest_checkpoint(self, folder: Path) -> checkpoints.Checkpoint | None:
        """What the first process finds and verifies, for all processes."""
        found = checkpoints.newest(folder) if self.process.writes else None
        step = said_by_first(-1 if found is None else found.step, self.process, self.device)
        return None if step < 0 else found or checkpoints.at_step(folder, step)

    def learning_rate(self, step: int) -> float:
        """The rate of a step of this stage."""
        return learning_rate(
            step,
            peak=self.optimization.peak_learning_rate,
            warmup_steps=self.stage.warmup_steps,
            decay_steps=self.stage.decay_steps,
            floor_fraction=self.optimization.floor_fraction,
            shape=self.optimization.decay,
        )

    def steps(self, done: int, stop: StopRequest | None = None) -> Iterator[Step]:
        """The steps of the stage that are left, counted in the totals; `stop` as `training_steps` has it."""
        for step in training_steps(
            self.engine,
            ahead(self.data()),
            self.learning_rate,
            first=done + 1,
            last=self.stage.steps,
            seed=self.seed,
            process=self.process.rank,
            stop=stop,
        ):
            self.totals.add(step)
            self.count_compiling()
            self.data_state = step.data
            yield step

    def count_compiling(self) -> None:
        """Sizes that come for the first time are compiled within a step."""
        before, self._compile_seconds = self._compile_seconds, compile_seconds()
        self.totals.compile_seconds += self._compile_seconds - before

    def save(self, step: int, claim: Claim | None) -> None:
        """Write a checkpoint and drop what retention does not keep. All processes take part, who has the claim writes.

        Raises:
            ClaimLost: another process owns the run now.
        """
        tensors = self.engine.optimizer_tensors(wanted=claim is not None)
        if claim is None:
            return
        state = {"data": self.data_state, "totals": vars(self.totals), "step": step, "compiled": self.compiled}
        folder = self.folder / "checkpoints"
        checkpoints.save(folder, step, self.model.state_dict(), tensors, state, claim)
        checkpoints.prune(folder, self.milestones)

    @property
    def milestones(self) -> frozenset[int]:
        """Checkpoints that stay: the start, the end and equal parts between."""
        return frozenset(self.stage.steps * part // MILESTONES for part in range(MILESTONES + 1))


LOGGED_STEPS = 2000


@dataclass(frozen=True)
class Outcome:
    """How far an attempt came: it began after step `begun` and ended after `step` of `steps`.

    `optimizer_state_bytes` is what this process alone held, `compiled` whether its model was.
    """

    totals: Totals
    optimizer_state_bytes: int
    compiled: bool
    begun: int
    step: int
    steps: int


def attempt(trainer: Trainer[Any], stop: StopRequest, claim: Claim | None, folder: Path) -> Outcome:
    """Train to the end of the stage, or until a process is asked to stop; every process saves at the same steps.

    Args:
        claim: None in a process that only takes part.
        folder: gets the metrics of this attempt, and a trace where one is wanted.

    Raises:
        ClaimLost: another process owns the run now.
        RunFailed: a loss or gradient is not finite.
    """
    forget_peak_memory(trainer.device)
    try:
        return _train(trainer, stop, claim, folder)
    finally:
        trainer.engine.close()


def _train(trainer: Trainer[Any], stop: StopRequest, claim: Claim | None, folder: Path) -> Outcome:
    metrics = _Metrics(folder / "metrics.jsonl" if claim else None, trainer)
    begun = step = trainer.restore()
    if begun == 0:
        _save(trainer, 0, claim)
    for taken in _steps(trainer, begun, stop, folder / "trace.json" if claim else None):
        step = taken.number
        metrics.note(taken)
        stopping = stop.requested if trainer.process.count == 1 else taken.stop
        if step % trainer.run_file.execution.checkpoint_interval_steps == 0 or step in trainer.milestones or stopping:
            taken.measured()  # what is not finite is not saved
            metrics.write()
            _save(trainer, step, claim)
        if stopping:
            stop.request()  # where another process was asked, this one is from now on
            break
    metrics.write()
    if step == trainer.stage.steps:
        metrics.note_heldout_loss(step)
    held = trainer.engine.optimizer_state_bytes()
    return Outcome(trainer.totals, held, trainer.compiled, begun, step, trainer.stage.steps)


def _steps(trainer: Trainer[Any], begun: int, stop: StopRequest, trace: Path | None) -> Iterator[Step]:
    steps, count = trainer.steps(begun, stop), trainer.run_file.execution.trace_steps
    return steps if trace is None or count == 0 else traced(steps, count, trace, trainer.device)


def _save(trainer: Trainer[Any], step: int, claim: Claim | None) -> None:
    """Save together; where the first process cannot, the others learn it instead of waiting for it in vain."""
    saved = False
    try:
        trainer.save(step, claim)
        saved = True
    finally:
        first_saved = said_by_first(int(saved), trainer.process, trainer.device)
    if not first_saved:
        raise RunFailed(f"the first process could not save step {step}")


@dataclass
class _Metrics:
    """The lines of an attempt; without a path none are written, and nothing is computed for them.

    A step's line is written when the next step is under way, so that the device need not wait for the host.
    """

    path: Path | None
    trainer: Trainer[Any]
    pending: Step | None = None

    def note(self, step: Step) -> None:
        """A thinned-out curve of the loss, the same wherever attempts began, and the held-out loss at milestones."""
        self.write()
        steps = self.trainer.stage.steps
        if step.number % max(1, steps // LOGGED_STEPS) == 0 or step.number in (1, steps):
            self.pending = step
        if step.number in self.trainer.milestones and step.number < steps:
            self.write()
            self.note_heldout_loss(step.number)

    def write(self) -> None:
        """Write the line that is pending."""
        step, self.pending = self.pending, None
        if step is not None and self.path is not None:
            append_line(self.path, _line(step))

    def note_heldout_loss(self, step: int) -> None:
        if self.path is not None:
            append_line(self.path, {"step": step, **self.trainer.heldout_scores()})


def _line(step: Step) -> dict[str, Any]:
    measured = step.measured()
    return {
        "step": step.number,
        "loss": measured.loss,
        "learning_rate": step.learning_rate,
        "gradient_norm": measured.gradient_norm,
        "real_tokens": step.real_tokens,
        "slots": step.slots,
        "tokens_per_second": round(step.real_tokens / step.seconds, 3),
        "seconds": round(step.seconds, 6),
        "phase_seconds": {phase: round(seconds, 6) for phase, seconds in step.phase_seconds().items()},
    }


def with_processes_here(run_file: RunFile) -> RunFile:
    """The same with as many processes as this one's job has."""
    task = Task.of_environment(os.environ)
    count = task.process.count if task else run_file.execution.processes
    return run_file.model_copy(update={"execution": run_file.execution.with_processes(count)})


def train(
    layout: Layout,
    run_file: RunFile,
    course: Callable[[Process], Trainer[Any]],
    folder: Path,
    claim: Claim,
    stop: StopRequest,
) -> Outcome:
    """Train to the end, in one process, in those that SLURM started with this one, or in those started here.

    Raises:
        Stopped: `stop` asked to before the end; all that was done is saved.
    """
    (folder / "checkpoints").mkdir(exist_ok=True)
    clear_temporaries(folder / "checkpoints")
    outcome = _units_train(layout, run_file, course, folder, claim, stop)
    if outcome.step < outcome.steps:
        message = f"asked to stop; saved after step {outcome.step} of {outcome.steps}"
        raise Stopped(message, progressed=outcome.step > outcome.begun)
    claim.check()
    return outcome


def _units_train(
    layout: Layout,
    run_file: RunFile,
    course: Callable[[Process], Trainer[Any]],
    folder: Path,
    claim: Claim,
    stop: StopRequest,
) -> Outcome:
    count, task = run_file.execution.processes, Task.of_environment(os.environ)

    def go() -> Outcome:
        return attempt(course(Process(0, count)), stop, claim, folder / "attempts" / claim.token)

    if count == 1:
        return go()
    with (
        helpers_here(layout, run_file.id, count) if task is None else nullcontext(task) as first,
        hosted(layout, first, run_file.id, claim.number, run_file.execution, stop),
    ):
        return go()


def last_checkpoint(layout: Layout, run_id: str) -> Checkpoint:
    """What a finished stage of pre-training or contrastive fine-tuning ended with.

    Raises:
        DamagedFile: that is damaged or gone. It and the record are set aside, so that the run goes on from the newest
            checkpoint before it; an earlier one never stands for the last.
    """
    folder = layout.trained(run_id)
    run = read_run_file(folder).run
    assert isinstance(run, PretrainingRun | ContrastiveRun)
    steps = run.recipe.stages[-1].steps if isinstance(run, PretrainingRun) else run.protocol.steps
    path = checkpoints.folder_of(folder / "checkpoints", steps)
    if checkpoints.is_valid(path):
        return Checkpoint(path, steps)
    claim = acquire(layout.claims(run_id))
    if claim is not None:
        with claim:  # looked at again: somebody may have trained it meanwhile
            damaged = [] if checkpoints.is_valid(path) else [folder / "done.json", path]
            for each in filter(os.path.lexists, damaged):
                set_aside(each, f"{path}, the last checkpoint, does not match its checksums")
    before = checkpoints.newest(folder / "checkpoints")
    raise DamagedFile(
        f"the last checkpoint of run {run_id} is damaged or gone: its own command trains it again from step "
        f"{before.step if before else 0} of {steps}"
    )


def merge_metrics(folder: Path) -> list[dict[str, Any]]:
    """One metrics.jsonl of all attempts: of lines for the same step the last attempt's counts.

    Files with damaged lines are set aside and go in without them.
    """
    lines: dict[tuple[int, bool], Any] = {}
    for path in sorted((folder / "attempts").glob("*/metrics.jsonl")):
        mend_lines(path, "step")
        for line in read_lines(path, "step"):
            lines[line["step"], "loss" in line] = line
    ordered = [lines[key] for key in sorted(lines)]
    replace_file(folder / "metrics.jsonl", b"".join(map(line_bytes, ordered)))
    return ordered


def training_loss(metrics: list[dict[str, Any]], steps: int) -> float | None:
    """The loss of the last step; None where its line was damaged."""
    return next((line["loss"] for line in metrics if line["step"] == steps and "loss" in line), None)
