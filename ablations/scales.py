"""Scales: rules that shrink a recipe and keep the meaning of its modifications.

Equal numbers stay equal, a larger number never becomes a smaller one, and numbers that go with the same row of a table
keep their ratio (`ablations.shrinking`). A scaled variant therefore only differs from its scaled parent by what it
declares, and in the same direction; where rules cannot do that, they refuse. Values that a modification declares as
unscaled are used as they are. A recipe's time constants are the exception to "one number by itself": a scale can keep
the half-life of Adam's second moment in tokens, which follows from the tokens per step.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from ablations import ladders
from ablations.shrinking import (
    nearest_row,
    refuse_rows,
    replaced,
    scaled_count,
    scaled_number,
    scaled_shape,
)
from ablations.variant import WAYS_OUT, Recipe, Variant, prove_scaled, validated
from neobert.data.sources import Source
from neobert.identity import difference
from neobert.processes import available_cores
from neobert.recipe import Precision
from neobert.runs.run_file import Execution

Vocabulary = Literal["trained", "published"]
Shape = tuple[int, int]


HALF_LIFE_SHARE = 0.1
"""The longest half-life of Adam's second moment at a scale that keeps it in tokens, as a share of the first stage."""
BETA_DIGITS = 6
"""Decimals of a scaled beta2, so that ids do not depend on a platform's last bit of a power."""


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
AS_WRITTEN_DOCUMENTS = 100_000


def rules_of(scale: Scale) -> Rules | None:
    """Return the rules of a scale, first looking in the ladder in use; None if recipes are used as they are."""
    return None if scale in UNSCALED else ladders.current().scales.get(scale) or RULES[scale]


def scaled(recipe: Recipe, scale: Scale, vocabulary: Vocabulary) -> Recipe:
    """Return the recipe at a scale; `vocabulary` says whether tokenizers are trained on the data or published. Raises
    ValueError if a number cannot keep its order and ratio, or the shrunk recipe is impossible."""
    rules = rules_of(scale)
    if rules is None:
        return recipe
    try:
        tree = _shrunk(recipe, rules, vocabulary)
    except ValueError as error:
        raise ValueError(f"scale {scale}: {error}") from error
    try:
        return validated(tree, f"scale {scale}")
    except ValueError as error:
        raise ValueError(f"{error}: give a scale of your own other rules for it, {WAYS_OUT}") from error


def scaled_recipes(variants: Mapping[str, Variant], scale: Scale, vocabulary: Vocabulary) -> dict[str, Recipe]:
    """Return the recipes of variants at a scale by name, without those that are impossible there, which are refused
    where they are planned."""
    found = {}
    for name, variant in variants.items():
        with suppress(ValueError):
            found[name] = scaled(variant.recipe, scale, vocabulary)
    return found


def _shrunk(recipe: Recipe, rules: Rules, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the plain form of the recipe under rules.

    Unscaled fields take part with the baseline's values, and get their own at the end.
    """
    written, tree, baseline = recipe.model_dump(), recipe.model_dump(), ladders.current().root.recipe.model_dump()
    for path in recipe.unscaled:
        _copy(path, baseline, tree)
    precision = {} if rules.precision is None else {"precision": rules.precision}
    usual = baseline["pretraining"]
    pretraining = tree["pretraining"] = replaced("pretraining", precision, tree["pretraining"], usual)
    pretraining["model"] = _shrunk_model(pretraining["model"], usual["model"], rules, vocabulary)
    pretraining["data"] = replaced("data", rules.data, pretraining["data"], usual["data"])
    optimization = pretraining["optimization"]
    rate = optimization["peak_learning_rate"]
    optimization["peak_learning_rate"] = scaled_number("peak_learning_rate", rules.peak_learning_rates, rate)
    for stage in pretraining["stages"]:
        _shrink_stage(stage, usual["stages"][0], rules)
    tuning = {**rules.finetuning, **precision}
    tuned = tree["finetuning"] = replaced("finetuning", tuning, tree["finetuning"], baseline["finetuning"])
    tuned["max_tokens"] = scaled_count("max_tokens", rules.contexts, tuned["max_tokens"])
    tree["grid"] = {axis: _shrunk_axis(axis, rules.grid[axis], values) for axis, values in tree["grid"].items()}
    tree["embedding"] = replaced(
        "embedding", _embedding_rules(rules, precision), tree["embedding"], baseline["embedding"]
    )
    for path in recipe.unscaled:
        _copy(path, written, tree)
    if rules.second_moment == "token_half_life" and BETA2 not in recipe.unscaled:
        before, after = recipe.pretraining.stages[0], pretraining["stages"][0]
        share = after["tokens_per_step"] / before.tokens_per_step
        longest = 0.5 ** (1 / (HALF_LIFE_SHARE * after["steps"]))
        optimization["beta2"] = round(min(optimization["beta2"] ** share, longest), BETA_DIGITS)
    return tree


BETA2 = "pretraining.optimization.beta2"


def _consequences(variant: Variant, rules: Rules | None) -> Collection[str]:
    """Return the leaves that follow from what a variant declares, without being declared themselves."""
    if rules is None or rules.second_moment == "as_written":
        return ()
    changes_tokens = any(path.endswith((".tokens_per_step", ".steps")) for path in variant.delta())
    return (BETA2,) if changes_tokens else ()


def _copy(path: str, source: Any, target: Any) -> None:
    """Copy the value at a dotted path from one plain recipe to another; of fewer stages the last one serves."""
    *parts, name = path.split(".")
    for part in parts:
        if part.isdigit():
            source, target = source[min(int(part), len(source) - 1)], target[int(part)]
        else:
            source, target = source[part], target[part]
    target[name] = source[name]


def vocabulary_of(source: Source) -> Vocabulary:
    """Return whether a source trains its tokenizers or uses published ones."""
    return "trained" if source.trains_tokenizers else "published"


def scaled_variant(variant: Variant, scale: Scale, vocabulary: Vocabulary) -> tuple[Recipe, Recipe | None]:
    """Return the recipes of a variant and its parent at a scale, after checking that they differ as declared.

    Raises:
        ValueError: as `scaled` and `prove_scaled`; or the scale turns a change around.
    """
    recipe = scaled(variant.recipe, scale, vocabulary)
    if variant.parent is None:
        return recipe, None
    parent = scaled(variant.parent.recipe, scale, vocabulary)
    prove_scaled(variant.name, parent, recipe, variant, _consequences(variant, rules_of(scale)))
    at_scale = difference(parent, recipe)
    unscaled = (*variant.recipe.unscaled, *variant.parent.recipe.unscaled)
    for path, (before, after) in variant.delta().items():
        small, large = at_scale.get(path, (before, after))
        numbers = (before, after, small, large)
        if path.startswith(("grid.", *unscaled)) or not all(isinstance(each, int | float) for each in numbers):
            continue  # a scale thins out a grid, so that its entries have other places
        if (after - before) * (large - small) < 0:
            raise ValueError(
                f"{variant.name}: scale {scale} turns a change around: {path} {before} → {after} becomes {small} → "
                f"{large}: add rows for both to the tables of a scale of your own, {WAYS_OUT}"
            )
    return recipe, parent


def unrepresented(variant: Variant, scale: Scale, vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the fields that a variant changes and that are equal to its parent's at a scale, as dotted paths.

    A grid's axis, a mixture or a pretraining field each counts as one field.
    """
    if variant.parent is None:
        return ()
    recipe, parent = (scaled(each.recipe, scale, vocabulary) for each in (variant, variant.parent))
    fields = (_fields(change) for change in (variant.delta(), difference(parent, recipe)))
    declared, present = fields
    return tuple(field for field in declared if field not in present)


def _fields(paths: Collection[str]) -> dict[str, None]:
    """Return the fields of leaves, in order: a number at the end counts entries, and so does what is in a mixture."""
    ends = (path.partition(".mixture.")[0] + ".mixture" if ".mixture." in path else path for path in paths)
    fields = (re.sub(r"\.\d+$", "", path).removeprefix("pretraining.") for path in ends)
    return dict.fromkeys(fields)


def trained_vocabulary_size(scale: Scale) -> int | None:
    """Return the size of vocabularies trained at a scale; None if they have the size of the published ones."""
    rules = rules_of(scale)
    return None if rules is None else rules.trained_vocabulary_size


def _shrunk_model(
    model: dict[str, Any], baseline: dict[str, Any], rules: Rules, vocabulary: Vocabulary
) -> dict[str, Any]:
    heads = replaced("heads", rules.heads, model["heads"], baseline["heads"])
    layers, width, feedforward_width = scaled_shape(
        rules.shapes[vocabulary],
        (model["layers"], model["width"]),
        (baseline["layers"], baseline["width"]),
        model["feedforward_width"],
        unit=2 * heads,
    )
    small = replaced("model", rules.model, model, baseline)
    small |= {"layers": layers, "width": width, "heads": heads, "feedforward_width": feedforward_width}
    small["attention_window"] = scaled_count("attention_window", rules.contexts, model["attention_window"], unit=2)
    if rules.trained_vocabulary_size is not None and vocabulary == "trained":
        same = baseline["vocabulary_size"] in PUBLISHED_VOCABULARIES
        sizes = dict.fromkeys(
            PUBLISHED_VOCABULARIES if same else [baseline["vocabulary_size"]], rules.trained_vocabulary_size
        )
        small["vocabulary_size"] = scaled_count("vocabulary_size", sizes, model["vocabulary_size"])
    return small


PUBLISHED_VOCABULARIES = (30_522, 32_064)
"""Sizes of the paper's two published vocabularies. Tokenizers that are trained in their place have one size, so that
tokenizers are compared and not sizes."""


def _shrunk_axis(axis: str, rows: Mapping[float, float], values: tuple[float, ...]) -> tuple[float, ...]:
    """Return the values of a grid's axis that have a row, or else all in their ratio to the nearest."""
    kept = tuple(rows[value] for value in values if value in rows)
    if kept:
        return kept
    if axis == "batch_sizes":
        return tuple(scaled_count(f"grid.{axis}", rows, int(value)) for value in values)
    return tuple(scaled_number(f"grid.{axis}", rows, value) for value in values)


def _shrink_stage(stage: dict[str, Any], baseline: dict[str, Any], rules: Rules) -> None:
    """Shrink a stage in place. Whole numbers are rounded; decay and steps stay above 0."""
    steps = stage["steps"]
    near = nearest_row("steps", rules.steps, steps) if rules.steps else steps
    factor = Fraction(rules.steps.get(near, near)) / Fraction(near)
    stretch = Fraction(1)
    if baseline["warmup_steps"]:
        fraction = Fraction(str(rules.warmup_fraction))
        stretch = fraction * baseline["steps"] / baseline["warmup_steps"]
    stage["steps"] = scaled_count("steps", rules.steps, steps)
    stage["warmup_steps"] = round(stage["warmup_steps"] * factor * stretch)
    stage["stable_steps"] = int(stage["stable_steps"] * factor)
    stage["decay_steps"] = max(1, round(stage["decay_steps"] * factor)) if stage["decay_steps"] else 0
    stage["context"] = scaled_count("context", rules.contexts, stage["context"])
    tokens = stage["tokens_per_step"]
    stage["tokens_per_step"] = scaled_count("tokens_per_step", rules.tokens_per_step, tokens, stage["context"])
    for subset in stage["mixture"]:
        subset["minimum_tokens"] = scaled_count("minimum_tokens", rules.contexts, subset["minimum_tokens"])


def _embedding_rules(rules: Rules, precision: Mapping[str, str]) -> dict[str, Any]:
    rate = {"peak_learning_rate": rules.contrastive_peak_learning_rate}
    contrastive = {**rules.contrastive, "optimization": rate, **precision}
    return {"precision": "fp32", "contrastive": contrastive}  # fp32 for vectors of small models


def synthetic_documents(scale: Scale) -> int:
    """Return the number of documents in a synthetic corpus at a scale."""
    rules = rules_of(scale)
    if rules is None:
        return AS_WRITTEN_DOCUMENTS if scale == "as-written" else 4_000_000
    return rules.documents


def shortest_context(scale: Scale) -> int:
    """Return the shortest context of the ladder's variants at a scale, in tokens; all can be measured in it."""
    contexts = {False: set[int](), True: set[int]()}  # of variants with scaled and with unscaled contexts
    for variant in ladders.variants().values():
        is_unscaled = any(path.endswith(".context") for path in variant.recipe.unscaled)
        contexts[is_unscaled].add(variant.recipe.pretraining.longest_context)
    rules = rules_of(scale)
    shrunk = (
        () if not contexts[False] else (scaled_count("context", rules.contexts if rules else {}, min(contexts[False])),)
    )
    return min((*shrunk, *contexts[True]))


def uses_one_thread(scale: Scale) -> bool:
    """Return whether a scale's workers use one thread each.

    A second thread gains little for small models, and results are only bit-exact with the same number of threads.
    """
    rules = rules_of(scale)
    return rules is not None and not rules.large


def execution_at(scale: Scale) -> Execution:
    """Return the default execution of a scale on one machine."""
    common = Execution(
        threads=1,
        processes=1,
        micro_batch_tokens=1 << 14,
        checkpoint_interval_steps=200,
        heldout_context=shortest_context(scale),
    )
    if uses_one_thread(scale):
        return common
    large = {
        "threads": available_cores(),
        "micro_batch_tokens": 1 << 16,
        "checkpoint_interval_steps": 100,  # steps between two looks at the clock
        "checkpoint_interval_seconds": 900,
    }
    return common.model_copy(update=large)
