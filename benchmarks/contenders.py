"""Contenders in the benchmarks of pre-training: steps of our engine and of Hugging Face's models on the same masked
documents, and the race between them."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import cycle
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from ablations.ladders import variants
from benchmarks.data import IDS, NEOBERT_MASKING, SHORTEST, random_corpus
from benchmarks.measuring import Timing, median_ratio, time_in_turns
from neobert.data.batches import Batch, ExactSizes, PaddingBuckets, collate, micro_batches
from neobert.data.masking import counter_hash
from neobert.data.rows import PackedRows, Spans, pack_documents, reorder_rows
from neobert.data.shards import FRAME_TOKENS, Documents, Integers, all_documents
from neobert.data.streams import shuffle
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.heads import IGNORED_TARGET
from neobert.model.size import gated_width
from neobert.recipe import Model, Precision, Pretraining, PretrainingPrecision
from neobert.training.compiling import compile_parts, configure_inductor, parts_of
from neobert.training.engine import Engine, autocast
from neobert.training.pretraining import summed_loss

SEED = 0
WIDTH_MULTIPLE = 8
"""The width of bucketed batches is that of the longest document, rounded up to a multiple of this."""

GOLDEN_RATIO = (1 + 5**0.5) / 2
PARAMETER_TOLERANCE = 0.02
COMPILED_FORMS = 64
"""Number of compiled variants of a function that torch's compiler keeps. Contenders of one class share its functions,
and beyond the default of 8 the compiler would silently fall back to eager."""

WARM_UP_STEPS = 2
RATE = 1e-4
"""Learning rate of measured steps; no model is trained for long."""

OURS = "ours, packed"

Batching = Literal["padded", "bucketed", "concatenated"]
Mode = Literal["eager", "compiled"]
MODES: tuple[Mode, ...] = ("eager", "compiled")
Step = Callable[[], int]
"""Makes one update and returns its number of real tokens."""


@dataclass(frozen=True, eq=False)
class MaskedDocuments:
    """Documents of a corpus in memory, cut to `context` tokens; `keys` (documents,) determine their masks."""

    view: Documents
    keys: Integers
    context: int

    def __len__(self) -> int:
        return len(self.view)

    @property
    def real_tokens(self) -> int:
        """Number of tokens of all documents, specials included."""
        return int(self.view.framed_lengths.sum())

    @property
    def padded_fill(self) -> float:
        """Share of real tokens if every document has a row of its own."""
        return self.real_tokens / (len(self) * self.context)

    @property
    def attended_tokens(self) -> float:
        """Mean number of tokens to which a token attends, those of its own document."""
        lengths = self.view.framed_lengths
        return float((lengths**2).sum() / lengths.sum())

    @cached_property
    def grid(self) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids, labels (-100 where nothing is predicted) and a mask of real tokens, all (documents, context)."""
        numbers, lengths = np.arange(len(self)), self.view.framed_lengths
        zeros = np.zeros_like(numbers)
        spans = Spans(numbers, zeros, lengths, self.view.numbers, zeros, lengths, self.keys, zeros)
        batch = collate(PackedRows(self.context, len(self), spans, isolated=True), self.view.corpus, NEOBERT_MASKING)
        labels = torch.full_like(batch.token_ids, IGNORED_TARGET)
        labels[batch.token_ids == IDS.mask] = batch.targets[: batch.predicted_tokens]  # all targets are masked
        return batch.token_ids, labels, batch.token_ids != IDS.pad


def masked_documents(framed_lengths: Integers, vocabulary_size: int, context: int) -> MaskedDocuments:
    """Return documents of random tokens with `framed_lengths`, specials included, cut to `context`."""
    view = all_documents(random_corpus(framed_lengths - FRAME_TOKENS, vocabulary_size)).truncated(context)
    return MaskedDocuments(view, counter_hash(SEED, view.numbers), context)


def beta_lengths(count: int, context: int) -> Integers:
    """Return lengths (count,) with a mean of 0.6 of the context; some fill a row and most do not."""
    drawn = context * np.random.default_rng(SEED).beta(1.2, 0.8, size=count)
    return np.clip(drawn.round(), SHORTEST, context).astype(np.int64)


def rows_per_step(rows: int, about: int) -> int:
    """Return the rows per step, within a tenth of `about`, with which the last step of `rows` rows lacks fewest."""
    slack = about // 10
    return min(range(about - slack, about + slack + 1), key=lambda size: (-rows % size, abs(size - about)))


def own_batches(
    documents: MaskedDocuments, documents_per_step: int, device: torch.device, *, fixed: bool = False
) -> list[Batch]:
    """Return all documents once, packed with borders and masked by this project, in steps of about equally many tokens.

    The batches are for the kernels of `device`, but on the CPU. They have `fixed` sizes for a compiled model.
    """
    numbers = np.arange(len(documents), dtype=np.int64)
    packed = pack_documents(documents.view, numbers, documents.keys, documents.context)
    rows = reorder_rows(packed, shuffle(packed.count, SEED))
    size = rows_per_step(rows.count, round(documents_per_step * documents.padded_fill))
    tokens = float(documents.view.framed_lengths.mean())
    shapes = PaddingBuckets(size, documents.context, NEOBERT_MASKING.rate, tokens) if fixed else ExactSizes(size)
    return [
        collate(part, documents.view.corpus, NEOBERT_MASKING, sizes=shapes, flat=device.type == "cuda")
        for part in micro_batches(rows, size)
    ]


@dataclass(frozen=True, eq=False)
class PeerBatch:
    """Arguments of a Hugging Face model, all (rows, tokens) int64; no attention mask if no row is padded."""

    arguments: dict[str, Tensor]
    real_tokens: int

    def to(self, device: torch.device) -> "PeerBatch":
        return PeerBatch({name: tensor.to(device) for name, tensor in self.arguments.items()}, self.real_tokens)


def peer_batches(documents: MaskedDocuments, batching: Batching, documents_per_step: int) -> list[PeerBatch]:
    """Return all documents once, in steps of about equally many tokens.

    "padded": one document per row, all rows as wide as the context. "bucketed": documents of similar length together,
    with little padding; consecutive steps differ in width, so that any few of them are a fair sample of all.
    "concatenated": documents cut into full rows as in run_mlm.py, so that they attend to each other.
    """
    if batching == "concatenated":
        return _concatenated(documents, round(documents_per_step * documents.padded_fill))
    token_ids, labels, real = documents.grid
    lengths = real.sum(dim=1)
    groups = torch.arange(len(documents)).split(documents_per_step)
    if batching == "bucketed":
        by_length = lengths.argsort(stable=True).split(documents_per_step)
        groups = [by_length[turn] for turn in np.argsort(np.argsort(np.arange(len(by_length)) * GOLDEN_RATIO % 1))]
    batches = []
    for group in groups:
        longest = documents.context if batching == "padded" else int(lengths[group].max())
        width = min(-(-longest // WIDTH_MULTIPLE) * WIDTH_MULTIPLE, documents.context)
        shown = {"input_ids": token_ids, "labels": labels, "attention_mask": real.long()}
        arguments = {name: tensor[group, :width] for name, tensor in shown.items()}
        batches.append(PeerBatch(arguments, int(lengths[group].sum())))
    return batches


def _concatenated(documents: MaskedDocuments, rows_about: int) -> list[PeerBatch]:
    """Return documents in full rows. The last step is padded, with the number of rows per step near `rows_about` that
    needs the least padding."""
    context, real_tokens = documents.context, documents.real_tokens
    size = rows_per_step(-(-real_tokens // context), rows_about) * context
    steps = -(-real_tokens // size)
    input_ids = torch.zeros(steps * size, dtype=torch.int64)
    labels = torch.full_like(input_ids, IGNORED_TARGET)
    read, predicted, is_real = documents.grid
    input_ids[:real_tokens], labels[:real_tokens] = read[is_real], predicted[is_real]
    real = [min(size, real_tokens - step * size) for step in range(steps)]
    grids = zip(input_ids.view(steps, -1, context), labels.view(steps, -1, context), real, strict=True)
    return [PeerBatch({"input_ids": ids, "labels": targets}, count) for ids, targets, count in grids]


@dataclass(frozen=True)
class Peer:
    """A Hugging Face class and its batching. ModernBERT computes logits only at predicted tokens; BERT cannot."""

    family: Literal["bert", "modernbert"]
    batching: Batching

    @property
    def name(self) -> str:
        """Family, head and batching."""
        return f"HF {self.family}, {'sparse head, ' if self.family == 'modernbert' else ''}{self.batching}"

    def build(self, model: Model, context: int, attention: str = "sdpa") -> nn.Module:
        """Build the masked language model in the shape of `model`, with an untied decoder and no dropout.

        ModernBERT keeps its own local attention: two out of three layers see 128 tokens.
        """
        from transformers import AutoModelForMaskedLM

        torch.manual_seed(0)
        settings: dict[str, Any]
        if self.family == "bert":
            settings = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            settings["intermediate_size"] = model.feedforward_width
        else:
            settings = {"sparse_prediction": True, "intermediate_size": gated_width(model.feedforward_width)}
        settings |= {"max_position_embeddings": context, "tie_word_embeddings": False}
        config = huggingface_config(self.family, model, **settings)
        built: nn.Module = AutoModelForMaskedLM.from_config(config, attn_implementation=attention)
        return built


def huggingface_config(family: str, model: Model, **settings: Any) -> Any:
    """Return transformers' configuration of a family with layers, width, heads and vocabulary of `model`, and our
    ids."""
    from transformers import AutoConfig

    return AutoConfig.for_model(
        family,
        vocab_size=model.vocabulary_size,
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        pad_token_id=IDS.pad,
        bos_token_id=IDS.cls,
        cls_token_id=IDS.cls,
        eos_token_id=IDS.sep,
        sep_token_id=IDS.sep,
        **settings,
    )


def contender_name(name: str, precision: Precision, mode: Mode) -> str:
    return f"{name}, {precision}, {mode}"


def in_all_modes(name: str, precision: Precision) -> list[str]:
    """Return the names of the contenders with one name and precision."""
    return [contender_name(name, precision, mode) for mode in MODES]


def neobert_recipe(precision: PretrainingPrecision, **shape: Any) -> Pretraining:
    """Return NeoBERT's pre-training recipe, optionally with another shape."""
    recipe = variants()["M10"].recipe.pretraining
    model = recipe.model.model_copy(update=shape)
    return recipe.model_copy(update={"model": model, "precision": precision})


def pretraining_engine(model: nn.Module, recipe: Pretraining, device: torch.device) -> Engine[Batch]:
    return Engine(
        model, summed_loss, lambda batch: batch.predicted_tokens, recipe.optimization, recipe.precision, device
    )


@dataclass(frozen=True, eq=False)
class Setting:
    """Settings that all contenders of a benchmark share; `backend` is the compiler backend of ours."""

    recipe: Pretraining
    documents: MaskedDocuments
    documents_per_step: int
    device: torch.device
    attention: str = "sdpa"
    backend: str = "inductor"

    def own_batches(self, mode: Mode) -> list[Batch]:
        """Return our batches of all documents, on the CPU."""
        return own_batches(self.documents, self.documents_per_step, self.device, fixed=mode == "compiled")

    def own_engine(self, mode: Mode) -> Engine[Batch]:
        """Return the engine of a run of the recipe, with initial weights."""
        recipe = self.recipe
        model = build_masked_language_model(recipe.model, self.documents.context, recipe.precision)
        initialize(model, recipe.model.initialization, recipe.seed)
        model.train()
        if mode == "compiled":
            configure_inductor(self.device)
            compile_parts(parts_of(model, self.device), backend=self.backend)
        return pretraining_engine(model, recipe, self.device)

    def contenders(
        self, precisions: Sequence[Precision], peers: Mapping[Peer, Sequence[Mode]]
    ) -> dict[str, Callable[[], Step]]:
        """Return makers of the contenders' steps, by name: ours in all modes, each peer in its own."""
        makers: dict[str, Callable[[], Step]] = {}
        for precision in precisions:
            recipe = self.recipe.model_copy(update={"precision": precision})
            for mode in MODES:
                makers[contender_name(OURS, precision, mode)] = partial(replace(self, recipe=recipe).own_step, mode)
            for peer, modes in peers.items():
                for mode in modes:
                    makers[contender_name(peer.name, precision, mode)] = partial(self._peer_step, peer, recipe, mode)
        return makers

    def own_step(self, mode: Mode) -> Step:
        """Return a step that makes one update of our engine on the next batch."""
        engine = self.own_engine(mode)
        upcoming = cycle([batch.to(self.device) for batch in self.own_batches(mode)])

        def step() -> int:
            batch = next(upcoming)
            engine.step([batch], self.recipe.optimization.peak_learning_rate).measured()
            return batch.real_tokens

        return step

    def _peer_step(self, peer: Peer, recipe: Pretraining, mode: Mode) -> Step:
        """Return a step that makes one update on the next batch: the class's mean loss, autocast, gradient clipping as
        in Trainer's defaults, and fused AdamW. It is compiled for one width if all batches have it, else for any."""
        module = peer.build(recipe.model, self.documents.context, self.attention).to(self.device).train()
        batches = peer_batches(self.documents, peer.batching, self.documents_per_step)
        several_widths = len({batch.arguments["input_ids"].shape[1] for batch in batches}) > 1
        network: Callable[..., Any] = module
        if mode == "compiled":
            network = torch.compile(module, dynamic=several_widths or None)
        rate, decay = recipe.optimization.peak_learning_rate, recipe.optimization.weight_decay
        optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=decay, fused=True)
        upcoming = cycle([batch.to(self.device) for batch in batches])

        def step() -> int:
            batch = next(upcoming)
            with autocast(self.device, recipe.precision):
                loss = network(**batch.arguments).loss
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), recipe.optimization.clip_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return batch.real_tokens

        return step

    def parameter_counts(self, peers: Sequence[Peer]) -> dict[str, int]:
        """Return the numbers of parameters of our model and of the peers.

        Raises:
            AssertionError: a peer differs from our model by more than 2 %.
        """
        model, context = self.recipe.model, self.documents.context
        with torch.device("meta"):
            own = count_parameters(build_masked_language_model(model, context))
            found = {f"HF {peer.family}": count_parameters(peer.build(model, context)) for peer in peers}
        for name, count in found.items():
            if abs(count / own - 1) > PARAMETER_TOLERANCE:
                raise AssertionError(f"{name} has {count} parameters and ours {own}: they must agree within 2 %")
        return {"ours": own, **found}

    def figures(self, peers: Sequence[Peer]) -> dict[str, Any]:
        """Return figures on the setting for a result file."""
        batches = self.own_batches("eager")
        return {
            "documents": len(self.documents),
            "documents per step": self.documents_per_step,
            "real tokens": self.documents.real_tokens,
            "predicted tokens": sum(batch.predicted_tokens for batch in batches),
            "fill, padded": round(self.documents.padded_fill, 3),
            "fill, ours": round(self.documents.real_tokens / sum(batch.token_ids.numel() for batch in batches), 3),
            "parameters": self.parameter_counts(peers),
            "threads": torch.get_num_threads(),
        }


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a model; tied ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def compiling_anew() -> Iterator[None]:
    """Keep all compiled variants of a function, but none of an earlier run, so that warm-up includes compilation."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": folder}),
        torch._dynamo.config.patch(recompile_limit=COMPILED_FORMS),
    ):
        yield


def burst(step: Step, steps: int) -> int:
    """Make `steps` updates; return their real tokens."""
    tokens = sum(step() for _ in range(steps))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tokens


@dataclass(frozen=True)
class Race:
    """Measurements by contender.

    per_token: time per real token in each round. warm_up_seconds: time to make the model and optimizer and run the
        first steps, compilation included. left_out: why a contender did not take part.
    """

    per_token: Mapping[str, Sequence[Timing[Any]]]
    warm_up_seconds: Mapping[str, float]
    left_out: Mapping[str, str]

    def tokens_per_second(self, name: str) -> float:
        """Return the median speed of a contender."""
        return statistics.median(1 / timing.wall for timing in self.per_token[name])

    def fastest(self, names: Sequence[str]) -> str | None:
        """Return which of `names` has the highest median speed, or None if none of them took part."""
        present = [name for name in names if name in self.per_token]
        return max(present, key=self.tokens_per_second) if present else None

    def speed_ratio(self, own: str, other: str) -> dict[str, float]:
        """Return the median over rounds of the speed of `own` / `other`, by clock and by processor time."""
        return median_ratio(self.per_token[other], self.per_token[own])

    def figures(self) -> dict[str, Any]:
        """Return the speed of every contender, and those left out."""
        speeds = {
            name: {
                "median": round(self.tokens_per_second(name)),
                "best": round(max(1 / timing.wall for timing in timings)),
                "median per processor second": round(statistics.median(1 / timing.processor for timing in timings)),
                "warm-up seconds": round(self.warm_up_seconds[name], 1),
            }
            for name, timings in self.per_token.items()
        }
        return {"real tokens per second": speeds, "left out": dict(self.left_out)}


def race(contenders: Mapping[str, Callable[[], Step]], *, rounds: int, steps: int) -> Race:
    """Make and warm up every contender, then time a burst of `steps` updates of each in every round.

    Contenders that cannot run here are left out, with the error of their library as the reason.
    """
    bursts: dict[str, Callable[[], int]] = {}
    warm_up_seconds: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name, make in contenders.items():
        started = time.perf_counter()
        try:
            step = make()
            burst(step, WARM_UP_STEPS)
        except Exception as error:
            left_out[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
            print(f"  {name}: left out, {left_out[name]}", flush=True)
            continue
        warm_up_seconds[name] = time.perf_counter() - started
        bursts[name] = partial(burst, step, steps)
        print(f"  {name}: warmed up in {warm_up_seconds[name]:.1f} s", flush=True)
    timings = time_in_turns(bursts, rounds)
    per_token = {name: [timing.per(timing.returned) for timing in own] for name, own in timings.items()}
    return Race(per_token, warm_up_seconds, left_out)
