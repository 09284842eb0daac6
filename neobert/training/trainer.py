"""A stage of pre-training in one process: model, data and optimizer at some step of it."""

import math
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neobert.data.batching import Batch, StepIterator, heldout_batches
from neobert.data.preparation import tokenized_corpus
from neobert.data.tokenized import TokenizedCorpus
from neobert.data.views import Documents, all_documents
from neobert.errors import MissingData
from neobert.evaluation.heldout import heldout_loss
from neobert.grid.claims import Claim
from neobert.layout import Layout
from neobert.model.build import build_masked_language_model, initialize
from neobert.specifications import EngineWord, PretrainingRun, RunFile
from neobert.stopping import StopRequest
from neobert.training import checkpoints
from neobert.training.accounting import Totals
from neobert.training.ahead import ahead
from neobert.training.compiling import Trial, compile_seconds, compiled, pays
from neobert.training.device import default_device
from neobert.training.engine import Engine
from neobert.training.feeding import Feeding
from neobert.training.loop import Step, training_steps
from neobert.training.processes import said_by_first
from neobert.training.schedule import learning_rate
from neobert.training.tasks import Process

HELDOUT_DOCUMENTS = 256
MILESTONES = 4


def summed_loss(network: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Cross-entropy summed over the predicted tokens of a micro-batch."""
    loss: torch.Tensor = network(batch.token_ids, batch.plan, batch.slots, batch.targets)
    return loss


def predicted_tokens(batch: Batch) -> int:
    """What the loss is normalised by."""
    return batch.predicted_tokens


def engine_class(word: EngineWord, processes: int) -> type[Engine[Batch]]:
    """The engine of a name; in one process there is nothing to split."""
    if processes == 1 or word in ("single", "ddp"):
        return Engine
    from neobert.training.zero import ZERO_ENGINES

    return ZERO_ENGINES[word]


class Trainer:
    """Model, data and optimizer of a stage in one process, at some step of it."""

    def __init__(
        self, layout: Layout, run_file: RunFile, process: Process, corpus: TokenizedCorpus | None = None
    ) -> None:
        assert run_file.pretraining is not None
        self.layout = layout
        self.run_file = run_file
        self.run: PretrainingRun = run_file.pretraining
        self.process = process
        self.device = default_device()
        torch.set_num_threads(run_file.execution.threads)
        recipe = self.run.recipe
        self.stage = recipe.stages[-1]
        self.folder = layout.pretraining(self.run.id)
        self.corpus = corpus or tokenized_corpus(layout, self.run, run_file.source)
        self.model = build_masked_language_model(recipe.model, self.run.context)
        engine = engine_class(run_file.execution.engine, process.count)
        self.engine = engine(
            self.model, summed_loss, predicted_tokens, recipe.optimization, recipe.precision, self.device
        )
        self.rows = StepIterator(
            self.training_documents, self.stage, recipe.packing, seed=recipe.seed, stage_number=self.run.stage
        )
        self.data_state: Mapping[str, Any] = self.rows.state()
        self.totals = Totals()
        self.compiled = False
        self._compile_seconds = compile_seconds()

    @property
    def training_documents(self) -> Documents:
        """What the run may train on: all but the held-out documents."""
        return all_documents(self.corpus).split_heldout()[0]

    @cached_property
    def heldout(self) -> list[Batch]:
        """The held-out documents under fixed masks."""
        documents = all_documents(self.corpus).split_heldout()[1]
        return list(
            heldout_batches(documents, self.stage.context, self._rows_per_micro_batch, most_documents=HELDOUT_DOCUMENTS)
        )

    @property
    def _rows_per_micro_batch(self) -> int:
        return max(1, self.run_file.execution.micro_batch_tokens // self.stage.context)

    def restore(self) -> int:
        """Continue from the newest valid checkpoint, else from where the stage begins; the number of steps done.

        What began compiled goes on compiled, and what did not does not: the same bits come out of it.
        """
        checkpoint = self._newest_checkpoint(self.folder / "checkpoints")
        if checkpoint is None:
            self._begin()
            self._compile(self._compile_pays())
            return 0
        self.model.load_state_dict(checkpoint.weights())
        self.engine.adopt(checkpoint.optimizer())
        state = checkpoint.state()
        self.rows.restore(state["data"])
        self.data_state = state["data"]
        self.totals = Totals.restored(state["totals"])
        self._compile(self._began_compiled(state))
        return checkpoint.step

    def _began_compiled(self, state: Mapping[str, Any]) -> bool:
        began = bool(state.get("compiled", False))
        word = self.run_file.execution.compile
        if self.process.writes and word == ("off" if began else "on"):
            form = "compiled" if began else "without compiling"
            print(f"run {self.run.id} goes on {form}, as it began: --compile {word} is for new runs", file=sys.stderr)
        return began

    def _newest_checkpoint(self, folder: Path) -> checkpoints.Checkpoint | None:
        """What the first process finds and verifies, for all processes."""
        found = checkpoints.newest(folder) if self.process.writes else None
        step = said_by_first(-1 if found is None else found.step, self.process, self.device)
        return None if step < 0 else found or checkpoints.at_step(folder, step)

    def _begin(self) -> None:
        """Weights and optimizer state of the previous stage, or fresh weights."""
        if self.run.previous is None:
            initialize(self.model, self.run.recipe.model.initialization, self.run.recipe.seed)
            self.engine.adopt({})
            return
        previous = self._newest_checkpoint(self.layout.pretraining(self.run.previous) / "checkpoints")
        if previous is None:
            raise MissingData(f"run {self.run.id} continues {self.run.previous}, which has no valid checkpoint")
        self.model.load_state_dict(previous.weights())
        self.engine.adopt(previous.optimizer())

    def feeding(self) -> Feeding:
        """How this process gets its micro-batches."""
        return Feeding(
            corpus=self.corpus,
            masking=self.run.recipe.masking,
            most_rows=self._rows_per_micro_batch,
            context=self.stage.context,
            document_tokens=self._mean_document_tokens,
            process=self.process,
            device=self.device,
            flat=self.device.type == "cuda" and self.run.recipe.precision == "bf16",
            fixed=self.compiled,
        )

    @property
    def _mean_document_tokens(self) -> float:
        return float(np.minimum(self.training_documents.framed_lengths, self.stage.context).mean())

    def _compile_pays(self) -> bool:
        """What the first process decides for all."""
        word = self.run_file.execution.compile
        if word != "auto":
            return word == "on"
        decided = False
        if self.process.writes:
            micro_batches = math.ceil(self.stage.tokens_per_step / self.run_file.execution.micro_batch_tokens)
            left = self.stage.steps * max(1, micro_batches // self.process.count)
            decided = pays(self._trial(), self.run.recipe.model.layers, left)
        return bool(said_by_first(int(decided), self.process, self.device))

    def _compile(self, wanted: bool) -> None:
        self.compiled = wanted
        if not wanted:
            return
        self.compiled = compiled(self._trial(), self.run_file.execution.compile)
        self._count_compiling()

    def _count_compiling(self) -> None:
        """Sizes that come for the first time are compiled within a step."""
        before, self._compile_seconds = self._compile_seconds, compile_seconds()
        self.totals.compile_seconds += self._compile_seconds - before

    def _trial(self) -> Trial:
        """The first micro-batch of the stage, as every step has them."""
        rows = StepIterator(
            self.training_documents, self.stage, self.run.recipe.packing, seed=0, stage_number=self.run.stage
        )
        batch = next(self.feeding().steps(rows)).micro_batches[0]
        return Trial(self.model, lambda: summed_loss(self.model, batch), self.run.recipe.precision, self.device)

    def learning_rate(self, step: int) -> float:
        """The rate of a step of this stage."""
        optimization = self.run.recipe.optimization
        return learning_rate(
            step,
            peak=optimization.peak_learning_rate,
            warmup_steps=self.stage.warmup_steps,
            decay_steps=self.stage.decay_steps,
            floor_fraction=optimization.floor_fraction,
            shape=optimization.decay,
        )

    def steps(self, done: int, stop: StopRequest | None = None) -> Iterator[Step]:
        """The steps of the stage that are left, counted in the totals; `stop` as `training_steps` has it."""
        for step in training_steps(
            self.engine,
            ahead(self.feeding().steps(self.rows)),
            self.learning_rate,
            first=done + 1,
            last=self.stage.steps,
            seed=self.run.recipe.seed,
            process=self.process.rank,
            stop=stop,
        ):
            self.totals.add(step)
            self._count_compiling()
            self.data_state = step.data
            yield step

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

    def heldout_loss(self) -> float:
        """Loss on the held-out documents in nats."""
        return heldout_loss(self.model, self.heldout, self.run.recipe.precision, self.device)
