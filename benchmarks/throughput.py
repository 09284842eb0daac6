"""Tokens a second of encoders against sequence length, each at its best batch size (the paper's Figure 3, Table 9).

python -m benchmarks throughput                         with a GPU the real sizes, else scaled-down ones on the CPU
python -m benchmarks throughput --steps 20 --lengths 512 4096
python -m benchmarks throughput --folder runs           records for the figures of a folder of runs

A step is a forward pass without gradients to the hidden states: inference, no head. Weights are random, and every
sequence is as long as its row, so that all tokens are real. One record a model and length goes to throughput/.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.contenders import WARM_UP_STEPS, count_parameters, huggingface_config, neobert_recipe
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
from neobert.command_line import count
from neobert.files import replace_file
from neobert.identity import identity, plain
from neobert.model.attention import is_flash_attn_available, whole_rows_plan
from neobert.model.build import build_encoder, initialize
from neobert.recipe import Model, Precision
from neobert.runs.layout import Layout
from neobert.runs.records import ThroughputConfig, ThroughputScores, sealed, timed_provenance, utc_now
from neobert.training.accounting import DTYPES
from neobert.training.distributed import set_up_device

Family = Literal["neobert", "bert", "roberta", "modernbert"]
Forward = Callable[[Tensor], Tensor]
"""Maps token ids (rows, tokens) to hidden states (rows, tokens, width)."""

HEAD_SIZE = 64
FIRST_TEXT_ID = 1000
SEARCH_STEPS = 3
CPU_DIVISOR = 4
MARGIN = 0.1
"""The search ends at a batch size that is slower than the best one by this share, because single timings vary."""


@dataclass(frozen=True)
class EncoderShape:
    """A named encoder. `feedforward_width` is that of the family's own configuration; `positions` is the number of
    positions in its table or published configuration, None if unbounded."""

    name: str
    family: Family
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
        return replace(
            self,
            name=f"{self.name} ({layers} × {width})",
            layers=layers,
            width=width,
            feedforward_width=self.feedforward_width // divisor,
        )

    def reads(self, tokens: int) -> bool:
        """Return whether the encoder has positions for `tokens` tokens."""
        return self.positions is None or tokens <= self.positions

    def build(self, attention: str) -> tuple[nn.Module, Forward]:
        """Return the encoder with random weights and no head, in evaluation mode, and its forward pass."""
        torch.manual_seed(0)
        if self.family == "neobert":
            encoder = build_encoder(self.model, context=0).eval()
            initialize(encoder, self.model.initialization, 0)
            return encoder, lambda token_ids: encoder(token_ids, whole_rows_plan(token_ids))
        module = build_peer(self, attention).eval()
        return module, lambda token_ids: module(input_ids=token_ids).last_hidden_state


def build_peer(shape: EncoderShape, attention: str) -> nn.Module:
    """Build the family's Hugging Face class. ModernBERT keeps its local attention: two of three layers see 128 tokens.

    Raises:
        ImportError: the attention needs a package that is not installed.
    """
    from transformers import AutoModel

    assert shape.positions is not None
    settings: dict[str, Any] = {"intermediate_size": shape.feedforward_width}
    settings["max_position_embeddings"] = shape.positions
    if shape.family == "roberta":  # its positions begin after the padding id
        settings |= {"max_position_embeddings": shape.positions + IDS.pad + 1, "type_vocab_size": 1}
    config = huggingface_config(shape.family, shape.model, **settings)
    no_head = {} if shape.family == "modernbert" else {"add_pooling_layer": False}
    built: nn.Module = AutoModel.from_config(config, attn_implementation=attention, **no_head)
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
PAPER_ENCODERS = (NEOBERT, *BASES, *LARGES)
"""Encoders of the paper's throughput table, with the sizes of their published configurations."""


@dataclass(frozen=True)
class ThroughputSetting:
    """The settings of the benchmark. The ratio is the speed of the first encoder / `other` at `compared` tokens.

    A batch has at most `most_rows` rows and `most_tokens` tokens. `steps` are timed, in `turns` of all models.
    """

    device: torch.device
    precision: Precision
    attention: str
    encoders: tuple[EncoderShape, ...]
    lengths: tuple[int, ...]
    steps: int
    turns: int
    most_rows: int
    most_tokens: int
    other: str
    compared: int
    title: str


CPU_NAME, GPU_NAME = "throughput_over_modernbert", "throughput_over_modernbert_gpu"


def cpu_setting() -> ThroughputSetting:
    """Return a setting that takes about a minute on a laptop."""
    neobert, *bases = (encoder.scaled_down(CPU_DIVISOR) for encoder in (NEOBERT, *BASES))
    return ThroughputSetting(
        device=torch.device("cpu"),
        precision="fp32",
        attention="sdpa",
        encoders=(neobert, *bases),
        lengths=(128, 256, 512, 1024),
        steps=12,
        turns=4,
        most_rows=32,
        most_tokens=4096,
        other=bases[-1].name,
        compared=1024,
        title="Forward pass to the hidden states (inference), on a CPU: depth and width are a quarter of the real ones",
    )


def gpu_setting() -> ThroughputSetting:
    """Return the protocol of the paper: lengths 512 to 8,192, batches up to 512 or out of memory, 100 steps."""
    return ThroughputSetting(
        device=set_up_device(),
        precision="bf16",
        attention="flash_attention_2" if is_flash_attn_available() else "sdpa",
        encoders=PAPER_ENCODERS,
        lengths=(512, 1024, 2048, 4096, 8192),
        steps=100,
        turns=4,
        most_rows=512,
        most_tokens=512 * 8192,
        other=BASES[-1].name,
        compared=4096,
        title="Forward pass to the hidden states (inference), on a GPU, at the real sizes",
    )


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
    """A loaded encoder, its forward pass, and its number of parameters without a head."""

    encoder: EncoderShape
    forward: Forward
    parameters: int
    device: torch.device

    @classmethod
    def load(cls, encoder: EncoderShape, attention: str, device: torch.device, precision: Precision) -> "LoadedEncoder":
        """Build an encoder with all weights in `precision`.

        Raises:
            ImportError: the attention needs a package that is not installed.
        """
        module, forward = encoder.build(attention)
        module.to(device, DTYPES[precision])
        return cls(encoder, forward, count_parameters(module), device)

    @torch.inference_mode()
    def time_steps(self, rows: int, tokens: int, steps: int) -> list[Timing[None]]:
        """Return the time per real token of `steps` forward passes of (rows, tokens), after some warm-up passes.

        Raises:
            torch.OutOfMemoryError: the batch does not fit; allocated memory is freed.
        """
        try:
            token_ids = sequences(rows, tokens, self.encoder.vocabulary_size).to(self.device)
            timings = [time_call(lambda: self._step(token_ids)) for _ in range(WARM_UP_STEPS + steps)]
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return [timing.per(rows * tokens) for timing in timings[WARM_UP_STEPS:]]

    @torch.inference_mode()
    def operations_per_token(self, tokens: int) -> int:
        """Count the operations of a forward pass of one sequence of `tokens` tokens, per token."""
        token_ids = sequences(1, tokens, self.encoder.vocabulary_size).to(self.device)
        with operation_counter() as counter:
            self.forward(token_ids)
        return round(counter.get_total_flops() / tokens)

    def _step(self, token_ids: Tensor) -> None:
        self.forward(token_ids)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def sequences(rows: int, tokens: int, vocabulary_size: int) -> Tensor:
    """Return random text between [CLS] and [SEP], (rows, tokens) int64, without padding."""
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(FIRST_TEXT_ID, vocabulary_size, (rows, tokens), generator=generator)
    token_ids[:, 0], token_ids[:, -1] = IDS.cls, IDS.sep
    return token_ids


@dataclass(frozen=True)
class Speed:
    """Time per real token in each timed step of one model at one length, at the best batch size found.

    `operations` are those of a token; `started_at` is when the models began to be measured at that length.
    """

    encoder: EncoderShape
    parameters: int
    operations: int
    tokens: int
    found: BatchSearch
    per_token: tuple[Timing[None], ...]
    started_at: str

    @property
    def tokens_per_second(self) -> list[float]:
        """Tokens per second of each step, by the clock."""
        return [1 / timing.wall for timing in self.per_token]

    @property
    def median(self) -> float:
        """Median tokens per second, the reported speed."""
        return statistics.median(self.tokens_per_second)


def measure_speeds(setting: ThroughputSetting, left_out: dict[str, str]) -> Iterator[Speed]:
    """Yield the speed of all models at all lengths, one length after the other. Models without a speed are added to
    `left_out`, with the reason."""
    loaded: dict[str, LoadedEncoder] = {}
    for encoder in setting.encoders:
        try:
            loaded[encoder.name] = LoadedEncoder.load(encoder, setting.attention, setting.device, setting.precision)
        except ImportError as error:
            left_out[encoder.name] = str(error).partition("\n")[0]
    for tokens in setting.lengths:
        searches: dict[str, BatchSearch] = {}
        started_at = utc_now()
        for name, model in loaded.items():
            if not model.encoder.reads(tokens):
                left_out[f"{name} at {tokens} tokens"] = f"it has {model.encoder.positions} positions"
                continue
            search = _search(setting, model, tokens)
            if search.best is None:
                left_out[f"{name} at {tokens} tokens"] = search.ended
            else:
                searches[name] = search
        steps = -(-setting.steps // setting.turns)
        bursts = {
            name: partial(loaded[name].time_steps, search.best or 1, tokens, steps) for name, search in searches.items()
        }
        for name, timings in take_turns(bursts, setting.turns).items():
            model, per_token = loaded[name], tuple(chain.from_iterable(timings))
            operations = model.operations_per_token(tokens)
            yield Speed(model.encoder, model.parameters, operations, tokens, searches[name], per_token, started_at)


def _search(setting: ThroughputSetting, model: LoadedEncoder, tokens: int) -> BatchSearch:
    """Find the best batch size, by the clock on a GPU and else by processor time, which is less affected by other
    processes."""
    most = max(1, min(setting.most_rows, setting.most_tokens // tokens))

    def speed(rows: int) -> float:
        timings = model.time_steps(rows, tokens, SEARCH_STEPS)
        return 1 / min(timing.wall if setting.device.type == "cuda" else timing.processor for timing in timings)

    return search_batch(speed, most)


def write_throughput(folder: Path, speed: Speed, setting: ThroughputSetting) -> Path:
    """Write a measurement below `folder`, replacing an older one of the same model, length and device."""
    content = throughput_record(speed, setting)
    path = Layout(folder).throughput(str(content["id"]))
    replace_file(path, sealed(content))
    return path


def throughput_record(speed: Speed, setting: ThroughputSetting) -> dict[str, Any]:
    """Return a record with the median speed of the steps, their standard deviation and quartiles, and provenance."""
    machine = describe_machine()
    device = str(machine["gpu"] if setting.device.type == "cuda" else machine["processor"])
    assert speed.found.best is not None
    steps = speed.tokens_per_second
    config = ThroughputConfig(
        model=speed.encoder.name,
        parameters=speed.parameters,
        sequence_tokens=speed.tokens,
        batch_size=speed.found.best,
        precision=setting.precision,
        compiled=False,
        steps=len(steps),
    )
    decisive = (speed.encoder.name, speed.tokens, setting.precision, setting.attention, device)
    low, _, high = statistics.quantiles(steps, n=4, method="inclusive")
    return {
        "kind": "throughput",
        "id": identity(["throughput", *decisive]),
        "state": "done",
        "inputs": {},
        "config": plain(config),
        "labels": {"pass": "forward, without gradients, hidden states", "attention": setting.attention},
        "scores": plain(ThroughputScores(tokens_per_second=speed.median, spread=statistics.stdev(steps))),
        "quartiles": {"low": low, "high": high},
        "search": {"tokens_per_second": plain(speed.found.tried), "ended": speed.found.ended},
        "seed": 0,
        "device": device,
        "date": datetime.now(UTC).date().isoformat(),
        **timed_provenance(speed.started_at),
    }


def compared_names(setting: ThroughputSetting) -> tuple[str, str]:
    """Return the names of our encoder and of the one that it is compared with."""
    return setting.encoders[0].name, setting.other


def ratio_of(speeds: Sequence[Speed], setting: ThroughputSetting) -> dict[str, float] | None:
    """Return the median of paired speed ratios of the two compared encoders, by clock and by processor time; None if
    one is missing."""
    times = {speed.encoder.name: speed.per_token for speed in speeds if speed.tokens == setting.compared}
    own, other = compared_names(setting)
    return median_ratio(times[other], times[own]) if {own, other} <= set(times) else None


def figures_of(setting: ThroughputSetting, speeds: Sequence[Speed], left_out: dict[str, str]) -> dict[str, Any]:
    """Return all medians and the setting, for the result file."""
    medians, operations = dict[str, dict[str, int]](), dict[str, dict[str, int]]()
    for speed in speeds:
        medians.setdefault(speed.encoder.name, {})[str(speed.tokens)] = round(speed.median)
        operations.setdefault(speed.encoder.name, {})[str(speed.tokens)] = speed.operations
    own, other = (operations.get(name, {}).get(str(setting.compared)) for name in compared_names(setting))
    return {
        "title": setting.title,
        "ratio": ratio_of(speeds, setting),
        OPERATIONS_RATIO: round(other / own, 3) if own and other else None,
        "tokens per second, median": medians,
        "operations per token": operations,
        "left out": left_out,
        "precision": setting.precision,
        "attention of Hugging Face's models": setting.attention,
        "steps": setting.steps,
        "threads": torch.get_num_threads(),
    }


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Tokens a second of encoders against sequence length: with a GPU the real sizes, else scaled-down ones on the CPU.
    Records go to FOLDER/throughput. The ratio is by the clock on a GPU, else by processor time."""
    has_gpu = torch.cuda.is_available()
    setting = gpu_setting() if has_gpu else cpu_setting()
    setting = replace(setting, lengths=tuple(options.lengths or setting.lengths), steps=options.steps or setting.steps)
    print(setting.title, flush=True)
    left_out, speeds = dict[str, str](), list[Speed]()
    for speed in measure_speeds(setting, left_out):
        speeds.append(speed)
        write_throughput(options.folder, speed, setting)
        what = f"{speed.encoder.name}, {speed.tokens} tokens: {speed.median:,.0f} tokens a second"
        print(f"  {what} at batch {speed.found.best} ({speed.found.ended})", flush=True)
    for lacking, reason in left_out.items():
        print(f"  left out: {lacking}, {reason}")
    figures = figures_of(setting, speeds, left_out)
    if setting.compared not in setting.lengths:
        print(f"no ratio: that is at {setting.compared:,} tokens, which --lengths leaves out")
        return
    ratio = figures["ratio"] and figures["ratio"]["wall" if has_gpu else "processor"]
    yield Result(GPU_NAME if has_gpu else CPU_NAME, ratio, figures)


THROUGHPUT = Benchmark(
    measure,
    {
        CPU_NAME: Goal(  # at 0.72, both compute as many operations a second
            0.72, "at least", "tokens a second at 1,024 on a CPU, fp32: NeoBERT / HF ModernBERT-base, a quarter each"
        ),
        GPU_NAME: Goal(1.47, "at least", "tokens a second at 4,096 on a GPU, bf16: NeoBERT / HF ModernBERT-base"),
    },
    {
        "--lengths": {
            "nargs": "+",
            "type": count,
            "help": "in tokens (default: 512 … 8192 on a GPU, 128 … 1024 on a CPU)",
        },
        "--steps": {"type": count, "help": "timed ones of a model at a length (default: 100 on a GPU, 12 on a CPU)"},
    },
)
