"""The tables of each scale: which of the paper's numbers it shrinks to what."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Vocabulary = Literal["trained", "published"]
Shape = tuple[int, int]


@dataclass(frozen=True)
class Rules:
    """The tables of one scale; shapes are (layers, width)."""

    shapes: Mapping[Vocabulary, Mapping[Shape, Shape]]
    shape_divisors: Shape
    heads: int
    contexts: Mapping[int, int]
    tokens_per_step: Mapping[int, int]
    steps: Mapping[int, int]
    warmup_fraction: float
    peak_learning_rates: Mapping[float, float]
    grid: Mapping[str, Mapping[float, float]]
    model: Mapping[str, Any]
    optimization: Mapping[str, Any]
    finetuning: Mapping[str, Any]
    precision: str
    trained_vocabulary_size: int | None


SMOKE = Rules(
    # Trained vocabularies are small, so that blocks hold nearly all parameters; with a published one the two embedding
    # tables weigh more and M8 must be deeper to have M7's size.
    shapes={
        "trained": {(12, 768): (3, 128), (16, 1056): (4, 144), (16, 1008): (4, 136), (28, 768): (6, 120)},
        "published": {(12, 768): (3, 128), (16, 1056): (4, 144), (16, 1008): (4, 136), (28, 768): (7, 136)},
    },
    shape_divisors=(4, 6),
    heads=4,
    contexts={512: 64, 1024: 96, 2048: 128, 4096: 192},
    tokens_per_step={131_072: 512, 2_097_152: 768},
    steps={1_000_000: 5000, 50_000: 250},
    warmup_fraction=0.1,
    peak_learning_rates={1e-4: 2e-3, 6e-4: 2.5e-3},
    grid={
        "batch_sizes": {32: 32},
        "learning_rates": {2e-5: 1e-3, 3e-5: 1.5e-3},
        "weight_decays": {1e-2: 1e-2, 1e-5: 1e-5},
    },
    # The released ±0.02 uniform start learns no relation between words in so few tokens; these scales do. Learned
    # positions must stay small beside them.
    model={
        "initialization": {
            "distribution": "normal",
            "weight_scale": 0.05,
            "embedding_scale": 1.0,
            "position_scale": 0.05,
        }
    },
    optimization={},
    finetuning={
        "epochs": 4,
        "train_examples": 1000,
        "pooling": "mean",
        "classifier_scale": 0.05,
        "evaluations_per_epoch": 2,
    },
    precision="bf16",
    trained_vocabulary_size=1024,
)

LAPTOP = replace(
    SMOKE,
    shapes={**SMOKE.shapes, "trained": {**SMOKE.shapes["trained"], (28, 768): (6, 128)}},
    contexts={512: 128, 1024: 192, 2048: 256, 4096: 384},
    tokens_per_step={131_072: 2048, 2_097_152: 3072},
    steps={1_000_000: 2000, 50_000: 100},
    # One point of the grid, and at most 300 steps of 32 examples a task.
    grid={"batch_sizes": {32: 32}, "learning_rates": {2e-5: 1e-3}, "weight_decays": {1e-2: 1e-2, 1e-5: 1e-5}},
    finetuning={**SMOKE.finetuning, "train_examples": 2400},
    trained_vocabulary_size=8192,
)
"""Real text in hours of two cores: the models of the smoke scale, eight words for one, four times the tokens a step."""


PROXY_SHAPES = {(12, 768): (6, 384), (16, 1056): (8, 512), (16, 1008): (8, 480), (28, 768): (12, 448)}

PROXY = Rules(
    shapes={
        "trained": PROXY_SHAPES,
        "published": PROXY_SHAPES,
    },
    shape_divisors=(2, 2),
    heads=8,
    contexts={512: 128, 1024: 256, 2048: 512, 4096: 1024},
    tokens_per_step={131_072: 65_536, 2_097_152: 262_144},
    steps={1_000_000: 20_000, 50_000: 1_000},
    warmup_fraction=0.02,
    peak_learning_rates={1e-4: 1e-3, 6e-4: 2e-3},
    grid={
        "batch_sizes": {16: 16, 32: 32},
        "learning_rates": {1e-5: 2e-5, 2e-5: 5e-5, 3e-5: 1e-4},
        "weight_decays": {1e-2: 1e-2, 1e-5: 1e-5},
    },
    model={},
    optimization={},
    finetuning={"epochs": 3},
    precision="bf16",
    trained_vocabulary_size=None,
)
