"""What each step of contrastive fine-tuning trains on, in one process: its texts as micro-batches on the device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from neobert.embeddings.caching import TextBatch
from neobert.embeddings.flat import slices
from neobert.embeddings.forms import Form, Text
from neobert.embeddings.loss import Comparison, compared
from neobert.embeddings.pairs import EncodedPairs
from neobert.embeddings.sampling import Draw, Sampling
from neobert.recipe import Contrastive
from neobert.training.loop import StepBatches
from neobert.training.tasks import Process

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class StepTexts:
    """The different texts of a step, and who of them is compared with whom."""

    texts: Sequence[Text]
    comparison: Comparison

    @property
    def lengths(self) -> Array:
        """Tokens of each text, (texts,) int64."""
        return np.array([len(ids) for ids, _ in self.texts], np.int64)


def step_texts(pairs: EncodedPairs, numbers: Array, protocol: Contrastive) -> StepTexts:
    """The texts of some pairs of one data set; equal ones are one."""
    texts: list[Text] = []
    seen: dict[bytes, int] = {}

    def number_of(text: Text) -> int:
        number = seen.setdefault(text[0].tobytes(), len(texts))
        if number == len(texts):
            texts.append(text)
        return number

    queries = [number_of(pairs.queries.text(pair)) for pair in numbers]
    documents = [number_of(pairs.documents.text(pair)) for pair in numbers]
    hard = (one for pair in numbers for one in pairs.negatives_of(pair, protocol.most_negatives))
    negatives = [number_of(pairs.negatives.text(one)) for one in hard]
    arrays = (np.array(values, np.int64) for values in (queries, documents, negatives))
    return StepTexts(texts, compared(*arrays, keep_false_negatives=protocol.false_negatives == "kept"))


@dataclass(frozen=True)
class TextFeeding:
    """How the texts of a step become micro-batches of at most `micro_batch_tokens` tokens, and who computes which."""

    form: Form
    micro_batch_tokens: int
    process: Process
    device: torch.device

    def steps(
        self,
        sets: Sequence[EncodedPairs],
        sampling: Sampling,
        members: Sequence[Array],
        protocol: Contrastive,
        done: int,
    ) -> Iterator[StepBatches[TextBatch]]:
        """This process's share of every step behind `done`; `members` are the pairs of each set to draw from."""
        for step in range(done + 1, sampling.steps + 1):
            draw: Draw = sampling.draw(step)
            of_step = step_texts(sets[draw.of_set], members[draw.of_set][draw.pairs], protocol)
            groups = self._groups(of_step.lengths)
            real_tokens = int(of_step.lengths.sum())
            slots = sum(self.form.slots(of_step.lengths[group]) for group in groups)
            attended = int((of_step.lengths**2).sum())
            batches = self._batches(of_step, groups, self.process)
            yield StepBatches(batches, real_tokens, slots, attended, {"step": step})

    def whole(self, of_step: StepTexts) -> list[TextBatch]:
        """All micro-batches of a step in this process."""
        return self._batches(of_step, self._groups(of_step.lengths), Process(0, 1))

    def _groups(self, lengths: Array) -> list[Array]:
        """Numbers of texts, neighbours in length, with about equally many tokens and at least one group a process."""
        order = np.argsort(-lengths, kind="stable")
        most = min(self.micro_batch_tokens, -(-int(lengths.sum()) // self.process.count))
        return [order[members] for members in slices(lengths[order], most)]

    def _batches(self, of_step: StepTexts, groups: Sequence[Array], process: Process) -> list[TextBatch]:
        """A process's share: every `count`-th group, and without texts where there are no more, to take part."""
        comparison = of_step.comparison.to(self.device)
        rounds = -(-len(groups) // process.count)
        mine = range(process.rank, rounds * process.count, process.count)
        shares = (groups[number] if number < len(groups) else groups[-1][:0] for number in mine)
        return [self._batch(of_step, share, comparison) for share in shares]

    def _batch(self, of_step: StepTexts, share: Array, comparison: Comparison) -> TextBatch:
        queries = np.isin(of_step.comparison.queries.numpy(), share)
        filled = share if len(share) else np.zeros(1, np.int64)
        return TextBatch(
            inputs=self.form.lay_out([of_step.texts[number] for number in filled.tolist()]),
            numbers=torch.from_numpy(share).to(self.device, non_blocking=True),
            texts=len(of_step.texts),
            comparison=comparison,
            queries=torch.from_numpy(queries.astype(np.float32)).to(self.device, non_blocking=True),
            query_count=int(queries.sum()),
        )
