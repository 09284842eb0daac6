"""Which rows each optimizer step of a stage holds, resumable at every step. Torch-free."""

from collections.abc import Mapping
from typing import Any, Self

from neobert.data.masking import counter_hash, threshold
from neobert.data.rows import Rows
from neobert.data.streams import STREAMS, PackingWord, Stream
from neobert.data.views import Documents
from neobert.recipe import Stage, Subset

_MIXTURE = 3
"""The stream of the draw of a subset, beside those of the orders."""


class StepIterator:
    """The rows of each optimizer step of a stage, as many as the stage has steps.

    padded: a step holds tokens_per_step / context documents, as the paper counts; packed: so many full rows;
    packed_across_documents: so many rows cut from uncut documents. Each step draws one subset of the mixture (§3.2).
    Everything follows from (seed, stage number, step), so equal seeds give variants the same documents.

    Args:
        documents: the training side of a corpus, uncut.
        stage_number: place of the stage in its recipe; a later stage has an order and masks of its own.

    Raises:
        ValueError: a subset of the mixture has no document.
    """

    def __init__(
        self, documents: Documents, stage: Stage, packing: PackingWord, *, seed: int, stage_number: int = 0
    ) -> None:
        self.stage = stage
        self.words = (seed, stage_number)
        self.step = 0
        self.streams: list[Stream] = [
            STREAMS[packing](_subset(documents, subset), stage.context, (*self.words, number))
            for number, subset in enumerate(stage.mixture)
        ]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Rows:
        if self.step >= self.stage.steps:
            raise StopIteration
        stream = self.streams[self._drawn_subset()]
        rows = stream.take(self.stage.tokens_per_step // self.stage.context)
        self.step += 1
        return rows

    def _drawn_subset(self) -> int:
        draw = counter_hash(*self.words, _MIXTURE, self.step)
        bound = 0.0
        for number, subset in enumerate(self.stage.mixture[:-1]):
            bound += subset.share
            if draw < threshold(bound):
                return number
        return len(self.stage.mixture) - 1

    def state(self) -> dict[str, Any]:
        """Where the iterator stands, as JSON's own types."""
        return {"step": self.step, "streams": [stream.state() for stream in self.streams]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with exactly the steps that would have come after `state` was taken.

        Raises:
            ValueError: the state belongs to another packing or mixture.
        """
        shape = [sorted(stream.state()) for stream in self.streams]
        if [sorted(stream) for stream in state["streams"]] != shape:
            raise ValueError(f"the saved state {dict(state)} belongs to another packing or mixture: start the run anew")
        self.step = state["step"]
        for stream, saved in zip(self.streams, state["streams"], strict=True):
            stream.restore(saved)


def _subset(documents: Documents, subset: Subset) -> Documents:
    return documents.at_least(subset.minimum_tokens)
