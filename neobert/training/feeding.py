"""What each step of pre-training trains on, in one process: its rows as micro-batches on the device."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from neobert.data.batching import Batch, collate, micro_batches
from neobert.data.rows import Rows
from neobert.data.shapes import Exact, Fixed, Shapes
from neobert.data.steps import StepIterator
from neobert.data.tokenized import TokenizedCorpus
from neobert.recipe import Masking
from neobert.training.loop import StepBatches
from neobert.training.tasks import Process


@dataclass(frozen=True)
class Feeding:
    """How rows become micro-batches of at most `most_rows` rows.

    `flat` is the form for variable-length kernels. With `fixed` sizes there are few different ones, for a compiled
    model; `document_tokens` is the mean length of a document, from which they follow.
    """

    corpus: TokenizedCorpus
    masking: Masking
    most_rows: int
    context: int
    document_tokens: float
    process: Process
    device: torch.device
    flat: bool
    fixed: bool

    @property
    def shapes(self) -> Shapes:
        """A process without rows gets a row of filler, to take part."""
        if not self.fixed:
            return Exact(least_rows=1)
        return Fixed(self.most_rows, self.context, self.masking.rate, self.document_tokens)

    def steps(self, rows: StepIterator) -> Iterator[StepBatches[Batch]]:
        """This process's share of every step that is left."""
        for of_step in rows:
            batches = [self._batch(share) for share in self._shares(of_step)]
            slots = self.context * sum(self.shapes.rows(share.count) for share in self._shares_of_all(of_step))
            yield StepBatches(batches, of_step.real_tokens, slots, of_step.attended_tokens, rows.state())

    def _shares(self, rows: Rows) -> Iterator[Rows]:
        return micro_batches(rows, self.most_rows, rank=self.process.rank, ranks=self.process.count)

    def _shares_of_all(self, rows: Rows) -> Iterator[Rows]:
        for rank in range(self.process.count):
            yield from micro_batches(rows, self.most_rows, rank=rank, ranks=self.process.count)

    def _batch(self, rows: Rows) -> Batch:
        batch = collate(rows, self.corpus, self.masking, shapes=self.shapes, flat=self.flat)
        return batch.pin_memory().to(self.device) if self.device.type == "cuda" else batch
