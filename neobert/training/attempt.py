"""One go at a course of training, made by all of its processes together; the one with the claim writes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.errors import RunFailed
from neobert.files import append_line
from neobert.grid.claims import Claim
from neobert.stopping import StopRequest
from neobert.training.accounting import Totals, forget_peak_memory
from neobert.training.course import Course
from neobert.training.loop import Step
from neobert.training.processes import said_by_first
from neobert.training.tracing import traced

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


def attempt(trainer: Course[Any], stop: StopRequest, claim: Claim | None, folder: Path) -> Outcome:
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


def _train(trainer: Course[Any], stop: StopRequest, claim: Claim | None, folder: Path) -> Outcome:
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


def _steps(trainer: Course[Any], begun: int, stop: StopRequest, trace: Path | None) -> Iterator[Step]:
    steps, count = trainer.steps(begun, stop), trainer.run_file.execution.trace_steps
    return steps if trace is None or count == 0 else traced(steps, count, trace, trainer.device)


def _save(trainer: Course[Any], step: int, claim: Claim | None) -> None:
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
    trainer: Course[Any]
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
