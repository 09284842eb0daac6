"""Texts to vectors by an encoder of transformers: padded rows of texts that are neighbours in length."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from neobert.embeddings.encoding import UNBOUNDED, Embedder, TokenizedTexts, parameters_of
from neobert.embeddings.forms import PaddedForm, PaddedVectors
from neobert.embeddings.pairs import framed_texts
from neobert.hub.external import ExternalEncoder, ExternalTokenizer
from neobert.recipe import EmbeddingPrecision
from neobert.sentence_modules import SentenceModules

Array = np.ndarray[Any, np.dtype[Any]]


class ExternalTextEncoder(Embedder):
    """An encoder from elsewhere with its own tokenizer.

    `encoder` is moved to `device`, cast to `precision` and changed in place. Without a `context` no text is cut. With
    `modules` of sentence-transformers vectors are made as they say, and an instruction is a prompt: it stands before
    a text as a part of it.
    """

    def __init__(
        self,
        encoder: ExternalEncoder,
        tokenizer: ExternalTokenizer,
        context: int | None,
        *,
        precision: EmbeddingPrecision,
        device: torch.device,
        batch_tokens: int | None = None,
        modules: SentenceModules | None = None,
    ) -> None:
        super().__init__(context or UNBOUNDED, device, precision, batch_tokens)
        self.encoder = encoder
        self.modules = modules
        pooling = modules.pooling if modules else "mean"
        self.model = PaddedVectors(encoder, pooling).to(device, self.dtype).eval()
        self.tokenizer = tokenizer
        self.form = PaddedForm(device, encoder.pad_id, self.context)

    @property
    def width(self) -> int:
        return self.encoder.width

    @property
    def parameters(self) -> int:
        return parameters_of(self.encoder)

    def encode(
        self, texts: Sequence[str], *, prompt: str = "", instruction: str | None = None, normalize: bool = False
    ) -> Array:
        if self.modules is None:
            return super().encode(texts, prompt=prompt, instruction=instruction, normalize=normalize)
        prompt = (instruction or "") + prompt
        return super().encode(texts, prompt=prompt, normalize=normalize or self.modules.normalize)

    def _vectors(self, texts: TokenizedTexts) -> Array:
        assert texts.token_types is not None
        ends = np.cumsum(texts.lengths)[:-1]
        framed = list(zip(np.split(texts.token_ids, ends), np.split(texts.token_types, ends), strict=True))
        rows = padded_slices(texts.lengths, self.batch_tokens)
        vectors: Array = torch.cat([self.model(self.form.lay_out(framed[members])) for members in rows]).cpu().numpy()
        return vectors

    def _tokenize(self, texts: Sequence[str], instruction: str | None) -> TokenizedTexts:
        framed, long = framed_texts(list(texts), self.tokenizer, instruction, self.context)
        lengths = np.array([len(ids) for ids, _ in framed], np.int64)
        order = np.argsort(-lengths, kind="stable")
        ids, types = (np.concatenate([framed[place][part] for place in order]) for part in (0, 1))
        return TokenizedTexts(ids.astype(np.int64), lengths[order], order, np.isin(order, long), types)


def padded_slices(lengths: Array, most_slots: int) -> Iterator[slice]:
    """Neighbours of `lengths` (texts), the longest first, that padded to the first have at most `most_slots`; a longer
    text stands alone."""
    start = 0
    while start < len(lengths):
        stop = start + max(1, most_slots // max(1, int(lengths[start])))
        yield slice(start, stop)
        start = stop
