"""Scales: the rules that shrink a recipe, how they turn one number into another, and the scales of every ladder.

Equal numbers stay equal, a larger number never becomes a smaller one, and numbers that go with the same row of a table
keep their ratio, up to the rounding of whole numbers. A number for which that is impossible is refused with a sentence
that says what to do. Values that a modification declares as unscaled are used as they are. A recipe's time constants
are the exception to "one number by itself": a scale can keep the half-life of Adam's second moment in tokens, which
follows from the tokens per step. `ablations.scaling` applies the rules.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

from ablations.variant import WAYS_OUT
from neobert.recipe import Precision

Vocabulary = Literal["trained", "published"]
Shape = tuple[int, int]


HALF_LIFE_SHARE = 0.1
"""The longest half-life of Adam's second moment at a scale that keeps it in tokens, as a share of the first stage."""


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


# Numbers at a scale

SIGNIFICANT_DIGITS = 12
"""Scaled rates are rounded to these digits, so that 3 × 2e-3 is 6e-3."""

Rows = Mapping[Any, Any]
"""The rows of a table: {number of the recipe: number of the scale}, both above 0."""


def refuse_rows(name: str, rows: Rows) -> None:
    """Raise ValueError unless the numbers of a table are above 0 (or become 0) and a larger one never becomes
    smaller."""
    for number, small in rows.items():
        if not (isinstance(number, int | float) and isinstance(small, int | float)):
            raise ValueError(f"{name} maps {number!r} to {small!r}: its rows are numbers")
        if not 0 < number < math.inf or not 0 <= small < math.inf:
            raise ValueError(f"{name} maps {number!r} to {small!r}: its rows are numbers above 0")
    for (low, small), (high, large) in pairwise(sorted(rows.items())):
        if large < small:
            raise ValueError(f"{name} maps {low:g} to {small:g} and {high:g} to {large:g}: their order must stay")


def nearest_row(name: str, rows: Rows, number: float) -> Any:
    """Return the row (as the recipe's number) that a number goes with: the nearest in the logarithm.

    Raises:
        ValueError: in its ratio to this row the number would be nearer to another row than to this one, so that its
            order relative to what goes with the other row is not certain.
    """
    ordered = sorted(rows)
    near = min(ordered, key=lambda row: abs(math.log(number / row)))
    index = ordered.index(near)
    beyond = ordered[index + 1 : index + 2] if number > near else ordered[max(index - 1, 0) : index]
    scaled = number * rows[near] / near
    for other in beyond if number != near else ():
        border = math.sqrt(rows[near] * rows[other])
        if not (scaled < border if other > near else scaled > border):
            (low, small), (high, large) = sorted([(near, rows[near]), (other, rows[other])])
            raise ValueError(
                f"{name} {number:g} lies between the rows {low:g} → {small:g} and {high:g} → {large:g} of the scale, "
                f"and can keep its ratio to both in no order: add a row for {number:g} to the table of a scale of your "
                f"own, {WAYS_OUT}"
            )
    return near


def scaled_number(name: str, rows: Rows, number: float) -> float:
    """Return a number at a scale: that of its row, or in its ratio to the nearest row. 0 stays 0. Raises as
    `nearest_row`."""
    if not number or not rows:
        return number
    near = nearest_row(name, rows, number)
    return float(rows[near]) if number == near else in_ratio(number, near, rows[near])


def scaled_count(name: str, rows: Rows, number: int, unit: int = 1) -> int:
    """Return a whole number at a scale like `scaled_number`. If it is in no row it is rounded down to a multiple of
    `unit`, at least one."""
    if not number or not rows:
        return number
    near = nearest_row(name, rows, number)
    return int(rows[near]) if number == near else max(1, number * rows[near] // near // unit) * unit


def scaled_shape(
    rows: Mapping[tuple[int, int], tuple[int, int]],
    shape: tuple[int, int],
    baseline: tuple[int, int],
    feedforward_width: int,
    unit: int,
) -> tuple[int, int, int]:
    """Return layers, width and feed-forward width at a scale: those of the row, or in their ratios to another row.

    That is the row of the baseline's shape if the two have a number in common, or else the nearest, with the smallest
    sum of distances in the logarithms. Without a row the width is rounded to a multiple of `unit`, and all three are
    rounded to at least one (unit).
    """

    def distance(row: tuple[int, int]) -> float:
        return sum(abs(math.log(ours / theirs)) for ours, theirs in zip(shape, row, strict=True))

    is_arm = shape not in rows and baseline in rows and (shape[0] == baseline[0] or shape[1] == baseline[1])
    near = baseline if is_arm else min(rows, key=distance)
    (layers, width), (small_layers, small_width) = near, rows[near]
    feedforward_width = max(1, round(Fraction(feedforward_width * small_width, width)))
    if shape == near:
        return small_layers, small_width, feedforward_width
    shrunk_layers = round(Fraction(shape[0] * small_layers, layers))
    return (
        max(1, shrunk_layers),
        max(1, round(Fraction(shape[1] * small_width, width * unit))) * unit,
        feedforward_width,
    )


def in_ratio(number: float, before: float, after: float) -> float:
    """Return `number` × `after` / `before` in twelve significant digits."""
    return float(f"{number * after / before:.{SIGNIFICANT_DIGITS}g}")


def replaced(name: str, rule: Any, value: Any, baseline: Any) -> Any:
    """Return a value at a scale whose `rule` replaces the baseline's value.

    Another number keeps its ratio to the baseline's, whole numbers rounded down and at least 1. Another word stays.
    Mappings are replaced entry by entry; None stands for "all" and stays.

    Raises:
        ValueError: the baseline's value has no ratio to the number, because it is 0 or None.
    """
    if isinstance(rule, Mapping):
        return value | {key: replaced(f"{name}.{key}", each, value[key], baseline[key]) for key, each in rule.items()}
    if value == baseline:
        return rule
    if value is None or isinstance(value, str) or rule is None:
        return value
    if not baseline:
        raise ValueError(
            f"{name} {value:g} has no ratio to the baseline's {baseline}, which the scale replaces by {rule:g}: "
            f"leave it out of the rules of a scale of your own, {WAYS_OUT}"
        )
    if isinstance(rule, int) and isinstance(value, int):
        return max(1, rule * value // baseline) if value else 0
    return in_ratio(value, baseline, rule)


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
