"""Pre-training: the trainer of one stage of a recipe."""

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from neobert.data.batches import Batch, ExactSizes, PaddingBuckets, collate, micro_batches
from neobert.data.shards import TokenizedCorpus, split_corpus
from neobert.data.streams import StepIterator
from neobert.errors import MissingData
from neobert.evaluation.heldout import (
    BATCH_TOKENS,
    HeldoutText,
    choose_heldout_texts,
    measure_heldout,
    token_frequencies,
)
from neobert.execution import Execution
from neobert.identity import plain
from neobert.model.attention import has_variable_length_kernels
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.heads import MaskedLanguageModel
from neobert.recipe import Pretraining, Stage
from neobert.starts import start_files
from neobert.tensors import load_tensors
from neobert.training.compiling import compile_model, parts_of, wants_compiling
from neobert.training.distributed import ALONE, Process
from neobert.training.engine import StepBatches
from neobert.training.trainer import Trainer, engine_class

logger = logging.getLogger(__name__)


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
        self.number = len(recipe.stages) - 1
        self.documents = split_corpus(corpus)[0]
        self.varlen = has_variable_length_kernels(self.device) and recipe.precision != "fp32"
        self.model = build_masked_language_model(recipe.model, context or recipe.longest_context, recipe.precision)
        self.engine = engine_class(execution.engine, process.count)(
            self.model,
            summed_loss,
            lambda batch: batch.predicted_tokens,
            recipe.optimization,
            recipe.precision,
            self.device,
        )
        self.rows = StepIterator(
            self.documents,
            self.stage,
            recipe.packing,
            seed=recipe.seed,
            stage_number=self.number,
            long_documents=recipe.data.long_documents,
        )
        self.data_state = self.rows.state()

    @cached_property
    def heldout(self) -> list[HeldoutText]:
        """The held-out documents of each corpus, at the stage's own context and at the common one."""
        common = self.execution.heldout_context or self.stage.context
        contexts = sorted({self.stage.context, common})
        most = BATCH_TOKENS[self.device.type]
        rows = {context: min(self._rows_of(context), max(1, most // context)) for context in contexts}
        frequencies = token_frequencies(self.documents, self.recipe.model.vocabulary_size)
        return choose_heldout_texts(self.corpora, rows, frequencies, self.recipe.data.long_documents)

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
            tensors = load_tensors(weights)
            if self.recipe.model.tied_embeddings:  # exports leave the decoder's out
                tensors.setdefault("decoder.weight", tensors["model.encoder.weight"])
            self.model.load_state_dict(tensors)
            self.engine.restore_optimizer({} if state is None else load_tensors(state))
        else:
            initialize(self.model, self.recipe.model.initialization, self.recipe.seed)
            self.engine.restore_optimizer({})

    def restore_data(self, state: Mapping[str, Any]) -> None:
        self.rows.restore(dict(state))

    def data(self) -> Iterator[StepBatches[Batch]]:
        """Yield this rank's micro-batches of every step of `rows`, padded to few different sizes for a compiled model.
        Ranks without rows get one padding row, so that collectives do not hang."""
        sizes = self._few_sizes() if self.compiled else ExactSizes(least_rows=1)
        ranks, masking = range(self.process.count), self.recipe.masking
        for step in self.rows:
            shares = [list(micro_batches(step, self._most_rows, rank=rank, ranks=len(ranks))) for rank in ranks]
            batches = [
                collate(share, self.documents.corpus, masking, sizes=sizes, varlen=self.varlen).to(self.device)
                for share in shares[self.process.rank]
            ]
            slots = self.stage.context * sum(sizes.rows(share.count) for of_rank in shares for share in of_rank)
            yield StepBatches(batches, step.real_tokens, slots, step.attended_tokens, self.rows.state())

    def _rows_of(self, context: int) -> int:
        """Return the number of rows of `context` tokens that fit a micro-batch, at least 1."""
        return max(1, self.execution.micro_batch_tokens // context)

    @property
    def _most_rows(self) -> int:
        return min(self._rows_of(self.stage.context), self.stage.tokens_per_step // self.stage.context)

    def _few_sizes(self) -> PaddingBuckets:
        recipe, context = self.recipe, self.stage.context
        documents = self.documents.fitted(context, recipe.data.long_documents)
        mean_tokens = float(documents.framed_lengths.mean())
        return PaddingBuckets(self._most_rows, context, recipe.masking.rate, mean_tokens)

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
            compile_model(parts_of(self.model, self.device), self.device)

    def heldout_scores(self) -> dict[str, Any]:
        """Return the loss in nats on the held-out documents of the run's own corpus and of each measured corpus, at the
        run's own context; `heldout` has all measurements."""
        precision = self.recipe.precision
        scores = [measure_heldout(self.model, text, precision, self.device) for text in self.heldout]
        losses = {score.corpus: score.loss for score in scores if score.context == self.stage.context}
        own = losses[self.recipe.data.corpus]
        return {"heldout_loss": own, "heldout_losses": losses, "heldout": plain(scores)}
