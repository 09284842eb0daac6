"""Held-out loss: masked-language-modelling loss on documents that no run trains on, under fixed masks."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from neobert.data.batches import Batch, heldout_batches, heldout_rows
from neobert.data.heldout import COUNTED_BYTES, sample
from neobert.data.packing import PackedRows
from neobert.data.shards import Documents, TokenizedCorpus, split_corpus
from neobert.errors import MissingData, RunFailed
from neobert.evaluation.losses import batch_losses
from neobert.kinds.pretraining import HeldoutScore
from neobert.model.heads import IGNORED_TARGET, MaskedLanguageModel
from neobert.recipe import LongDocuments, PretrainingPrecision

HASH_DIGITS = 12


@dataclass(frozen=True)
class HeldoutText:
    """Held-out documents of a corpus, each cut to `context` tokens or split into passages of that length.

    All tokenizers and contexts get the same texts. All contexts get the same masks at the beginning of each text.
    `frequencies` are those of the tokens in training.
    """

    corpus: str
    documents: Documents
    context: int
    rows_per_batch: int
    long_documents: LongDocuments
    frequencies: NDArray[np.float64]

    @cached_property
    def shown(self) -> Documents:
        """The documents as the model sees them."""
        return self.documents.fitted(self.context, self.long_documents)

    @cached_property
    def rows(self) -> PackedRows:
        """The documents packed into rows."""
        return heldout_rows(self.shown, self.context)

    def batches(self) -> Iterator[Batch]:
        """Yield the documents with the fixed masks."""
        return heldout_batches(self.rows, self.documents.corpus, self.rows_per_batch)

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


def choose_heldout_texts(
    corpora: Mapping[str, TokenizedCorpus],
    rows_per_batch: Mapping[int, int],
    frequencies: NDArray[np.float64],
    long_documents: LongDocuments = "cut",
) -> list[HeldoutText]:
    """Choose held-out documents of each corpus for each context. `rows_per_batch` is by context; `frequencies` are
    those of the tokens in training."""
    counted_bytes = COUNTED_BYTES if long_documents == "cut" else None
    heldout = {name: split_corpus(corpus)[1] for name, corpus in corpora.items()}
    chosen = {name: sample(documents, counted_bytes=counted_bytes) for name, documents in heldout.items()}
    return [
        HeldoutText(name, documents, context, rows, long_documents, frequencies)
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
        assert batch.plan.doc_ids is not None
        rows, context = batch.token_ids.shape
        numbers, token_ids = batch.plan.doc_ids.numpy(), batch.token_ids.numpy().ravel()
        owner = (np.arange(rows)[:, None] * context + numbers).ravel()  # a unique number for each place's document
        is_target = (batch.targets != IGNORED_TARGET).numpy()
        targets, places = batch.targets.numpy()[is_target], batch.gather.indices.numpy()[is_target]
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


def measure_heldout(
    model: MaskedLanguageModel, text: HeldoutText, precision: PretrainingPrecision, device: torch.device
) -> HeldoutScore:
    """Measure the loss on a text in nats per predicted token and in bits per byte of text.

    Bits per byte is loss × tokens / (bytes × ln 2): the cost of all tokens at the mean loss of the predicted ones,
    divided by the size of the raw text. For one tokenizer, text and context it is the loss times a constant. Between
    tokenizers it corrects for the length of tokens, but does not make them strictly comparable. With shorter tokens,
    more of a masked word may be visible beside its mask, and the context cuts texts earlier. Unknown tokens are never
    predicted and count at the mean. It is not a code length, since every token is predicted from both sides.

    Raises:
        MissingData: no token is predicted, because there are too few texts.
        RunFailed: the loss is not finite.
    """
    losses = token_losses(model, text, precision, device)
    if not len(losses):
        raise MissingData(
            f"the {text.corpus} corpus holds out {len(text.documents)} texts, in which no token is predicted: take more"
        )
    loss, tokens, text_bytes = float(losses.mean()), text.tokens, text.text_bytes
    if not math.isfinite(loss):
        raise RunFailed(f"the held-out loss on {text.corpus} is {loss}: training diverged, take a lower learning rate")
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
        frequency_loss=text.frequency_loss,
    )
