"""What the benchmark of throughput measures on a CPU and on a GPU."""

from dataclasses import dataclass

import torch

from benchmarks.results import Goal
from benchmarks.throughput_models import BASES, NEOBERT, PAPER_ENCODERS, EncoderShape
from neobert.model.attention import is_flash_attn_available
from neobert.recipe import Precision

CPU_DIVISOR = 4


@dataclass(frozen=True)
class Setting:
    """What is measured where, and the goal of `own` / `other` at `compared` tokens.

    A batch has `most_rows` rows and `most_tokens` tokens at most; `steps` are timed, in `turns` of all models.
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
    own: str
    other: str
    compared: int
    title: str


CPU_NAME, GPU_NAME = "throughput_over_modernbert", "throughput_over_modernbert_gpu"
GOALS = {
    CPU_NAME: Goal(
        1.0, "at least", "tokens a second at 1,024 on a CPU, fp32: NeoBERT / HF ModernBERT-base, a quarter each"
    ),
    GPU_NAME: Goal(1.47, "at least", "tokens a second at 4,096 on a GPU, bf16: NeoBERT / HF ModernBERT-base"),
}


def cpu_setting() -> Setting:
    """Small enough for a laptop in a minute or so."""
    neobert, *bases = (encoder.scaled_down(CPU_DIVISOR) for encoder in (NEOBERT, *BASES))
    return Setting(
        device=torch.device("cpu"),
        precision="fp32",
        attention="sdpa",
        encoders=(neobert, *bases),
        lengths=(128, 256, 512, 1024),
        steps=12,
        turns=4,
        most_rows=32,
        most_tokens=4096,
        own=neobert.name,
        other=bases[-1].name,
        compared=1024,
        title="Forward pass to the hidden states (inference), on a CPU: depth and width are a quarter of the real ones",
    )


def gpu_setting() -> Setting:
    """The protocol of the paper: lengths 512 to 8,192, batches up to 512 or out of memory, 100 steps."""
    return Setting(
        device=torch.device("cuda"),
        precision="bf16",
        attention="flash_attention_2" if is_flash_attn_available() else "sdpa",
        encoders=PAPER_ENCODERS,
        lengths=(512, 1024, 2048, 4096, 8192),
        steps=100,
        turns=4,
        most_rows=512,
        most_tokens=512 * 8192,
        own=NEOBERT.name,
        other=BASES[-1].name,
        compared=4096,
        title="Forward pass to the hidden states (inference), on a GPU, at the real sizes",
    )
