"""Tokens a second of encoders against sequence length, each at its best batch size (the paper's Figure 3, Table 9).

With a GPU the real sizes, else scaled-down ones on the CPU. A step is a forward pass without gradients to the hidden
states: inference, no head. Weights are random, and every sequence is as long as its row, so that all tokens are real.
One record a model and length goes to throughput/ in the folder of the results.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.contenders import huggingface_config, neobert_recipe
from benchmarks.data import IDS
from benchmarks.measuring import (
    OPERATIONS_RATIO,
    Benchmark,
    Goal,
    Result,
    Timing,
    describe_machine,
    median_ratio,
    operation_counter,
    take_turns,
    time_call,
)
from neobert.files import replace_file
from neobert.identity import identity, plain
from neobert.model.attention import is_flash_attn_available, whole_rows_plan
from neobert.model.build import build_encoder, initialize
from neobert.recipe import Model, Precision
from neobert.runs.layout import Layout
from neobert.runs.records import ThroughputConfig, ThroughputScores, sealed, timed_provenance, utc_now
from neobert.training.accounting import DTYPES
from neobert.training.distributed import set_up_device

HEAD_SIZE = 64
WARM_UP_STEPS, SEARCH_STEPS = 2, 3
TURNS = 4
MARGIN = 0.1
"""The search ends at a batch size that is slower than the best one by this share, because single timings vary."""
CPU_NAME, GPU_NAME = "throughput_over_modernbert", "throughput_over_modernbert_gpu"


@dataclass(frozen=True)
class EncoderShape:
    """A named encoder. `feedforward_width` is that of the family's own configuration; `positions` is the number of
    positions in its table or published configuration, None if unbounded."""

    name: str
    family: Literal["neobert", "bert", "roberta", "modernbert"]
    layers: int
    width: int
    feedforward_width: int
    vocabulary_size: int
    positions: int | None

    @property
    def model(self) -> Model:
        """Our own model of this shape; all families have a head size of 64."""
        return neobert_recipe(
            "bf16",
            layers=self.layers,
            width=self.width,
            heads=self.width // HEAD_SIZE,
            feedforward_width=self.feedforward_width,
            vocabulary_size=self.vocabulary_size,
        ).model

    def scaled_down(self, divisor: int) -> "EncoderShape":
        """Divide depth and width by `divisor`; the new name states both."""
        layers, width = max(1, round(self.layers / divisor)), self.width // divisor
        assert width % HEAD_SIZE == 0, f"{self.name} has no {divisor}th"
        name, feedforward_width = f"{self.name} ({layers} × {width})", self.feedforward_width // divisor
        return replace(self, name=name, layers=layers, width=width, feedforward_width=feedforward_width)

    def build(self, attention: str) -> nn.Module:
        """Return the encoder with random weights and no head, in evaluation mode. ModernBERT keeps its local attention:
        two of three layers see 128 tokens.

        Raises:
            ImportError: the attention needs a package that is not installed.
        """
        torch.manual_seed(0)
        if self.family == "neobert":
            encoder = build_encoder(self.model, context=0).eval()
            initialize(encoder, self.model.initialization, 0)
            return encoder
        from transformers import AutoModel

        assert self.positions is not None
        own: dict[str, Any] = {"max_position_embeddings": self.positions}
        if self.family == "roberta":  # its positions begin after the padding id
            own = {"max_position_embeddings": self.positions + IDS.pad + 1, "type_vocab_size": 1}
        config = huggingface_config(self.family, self.model, intermediate_size=self.feedforward_width, **own)
        no_head = {} if self.family == "modernbert" else {"add_pooling_layer": False}
        built: nn.Module = AutoModel.from_config(config, attn_implementation=attention, **no_head).eval()
        return built


NEOBERT = EncoderShape("NeoBERT", "neobert", 28, 768, 3072, 30_522, None)
BASES = (
    EncoderShape("BERT-base", "bert", 12, 768, 3072, 30_522, 512),
    EncoderShape("RoBERTa-base", "roberta", 12, 768, 3072, 50_265, 512),
    EncoderShape("ModernBERT-base", "modernbert", 22, 768, 1152, 50_368, 8192),
)
LARGES = (
    EncoderShape("BERT-large", "bert", 24, 1024, 4096, 30_522, 512),
    EncoderShape("RoBERTa-large", "roberta", 24, 1024, 4096, 50_265, 512),
    EncoderShape("ModernBERT-large", "modernbert", 28, 1024, 2624, 50_368, 8192),
)


@dataclass(frozen=True)
class ThroughputSetting:
    """The settings of the benchmark. The ratio is the speed of the first encoder / that of `other` at `compared`
    tokens. A batch has at most `most_rows` rows and `most_tokens` tokens."""

    device: torch.device
    precision: Precision
    attention: str
    encoders: tuple[EncoderShape, ...]
    lengths: tuple[int, ...]
    steps: int
    most_rows: int
    most_tokens: int
    other: str
    compared: int


def cpu_setting() -> ThroughputSetting:
    """Return a setting that takes about a minute on a laptop: depth and width are a quarter of the real ones."""
    encoders = tuple(encoder.scaled_down(4) for encoder in (NEOBERT, *BASES))
    lengths, other = (128, 256, 512, 1024), encoders[-1].name
    return ThroughputSetting(torch.device("cpu"), "fp32", "sdpa", encoders, lengths, 12, 32, 4096, other, 1024)


def gpu_setting() -> ThroughputSetting:
    """Return the protocol of the paper: lengths 512 to 8,192, batches up to 512 or out of memory, 100 steps."""
    attention = "flash_attention_2" if is_flash_attn_available() else "sdpa"
    encoders, lengths, other = (NEOBERT, *BASES, *LARGES), (512, 1024, 2048, 4096, 8192), BASES[-1].name
    return ThroughputSetting(set_up_device(), "bf16", attention, encoders, lengths, 100, 512, 512 * 8192, other, 4096)


@dataclass(frozen=True)
class BatchSearch:
    """The result of a search: the tried {batch size: tokens per second}, and why it ended."""

    tried: dict[int, float]
    ended: str

    @property
    def best(self) -> int | None:
        """The fastest batch size; None if not even one row fitted."""
        return max(self.tried, key=lambda size: self.tried[size]) if self.tried else None


def search_batch(speed: Callable[[int], float], most_rows: int) -> BatchSearch:
    """Try 1, 2, 4, … up to `most_rows` rows; `speed` returns tokens per second and may run out of memory."""
    tried: dict[int, float] = {}
    rows = 1
    while rows <= most_rows:
        try:
            tried[rows] = speed(rows)
        except torch.OutOfMemoryError as error:
            return BatchSearch(tried, f"out of memory at batch {rows}: {str(error).partition('.')[0]}")
        if tried[rows] < (1 - MARGIN) * max(tried.values()):
            return BatchSearch(tried, f"slower at batch {rows}")
        rows *= 2
    return BatchSearch(tried, f"batch {most_rows} is the largest that was allowed")


@dataclass(frozen=True, eq=False)
class LoadedEncoder:
    """An encoder on a device."""

    shape: EncoderShape
    module: nn.Module
    device: torch.device

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return the hidden states (rows, tokens, width) of token ids (rows, tokens)."""
        if self.shape.family == "neobert":
            hidden: Tensor = self.module(token_ids, whole_rows_plan(token_ids))
        else:
            hidden = self.module(input_ids=token_ids).last_hidden_state
        return hidden

    def sequences(self, rows: int, tokens: int) -> Tensor:
        """Return random text between [CLS] and [SEP], (rows, tokens) int64, without padding."""
        generator = torch.Generator().manual_seed(0)
        token_ids = torch.randint(1000, self.shape.vocabulary_size, (rows, tokens), generator=generator)
        token_ids[:, 0], token_ids[:, -1] = IDS.cls, IDS.sep
        return token_ids.to(self.device)

    @torch.inference_mode()
    def time_steps(self, rows: int, tokens: int, steps: int) -> list[Timing[None]]:
        """Return the time per real token of `steps` forward passes of (rows, tokens), after some warm-up passes.

        Raises:
            torch.OutOfMemoryError: the batch does not fit; allocated memory is freed.
        """

        def step() -> None:
            self.forward(token_ids)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

        try:
            token_ids = self.sequences(rows, tokens)
            timings = [time_call(step) for _ in range(WARM_UP_STEPS + steps)]
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return [timing.per(rows * tokens) for timing in timings[WARM_UP_STEPS:]]

    @torch.inference_mode()
    def operations_per_token(self, tokens: int) -> int:
        """Count the operations of a forward pass of one sequence of `tokens` tokens, per token."""
        with operation_counter() as counter:
            self.forward(self.sequences(1, tokens))
        return round(counter.get_total_flops() / tokens)


@dataclass(frozen=True)
class Speed:
    """Time per real token in each timed step of one model at one length, at the best batch size that was found."""

    encoder: LoadedEncoder
    tokens: int
    found: BatchSearch
    per_token: tuple[Timing[Any], ...]
    started_at: str

    @property
    def name(self) -> str:
        return self.encoder.shape.name

    @property
    def tokens_per_second(self) -> list[float]:
        """Tokens per second of each step, by the clock."""
        return [1 / timing.wall for timing in self.per_token]


def measure_speeds(setting: ThroughputSetting, left_out: dict[str, str]) -> Iterator[Speed]:
    """Yield the speed of all models at all lengths, one length after the other. Models without a speed are added to
    `left_out`, with the reason."""
    loaded: list[LoadedEncoder] = []
    for shape in setting.encoders:
        try:
            module = shape.build(setting.attention).to(setting.device, DTYPES[setting.precision])
            loaded.append(LoadedEncoder(shape, module, setting.device))
        except ImportError as error:
            left_out[shape.name] = str(error).partition("\n")[0]
    for tokens in setting.lengths:
        found: dict[str, tuple[LoadedEncoder, BatchSearch]] = {}
        started_at = utc_now()
        for encoder in loaded:
            name, positions = encoder.shape.name, encoder.shape.positions
            if positions is not None and tokens > positions:
                left_out[f"{name} at {tokens} tokens"] = f"it has {positions} positions"
                continue
            search = search_batch(
                partial(_speed_of_batch, encoder, tokens),
                max(1, min(setting.most_rows, setting.most_tokens // tokens)),
            )
            if search.best is None:
                left_out[f"{name} at {tokens} tokens"] = search.ended
            else:
                found[name] = encoder, search
        steps = -(-setting.steps // TURNS)
        bursts = {name: partial(one.time_steps, each.best or 1, tokens, steps) for name, (one, each) in found.items()}
        for name, timings in take_turns(bursts, TURNS).items():
            yield Speed(found[name][0], tokens, found[name][1], tuple(chain.from_iterable(timings)), started_at)


def _speed_of_batch(encoder: LoadedEncoder, tokens: int, rows: int) -> float:
    """Return the speed by the clock on a GPU and else by processor time, which other processes affect less."""
    timings = encoder.time_steps(rows, tokens, SEARCH_STEPS)
    return 1 / min(timing.wall if encoder.device.type == "cuda" else timing.processor for timing in timings)


def throughput_record(speed: Speed, setting: ThroughputSetting) -> dict[str, Any]:
    """Return a record with the median speed of the steps, their standard deviation and quartiles, and provenance."""
    machine = describe_machine()
    device = str(machine["gpu"] if setting.device.type == "cuda" else machine["processor"])
    assert speed.found.best is not None
    steps = speed.tokens_per_second
    config = ThroughputConfig(
        model=speed.name,
        parameters=sum(parameter.numel() for parameter in speed.encoder.module.parameters()),
        sequence_tokens=speed.tokens,
        batch_size=speed.found.best,
        precision=setting.precision,
        compiled=False,
        steps=len(steps),
    )
    decisive = (speed.name, speed.tokens, setting.precision, setting.attention, device)
    low, median, high = statistics.quantiles(steps, n=4, method="inclusive")
    return {
        "kind": "throughput",
        "id": identity(["throughput", *decisive]),
        "state": "done",
        "inputs": {},
        "config": plain(config),
        "labels": {"pass": "forward, without gradients, hidden states", "attention": setting.attention},
        "scores": plain(ThroughputScores(tokens_per_second=median, spread=statistics.stdev(steps))),
        "quartiles": {"low": low, "high": high},
        "search": {"tokens_per_second": plain(speed.found.tried), "ended": speed.found.ended},
        "seed": 0,
        "device": device,
        "date": datetime.now(UTC).date().isoformat(),
        **timed_provenance(speed.started_at),
    }


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Tokens a second of encoders against sequence length: with a GPU the real sizes, else scaled-down ones on the CPU.
    Records go to FOLDER/throughput. The ratio is by the clock on a GPU, else by processor time."""
    has_gpu = torch.cuda.is_available()
    setting = gpu_setting() if has_gpu else cpu_setting()
    setting = replace(setting, lengths=tuple(options.lengths or setting.lengths), steps=options.steps or setting.steps)
    left_out, compared = dict[str, str](), dict[str, Speed]()
    for speed in measure_speeds(setting, left_out):
        record = throughput_record(speed, setting)  # replaces an older one of the same model, length and device
        replace_file(Layout(options.folder).throughput(str(record["id"])), sealed(record))
        what = f"{speed.name}, {speed.tokens} tokens: {statistics.median(speed.tokens_per_second):,.0f} tokens a second"
        print(f"  {what} at batch {speed.found.best} ({speed.found.ended})", flush=True)
        if speed.tokens == setting.compared:
            compared[speed.name] = speed
    for lacking, reason in left_out.items():
        print(f"  left out: {lacking}, {reason}")
    own, other = setting.encoders[0].name, setting.other
    if not {own, other} <= set(compared):
        print(f"no ratio: that is at {setting.compared:,} tokens, and one of both sides did not run there")
        return
    ratios = median_ratio(compared[other].per_token, compared[own].per_token)
    operations = {name: compared[name].encoder.operations_per_token(setting.compared) for name in (own, other)}
    figures = {
        "ratio": ratios,
        OPERATIONS_RATIO: round(operations[other] / operations[own], 3),
        "operations per token": operations,
        "left out": left_out,
        "attention of Hugging Face's models": setting.attention,
        "threads": torch.get_num_threads(),
    }
    yield Result(GPU_NAME if has_gpu else CPU_NAME, ratios["wall" if has_gpu else "processor"], figures)


THROUGHPUT = Benchmark(
    measure,
    {
        CPU_NAME: Goal(1.0, "tokens a second at 1,024 on a CPU, fp32: NeoBERT / HF ModernBERT-base, a quarter each"),
        GPU_NAME: Goal(1.47, "tokens a second at 4,096 on a GPU, bf16: NeoBERT / HF ModernBERT-base"),
    },
)
