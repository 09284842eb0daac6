"""Tokens a second of encoders against sequence length, each at its best batch size (the paper's Figure 3, Table 9).

With a GPU the real sizes, else scaled-down ones on the CPU. A step is a forward pass without gradients to the hidden
states: inference, no head. Weights are random, and every sequence is as long as its row, so that all tokens are real.
One record a model and length goes to throughput/ in the folder of the results.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.contenders import huggingface_shape, neobert_recipe
from benchmarks.measuring import (
    OPERATIONS_RATIO,
    Race,
    Result,
    count_operations,
    device_name,
    fastest,
    paired_ratio,
    race,
)
from neobert.execution import utc_now
from neobert.files import replace_file
from neobert.identity import identity, plain
from neobert.model.attention import is_flash_attn_available, whole_rows_plan
from neobert.model.build import build_encoder, initialize
from neobert.recipe import Precision
from neobert.runs.layout import Layout
from neobert.runs.records import ThroughputConfig, ThroughputScores, sealed, timed_provenance
from neobert.training.accounting import DTYPES
from neobert.training.distributed import set_up_device

ROUNDS = 4


class Encoder(NamedTuple):
    """A published encoder: how its shape differs from the defaults of its family, which are those of the base size."""

    name: str
    family: Literal["neobert", "bert", "roberta", "modernbert"]
    changes: Mapping[str, int]

    def build(self, attention: str) -> nn.Module:
        """Return the encoder with random weights and no head, in evaluation mode. ModernBERT keeps its local attention:
        two of three layers see 128 tokens."""
        torch.manual_seed(0)
        if self.family == "neobert":
            model = neobert_recipe("bf16", **self.changes).model
            encoder = build_encoder(model, context=0).eval()
            initialize(encoder, model.initialization, 0)
            return encoder
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.for_model(self.family, **self.changes)
        no_head = {} if self.family == "modernbert" else {"add_pooling_layer": False}
        built: nn.Module = AutoModel.from_config(config, attn_implementation=attention, **no_head).eval()
        return built


ROBERTA = {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}
ENCODERS = (
    Encoder("NeoBERT", "neobert", {}),
    Encoder("ModernBERT-base", "modernbert", {}),
    Encoder("BERT-base", "bert", {}),
    Encoder("RoBERTa-base", "roberta", ROBERTA),
    Encoder("BERT-large", "bert", huggingface_shape(24, 1024, 16, 4096)),
    Encoder("RoBERTa-large", "roberta", ROBERTA | huggingface_shape(24, 1024, 16, 4096)),
    Encoder("ModernBERT-large", "modernbert", huggingface_shape(28, 1024, 16, 2624)),
)
QUARTERS = (
    Encoder("NeoBERT (7 × 192)", "neobert", {"layers": 7, "width": 192, "heads": 3, "feedforward_width": 768}),
    Encoder("ModernBERT-base (6 × 192)", "modernbert", huggingface_shape(6, 192, 3, 288)),
    Encoder("BERT-base (3 × 192)", "bert", huggingface_shape(3, 192, 3, 768)),
    Encoder("RoBERTa-base (3 × 192)", "roberta", ROBERTA | huggingface_shape(3, 192, 3, 768)),
)
"""A quarter of the depth and width."""
BERT_POSITIONS = 512  # of BERT's and RoBERTa's tables


class ThroughputSetting(NamedTuple):
    """What is timed: in each round `steps` steps with batches of each number of tokens. The ratio is the speed of the
    first encoder / that of the second at `compared` tokens."""

    precision: Precision
    encoders: tuple[Encoder, ...]
    lengths: tuple[int, ...]
    batch_tokens: tuple[int, ...]
    steps: int
    compared: int


CPU_SETTING = ThroughputSetting("fp32", QUARTERS, (128, 256, 512, 1024), (1024, 4096), 3, 1024)
GPU_SETTING = ThroughputSetting("bf16", ENCODERS, (512, 1024, 2048, 4096, 8192), (1 << 14, 1 << 16), 25, 4096)
"""The paper's lengths and 100 steps."""


class Forward(NamedTuple):
    """Forward passes of an encoder over batches of (rows, tokens)."""

    encoder: Encoder
    rows: int
    tokens: int
    precision: Precision
    attention: str
    device: torch.device

    @property
    def name(self) -> str:
        """Encoder and tokens of a batch."""
        return f"{self.encoder.name}, {self.rows * self.tokens} tokens a batch"

    def build(self) -> nn.Module:
        """Build the encoder on its device."""
        return self.encoder.build(self.attention).to(self.device, DTYPES[self.precision])

    def make(self) -> Callable[[], int]:
        """Return a step over random text without padding."""
        module = self.build()
        token_ids = torch.randint(1000, 30_000, (self.rows, self.tokens)).to(self.device)

        @torch.inference_mode()
        def step() -> int:
            self.hidden_states(module, token_ids)
            return token_ids.numel()

        return step

    def hidden_states(self, module: nn.Module, token_ids: Tensor) -> Tensor:
        """Return the hidden states (rows, tokens, width) of token ids (rows, tokens)."""
        if self.encoder.family == "neobert":
            hidden: Tensor = module(token_ids, whole_rows_plan(token_ids))
        else:
            hidden = module(input_ids=token_ids).last_hidden_state
        return hidden


def throughput_record(forward: Forward, speeds: Sequence[float], steps: int, started_at: str) -> dict[str, Any]:
    """Return a record of the tokens per second in each round, of `steps` steps: their median, standard deviation and
    provenance."""
    device = device_name(forward.device)
    with torch.device("meta"):
        module = forward.encoder.build(forward.attention)
    config = ThroughputConfig(
        model=forward.encoder.name,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        sequence_tokens=forward.tokens,
        batch_size=forward.rows,
        precision=forward.precision,
        compiled=False,
        steps=steps * len(speeds),
    )
    decisive = (config.model, config.sequence_tokens, config.precision, forward.attention, device)
    return {
        "kind": "throughput",
        "id": identity(["throughput", *decisive]),
        "state": "done",
        "inputs": {},
        "config": plain(config),
        "labels": {"pass": "forward, without gradients, hidden states", "attention": forward.attention},
        "scores": plain(ThroughputScores(tokens_per_second=statistics.median(speeds), spread=statistics.stdev(speeds))),
        "seed": 0,
        "device": device,
        "date": datetime.now(UTC).date().isoformat(),
        **timed_provenance(started_at),
    }


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Tokens a second of encoders against sequence length: with a GPU the real sizes, else scaled-down ones on one
    thread. Records go to FOLDER/throughput. The ratio is by the clock on a GPU, else by processor time."""
    torch.set_num_threads(1)
    setting, device = GPU_SETTING if torch.cuda.is_available() else CPU_SETTING, set_up_device()
    for tokens in setting.lengths:
        started_at, passes = utc_now(), passes_of(setting, tokens, device)
        found = race({name: each.make for name, each in passes.items()}, rounds=ROUNDS, steps=setting.steps)
        best = {each.encoder.name: passes[fastest(found, each.encoder.name)] for each in passes.values()}
        for forward in best.values():
            speeds = [1 / timing.wall for timing in found[forward.name]]
            record = throughput_record(forward, speeds, setting.steps, started_at)
            replace_file(Layout(options.folder).throughput(str(record["id"])), sealed(record))  # replaces an older one
        if tokens == setting.compared:
            yield compared(found, *(best[encoder.name] for encoder in setting.encoders[:2]))


def passes_of(setting: ThroughputSetting, tokens: int, device: torch.device) -> dict[str, Forward]:
    """Return by name the passes with `tokens` tokens a row, of all encoders that have so many positions."""
    attention = "flash_attention_2" if device.type == "cuda" and is_flash_attn_available() else "sdpa"
    passes = [
        Forward(encoder, size // tokens, tokens, setting.precision, attention, device)
        for encoder in setting.encoders
        if tokens <= BERT_POSITIONS or encoder.family in ("neobert", "modernbert")
        for size in setting.batch_tokens
    ]
    return {each.name: each for each in passes}


def compared(found: Race, own: Forward, other: Forward) -> Result:
    """Return the result of two passes, open on a GPU where the other one lacks its kernels of attention."""
    on_gpu, ratio = own.device.type == "cuda", paired_ratio(found[own.name], found[other.name])
    counted = count_operations({each.name: each.make for each in (own, other)}, 1)
    figures = {
        "ratio": ratio,
        OPERATIONS_RATIO: round(counted[other.name] / counted[own.name], 3),
        "operations per token": counted,
        "attention of Hugging Face's models": other.attention,
        "threads": torch.get_num_threads(),
    }
    lacks_kernels = on_gpu and other.attention != "flash_attention_2"
    return Result(
        f"throughput_over_modernbert{'_gpu' if on_gpu else ''}",
        ratio["wall" if on_gpu else "processor"],
        figures,
        open="flash-attn missing" if lacks_kernels else None,
    )
