"""Scales: the rules that shrink a recipe, and the scales of every ladder. `ablations.scaling` applies the rules."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from neobert.recipe import Precision

Vocabulary = Literal["trained", "published"]
Shape = tuple[int, int]

HALF_LIFE_SHARE = 0.1
"""The longest half-life of Adam's second moment at a scale that keeps it in tokens, as a share of the first stage."""
Rows = Mapping[Any, Any]
"""The rows of a table: {number of the recipe: number of the scale}, both above 0."""


@dataclass(frozen=True)
class Rules:
    """The rules of one scale.

    Tables have one row per number: {number of the recipe: number of the scale}. A number without a row keeps its ratio
    to the nearest row, in the logarithm; whole numbers are rounded down. Of a `grid`, values without a row are left
    out if another value of the axis has one. `shapes` have (layers, width); a shape without a row keeps its ratios to
    that of the baseline if the two have a number in common, or else to the nearest.

    All else replaces the value of the ladder's baseline: `heads`, `model`, `data`, `finetuning`,
    `trained_vocabulary_size`, `contrastive`, `contrastive_peak_learning_rate`; and `precision` in all training, or None
    to keep it. Other numbers keep their ratio to the baseline's, and other words stay.

    Time constants of pre-training: decay and plateau shrink like the steps of their stage, so that they end at the same
    share of it. So does the warm-up, times what makes that of the baseline `warmup_fraction` of its steps.
    `second_moment` says what becomes of Adam's beta2: it stays as written, or keeps its half-life in tokens
    (beta2' = beta2^(B'/B) with B and B' tokens per step, arXiv 2507.07101), at most `HALF_LIFE_SHARE` of the first
    stage's steps. beta1 stays as written: it averages a few steps at every scale. So do the constants of fine-tuning.

    `documents` is the number of documents in a synthetic corpus. A `large` scale uses all cores.
    """

    shapes: Mapping[Vocabulary, Mapping[Shape, Shape]]
    heads: int
    contexts: Mapping[int, int]
    tokens_per_step: Mapping[int, int]
    steps: Mapping[int, int]
    warmup_fraction: float
    second_moment: Literal["as_written", "token_half_life"]
    peak_learning_rates: Mapping[float, float]
    grid: Mapping[str, Mapping[float, float]]
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    finetuning: Mapping[str, Any]
    trained_vocabulary_size: int | None
    contrastive: Mapping[str, Any]
    contrastive_peak_learning_rate: float
    documents: int
    precision: Precision | None = None
    large: bool = False

    def __post_init__(self) -> None:
        for name in ("contexts", "tokens_per_step", "steps", "peak_learning_rates"):
            refuse_rows(name, vars(self)[name])
        for axis, rows in self.grid.items():
            refuse_rows(f"grid.{axis}", rows)
        if self.documents < 1:
            raise ValueError(f"documents is {self.documents}, and must be at least 1")


def refuse_rows(name: str, rows: Rows) -> None:
    """Raise ValueError unless the numbers of a table are above 0 (or become 0) and a larger one never becomes
    smaller."""
    for number, small in rows.items():
        if not 0 < number < math.inf or not 0 <= small < math.inf:
            raise ValueError(f"{name} maps {number!r} to {small!r}: its rows are numbers above 0")
    for (low, small), (high, large) in pairwise(sorted(rows.items())):
        if large < small:
            raise ValueError(f"{name} maps {low:g} to {small:g} and {high:g} to {large:g}: their order must stay")


# The scales of every ladder

SMOKE = Rules(
    # With small trained vocabularies nearly all parameters are in the blocks. With a published vocabulary the two
    # embedding tables are larger, and M8 must be deeper to have as many parameters as M7.
    shapes={
        "trained": {(12, 768): (3, 128), (16, 1056): (4, 144), (16, 1008): (4, 136), (28, 768): (6, 120)},
        "published": {(12, 768): (3, 128), (16, 1056): (4, 144), (16, 1008): (4, 136), (28, 768): (7, 136)},
    },
    heads=4,
    contexts={512: 64, 1024: 96, 2048: 128, 4096: 192},
    tokens_per_step={131_072: 512, 2_097_152: 768},
    steps={1_000_000: 5000, 50_000: 250},
    warmup_fraction=0.1,
    second_moment="as_written",
    peak_learning_rates={1e-4: 2e-3, 6e-4: 2.5e-3},
    grid={
        "batch_sizes": {32: 32},
        "learning_rates": {2e-5: 1e-3, 3e-5: 1.5e-3},
        "weight_decays": {1e-2: 1e-2, 1e-5: 1e-5},
    },
    # With the released initialization, uniform in ±0.02, so few tokens are not enough to learn relations between
    # words; with these scales they are. Learned positions must stay small in comparison.
    model={
        "initialization": {
            "distribution": "normal",
            "weight_scale": 0.05,
            "embedding_scale": 1.0,
            "position_scale": 0.05,
        }
    },
    data={},
    finetuning={
        "epochs": 4,
        "train_examples": 1000,
        "pooling": "mean",
        "classifier_scale": 0.05,
        "evaluations_per_epoch": 2,
    },
    trained_vocabulary_size=1024,
    contrastive={"steps": 300, "texts_per_step": 96, "warmup_steps": 30, "decay_steps": 300, "max_tokens": 64},
    contrastive_peak_learning_rate=1e-3,
    documents=16_000,
)

STUDY = replace(
    SMOKE,
    shapes={**SMOKE.shapes, "trained": {**SMOKE.shapes["trained"], (28, 768): (6, 128)}},
    tokens_per_step={131_072: 1024, 2_097_152: 1536},
    steps={1_000_000: 6000, 50_000: 300},
    # One point of the grid, and at most 300 steps of 32 examples per task.
    grid={"batch_sizes": {32: 32}, "learning_rates": {2e-5: 1e-3}, "weight_decays": {1e-2: 1e-2, 1e-5: 1e-5}},
    finetuning={**SMOKE.finetuning, "train_examples": 2400},
    trained_vocabulary_size=8192,
    contrastive={"steps": 500, "texts_per_step": 128, "warmup_steps": 50, "decay_steps": 500, "max_tokens": 128},
    documents=100_000,
    # Adam's step size does not depend on a weight's scale: embeddings that start large dominate learned positions
    # throughout a run of this length.
    model={"initialization": {**SMOKE.model["initialization"], "embedding_scale": 0.02}},
    data={"long_documents": "split"},
    second_moment="token_half_life",
    # The precision is part of ids, so it is one for all machines. On processors without instructions for bf16, fp32
    # takes a tenth of the time of bf16, and on those with avx512_bf16 or AMX three fifths.
    precision="fp32",
)
"""Real text in minutes on one core: every variant learns more than word frequencies, and long texts are read whole.

Adam's second moment keeps its half-life in tokens. As written, beta2 = 0.95 would average 0.4 gradients per row of the
vocabulary, as a step predicts at most 154 tokens; in the paper it averages 13.
"""

PROXY_SHAPES = {(12, 768): (6, 384), (16, 1056): (8, 512), (16, 1008): (8, 480), (28, 768): (12, 448)}

PROXY = Rules(
    shapes={"trained": PROXY_SHAPES, "published": PROXY_SHAPES},
    heads=8,
    contexts={512: 128, 1024: 256, 2048: 512, 4096: 1024},
    tokens_per_step={131_072: 65_536, 2_097_152: 262_144},
    steps={1_000_000: 20_000, 50_000: 1_000},
    warmup_fraction=0.02,
    second_moment="token_half_life",
    peak_learning_rates={1e-4: 1e-3, 6e-4: 2e-3},
    grid={
        "batch_sizes": {16: 16, 32: 32},
        "learning_rates": {1e-5: 2e-5, 2e-5: 5e-5, 3e-5: 1e-4},
        "weight_decays": {1e-2: 1e-2, 1e-5: 1e-5},
    },
    model={},
    data={},
    finetuning={"epochs": 3},
    trained_vocabulary_size=None,
    contrastive={"steps": 1000, "texts_per_step": 128, "warmup_steps": 100, "decay_steps": 1000, "max_tokens": 256},
    contrastive_peak_learning_rate=2e-4,
    documents=400_000,
    large=True,
)


Scale = str
"""The name of a scale."""
RULES: Mapping[Scale, Rules] = {
    "smoke": SMOKE,
    "study": STUDY,
    "proxy": PROXY,
}
"""The rules of the scales that every ladder has, other than those that use recipes as they are."""
UNSCALED: tuple[Scale, ...] = ("as-written", "paper")
"""The scales without rules. At `paper` runs need data, because they claim to reproduce the paper."""
