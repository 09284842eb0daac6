"""Texts to vectors by an encoder from elsewhere: the mean of a text's tokens, batches of like lengths, padded."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from neobert.embeddings.encoding import BATCH_TOKENS, DTYPES, TextCounts, distinct, require_finite
from neobert.embeddings.forms import PaddedForm, PaddedVectors, Text
from neobert.embeddings.pairs import Framing, framed_texts
from neobert.recipe import Precision

Array = np.ndarray[Any, np.dtype[Any]]


class PaddedTextEncoder:
    """What `TextEncoder` is for this package's encoders: `model` is moved to `device` and cast to `precision`.

    Texts are framed by the model's own tokenizer and cut to `context` tokens, specials included. `counts` tells what
    was encoded since it was last set.
    """

    def __init__(
        self,
        model: PaddedVectors,
        framing: Framing,
        *,
        width: int,
        context: int,
        pad_id: int,
        precision: Precision,
        device: torch.device,
    ) -> None:
        self.model = model.to(device, DTYPES[precision]).eval()
        self.framing = framing
        self.width = width
        self.context = context
        self.form = PaddedForm(device, pad_id, context)
        self.batch_slots = BATCH_TOKENS[device.type]
        self.counts = TextCounts()

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], *, instruction: str | None = None) -> Array:
        """Vectors (texts, width) float32 in the order of `texts`; a repeated text is computed once.

        instruction: stands before every text as a first text of its own, as in contrastive fine-tuning.

        Raises:
            ValueError: an item of `texts` is no text, or no valid Unicode.
            RunFailed: a vector is not finite.
        """
        different, numbers = distinct(texts)
        framed, cut = framed_texts(different, self.framing, instruction, self.context)
        lengths = np.array([len(ids) for ids, _ in framed], np.int64)
        is_cut = np.isin(np.arange(len(framed)), cut)
        vectors = np.empty((len(framed), self.width), np.float32)
        for members in self._batches(lengths):
            vectors[members] = self._vectors([framed[number] for number in members])
        require_finite(vectors, numbers)
        empty, repeated = sum(not text.strip() for text in texts), len(texts) - len(different)
        self.counts += TextCounts(len(texts), repeated, empty, int(is_cut[numbers].sum()), int(lengths.sum()))
        return vectors[numbers]

    def _vectors(self, texts: Sequence[Text]) -> Array:
        vectors: Array = self.model(self.form.lay_out(texts)).float().cpu().numpy()
        return vectors

    def _batches(self, lengths: Array) -> Iterator[Array]:
        """Numbers of texts of like lengths, the longest first, that fill at most `batch_slots` with padding."""
        order, start = np.argsort(-lengths, kind="stable"), 0
        while start < len(order):
            rows = max(1, self.batch_slots // self.form.slots(lengths[order[start : start + 1]]))
            yield order[start : start + rows]
            start += rows
