"""Texts to vectors, fast: tokenised in chunks ahead of the model and sorted by length, those of this package's encoders
without padding."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from neobert.data.tokenizers import TextTokenizer
from neobert.embeddings.flat import flat_batch, mean_vectors, slices
from neobert.errors import RunFailed
from neobert.model.encoder import Encoder
from neobert.recipe import EmbeddingPrecision, Precision

Array = np.ndarray[Any, np.dtype[Any]]

SPECIALS = 2
"""[CLS] and [SEP]."""

UNBOUNDED = 1 << 30
"""More tokens than any text has."""

CHUNK_TEXTS = 4096
"""Texts that are tokenised together, one chunk ahead of the model."""

BATCH_TOKENS = {"cpu": 1024, "cuda": 32_768}
"""Tokens of a batch. On a CPU tensors stay in caches, and below the size from which memory is mapped anew for each."""

DTYPES: dict[EmbeddingPrecision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TextCounts:
    """How many texts were asked for; how many of these repeat another of the same call, are blank, or were cut to the
    context; and the tokens that were computed, specials included."""

    texts: int = 0
    repeated: int = 0
    empty: int = 0
    cut: int = 0
    tokens: int = 0

    def __add__(self, other: "TextCounts") -> "TextCounts":
        return TextCounts(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, eq=False)
class TokenizedTexts:
    """Framed texts one behind the other, the longest first: `token_ids` (tokens) int64 and `lengths` (texts) int64.

    numbers: (texts) int64, which text each of them is; is_cut: (texts), whether it was longer than the context.
    token_types: (tokens) int8 for encoders that read them.
    """

    token_ids: Array
    lengths: Array
    numbers: Array
    is_cut: Array
    token_types: Array | None = None


def default_precision(device: torch.device) -> Precision:
    """Half precision on a GPU, fp32 on a CPU."""
    return "bf16" if device.type == "cuda" else "fp32"


def parameters_of(module: torch.nn.Module) -> int:
    """How many parameters a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


class Embedder(ABC):
    """A function from texts to vectors: the mean hidden state of a text's tokens, specials included.

    Weights have `dtype`; under fp16 that is fp32, and matrices are multiplied in fp16 (autocast), whose range sums of
    hidden states may exceed.

    Texts are cut to `context` tokens with specials. `counts` tells what was encoded since it was last set.
    """

    def __init__(
        self, context: int, device: torch.device, precision: EmbeddingPrecision, batch_tokens: int | None = None
    ) -> None:
        self.context = context
        self.device = device
        self.precision = precision
        self.dtype = torch.float32 if precision == "fp16" else DTYPES[precision]
        self.batch_tokens = batch_tokens or BATCH_TOKENS[device.type]
        self.counts = TextCounts()

    @property
    @abstractmethod
    def width(self) -> int:
        """Size of a vector."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """How many parameters the encoder has."""

    @abstractmethod
    def _tokenize(self, texts: Sequence[str], instruction: str | None) -> TokenizedTexts:
        """Framed texts, the longest first; `numbers` are their places in `texts`."""

    @abstractmethod
    def _vectors(self, texts: TokenizedTexts) -> Array:
        """Vectors (texts, width) float32 in the order of `texts`."""

    @torch.inference_mode()
    def encode(
        self, texts: Sequence[str], *, prompt: str = "", instruction: str | None = None, normalize: bool = False
    ) -> Array:
        """Vectors (texts, width) float32 in the order of `texts`; a repeated text is computed once.

        prompt: stands before every text, as a part of it. instruction: stands before every text as a first text of its
            own, as in contrastive fine-tuning. normalize: to length 1.

        Raises:
            ValueError: an item of `texts` is no text, or no valid Unicode.
            RunFailed: a vector is not finite.
        """
        distinct, numbers = _distinct(texts)
        vectors = np.empty((len(distinct), self.width), np.float32)
        is_cut = np.zeros(len(distinct), bool)
        tokens = 0
        for part in self._tokenized(distinct, prompt, instruction):
            with torch.autocast(self.device.type, torch.float16, enabled=self.precision == "fp16"):
                vectors[part.numbers] = self._vectors(part)
            is_cut[part.numbers] = part.is_cut
            tokens += len(part.token_ids)
        _require_finite(vectors, numbers)
        empty = sum(not text.strip() for text in texts)
        repeated = len(texts) - len(distinct)
        self.counts += TextCounts(len(texts), repeated, empty, int(is_cut[numbers].sum()), tokens)
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return vectors[numbers] if repeated else vectors

    def _tokenized(self, texts: Sequence[str], prompt: str, instruction: str | None) -> Iterator[TokenizedTexts]:
        """The texts in chunks, those of most characters first; while one is encoded the next is tokenised."""
        order = np.argsort([-len(text) for text in texts], kind="stable")
        chunks = (order[start : start + CHUNK_TEXTS] for start in range(0, len(order), CHUNK_TEXTS))

        def tokenize(chunk: Array) -> TokenizedTexts:
            found = self._tokenize([prompt + texts[number] for number in chunk], instruction)
            return replace(found, numbers=chunk[found.numbers])

        with ThreadPoolExecutor(max_workers=1) as thread:
            yield from _one_ahead(thread.submit(tokenize, chunk) for chunk in chunks)


class TextEncoder(Embedder):
    """An encoder of this package, which reads texts without padding.

    `encoder` is moved to `device`, cast to `precision` and changed in place. A text without tokens is encoded as
    [CLS] [SEP].

    Raises:
        ValueError: the tokenizer has more tokens than the encoder, or the context has no room beside the specials.
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        context: int,
        *,
        precision: EmbeddingPrecision,
        device: torch.device,
        batch_tokens: int | None = None,
    ) -> None:
        super().__init__(context, device, precision, batch_tokens)
        tokenizer.require_rows(encoder.encoder.num_embeddings)
        tokenizer.frame([], max_tokens=context)
        self.encoder = encoder.to(device, self.dtype).eval()
        self.tokenizer = tokenizer

    @property
    def width(self) -> int:
        return self.encoder.width

    @property
    def parameters(self) -> int:
        return parameters_of(self.encoder)

    def _vectors(self, texts: TokenizedTexts) -> Array:
        starts, parts = np.cumsum(texts.lengths) - texts.lengths, []
        for members in slices(texts.lengths, self.batch_tokens):
            lengths, start = texts.lengths[members], starts[members.start]
            token_ids = texts.token_ids[start : start + lengths.sum()]
            parts.append(
                mean_vectors(self.encoder, flat_batch(token_ids, lengths, self.device, DTYPES[self.precision]))
            )
        vectors: Array = torch.cat(parts).cpu().numpy()
        return vectors

    def _tokenize(self, texts: Sequence[str], instruction: str | None) -> TokenizedTexts:
        before = None if instruction is None else self.tokenizer.encode([instruction])[0]
        encoded = self.tokenizer.encode(list(texts))
        framed_tokens = SPECIALS if before is None else len(self.tokenizer.frame(before, [], max_tokens=UNBOUNDED))
        uncut = np.array([len(ids) + framed_tokens for ids in encoded], np.int64)
        lengths = np.minimum(uncut, self.context)
        order = np.argsort(-lengths, kind="stable")
        framed = (self._frame(before, encoded[place]) for place in order)
        token_ids = np.fromiter(chain.from_iterable(framed), np.int64, int(lengths.sum()))
        return TokenizedTexts(token_ids, lengths[order], order, uncut[order] > self.context)

    def _frame(self, before: Sequence[int] | None, ids: Sequence[int]) -> list[int]:
        if before is None:
            return self.tokenizer.frame(ids, max_tokens=self.context)
        return self.tokenizer.frame(before, ids, max_tokens=self.context)


def _one_ahead(futures: Iterable[Future[TokenizedTexts]]) -> Iterator[TokenizedTexts]:
    waiting: Future[TokenizedTexts] | None = None
    for future in futures:
        if waiting is not None:
            yield waiting.result()
        waiting = future
    if waiting is not None:
        yield waiting.result()


def _distinct(texts: Sequence[str]) -> tuple[list[str], Array]:
    """The different texts, and which of them each text is: (texts) int64."""
    seen: dict[str, int] = {}
    numbers = np.empty(len(texts), np.int64)
    for place, text in enumerate(texts):
        _require_text(text, place)
        numbers[place] = seen.setdefault(text, len(seen))
    return list(seen), numbers


def _require_text(text: object, place: int) -> None:
    if not isinstance(text, str):
        raise ValueError(f"text {place} is {text!r}, not a text: leave it out or give an empty text")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        character = text[error.start]
        raise ValueError(
            f"text {place} holds {character!r}, half of a surrogate pair and no character: decode its source anew"
        ) from error


def _require_finite(vectors: Array, numbers: Array) -> None:
    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(broken):
        place = int(np.flatnonzero(np.isin(numbers, broken))[0])
        raise RunFailed(f"the vector of text {place} is not finite: the weights or the precision do not serve")
