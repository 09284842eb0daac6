"""The micro-batches of a stage of pre-training: its rows, split over the ranks, masked and padded, as tensors."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.data.batches import Batch, ExactSizes, PaddingBuckets, PaddingSizes, collate, micro_batches
from neobert.data.packing import PackedRows
from neobert.data.shards import Documents, TokenizedCorpus, split_corpus
from neobert.data.streams import StepIterator
from neobert.evaluation.heldout import token_frequencies
from neobert.model.attention import has_variable_length_kernels
from neobert.recipe import Masking, Pretraining
from neobert.training.distributed import Process
from neobert.training.loop import StepBatches


class StageBatches:
    """The micro-batches of a stage's steps, a function of the recipe and its tokenised corpus.

    Args:
        recipe: its last stage is the one to train.
        corpus: that of `recipe.data`.
        device: where the model is. bf16 on a device with variable-length kernels gets batches for them.
        most_tokens: upper bound on the token slots of a micro-batch; a row is never split.
        process: the rank that the micro-batches are for.
    """

    def __init__(
        self,
        recipe: Pretraining,
        corpus: TokenizedCorpus,
        device: torch.device,
        most_tokens: int,
        process: Process,
    ) -> None:
        self.recipe = recipe
        self.stage = recipe.stages[-1]
        self.number = len(recipe.stages) - 1
        self.corpus = corpus
        self.device = device
        self.most_tokens = most_tokens
        self.process = process
        self.varlen = has_variable_length_kernels(device) and recipe.precision != "fp32"

    @cached_property
    def documents(self) -> Documents:
        """The training side of the corpus."""
        return split_corpus(self.corpus)[0]

    def frequencies(self) -> NDArray[np.float64]:
        """Return the share of each token in training, (vocabulary,), as `token_frequencies`."""
        return token_frequencies(self.documents, self.recipe.model.vocabulary_size)

    def rows(self) -> StepIterator:
        """Return the rows of the stage's steps, from the first step on."""
        recipe = self.recipe
        return StepIterator(
            self.documents,
            self.stage,
            recipe.packing,
            seed=recipe.seed,
            stage_number=self.number,
            long_documents=recipe.data.long_documents,
        )

    def steps(self, rows: StepIterator, *, few_sizes: bool) -> Iterator[StepBatches[Batch]]:
        """Yield this rank's micro-batches of every step of `rows`.

        few_sizes: whether to pad to few different sizes, for a compiled model.
        """
        sizes = self._sizes(few_sizes)
        for step in rows:
            shares = self._shares(step)
            masking = self._masking(rows.step)
            batches = [self._collate(share, sizes, masking).to(self.device) for share in shares[self.process.rank]]
            slots = self.stage.context * sum(sizes.rows(share.count) for of_rank in shares for share in of_rank)
            yield StepBatches(batches, step.real_tokens, slots, step.attended_tokens, rows.state())

    def of_each_size(self, steps: int, *, few_sizes: bool) -> Iterator[Batch]:
        """Yield a micro-batch of each size in the first `steps`, of all ranks, in the same order in each of them."""
        seen: set[tuple[int, ...]] = set()
        sizes, rows = self._sizes(few_sizes), self.rows()
        for number, step in zip(range(1, steps + 1), rows, strict=False):
            for of_rank in self._shares(step):
                for share in of_rank:
                    batch = self._collate(share, sizes, self._masking(number))
                    if batch.sizes not in seen:
                        seen.add(batch.sizes)
                        yield batch.to(self.device)

    def rows_of(self, context: int) -> int:
        """Return the number of rows of `context` tokens that fit a micro-batch, at least 1."""
        return max(1, self.most_tokens // context)

    @property
    def _most_rows(self) -> int:
        return min(self.rows_of(self.stage.context), self.stage.tokens_per_step // self.stage.context)

    def _sizes(self, few_sizes: bool) -> PaddingSizes:
        """Return the padded sizes. Ranks without rows get one padding row, so that collectives do not hang."""
        return self._few_sizes if few_sizes else ExactSizes(least_rows=1)

    @cached_property
    def _few_sizes(self) -> PaddingBuckets:
        recipe, context = self.recipe, self.stage.context
        documents = self.documents.fitted(context, recipe.data.long_documents)
        mean_tokens = float(documents.framed_lengths.mean())
        return PaddingBuckets(self._most_rows, context, recipe.masking.highest_rate, mean_tokens)

    def _shares(self, step: PackedRows) -> list[list[PackedRows]]:
        """Split the rows of a step into each rank's micro-batches."""
        ranks = self.process.count
        return [list(micro_batches(step, self._most_rows, rank=rank, ranks=ranks)) for rank in range(ranks)]

    def _masking(self, step: int) -> Masking:
        """Return the masking of a step of this stage; steps count from 1."""
        is_first = self.number == 0
        return self.recipe.masking.at((step - 1) / max(1, self.stage.steps - 1) if is_first else 1.0)

    def _collate(self, share: PackedRows, sizes: PaddingSizes, masking: Masking) -> Batch:
        return collate(share, self.corpus, masking, sizes=sizes, varlen=self.varlen)
