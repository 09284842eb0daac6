"""A course of training in one process, whatever is learned: the model at some step, restored, stepped and saved."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from neobert.grid.claims import Claim
from neobert.layout import Layout
from neobert.recipe import Contrastive, Optimization, Stage
from neobert.specifications import EngineWord, RunFile
from neobert.stopping import StopRequest
from neobert.training import checkpoints
from neobert.training.accounting import Totals
from neobert.training.ahead import ahead
from neobert.training.compiling import compile_seconds
from neobert.training.device import default_device
from neobert.training.engine import Engine
from neobert.training.loop import Step, StepBatches, training_steps
from neobert.training.processes import said_by_first
from neobert.training.schedule import learning_rate
from neobert.training.tasks import Process

MILESTONES = 4

MicroBatch = TypeVar("MicroBatch")


def engine_class(word: EngineWord, processes: int) -> type[Engine[Any]]:
    """The engine of a name; in one process there is nothing to split."""
    if processes == 1 or word in ("single", "ddp"):
        return Engine
    from neobert.training.zero import ZERO_ENGINES

    return ZERO_ENGINES[word]


class Course(ABC, Generic[MicroBatch]):
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
