"""Tokens a second of encoders against sequence length, each at its best batch size (the paper's Figure 3, Table 9).

With a GPU the real sizes, else scaled-down ones on the CPU. A step is a forward pass without gradients to the hidden
states: inference, no head. Weights are random, and every sequence is as long as its row, so that all tokens are real.
One record a model and length goes to throughput/ in the folder of the results.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from benchmarks.measuring import (
    OPERATIONS_RATIO,
    Result,
    Step,
    count_operations,
    device_name,
    fastest,
    paired_ratio,
    race,
)
from benchmarks.pretraining import huggingface_shape, neobert_recipe
from neobert.embeddings.encoders import DTYPES
from neobert.execution import utc_now
from neobert.files import replace_file
from neobert.identity import identity, plain
from neobert.model.attention import is_flash_attn_available, whole_rows_plan
from neobert.model.build import build_encoder, initialize
from neobert.recipe import Precision
from neobert.runs.layout import Layout
from neobert.runs.records import ThroughputConfig, ThroughputScores, sealed, timed_provenance
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


class ThroughputSetting(NamedTuple):
    """What is timed: in each round `steps` steps with batches of each number of tokens. The ratio is the speed of the
    first encoder / that of the second at `compared` tokens."""

    precision: Precision
    encoders: tuple[Encoder, ...]
    lengths: tuple[int, ...]
    batch_tokens: tuple[int, ...]
    steps: int
    compared: int
    device: torch.device = torch.device("cpu")
    attention: str = "sdpa"

    def forward(self, encoder: Encoder, tokens: int, rows: int) -> Step:
        """Return a step: a forward pass over `rows` rows of random text without padding, to the hidden states."""
        module = encoder.build(self.attention).to(self.device, DTYPES[self.precision])
        token_ids = torch.randint(1000, 30_000, (rows, tokens)).to(self.device)
        plan = whole_rows_plan(token_ids) if encoder.family == "neobert" else None

        @torch.inference_mode()
        def step() -> int:
            module(token_ids, plan)
            return token_ids.numel()

        return step

    def record(
        self, encoder: Encoder, tokens: int, rows: int, speeds: Sequence[float], started_at: str
    ) -> dict[str, Any]:
        """Return a record of the tokens per second in each round: their median, standard deviation and provenance."""
        device = device_name(self.device)
        with torch.device("meta"):
            module = encoder.build(self.attention)
        config = ThroughputConfig(
            model=encoder.name,
            parameters=sum(parameter.numel() for parameter in module.parameters()),
            sequence_tokens=tokens,
            batch_size=rows,
            precision=self.precision,
            compiled=False,
            steps=self.steps * len(speeds),
        )
        scores = ThroughputScores(tokens_per_second=statistics.median(speeds), spread=statistics.stdev(speeds))
        return {
            "kind": "throughput",
            "id": identity(["throughput", encoder.name, tokens, self.precision, self.attention, device]),
            "state": "done",
            "inputs": {},
            "config": plain(config),
            "labels": {"pass": "forward, without gradients, hidden states", "attention": self.attention},
            "scores": plain(scores),
            "seed": 0,
            "device": device,
            "date": datetime.now(UTC).date().isoformat(),
            **timed_provenance(started_at),
        }


CPU_SETTING = ThroughputSetting("fp32", QUARTERS, (128, 256, 512, 1024), (1024, 4096), 3, 1024)
GPU_SETTING = ThroughputSetting("bf16", ENCODERS, (512, 1024, 2048, 4096, 8192), (1 << 14, 1 << 16), 25, 4096)
"""The paper's lengths and 100 steps."""


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Tokens a second of encoders against sequence length: with a GPU the real sizes, else scaled-down ones on one
    thread. Records go to FOLDER/throughput. The ratio is by the clock on a GPU, else by processor time."""
    torch.set_num_threads(1)
    setting, name, clock, lacking = CPU_SETTING, "throughput_over_modernbert", "processor", None
    if torch.cuda.is_available():
        name, clock, lacking = f"{name}_gpu", "wall", None if is_flash_attn_available() else "flash-attn missing"
        setting = GPU_SETTING._replace(device=set_up_device(), attention="sdpa" if lacking else "flash_attention_2")
    for tokens in setting.lengths:
        started_at = utc_now()
        able = [each for each in setting.encoders if tokens <= 512 or each.family not in ("bert", "roberta")]
        passes = {
            f"{each.name}, {size} tokens a batch": (each, tokens, size // tokens)
            for each in able
            for size in setting.batch_tokens
        }
        makers = {each: partial(setting.forward, *words) for each, words in passes.items()}
        found = race(makers, rounds=ROUNDS, steps=setting.steps)
        best = [fastest(found, each.name) for each in able]
        for each in best:
            record = setting.record(*passes[each], [1 / timing.wall for timing in found[each]], started_at)
            replace_file(Layout(options.folder).throughput(str(record["id"])), sealed(record))  # replaces an older one
        if tokens == setting.compared:
            own, other = best[:2]
            ratio = paired_ratio(found[own], found[other])
            counted = count_operations({each: makers[each]() for each in (own, other)}, 1)
            figures = {
                "ratio": ratio,
                OPERATIONS_RATIO: round(counted[other] / counted[own], 3),
                "operations per token": counted,
                "attention of Hugging Face's models": setting.attention,
                "threads": torch.get_num_threads(),
            }
            yield Result(name, ratio[clock], figures, open=lacking)
