"""Encoders as functions from texts to vectors: this package's own without padding, external ones in padded rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from neobert.data.preparation import open_specified, text_tokenizer
from neobert.data.tokenizers import Array, FramedTexts, Framing, Text, frame_texts
from neobert.embeddings.sentence_modules import SentenceModules, SentencePooling, read_sentence_modules
from neobert.errors import MissingData, RunFailed
from neobert.external import ExternalModel, read_model_file
from neobert.glue.batching import PaddedLayout, PaddedTexts
from neobert.model.attention import AttentionPlan, Tensors, attend, packed_plan, whole_rows_plan
from neobert.model.build import build_encoder
from neobert.model.encoder import Encoder
from neobert.model.heads import encoder_part, mean_over_tokens
from neobert.recipe import EmbeddingPrecision, Precision
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, read_run_file
from neobert.runs.specifications import EXTERNAL_PREFIX, PretrainingRun
from neobert.training import checkpoints
from neobert.training.trainer import last_checkpoint, prefetch

if TYPE_CHECKING:
    from neobert.hub.external import ExternalEncoder

UNBOUNDED = 1 << 30
"""More tokens than any text has."""

CHUNK_TEXTS = 4096
"""Texts that are tokenised together, ahead of the model."""

BATCH_TOKENS = {"cpu": 1024, "cuda": 32_768}
"""Tokens of a batch. On a CPU tensors stay in caches, and below the size from which memory is mapped anew for each."""

DTYPES: dict[EmbeddingPrecision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class EmbeddingModel(nn.Module, ABC):
    """An encoder with pooling: maps a batch of texts to vectors (texts, width) float32.

    The encoder is the submodule `model`, so that its parameters are named as in pre-training ("model.…").
    """

    model: Encoder | Any

    @property
    def width(self) -> int:
        """Size of a vector."""
        return int(self.model.width)

    @abstractmethod
    def collate(self, texts: Sequence[Text], device: torch.device, precision: EmbeddingPrecision) -> Any:
        """A batch of texts on `device`, for a forward pass in `precision`; the texts are sorted by length."""

    def slots(self, lengths: Array) -> int:
        """Tokens of a batch of texts of these `lengths` (texts), padding included."""
        return int(lengths.sum())

    def batches(self, lengths: Array, most_tokens: int) -> Iterator[slice]:
        """Split texts of `lengths` (texts), the longest first, into batches of at most `most_tokens` tokens, padding
        included; a text that is longer is a batch of its own."""
        return packed_batches(lengths, most_tokens)


def packed_batches(lengths: Array, most_tokens: int) -> Iterator[slice]:
    """Split texts of `lengths` (texts) into neighbours that together have at most `most_tokens` tokens; a text that is
    longer is alone."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = ends[start] - lengths[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + most_tokens, side="right")))
        yield slice(start, stop)
        start = stop


@dataclass(frozen=True)
class AttentionOfEqualLengths:
    """Attention of texts that are packed into one row, sorted by length: `runs` are (texts, tokens of each).

    The texts of a run become rows of their own, so that nothing is masked or computed in vain.
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
class PackedTexts(Tensors):
    """Texts in one row without padding: `token_ids` (1, tokens) int64, their attention `plan`, `lengths` (texts)."""

    token_ids: Tensor
    plan: AttentionPlan
    lengths: Tensor


class PackedEncoder(EmbeddingModel):
    """An encoder of this package; a vector is the mean hidden state of a text's tokens, specials included."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PackedTexts) -> Tensor:
        """(texts, width) float32."""
        hidden = self.model(batch.token_ids, batch.plan).squeeze(0).float()  # sums are not for half precision
        # Their lengths are ours; a check of them would wait for the device.
        return torch.segment_reduce(hidden, "mean", lengths=batch.lengths, unsafe=True)

    def collate(self, texts: Sequence[Text], device: torch.device, precision: EmbeddingPrecision) -> PackedTexts:
        lengths = np.array([len(ids) for ids, _ in texts], np.int64)
        token_ids = np.concatenate([ids for ids, _ in texts]).astype(np.int64)
        numbers = np.repeat(np.arange(len(lengths)), lengths)
        positions = torch.from_numpy(np.arange(len(token_ids)) - (np.cumsum(lengths) - lengths)[numbers]).unsqueeze(0)
        if device.type == "cuda" and precision != "fp32":
            plan = packed_plan(torch.from_numpy(numbers).unsqueeze(0), positions, device)
        else:
            first = np.flatnonzero(np.diff(lengths, prepend=-1))
            counts = np.diff(first, append=len(lengths))
            runs = tuple(zip(counts.tolist(), lengths[first].tolist(), strict=True))
            plan = AttentionPlan(positions, longest=int(lengths.max()), attention=AttentionOfEqualLengths(runs))
        return PackedTexts(torch.from_numpy(token_ids).unsqueeze(0), plan, torch.from_numpy(lengths)).to(device)


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


class PaddedEncoder(EmbeddingModel):
    """An external encoder; rows are padded to the longest text, never beyond `context`. A pooler of its own is not
    used, and so not trained."""

    def __init__(self, model: "ExternalEncoder", context: int | None, pooling: SentencePooling = "mean") -> None:
        super().__init__()
        self.model = model
        self.layout = PaddedLayout(model.pad_id, context or UNBOUNDED)
        self.pool = SENTENCE_POOLINGS[pooling]
        for name, parameter in model.named_parameters():
            if "pooler." in name:
                parameter.requires_grad_(False)

    def forward(self, batch: PaddedTexts) -> Tensor:
        """(texts, width) float32."""
        hidden = self.model(batch.token_ids, batch.mask, batch.token_types)
        return self.pool(hidden.float(), batch.mask - 1)

    def collate(self, texts: Sequence[Text], device: torch.device, precision: EmbeddingPrecision) -> PaddedTexts:
        return self.layout.pad(texts, device)

    def slots(self, lengths: Array) -> int:
        return len(lengths) * self.layout.row_tokens(int(lengths.max()))

    def batches(self, lengths: Array, most_tokens: int) -> Iterator[slice]:
        start = 0
        while start < len(lengths):
            stop = start + max(1, most_tokens // max(1, int(lengths[start])))
            yield slice(start, stop)
            start = stop


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


def default_precision(device: torch.device) -> Precision:
    """bf16 on a GPU, fp32 on a CPU."""
    return "bf16" if device.type == "cuda" else "fp32"


class TextEncoder:
    """A function from texts to vectors; texts are cut to `context` tokens, specials included (None: no limit).

    `model` is moved to `device`, cast to `precision` and changed in place. Under fp16 weights stay in fp32 and matrices
    are multiplied in fp16 (autocast): sums of hidden states may exceed the range of fp16. With `modules` of
    sentence-transformers an instruction is a prompt, as there: it stands before a text as a part of it.

    `counts` adds up what was encoded since it was last set.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        tokenizer: Framing,
        context: int | None,
        *,
        precision: EmbeddingPrecision,
        device: torch.device,
        modules: SentenceModules | None = None,
    ) -> None:
        self.model = model.to(device, torch.float32 if precision == "fp16" else DTYPES[precision]).eval()
        self.tokenizer = tokenizer
        self.context = context or UNBOUNDED
        self.precision = precision
        self.device = device
        self.batch_tokens = BATCH_TOKENS[device.type]
        self.modules = modules
        self.counts = TextCounts()

    @property
    def width(self) -> int:
        """Size of a vector."""
        return self.model.width

    @property
    def parameters(self) -> int:
        """How many parameters the encoder has."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def pooling(self) -> SentencePooling:
        """How hidden states become a vector."""
        return self.modules.pooling if self.modules else "mean"

    @property
    def normalized(self) -> bool:
        """Whether all vectors have length 1."""
        return self.modules is not None and self.modules.normalize

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], *, instruction: str | None = None) -> Array:
        """Vectors (texts, width) float32 in the order of `texts`; a repeated text is computed once.

        instruction: stands before every text as a first text of its own, as in contrastive fine-tuning.

        Raises:
            ValueError: an item of `texts` is no text, or no valid Unicode.
            RunFailed: a vector is not finite.
        """
        distinct, numbers = _distinct(texts)
        vectors = np.empty((len(distinct), self.width), np.float32)
        is_cut, tokens = np.zeros(len(distinct), bool), 0
        for chunk, framed, cut in prefetch(self._framed(distinct, instruction)):
            vectors[chunk] = self._vectors(framed)
            is_cut[chunk] = cut
            tokens += len(framed.token_ids)
        _require_finite(vectors, numbers)
        empty = sum(not text.strip() for text in texts)
        repeated = len(texts) - len(distinct)
        self.counts += TextCounts(len(texts), repeated, empty, int(is_cut[numbers].sum()), tokens)
        if self.normalized:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        return vectors[numbers] if repeated else vectors

    def _framed(self, texts: Sequence[str], instruction: str | None) -> Iterator[tuple[Array, FramedTexts, Array]]:
        """(numbers of texts, the texts tokenised, which were cut) chunk by chunk, those of most characters first."""
        prompt = ""
        if self.modules is not None:
            prompt, instruction = instruction or "", None
        order = np.argsort([-len(text) for text in texts], kind="stable")
        for start in range(0, len(order), CHUNK_TEXTS):
            chunk = order[start : start + CHUNK_TEXTS]
            prompted = [prompt + texts[number] for number in chunk]
            yield chunk, *frame_texts(prompted, self.tokenizer, instruction, self.context)

    def _vectors(self, texts: FramedTexts) -> Array:
        order = np.argsort(-texts.lengths, kind="stable")
        parts = []
        with torch.autocast(self.device.type, torch.float16, enabled=self.precision == "fp16"):
            for members in self.model.batches(texts.lengths[order], self.batch_tokens):
                members_texts = [texts[number] for number in order[members]]
                parts.append(self.model(self.model.collate(members_texts, self.device, self.precision)))
        vectors = np.empty((len(texts), self.width), np.float32)
        vectors[order] = torch.cat(parts).cpu().numpy()
        return vectors


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


@dataclass(frozen=True)
class NamedEncoder:
    """An encoder under the `name` ("organisation/model") that mteb knows it by. `revision` is the id of its weights, so
    that results of other weights are not taken for its own."""

    name: str
    revision: str
    encoder: TextEncoder


def base_model(
    layout: Layout, weights: str, source: SourceSpecification, context: int | None
) -> tuple[EmbeddingModel, Framing]:
    """What contrastive fine-tuning trains, and its tokenizer: the encoder of pre-training run `weights` without its
    parameters, or external model `weights` with its own. `source` has the tokenizer.

    Raises:
        MissingData, DamagedFile: its files are not there, or not those that the id names.
        ValueError: transformers cannot load them.
    """
    if weights.startswith(EXTERNAL_PREFIX):
        return _external_model(read_model_file(layout, weights), context)
    run = read_run_file(layout.pretraining(weights)).specification(PretrainingRun)
    tokenizer = text_tokenizer(layout, run, open_specified(source))
    return PackedEncoder(build_encoder(run.recipe.model, run.context)), tokenizer


def _external_model(
    described: ExternalModel, context: int | None, pooling: SentencePooling = "mean"
) -> tuple[EmbeddingModel, Framing]:
    from neobert.hub.external import load_external

    encoder, tokenizer = load_external(described.require_unchanged(), described.name, described.trust)
    return PaddedEncoder(encoder, context, pooling), tokenizer


def load_encoder(
    layout: Layout,
    weights: str,
    device: torch.device,
    precision: EmbeddingPrecision | None = None,
    max_tokens: int | None = None,
    *,
    step: int | None = None,
) -> TextEncoder:
    """The encoder with the id `weights`: what a run of pre-training or contrastive fine-tuning ended with (or had at
    `step`), or an external model as it was published, with its modules of sentence-transformers.

    Texts are cut to `max_tokens`, and to what the encoder was trained on or reads.

    Raises:
        MissingData: the run is not finished or has no such step, or an external model is gone.
        DamagedFile: the checkpoint is, or the external model has changed.
        ValueError: transformers cannot load the model, or its modules are not supported.
    """
    precision = precision or default_precision(device)
    if weights.startswith(EXTERNAL_PREFIX):
        described = read_model_file(layout, weights)
        modules = read_sentence_modules(Path(described.folder), described.name)
        context = _least(max_tokens, described.context, modules.max_tokens if modules else None)
        model, tokenizer = _external_model(described, context, modules.pooling if modules else "mean")
        return TextEncoder(model, tokenizer, context, precision=precision, device=device, modules=modules)
    folder = layout.trained(weights)
    run_file = read_run_file(folder)
    if step is None and not (folder / "done.json").exists():
        kind = "contrastive fine-tuning" if run_file.contrastive else "pre-training"
        raise MissingData(f"{kind} {weights} is not finished: run it to its end first")
    if run_file.contrastive is not None:
        base, longest = run_file.contrastive.weights, run_file.contrastive.max_tokens
    else:
        base, longest = weights, run_file.specification(PretrainingRun).recipe.longest_context
    context = _least(max_tokens, longest)
    model, tokenizer = base_model(layout, base, run_file.source, context)
    checkpoint = last_checkpoint(layout, weights) if step is None else checkpoints.load(folder / "checkpoints", step)
    model.load_state_dict(encoder_part(checkpoint.weights()))
    return TextEncoder(model, tokenizer, context, precision=precision, device=device)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
