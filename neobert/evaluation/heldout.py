"""Held-out loss: masked-language-modelling loss on documents that no run trains on, under fixed masks; after a causal
stage the loss of next tokens, which is another quantity."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.data.batches import Batch, heldout_batches, heldout_rows
from neobert.data.heldout import COUNTED_BYTES, SMALL_TEXT_TOKENS, sample
from neobert.data.rows import PackedRows
from neobert.data.shards import Documents, Integers, TokenizedCorpus, split_corpus
from neobert.errors import MissingData, RunFailed
from neobert.evaluation.losses import batch_losses
from neobert.kinds.pretraining import HeldoutScore
from neobert.model.heads import IGNORED_TARGET, MaskedLanguageModel
from neobert.recipe import LongDocuments, Objective, PretrainingPrecision
from neobert.runs.records import pack_numbers

MOST_UNITS = 2048
"""Largest number of units of a held-out loss, see `HeldoutText.unit_of`. The packed numbers of so many take 14 kB."""

HASH_DIGITS = 12


@dataclass(frozen=True)
class HeldoutText:
    """Held-out documents of a corpus, each cut to `context` tokens or split into passages of that length.

    All tokenizers and contexts get the same texts. All contexts get the same masks at the beginning of each text.
    `frequencies` are those of the tokens in training. Of the documents or passages, `every` so many-th is shown. A
    causal `objective` has next tokens as targets in the place of masked ones.
    """

    corpus: str
    documents: Documents
    context: int
    rows_per_batch: int
    long_documents: LongDocuments
    frequencies: NDArray[np.float64]
    every: int = 1
    objective: Objective = "masked"

    @cached_property
    def shown(self) -> Documents:
        """The documents as the model sees them."""
        shown = self.documents.fitted(self.context, self.long_documents)
        return shown if self.every == 1 else shown.at(np.arange(0, len(shown), self.every))

    @cached_property
    def small(self) -> "HeldoutText":
        """About `SMALL_TEXT_TOKENS` of its tokens: documents or passages at equal distances."""
        return replace(self, every=max(1, round(self.tokens / SMALL_TEXT_TOKENS)))

    @cached_property
    def rows(self) -> PackedRows:
        """The documents packed into rows."""
        return heldout_rows(self.shown, self.context)

    def batches(self) -> Iterator[Batch]:
        """Yield the documents with the fixed masks, or with their next tokens as targets."""
        for _, batch in self._parts():
            yield batch

    def _parts(self) -> Iterator[tuple[PackedRows, Batch]]:
        return heldout_batches(self.rows, self.documents.corpus, self.rows_per_batch, self.objective)

    @property
    def units(self) -> int:
        """Number of units: one for each document, at most `MOST_UNITS`."""
        return min(len(self.documents), MOST_UNITS)

    @cached_property
    def unit_of(self) -> Integers:
        """The unit of each predicted token in the order of `batches`, (predicted,) int64.

        A unit is a document with all of its passages, or a run of documents in the order of their hashes if there are
        more than `MOST_UNITS`. It depends on the texts alone, so that units of different models are the same texts.
        """
        documents = self.documents.numbers
        places = np.empty(int(documents.max()) + 1, dtype=np.int64)
        places[documents] = np.arange(len(documents)) * self.units // len(documents)
        return places[np.concatenate([_document_of(part, batch) for part, batch in self._parts()])]

    @property
    def tokens(self) -> int:
        """Number of tokens that the model sees, without specials."""
        return int(self.shown.lengths.sum())

    @property
    def text_bytes(self) -> int:
        """Number of UTF-8 bytes of the text that the model sees; cut documents count in proportion to their tokens."""
        corpus, numbers = self.shown.corpus, self.shown.numbers
        whole = np.maximum(corpus.lengths[numbers], 1)
        return round(float((corpus.text_bytes[numbers] * self.shown.lengths / whole).sum()))

    @cached_property
    def frequency_loss(self) -> float:
        """The loss on the predicted tokens from token frequencies alone, see `measure_frequency_loss`."""
        return measure_frequency_loss(self.batches(), self.frequencies)

    @property
    def texts(self) -> str:
        """A hash of the set of texts."""
        hashes = np.sort(self.documents.corpus.text_hashes[self.documents.numbers])
        return hashlib.sha256(hashes.astype("<u8").tobytes()).hexdigest()[:HASH_DIGITS]


def _document_of(rows: PackedRows, batch: Batch) -> Integers:
    """Return the number in the corpus of the document of each predicted token, (predicted,)."""
    assert batch.plan.documents is not None
    places = batch.gather.places.numpy()[: batch.predicted_tokens]
    first_of_row = np.searchsorted(rows.spans.rows, places // rows.context)
    return rows.spans.documents[first_of_row + batch.plan.documents.numpy().ravel()[places]]


def choose_heldout_texts(
    corpora: Mapping[str, TokenizedCorpus],
    rows_per_batch: Mapping[int, int],
    frequencies: NDArray[np.float64],
    long_documents: LongDocuments = "cut",
    objective: Objective = "masked",
) -> list[HeldoutText]:
    """Choose held-out documents of each corpus for each context. `rows_per_batch` is by context; `frequencies` are
    those of the tokens in training; `objective` is what is predicted of them."""
    counted_bytes = COUNTED_BYTES if long_documents == "cut" else None
    heldout = {name: split_corpus(corpus)[1] for name, corpus in corpora.items()}
    chosen = {name: sample(documents, counted_bytes=counted_bytes) for name, documents in heldout.items()}
    return [
        HeldoutText(name, documents, context, rows, long_documents, frequencies, objective=objective)
        for name, documents in chosen.items()
        for context, rows in rows_per_batch.items()
    ]


FITTING_ROUNDS = 50
FREQUENCY_TOKENS = 2**24
"""Approximate number of training tokens for counting frequencies, in documents at equal distances in the corpus."""


def token_frequencies(training: Documents, vocabulary_size: int) -> NDArray[np.float64]:
    """Return the share of each token in training documents, (vocabulary,), with 0.5 added to each count. The share of
    tokens that are never predicted is 0."""
    corpus, every = training.corpus, max(1, int(training.lengths.sum()) // FREQUENCY_TOKENS)
    read = training.at(np.arange(0, len(training), every))
    tokens = np.empty(int(read.lengths.sum()), dtype=np.int64)
    corpus.copy(corpus.starts[read.numbers], read.lengths, tokens, np.cumsum(read.lengths) - read.lengths)
    counts = np.bincount(tokens, minlength=vocabulary_size) + 0.5
    counts[list(corpus.ids.never_predicted)] = 0
    return counts / counts.sum()


def measure_frequency_loss(batches: Iterable[Batch], frequencies: NDArray[np.float64]) -> float:
    """Return the loss, in nats per predicted token, of the best mixture of two frequencies: in training, and among the
    visible tokens of the same document. This baseline knows nothing about the order or relation of tokens.

    A model near this loss has hardly learned more than frequencies. The weight of the mixture is fitted to the measured
    tokens themselves by expectation maximisation.
    """
    of_training, of_document = [np.empty(0)], [np.empty(0)]
    for batch in batches:
        assert batch.plan.documents is not None
        rows, context = batch.token_ids.shape
        numbers, token_ids = batch.plan.documents.numpy(), batch.token_ids.numpy().ravel()
        owner = (np.arange(rows)[:, None] * context + numbers).ravel()  # a unique number for each place's document
        is_target = (batch.targets != IGNORED_TARGET).numpy()
        targets, places = batch.targets.numpy()[is_target], batch.gather.places.numpy()[is_target]
        is_visible = (numbers.ravel() >= 0) & (frequencies[token_ids] > 0)
        is_visible[places] = False
        # Encode each pair of document and token as one number; the last number is larger than all of them.
        pairs, counts = np.unique(owner[is_visible] * len(frequencies) + token_ids[is_visible], return_counts=True)
        pairs, counts = np.append(pairs, np.iinfo(np.int64).max), np.append(counts, 0)
        wanted = owner[places] * len(frequencies) + targets
        found = np.searchsorted(pairs, wanted)
        equal = np.where(pairs[found] == wanted, counts[found], 0)
        all_visible = np.bincount(owner[is_visible], minlength=rows * context)[owner[places]]
        of_document.append(equal / np.maximum(all_visible, 1))
        of_training.append(frequencies[targets])
    first, second = np.concatenate(of_training), np.concatenate(of_document)
    weight = 0.5
    for _ in range(FITTING_ROUNDS):
        weight = float(np.mean(weight * first / (weight * first + (1 - weight) * second)))
    return float(-np.log(weight * first + (1 - weight) * second).mean())


@torch.no_grad()
def token_losses(
    model: MaskedLanguageModel, text: HeldoutText, precision: PretrainingPrecision, device: torch.device
) -> NDArray[np.float64]:
    """Return the loss of each predicted token in nats, in the order of `text.batches()`: (predicted,).

    Touches no random state and leaves the model in the mode it was in.
    """
    was_training = model.training
    model.eval()
    # One array for all losses: a list of small ones would keep the memory of each batch's logits from being used again.
    losses, count = torch.empty(text.rows.count * text.context, device=device), 0
    # Eager: the shapes differ from those that the model may be compiled for.
    with torch.compiler.set_stance("force_eager"):
        for batch in text.batches():
            losses[count : count + batch.predicted_tokens] = batch_losses(model, batch, precision, device)
            count += batch.predicted_tokens
    model.train(was_training)
    return losses[:count].double().cpu().numpy()


def mean_loss(losses: NDArray[np.float64], text: HeldoutText) -> float:
    """Return the mean of the losses on a text; raises the same errors as `measure_heldout`."""
    if not len(losses):
        raise MissingData(
            f"the {text.corpus} corpus holds out {len(text.documents)} texts, in which no token is predicted: take more"
        )
    loss = float(losses.mean())
    if not math.isfinite(loss):
        raise RunFailed(f"the held-out loss on {text.corpus} is {loss}: training diverged, take a lower learning rate")
    return loss


def measure_heldout(
    model: MaskedLanguageModel, text: HeldoutText, precision: PretrainingPrecision, device: torch.device
) -> HeldoutScore:
    """Measure the loss on a text in nats per predicted token and in bits per byte of text, and by unit of text.

    Bits per byte is loss × tokens / (bytes × ln 2): the cost of all tokens at the mean loss of the predicted ones,
    divided by the size of the raw text. For one tokenizer, text and context it is the loss times a constant. Between
    tokenizers it corrects for the length of tokens, but does not make them strictly comparable. With shorter tokens,
    more of a masked word may be visible beside its mask, and the context cuts texts earlier. Unknown tokens are never
    predicted and count at the mean. It is not a code length, since every token is predicted from both sides; of next
    tokens it is one, but for unknown tokens and the ends of documents.

    Raises:
        MissingData: no token is predicted, because there are too few texts.
        RunFailed: the loss is not finite.
    """
    losses = token_losses(model, text, precision, device)
    loss, tokens, text_bytes = mean_loss(losses, text), text.tokens, text.text_bytes
    return HeldoutScore(
        corpus=text.corpus,
        context=text.context,
        texts=text.texts,
        documents=len(text.documents),
        tokens=tokens,
        text_bytes=text_bytes,
        predicted_tokens=len(losses),
        loss=loss,
        bits_per_byte=loss * tokens / (text_bytes * math.log(2)),
        frequency_loss=text.frequency_loss if text.objective == "masked" else None,
        units=text.units,
        numerators=pack_numbers(np.bincount(text.unit_of, weights=losses, minlength=text.units), "<f4"),
        denominators=pack_numbers(np.bincount(text.unit_of, minlength=text.units), "<i4"),
    )
