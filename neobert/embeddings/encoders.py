"""Texts one behind the other in one row, without padding: those of equal length attend together, without a mask."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from neobert.data.preparation import open_specified, text_tokenizer
from neobert.data.tokenizers import TextTokenizer
from neobert.embeddings.pairs import Framing, framed_texts
from neobert.embeddings.sentence_modules import SentenceModules, SentencePooling, read_sentence_modules
from neobert.errors import MissingData, RunFailed
from neobert.external import ExternalModel, read_model_file
from neobert.glue.batching import ROW_MULTIPLE
from neobert.hub.external import ExternalEncoder, ExternalTokenizer
from neobert.model.attention import AttentionPlan, attend, packed_plan, whole_rows_plan
from neobert.model.build import build_encoder
from neobert.model.encoder import Encoder
from neobert.model.heads import encoder_part, mean_over_tokens
from neobert.recipe import EmbeddingPrecision, Precision
from neobert.runs.layout import Layout
from neobert.runs.specifications import ContrastiveRun, PretrainingRun, RunFile, Source, read_run_file
from neobert.training import checkpoints
from neobert.training.trainer import last_checkpoint

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class AttentionOfEqualLengths:
    """Attention of texts that lie sorted by length in one row: `runs` are (texts, tokens of each), in their order.

    Texts of a run become rows of their own, so nothing is masked and nothing computed in vain.
    """

    runs: tuple[tuple[int, int], ...]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(1, tokens, heads, head size) each."""
        sizes = [texts * tokens for texts, tokens in self.runs]
        parts = zip(*(vectors[0].split(sizes) for vectors in (query, key, value)), strict=True)
        attended = [self._run(shape, *part) for shape, part in zip(self.runs, parts, strict=True)]
        return torch.cat(attended).unsqueeze(0)

    def _run(self, shape: tuple[int, int], *vectors: Tensor) -> Tensor:
        query, key, value = (part.unflatten(0, shape) for part in vectors)
        return attend(query, key, value, whole_rows_plan(query[..., 0, 0])).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class FlatBatch:
    """Texts in one row: `token_ids` (1, tokens) under `plan`, and the `lengths` (texts) of the texts, int64."""

    token_ids: Tensor
    plan: AttentionPlan
    lengths: Tensor


def flat_batch(token_ids: Array, lengths: Array, device: torch.device, dtype: torch.dtype) -> FlatBatch:
    """Texts of `token_ids` (tokens) with `lengths` (texts), sorted by length, for an encoder of `dtype` on `device`."""
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    positions = torch.from_numpy(np.arange(len(token_ids)) - (np.cumsum(lengths) - lengths)[numbers]).unsqueeze(0)
    if device.type == "cuda" and dtype != torch.float32:
        plan = packed_plan(torch.from_numpy(numbers).unsqueeze(0), positions, device)
    else:
        plan = AttentionPlan(positions, attention=AttentionOfEqualLengths(_runs(lengths))).to(device)
    row = torch.from_numpy(token_ids).unsqueeze(0).to(device, non_blocking=True)
    return FlatBatch(row, plan, torch.from_numpy(lengths).to(device, non_blocking=True))


def _runs(lengths: Array) -> tuple[tuple[int, int], ...]:
    first = np.flatnonzero(np.diff(lengths, prepend=-1))
    texts = np.diff(first, append=len(lengths))
    return tuple(zip(texts.tolist(), lengths[first].tolist(), strict=True))


def mean_vectors(encoder: Encoder, batch: FlatBatch) -> Tensor:
    """The mean hidden state of each text over all of its tokens, specials included: (texts, width) float32."""
    hidden = encoder(batch.token_ids, batch.plan).squeeze(0).float()  # sums are not for half precision
    return torch.segment_reduce(hidden, "mean", lengths=batch.lengths)


def slices(lengths: Array, most_tokens: int) -> Iterator[slice]:
    """Neighbours of `lengths` (texts) that together have at most `most_tokens`; a longer text stands alone."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = ends[start] - lengths[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + most_tokens, side="right")))
        yield slice(start, stop)
        start = stop


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


Text = tuple[Array, Array]
"""Token ids and token types of a framed text."""


class FlatVectors(nn.Module):
    """This package's own encoder under the mean of a text's tokens."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: FlatBatch) -> Tensor:
        """(texts, width) float32."""
        return mean_vectors(self.model, batch)


@dataclass(frozen=True, eq=False)
class PaddedTexts:
    """One text a row, padded on the right: `token_ids`, `mask` (1 at tokens) and `token_types` (texts, tokens)."""

    token_ids: Tensor
    mask: Tensor
    token_types: Tensor


class PaddedVectors(nn.Module):
    """An encoder from elsewhere under the mean of a text's tokens, or another pooling of sentence-transformers; what
    it has beyond hidden states is not trained."""

    def __init__(self, model: nn.Module, pooling: SentencePooling = "mean") -> None:
        super().__init__()
        self.model = model
        self.pool = SENTENCE_POOLINGS[pooling]
        for name, parameter in model.named_parameters():
            if "pooler." in name:
                parameter.requires_grad_(False)

    def forward(self, batch: PaddedTexts) -> Tensor:
        """(texts, width) float32."""
        hidden = self.model(batch.token_ids, batch.mask, batch.token_types)
        return self.pool(hidden.float(), batch.mask - 1)


def _max_over_tokens(hidden: Tensor, positions: Tensor) -> Tensor:
    no_token = (positions < 0).unsqueeze(-1)
    return hidden.masked_fill(no_token, -torch.inf).amax(dim=1).masked_fill(no_token.all(dim=1), 0)


def _sum_by_square_root(hidden: Tensor, positions: Tensor) -> Tensor:
    tokens = (positions >= 0).sum(dim=1, keepdim=True)
    return mean_over_tokens(hidden, positions) * tokens.sqrt()


SENTENCE_POOLINGS: Mapping[SentencePooling, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_over_tokens,
    "cls": lambda hidden, positions: hidden[:, 0],
    "max": _max_over_tokens,
    "mean_sqrt_len_tokens": _sum_by_square_root,
}
"""From hidden states (rows, tokens, width) and positions (rows, tokens), −1 at padding, to vectors (rows, width)."""


class Form(Protocol):
    """How texts lie in a batch."""

    def lay_out(self, texts: Sequence[Text]) -> Any:
        """A batch of these texts, the longest first."""

    def slots(self, lengths: Array) -> int:
        """Slots of a batch of texts with these `lengths`, padding included."""


@dataclass(frozen=True)
class FlatForm:
    """All texts in one row, without padding."""

    device: torch.device
    dtype: torch.dtype

    def lay_out(self, texts: Sequence[Text]) -> FlatBatch:
        lengths = np.array([len(ids) for ids, _ in texts], np.int64)
        token_ids = np.concatenate([ids for ids, _ in texts]).astype(np.int64)
        return flat_batch(token_ids, lengths, self.device, self.dtype)

    def slots(self, lengths: Array) -> int:
        return int(lengths.sum())


@dataclass(frozen=True)
class PaddedForm:
    """One text a row, as long as the longest; never longer than `most_tokens`."""

    device: torch.device
    pad_id: int
    most_tokens: int

    def lay_out(self, texts: Sequence[Text]) -> PaddedTexts:
        tokens = self._row_tokens(max(len(ids) for ids, _ in texts))
        token_ids = np.full((len(texts), tokens), self.pad_id, np.int64)
        mask, types = np.zeros_like(token_ids), np.zeros_like(token_ids)
        for row, (ids, kinds) in enumerate(texts):
            token_ids[row, : len(ids)], mask[row, : len(ids)], types[row, : len(ids)] = ids, 1, kinds
        parts = (torch.from_numpy(part).to(self.device, non_blocking=True) for part in (token_ids, mask, types))
        return PaddedTexts(*parts)

    def slots(self, lengths: Array) -> int:
        return len(lengths) * self._row_tokens(int(lengths.max()))

    def _row_tokens(self, longest: int) -> int:
        return min(self.most_tokens, max(1, -(-longest // ROW_MULTIPLE)) * ROW_MULTIPLE)


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


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """An encoder as a function to vectors, how its batches lie, and its tokenizer. `weights` is None where the model
    has them already; their names begin with "model.", as those of what is saved do."""

    model: nn.Module
    form: Form
    framing: Framing
    weights: dict[str, Tensor] | None

    def load(self) -> None:
        """Put the pre-trained weights into the model."""
        if self.weights is not None:
            self.model.load_state_dict(self.weights)


def starting_point(layout: Layout, run: ContrastiveRun, source: Source, device: torch.device) -> StartingPoint:
    """What a run starts from.

    Raises:
        MissingData, DamagedFile: its files are not there, or not the ones that the run names.
    """
    return _external(layout, run, device) if run.is_external else _own(layout, run, source, device)


def is_there(layout: Layout, run: ContrastiveRun) -> bool:
    """Whether the encoder is pre-trained, or was found elsewhere."""
    done = layout.pretraining(run.weights) / "done.json"
    return (layout.model(run.weights) if run.is_external else done).exists()


def _own(layout: Layout, run: ContrastiveRun, source: Source, device: torch.device) -> StartingPoint:
    pretraining = read_run_file(layout.pretraining(run.weights)).pretraining
    assert pretraining is not None
    model, data = pretraining.recipe.model, pretraining.recipe.data
    origin = pretraining.tokenizer_origin
    return StartingPoint(
        model=FlatVectors(build_encoder(model, pretraining.context)),
        form=FlatForm(device, DTYPES[run.protocol.precision]),
        framing=text_tokenizer(layout, open_specified(source), data.tokenizer, model.vocabulary_size, origin),
        weights=encoder_part(last_checkpoint(layout, run.weights).weights()),
    )


def _external(layout: Layout, run: ContrastiveRun, device: torch.device) -> StartingPoint:
    from neobert.hub.external import load_external

    described = read_model_file(layout, run.weights)
    encoder, tokenizer = load_external(described.require_unchanged(), described.name, described.trust)
    model = PaddedVectors(encoder)
    return StartingPoint(model, PaddedForm(device, encoder.pad_id, run.max_tokens), tokenizer, None)


PREFIX = "model."


def open_contrastive(
    layout: Layout,
    run_id: str,
    device: torch.device,
    precision: EmbeddingPrecision | None = None,
    step: int | None = None,
) -> Embedder:
    """What a finished contrastive run ended with, or what any had at `step`; texts are as long as it was trained on.

    Raises:
        MissingData: the run is not finished or has no such step, or the model from elsewhere that it trained is gone.
        DamagedFile: the checkpoint is, or that model has changed.
    """
    folder = layout.contrastive(run_id)
    run_file = read_run_file(folder) if step is not None else _finished(folder, f"contrastive fine-tuning {run_id}")
    run = run_file.contrastive
    assert run is not None
    last = last_checkpoint(layout, run_id) if step is None else checkpoints.load(folder / "checkpoints", step)
    weights = encoder_part(last.weights())
    if run.is_external:
        return _opening_external(read_model_file(layout, run.weights), weights, device, precision, run.max_tokens)
    pretraining = read_run_file(layout.pretraining(run.weights)).pretraining
    assert pretraining is not None
    return _opening_own(layout, pretraining, run_file.source, weights, device, precision, run.max_tokens)


def open_pretrained(
    layout: Layout,
    run_id: str,
    device: torch.device,
    precision: EmbeddingPrecision | None = None,
    max_tokens: int | None = None,
) -> TextEncoder:
    """What a finished pre-training run ended with; texts are cut to `max_tokens`, and to what its stages taught.

    Raises:
        MissingData: the run is not finished.
        DamagedFile: its last checkpoint is.
    """
    folder = layout.pretraining(run_id)
    run_file = _finished(folder, f"pre-training {run_id}")
    run = run_file.pretraining
    assert run is not None
    longest = run.recipe.longest_context
    context = min(max_tokens or longest, longest)
    return _opening_own(
        layout,
        run,
        run_file.source,
        encoder_part(last_checkpoint(layout, run_id).weights()),
        device,
        precision,
        context,
    )


def open_external(
    model: ExternalModel,
    device: torch.device,
    precision: EmbeddingPrecision | None = None,
    max_tokens: int | None = None,
) -> Embedder:
    """A model from elsewhere as it is, with its modules of sentence-transformers where it has any; texts are cut to
    `max_tokens`, and to what it reads.

    Raises:
        MissingData: it is gone.
        DamagedFile: it has changed.
        ValueError: transformers cannot load it, or its modules are not read here.
    """
    modules = read_sentence_modules(Path(model.folder), model.name)
    return _opening_external(model, None, device, precision, max_tokens, modules)


def _finished(folder: Path, name: str) -> RunFile:
    run_file = read_run_file(folder)
    if not (folder / "done.json").exists():
        raise MissingData(f"{name} is not finished: run it to its end first")
    return run_file


def _opening_own(
    layout: Layout,
    run: PretrainingRun,
    source: Source,
    weights: dict[str, Tensor],
    device: torch.device,
    precision: EmbeddingPrecision | None,
    context: int,
) -> TextEncoder:
    model, data = run.recipe.model, run.recipe.data
    encoder = build_encoder(model, run.context)
    encoder.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in weights.items()})
    opened = open_specified(source)
    tokenizer = text_tokenizer(layout, opened, data.tokenizer, model.vocabulary_size, run.tokenizer_origin)
    return TextEncoder(encoder, tokenizer, context, precision=precision or default_precision(device), device=device)


def _opening_external(
    described: ExternalModel,
    weights: dict[str, Tensor] | None,
    device: torch.device,
    precision: EmbeddingPrecision | None,
    max_tokens: int | None,
    modules: SentenceModules | None = None,
) -> Embedder:
    from neobert.hub.external import load_external

    encoder, tokenizer = load_external(described.require_unchanged(), described.name, described.trust)
    if weights is not None:
        encoder.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in weights.items()})
    limits = (max_tokens, described.context, modules.max_tokens if modules else None)
    context = min((limit for limit in limits if limit is not None), default=None)
    precision = precision or default_precision(device)
    return ExternalTextEncoder(encoder, tokenizer, context, precision=precision, device=device, modules=modules)
