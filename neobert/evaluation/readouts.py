"""Readouts of a masked language model on items, the same for all variants (`neobert.evaluation.items`).

Of held-out text: the loss under fixed masks, and pseudo-perplexity by length. Of BLiMP: minimal pairs. All have one
number per unit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from neobert.data.batches import EXACT, HELDOUT_MASKING, Batch, gather_by_row
from neobert.data.masking import counter_hash, mask_tokens
from neobert.data.packing import Placement, best_fit_decreasing
from neobert.data.shards import FRAME_TOKENS, Integers
from neobert.data.task_files import PARADIGMS, MinimalPair
from neobert.data.tokenizers import SpecialIds, TextTokenizer
from neobert.errors import MissingData, RunFailed
from neobert.evaluation.heldout import BATCH_TOKENS, batch_losses
from neobert.evaluation.items import READ_BYTES, Items, Stretch
from neobert.model.attention import AttentionPlan
from neobert.model.heads import IGNORED_TARGET, MaskedLanguageModel
from neobert.processes import StopRequest
from neobert.recipe import PretrainingPrecision

Sums = NDArray[np.float64]
Span = tuple[int, int]

MOST_MASKS = 4
"""Largest number of masks per text; more than one is used only with less than `READ_BYTES` of text. At equal cost, more
text helps more than more masks. For the difference of two checkpoints of a small run on web, the standard error was
0.0109 nats over 256 KiB with four masks and 0.0146 with one; over four times the text, the latter becomes 0.0073."""
MASK_SEED = 20_261_122
PERPLEXITY_LENGTHS = 5
SHORTEST_LENGTH = 8
"""Number of lengths of texts for pseudo-perplexity, and the shortest in tokens."""
POSITIONS = 16
"""Largest number of masked tokens of a document at one length. At equal cost, more documents narrow the interval more
than more tokens of each."""
ENOUGH_DOCUMENTS = 8
"""Lengths that fewer documents reach are left out. If a corpus has fewer documents, all of them are enough."""
LEAST_DOCUMENTS = 2
"""Fewest documents for an interval: one document has no variance."""
POSITION_SEED = 20_261_124


@dataclass(frozen=True, eq=False)
class Question:
    """An input with special tokens, (tokens,) int64. `targets` (predicted,) are the correct ids at `places`
    (predicted,); `owner` is the index of the sum to which their losses are added."""

    token_ids: Integers
    places: Integers
    targets: Integers
    owner: int


@dataclass(frozen=True)
class MeasuredModel:
    """The model that is measured, with its tokenizer. Inputs have at most `context` tokens, specials included."""

    model: MaskedLanguageModel
    tokenizer: TextTokenizer
    context: int
    precision: PretrainingPrecision
    device: torch.device

    @property
    def ids(self) -> SpecialIds:
        """Special token ids of the tokenizer."""
        return self.tokenizer.ids

    @property
    def room(self) -> int:
        """Largest number of text tokens in an input."""
        return self.context - FRAME_TOKENS

    @torch.inference_mode()
    def sum_losses(self, questions: Iterable[Question], owners: int, stop: StopRequest) -> Sums:
        """Return the sums of −log p of the targets in nats, (owners,).

        Inputs are packed into rows of the context and do not attend to each other. The decoder and the last block
        compute only the predicted tokens. Questions of a batch with the same input share it, such as those for the one
        word in which two sentences differ.

        Raises:
            RunFailed: a loss is not finite.
            Stopped: a stop was requested.
        """
        sums = np.zeros(owners)
        for batch in _batches(questions, BATCH_TOKENS[self.device.type]):
            stop.check("readouts")
            owner, losses = self._losses(batch)
            sums += np.bincount(owner, losses, minlength=owners)
        if not np.isfinite(sums).all():
            raise RunFailed("a loss is not finite: the checkpoint's weights or its precision are broken")
        return sums

    def _losses(self, batch: Sequence[Question]) -> tuple[Integers, Sums]:
        """Return the owner and the loss of each predicted token of a batch."""
        numbers: dict[bytes, int] = {}
        shared = [numbers.setdefault(question.token_ids.tobytes(), len(numbers)) for question in batch]
        inputs = [np.frombuffer(token_ids, dtype=np.int64) for token_ids in numbers]
        lengths = np.array([len(token_ids) for token_ids in inputs])
        rows, columns, count = best_fit_decreasing(lengths, self.context)
        placed = Placement.of(rows, columns, lengths, (count, self.context))
        token_ids = placed.grid(np.concatenate(inputs), self.ids.pad)
        documents, positions = placed.grid(placed.doc_ids, -1), placed.grid(placed.positions, -1)
        starts = (rows * self.context + columns)[shared]
        places = np.concatenate([start + question.places for start, question in zip(starts, batch, strict=True)])
        order = np.argsort(places, kind="stable")
        targets = np.concatenate([question.targets for question in batch])[order]
        owner = np.repeat([question.owner for question in batch], [len(question.places) for question in batch])[order]
        gather = gather_by_row(places[order], count, self.context, EXACT)
        made = Batch(
            token_ids=torch.from_numpy(token_ids),
            plan=AttentionPlan(torch.from_numpy(positions), doc_ids=torch.from_numpy(documents)),
            gather=gather,
            targets=functional.pad(
                torch.from_numpy(targets), (0, len(gather.indices) - len(targets)), value=IGNORED_TARGET
            ),
            real_tokens=int(lengths.sum()),
            predicted_tokens=len(targets),
        )
        losses = batch_losses(self.model, made, self.precision, self.device)
        return owner, losses.double().cpu().numpy()

    def framed(self, token_ids: Sequence[int] | Integers) -> Integers:
        """Return [CLS] text [SEP]."""
        return np.array([self.ids.cls, *token_ids, self.ids.sep], dtype=np.int64)

    def hide(self, token_ids: Sequence[int] | Integers, hidden: Integers, owner: int) -> Question:
        """Return a text with the tokens at `hidden` (ascending indices) masked."""
        framed = self.framed(token_ids)
        places = hidden + 1
        targets = framed[places]
        framed[places] = self.ids.mask
        return Question(framed, places, targets, owner)


def _batches(questions: Iterable[Question], tokens: int) -> Iterator[list[Question]]:
    """Yield batches of about `tokens` tokens; questions without predicted tokens are skipped."""
    batch: list[Question] = []
    size = 0
    for question in questions:
        if len(question.places):
            batch.append(question)
            size += len(question.token_ids)
        if size >= tokens:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def equal_parts(tokens: int, most: int) -> list[Span]:
    """Split `tokens` tokens into the fewest parts of at most `most` tokens; their sizes differ by at most one."""
    parts = max(1, -(-tokens // most))
    return [(part * tokens // parts, (part + 1) * tokens // parts) for part in range(parts)]


def part_around(tokens: int, span: Span, most: int) -> Span:
    """Return the part of at most `most` of `tokens` tokens in which `span` is as central as possible."""
    begin = min(max(0, (span[0] + span[1] - most) // 2), max(0, tokens - most))
    return begin, min(tokens, begin + most)


@dataclass(frozen=True)
class Measured:
    """A readout on one corpus: (units,) numerators and denominators, values of groups of units, and the number of
    answers that count half (None for losses)."""

    numerators: Sums
    denominators: Integers
    groups: Mapping[str, float]
    ties: int | None = None

    @property
    def denominator(self) -> int:
        """The sum of denominators, 0 if nothing was asked."""
        return int(self.denominators.sum())

    @property
    def value(self) -> float:
        """The sum of numerators divided by the sum of denominators."""
        return float(self.numerators.sum() / self.denominator)


def number_of_masks(stretches: Sequence[Stretch]) -> int:
    """Return the number of masks for an amount of text, 1 to 4."""
    text_bytes = sum(len(stretch.text.encode()) for stretch in stretches)
    return max(1, min(MOST_MASKS, READ_BYTES // text_bytes))


def read_losses(subject: MeasuredModel, stretches: Sequence[Stretch], stop: StopRequest) -> Measured:
    """Measure the loss in nats per predicted token under fixed masks; a unit is a stretch.

    Masks are a function of document, position and mask number, so that models with one tokenizer get the same masks.
    """
    masks = number_of_masks(stretches)
    encoded = subject.tokenizer.encode([stretch.text for stretch in stretches])
    predicted = np.zeros(len(stretches), dtype=np.int64)

    def questions() -> Iterator[Question]:
        for owner, (stretch, token_ids) in enumerate(zip(stretches, encoded, strict=True)):
            tokens = np.array(token_ids, dtype=np.int64)
            place = stretch.document & 0xFFFFFFFF, stretch.document >> 32, stretch.begin
            for number in range(masks):
                keys = np.full(len(tokens), counter_hash(MASK_SEED, number, *place))
                masked, is_target = mask_tokens(tokens, keys, np.arange(len(tokens)), HELDOUT_MASKING, subject.ids)
                predicted[owner] += is_target.sum()
                for begin, end in equal_parts(len(tokens), subject.room):
                    places = np.flatnonzero(is_target[begin:end])
                    yield Question(subject.framed(masked[begin:end]), places + 1, tokens[begin:end][places], owner)

    losses = subject.sum_losses(questions(), len(stretches), stop)
    return Measured(losses, predicted, {})


def pair_losses(subject: MeasuredModel, pairs: Sequence[MinimalPair], stop: StopRequest) -> Sums:
    """Return the negative pseudo-log-likelihoods in nats of the acceptable and the other sentences, (pairs, 2).

    The pseudo-log-likelihood is the sum of log p of the tokens, each masked alone (Salazar et al. 2020): the other
    tokens of its word stay visible. Unknown tokens, which no model is trained to predict, are left out.
    """
    encoded = map(tuple, subject.tokenizer.encode([text for pair in pairs for text in (pair.good, pair.bad)]))
    number_of: dict[tuple[int, ...], int] = {}  # equal sentences have one sum, as their own could differ by rounding
    numbers = [number_of.setdefault(token_ids, len(number_of)) for token_ids in encoded]

    def questions() -> Iterator[Question]:
        for token_ids, owner in number_of.items():
            for place in range(len(token_ids)):
                if token_ids[place] not in subject.ids.never_predicted:
                    begin, end = part_around(len(token_ids), (place, place + 1), subject.room)
                    yield subject.hide(token_ids[begin:end], np.array([place - begin]), owner)

    return subject.sum_losses(questions(), len(number_of), stop)[numbers].reshape(-1, 2)


def read_pairs(subject: MeasuredModel, pairs: Sequence[MinimalPair], stop: StopRequest) -> Measured:
    """Measure the share of pairs in which the acceptable sentence has the higher pseudo-log-likelihood.

    A tie counts half. A unit is a paradigm, since its pairs are made from one template, and groups are fields,
    phenomena and paradigms. All paradigms have equally many pairs, so the value is the mean over paradigms.
    """
    losses = pair_losses(subject, pairs, stop)
    right = np.where(losses[:, 0] == losses[:, 1], 0.5, (losses[:, 0] < losses[:, 1]).astype(np.float64))
    by_group: defaultdict[str, list[float]] = defaultdict(list)
    for pair, own in zip(pairs, right.tolist(), strict=True):
        known = PARADIGMS.get(pair.paradigm)
        for group in (*((known.field, known.phenomenon) if known else ()), pair.paradigm):
            by_group[group].append(own)
    units = [by_group[name] for name in dict.fromkeys(pair.paradigm for pair in pairs)]
    return Measured(
        np.array([sum(own) for own in units]),
        np.array([len(own) for own in units]),
        {group: fmean(own) for group, own in by_group.items()},
        int((right == 0.5).sum()),
    )


def perplexity_lengths(context: int) -> list[int]:
    """Return the lengths in tokens at which pseudo-perplexity is measured: `context` and its halves, ascending."""
    lengths = (context >> halved for halved in reversed(range(PERPLEXITY_LENGTHS)))
    return [length for length in lengths if length >= SHORTEST_LENGTH]


def read_perplexity(subject: MeasuredModel, documents: Sequence[Stretch], stop: StopRequest) -> Measured:
    """Measure the loss in nats of tokens that are masked one at a time (Salazar et al. 2020), by length of the text.

    A unit is the beginning of a document at one length in tokens, specials included; a group is a length, and its value
    the mean over documents. All lengths have the same documents: those that reach the longest length that enough
    documents reach. Longer lengths are left out. Up to `POSITIONS` tokens of a unit are masked, those with the
    smallest hashes.
    """
    lengths, texts = _texts_by_length(subject, documents)
    units = [(document, token_ids[: length - FRAME_TOKENS]) for length in lengths for document, token_ids in texts]
    masked = [_masked_places(subject, document, token_ids) for document, token_ids in units]

    def questions() -> Iterator[Question]:
        for owner, ((_, token_ids), places) in enumerate(zip(units, masked, strict=True)):
            yield from (subject.hide(token_ids, places[[index]], owner) for index in range(len(places)))

    losses = subject.sum_losses(questions(), len(units), stop)
    counts = np.array([len(places) for places in masked], dtype=np.int64)
    means = (losses / counts).reshape(len(lengths), -1).mean(axis=1) if lengths else ()
    return Measured(losses, counts, {str(length): float(mean) for length, mean in zip(lengths, means, strict=True)})


def _texts_by_length(
    subject: MeasuredModel, documents: Sequence[Stretch]
) -> tuple[list[int], list[tuple[Stretch, Integers]]]:
    """Return the lengths that enough documents reach, and the token ids of those that reach the longest of them."""
    lengths, never = perplexity_lengths(subject.context), subject.ids.never_predicted
    encoded = map(np.array, subject.tokenizer.encode([document.text for document in documents]))
    texts = [
        (document, token_ids)
        for document, token_ids in zip(documents, encoded, strict=True)
        if not np.isin(token_ids[: lengths[0] - FRAME_TOKENS], never).all()
    ]
    tokens = np.array([len(token_ids) + FRAME_TOKENS for _, token_ids in texts], dtype=np.int64)
    enough = max(LEAST_DOCUMENTS, min(ENOUGH_DOCUMENTS, (tokens >= lengths[0]).sum()))
    lengths = [length for length in lengths if (tokens >= length).sum() >= enough]
    return lengths, [text for text, count in zip(texts, tokens, strict=True) if lengths and count >= lengths[-1]]


def _masked_places(subject: MeasuredModel, document: Stretch, token_ids: Integers) -> Integers:
    """Return the ascending places of the masked tokens: those with the smallest hashes, at most `POSITIONS`."""
    places = np.flatnonzero(~np.isin(token_ids, subject.ids.never_predicted))
    hashes = counter_hash(POSITION_SEED, document.document & 0xFFFFFFFF, document.document >> 32, places)
    return np.sort(places[np.argsort(hashes, kind="stable")[:POSITIONS]])


ByCorpus = Mapping[str, Sequence[Any]]
ASKED: Mapping[
    str, tuple[Callable[[Items], ByCorpus], Callable[[MeasuredModel, Sequence[Any], StopRequest], Measured]]
] = {
    "loss": (lambda items: items.stretches, read_losses),
    "blimp": (lambda items: items.pairs, read_pairs),
    "perplexity": (lambda items: items.documents, read_perplexity),
}
"""For each readout, the function that selects its items and the one that measures it."""


def measure(readout: str, items: Items, subject: MeasuredModel, stop: StopRequest) -> dict[str, Measured]:
    """Measure a readout on every corpus that has something to ask for.

    Raises:
        MissingData: no corpus has.
    """
    choose, ask = ASKED[readout]
    measured = {corpus: ask(subject, own, stop) for corpus, own in choose(items).items() if own}
    measured = {corpus: own for corpus, own in measured.items() if own.denominator}
    if not measured:
        raise MissingData(f"the held-out text has nothing to ask for the readout {readout}: take more text")
    return measured
