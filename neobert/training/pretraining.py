"""Pre-training: the trainer of one stage of a recipe."""

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from neobert.data.batches import Batch
from neobert.data.shards import TokenizedCorpus
from neobert.errors import MissingData
from neobert.evaluation.heldout import BATCH_TOKENS, HeldoutText, choose_heldout_texts, measure_heldout
from neobert.execution import Execution
from neobert.identity import plain
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.heads import MaskedLanguageModel
from neobert.recipe import Pretraining, Stage
from neobert.starts import start_files
from neobert.tensors import load_tensors
from neobert.training.compiling import TrialStep, compile_model, make_eager, parts_of, wants_compiling
from neobert.training.distributed import ALONE, Process, sum_over_ranks
from neobert.training.loop import StepBatches
from neobert.training.stage_batches import StageBatches
from neobert.training.trainer import Trainer, engine_class

logger = logging.getLogger(__name__)

SIZED_STEPS = 16
"""First steps of a stage, whose batch sizes are compiled before training; later steps rarely have others."""


def summed_loss(network: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy summed over the predicted tokens of a micro-batch."""
    loss: torch.Tensor = network(batch.token_ids, batch.plan, batch.gather, batch.targets)
    return loss


class PretrainingTrainer(Trainer[Batch]):
    """The last stage of a recipe in one rank.

    Args:
        folder: where the checkpoints of the stage are.
        recipe: its stages up to the one to train.
        corpora: tokenised corpora by name: that of the recipe, and in rank 0 all that the held-out loss is measured on.
        previous: folder of the stage before; None for the first one, whose weights are initialized or those of
            `recipe.start`.
        context: tokens that the model has positions for, by default the longest context of the stages.
    """

    model: MaskedLanguageModel

    def __init__(
        self,
        folder: Path,
        recipe: Pretraining,
        corpora: Mapping[str, TokenizedCorpus],
        execution: Execution,
        process: Process = ALONE,
        *,
        previous: Path | None = None,
        context: int | None = None,
    ) -> None:
        super().__init__(folder, execution, process, recipe.optimization, recipe.seed)
        self.recipe = recipe
        self.stage: Stage = recipe.stages[-1]
        self.corpora = corpora
        self.previous = previous
        corpus = corpora[recipe.data.corpus]
        self.batches = StageBatches(recipe, corpus, self.device, execution.micro_batch_tokens, process)
        self.model = build_masked_language_model(recipe.model, context or recipe.longest_context, recipe.precision)
        self.engine = engine_class(execution.engine, process.count)(
            self.model,
            summed_loss,
            lambda batch: batch.predicted_tokens,
            recipe.optimization,
            recipe.precision,
            self.device,
        )
        self.rows = self.batches.rows()
        self.data_state = self.rows.state()

    @cached_property
    def heldout(self) -> list[HeldoutText]:
        """The held-out documents of each corpus, at the stage's own context and at the common one."""
        common = self.execution.heldout_context or self.stage.context
        contexts = sorted({self.stage.context, common})
        most = BATCH_TOKENS[self.device.type]
        rows = {context: min(self.batches.rows_of(context), max(1, most // context)) for context in contexts}
        long, frequencies = self.recipe.data.long_documents, self.batches.frequencies()
        return choose_heldout_texts(self.corpora, rows, frequencies, long)

    def begin(self) -> None:
        """Load weights and optimizer state of the previous stage or of the start, or initialize the weights."""
        start = self.recipe.start
        if self.previous is not None:
            previous = self.newest_checkpoint(self.previous / "checkpoints")
            if previous is None or previous.step != self.recipe.stages[-2].steps:
                raise MissingData(f"{self.previous}, the stage before this one, has not its last checkpoint")
            self.model.load_state_dict(previous.weights())
            self.engine.restore_optimizer(previous.optimizer())
        elif start is not None:
            weights, state = start_files(start)
            self.model.load_state_dict(load_tensors(weights), strict=False)  # whoever planned it compared the names
            self.engine.restore_optimizer({} if state is None else load_tensors(state))
        else:
            initialize(self.model, self.recipe.model.initialization, self.recipe.seed)
            self.engine.restore_optimizer({})

    def restore_data(self, state: Mapping[str, Any]) -> None:
        self.rows.restore(dict(state))

    def data(self) -> Iterator[StepBatches[Batch]]:
        return self.batches.steps(self.rows, few_sizes=self.compiled)

    def compile(self, began_compiled: bool | None) -> None:
        word = self.execution.compile
        if began_compiled is None:
            self.compiled = wants_compiling(word, self.device)
        else:
            self.compiled = began_compiled
            if self.process.writes and word == ("off" if began_compiled else "on"):
                form = "compiled" if began_compiled else "without compiling"
                logger.info(f"training continues {form}, as it began: --compile {word} applies to new runs only")
        if self.compiled:
            first, *others = self._trials()
            compiled = compile_model(first, word, parts=parts_of(self.model, self.device))
            # All or none: the others would wait for an eager rank, and its padding differs.
            self.compiled = sum_over_ranks(int(compiled), self.process, self.device) == self.process.count
            if not self.compiled:
                make_eager(self.model)
            for trial in others if self.compiled else ():
                trial.run()
            self.count_compile_seconds()

    def _trials(self) -> Iterator[TrialStep]:
        """Yield a micro-batch of each size in the first steps of the stage, in the same order in all ranks.

        Otherwise ranks would meet new sizes at different steps, and all would wait for each compilation.
        """
        for batch in self.batches.of_each_size(SIZED_STEPS, few_sizes=self.compiled):
            loss = partial(summed_loss, self.model, batch)
            yield TrialStep(self.model, loss, self.recipe.precision, self.device)

    def heldout_scores(self) -> dict[str, Any]:
        """Return the loss in nats on the held-out documents of the run's own corpus and of each measured corpus, at the
        run's own context; `heldout` has all measurements."""
        precision = self.recipe.precision
        scores = [measure_heldout(self.model, text, precision, self.device) for text in self.heldout]
        losses = {score.corpus: score.loss for score in scores if score.context == self.stage.context}
        own = losses[self.recipe.data.corpus]
        return {"heldout_loss": own, "heldout_losses": losses, "heldout": plain(scores)}
