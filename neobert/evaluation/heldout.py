"""Masked-language-model loss on documents that no run trains on, under fixed masks: the continuous readout."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from neobert.data.batches import Batch, heldout_batches
from neobert.data.shards import Documents, TokenizedCorpus, all_documents
from neobert.errors import MissingData
from neobert.model.heads import MaskedLanguageModel
from neobert.recipe import Precision
from neobert.runs.records import HeldoutScore
from neobert.training.engine import autocast

HELDOUT_BYTES = 2**22
"""How much text is measured, as far as the held-out share of a corpus goes: at 4.5 bytes a token and 15 % of the tokens
masked at least 140,000 predicted tokens, where documents are not cut far below `COUNTED_BYTES`. On a thirtieth of that
the difference of two models had a standard error of 0.013 to 0.048 nats, so here of 0.002 to 0.009. At paper scale four
readings of up to 6 M tokens stand beside 131 G or more of training; small scales have corpora that hold out less."""

COUNTED_BYTES = 512
"""Most bytes of a document that count: what a context of 128 tokens reads of it, the shortest but for smoke's."""

HASH_DIGITS = 12


@dataclass(frozen=True)
class HeldoutText:
    """The held-out documents of a corpus that losses are measured on, each cut to `context` tokens.

    The same texts for every tokenizer and context; their beginnings are masked alike in every context.
    """

    corpus: str
    documents: Documents
    context: int
    rows_per_batch: int

    def batches(self) -> Iterator[Batch]:
        """All documents under the fixed masks."""
        return heldout_batches(self.documents, self.context, self.rows_per_batch)

    @property
    def tokens(self) -> int:
        """Tokens that are shown, without specials."""
        return int(self.documents.truncated(self.context).lengths.sum())

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of the text that is shown; of a document that is cut, in proportion to its tokens."""
        whole, shown = self.documents.lengths, self.documents.truncated(self.context).lengths
        text_bytes = self.documents.corpus.text_bytes[self.documents.numbers]
        return round(float((text_bytes * shown / np.maximum(whole, 1)).sum()))

    @property
    def texts(self) -> str:
        """A name for the set of texts."""
        hashes = np.sort(self.documents.corpus.text_hashes[self.documents.numbers])
        return hashlib.sha256(hashes.astype("<u8").tobytes()).hexdigest()[:HASH_DIGITS]


def heldout_texts(
    corpora: Mapping[str, TokenizedCorpus], contexts: Sequence[int], rows_per_batch: Mapping[int, int]
) -> list[HeldoutText]:
    """What is measured: the held-out documents of each corpus in each context; `rows_per_batch` is by context."""
    chosen = {name: sample(all_documents(corpus).split_heldout()[1]) for name, corpus in corpora.items()}
    return [
        HeldoutText(name, documents, context, rows_per_batch[context])
        for name, documents in chosen.items()
        for context in contexts
    ]


def sample(heldout: Documents, wanted_bytes: int = HELDOUT_BYTES) -> Documents:
    """The documents with the smallest hashes that hold `wanted_bytes` of text together, or all.

    It is text that counts, and not documents, of which some are a sentence and some a book, nor tokens, so that every
    tokenizer and every context gets the same texts.
    """
    order = np.argsort(heldout.corpus.text_hashes[heldout.numbers], kind="stable")
    counted = np.minimum(heldout.corpus.text_bytes[heldout.numbers[order]], COUNTED_BYTES)
    enough = int(np.searchsorted(np.cumsum(counted), wanted_bytes)) + 1
    return heldout.at(order[:enough])


def heldout_score(
    model: MaskedLanguageModel, text: HeldoutText, precision: Precision, device: torch.device
) -> HeldoutScore:
    """The loss on a text in nats a predicted token, and in bits a byte of text.

    Bits per byte is loss × tokens / (bytes × ln 2): what all tokens that are shown would cost at the mean loss of the
    predicted ones, divided by the size of the raw text. With one tokenizer, text and context it is the loss times a
    constant. Between tokenizers it removes what makes nats a token incomparable, that tokens cover more or less text.
    It does not make them strictly comparable: masks hide tokens, so with shorter tokens more of a hidden word may be
    seen beside its mask, and unknown tokens, which are never predicted, count at the mean. It is no code length either,
    since every token is predicted from both sides. A context cuts a text earlier where its tokens are shorter.

    Raises:
        MissingData: nothing is predicted in so few texts.
    """
    total, predicted = _loss_of(model, text.batches(), precision, device)
    if predicted == 0:
        raise MissingData(
            f"the {text.corpus} corpus holds out {len(text.documents)} texts, in which no token is predicted: take more"
        )
    loss, tokens, text_bytes = total / predicted, text.tokens, text.text_bytes
    return HeldoutScore(
        corpus=text.corpus,
        context=text.context,
        texts=text.texts,
        documents=len(text.documents),
        tokens=tokens,
        text_bytes=text_bytes,
        predicted_tokens=predicted,
        loss=loss,
        bits_per_byte=loss * tokens / (text_bytes * math.log(2)),
    )


@torch.no_grad()
def _loss_of(
    model: MaskedLanguageModel, batches: Iterable[Batch], precision: Precision, device: torch.device
) -> tuple[float, int]:
    """(cross-entropy in nats summed over all predicted tokens of the batches, how many these are)."""
    was_training = model.training
    model.eval()
    total, predicted = 0.0, 0
    for batch in batches:
        moved = batch.to(device)
        # Its batches have other shapes than those that the model may be compiled for.
        with autocast(device, precision), torch.compiler.set_stance("force_eager"):
            total += model(moved.token_ids, moved.plan, moved.slots, moved.targets).item()
        predicted += batch.predicted_tokens
    model.train(was_training)
    return total, predicted
