"""Scales: rules that shrink a recipe and keep its modifications.

A rule maps one number of the paper to a smaller one and depends on no other number (layers and width together are one
shape). Equal numbers therefore stay equal, and a scaled variant only differs from its scaled parent by what it
declares. Numbers without a row in a table follow the scale's formula.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ablations import ladders
from ablations.variant import Recipe, Variant, prove_scaled, validated
from neobert.data.sources import Source
from neobert.processes import available_cores
from neobert.runs.run_file import Execution

Vocabulary = Literal["trained", "published"]
Shape = tuple[int, int]


@dataclass(frozen=True)
class Rules:
    """The tables of one scale; shapes are (layers, width). Other lengths and steps shrink like the first row.

    `contrastive` changes the protocol of contrastive fine-tuning. The paper's rate only rises; these short runs warm
    up quickly and also decay. `documents` is the number of documents in a synthetic corpus. A `large` scale uses all
    cores.
    """

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
    data: Mapping[str, Any]
    finetuning: Mapping[str, Any]
    trained_vocabulary_size: int | None
    contrastive: Mapping[str, Any]
    contrastive_peak_learning_rate: float
    documents: int
    large: bool = False


SMOKE = Rules(
    # With small trained vocabularies nearly all parameters are in the blocks. With a published vocabulary the two
    # embedding tables are larger, and M8 must be deeper to have as many parameters as M7.
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

LAPTOP1 = replace(
    SMOKE,
    shapes={**SMOKE.shapes, "trained": {**SMOKE.shapes["trained"], (28, 768): (6, 128)}},
    contexts={512: 128, 1024: 192, 2048: 256, 4096: 384},
    tokens_per_step={131_072: 2048, 2_097_152: 3072},
    steps={1_000_000: 2000, 50_000: 100},
    # One point of the grid, and at most 300 steps of 32 examples per task.
    grid={"batch_sizes": {32: 32}, "learning_rates": {2e-5: 1e-3}, "weight_decays": {1e-2: 1e-2, 1e-5: 1e-5}},
    finetuning={**SMOKE.finetuning, "train_examples": 2400},
    trained_vocabulary_size=8192,
    contrastive={"steps": 500, "texts_per_step": 128, "warmup_steps": 50, "decay_steps": 500, "max_tokens": 128},
    documents=100_000,
)
"""The scale called `laptop` until schema 3 of the records. M0 only learns word frequencies at it."""

LAPTOP = replace(
    LAPTOP1,
    contexts={512: 64, 1024: 96, 2048: 128, 4096: 192},
    tokens_per_step={131_072: 1024, 2_097_152: 1536},
    steps={1_000_000: 6000, 50_000: 300},
    # Adam's step size does not depend on a weight's scale: embeddings that start large dominate learned positions
    # throughout a run of this length.
    model={"initialization": {**SMOKE.model["initialization"], "embedding_scale": 0.02}},
    data={"long_documents": "split"},
)
"""Real text in minutes on one core: every variant learns more than word frequencies, and long texts are read whole."""


PROXY_SHAPES = {(12, 768): (6, 384), (16, 1056): (8, 512), (16, 1008): (8, 480), (28, 768): (12, 448)}

PROXY = Rules(
    shapes={"trained": PROXY_SHAPES, "published": PROXY_SHAPES},
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
    data={},
    finetuning={"epochs": 3},
    trained_vocabulary_size=None,
    contrastive={"steps": 1000, "texts_per_step": 128, "warmup_steps": 100, "decay_steps": 1000, "max_tokens": 256},
    contrastive_peak_learning_rate=2e-4,
    documents=400_000,
    large=True,
)


Scale = str
"""The name of a scale; `paper` is the unchanged recipe."""
SCALES: tuple[Scale, ...] = ("smoke", "laptop1", "laptop", "proxy", "paper")

RULES: Mapping[Scale, Rules] = {"smoke": SMOKE, "laptop1": LAPTOP1, "laptop": LAPTOP, "proxy": PROXY}
"""The rules of the scales that every ladder has."""


def known_scales() -> tuple[Scale, ...]:
    """Return the scales that every ladder has, followed by those of the ladder in use."""
    return tuple(dict.fromkeys((*SCALES, *ladders.current().scales)))


def rules_of(scale: Scale) -> Rules | None:
    """Return the rules of a scale, first looking in the ladder in use; None for the paper's scale."""
    return None if scale == "paper" else ladders.current().scales.get(scale) or RULES[scale]


def scaled(recipe: Recipe, scale: Scale, vocabulary: Vocabulary) -> Recipe:
    """Return the recipe at a scale; `vocabulary` says whether tokenizers are trained on the data or published.

    Raises:
        ValueError: the shrunk recipe is impossible.
    """
    rules = rules_of(scale)
    if rules is None:
        return recipe
    tree = recipe.model_dump()
    pretraining = tree["pretraining"]
    _shrink_model(pretraining["model"], rules, vocabulary)
    pretraining["data"].update(rules.data)
    optimization = pretraining["optimization"]
    optimization["peak_learning_rate"] = scaled_rate(optimization["peak_learning_rate"], scale)
    for stage in pretraining["stages"]:
        _shrink_stage(stage, rules)
    finetuning = tree["finetuning"]
    finetuning.update(rules.finetuning, max_tokens=_context(rules, finetuning["max_tokens"]))
    for axis, values in tree["grid"].items():  # the values that the scale keeps, or all if it keeps none
        kept = tuple(rules.grid[axis][value] for value in values if value in rules.grid[axis])
        tree["grid"][axis] = kept or values
    tree["embedding"]["precision"] = "fp32"  # for vectors of small models
    _shrink_contrastive(tree["embedding"]["contrastive"], rules)
    return validated(tree, f"scale {scale}")


def scaled_rate(rate: float, scale: Scale) -> float:
    """Return the peak rate of pre-training at a scale; a rate without a rule is unchanged."""
    rules = rules_of(scale)
    return rate if rules is None else rules.peak_learning_rates.get(rate, rate)


def vocabulary_of(source: Source) -> Vocabulary:
    """Return whether a source trains its tokenizers or uses published ones."""
    return "trained" if source.trains_tokenizers else "published"


def scaled_variant(variant: Variant, scale: Scale, vocabulary: Vocabulary) -> tuple[Recipe, Recipe | None]:
    """Return the recipes of a variant and its parent at a scale, after checking that they differ as declared."""
    recipe = scaled(variant.recipe, scale, vocabulary)
    if variant.parent is None:
        return recipe, None
    parent = scaled(variant.parent.recipe, scale, vocabulary)
    prove_scaled(variant.name, parent, recipe, variant)
    return recipe, parent


def trained_vocabulary_size(scale: Scale) -> int | None:
    """Return the size of vocabularies trained at a scale; None if they have the size of the published ones."""
    rules = rules_of(scale)
    return None if rules is None else rules.trained_vocabulary_size


def _shrink_model(model: dict[str, Any], rules: Rules, vocabulary: Vocabulary) -> None:
    ratio = model["feedforward_width"] / model["width"]
    layers, width = model["layers"], model["width"]
    if (layers, width) in rules.shapes[vocabulary]:
        layers, width = rules.shapes[vocabulary][layers, width]
    else:
        layer_divisor, width_divisor = rules.shape_divisors
        step = 2 * rules.heads
        layers, width = max(2, round(layers / layer_divisor)), max(step, round(width / width_divisor / step) * step)
    if model["attention_window"]:
        model["attention_window"] = max(2, _context(rules, model["attention_window"]) // 2 * 2)
    model.update(rules.model)
    model.update(layers=layers, width=width, heads=rules.heads, feedforward_width=round(ratio * width))
    if rules.trained_vocabulary_size is not None and vocabulary == "trained":
        model["vocabulary_size"] = rules.trained_vocabulary_size


def _context(rules: Rules, tokens: int) -> int:
    return rules.contexts.get(tokens) or max(_in_proportion(rules.contexts, tokens), min(tokens, 1))


def _in_proportion(table: Mapping[int, int], number: int) -> int:
    """Shrink a number that is not in the table in proportion to the first row."""
    first, shrunk = next(iter(table.items()))
    return shrunk * number // first


def _shrink_stage(stage: dict[str, Any], rules: Rules) -> None:
    steps = rules.steps.get(stage["steps"]) or max(1, _in_proportion(rules.steps, stage["steps"]))
    stage["decay_steps"] = round(steps * stage["decay_steps"] / stage["steps"])
    stable = round(steps * stage["stable_steps"] / stage["steps"])
    stage["warmup_steps"] = round(steps * rules.warmup_fraction) if stage["warmup_steps"] else 0
    stage["stable_steps"] = max(0, min(stable, stage["decay_steps"] - stage["warmup_steps"] - 1))
    stage["steps"] = steps
    stage["context"] = _context(rules, stage["context"])
    tokens = rules.tokens_per_step.get(stage["tokens_per_step"])
    stage["tokens_per_step"] = tokens or max(1, stage["tokens_per_step"] // 256 // stage["context"]) * stage["context"]
    for subset in stage["mixture"]:
        subset["minimum_tokens"] = _context(rules, subset["minimum_tokens"]) if subset["minimum_tokens"] else 0


def _shrink_contrastive(contrastive: dict[str, Any], rules: Rules) -> None:
    """Shrink the contrastive protocol in place. Texts per step stay in proportion to the baseline's."""
    texts, baseline = contrastive["texts_per_step"], ladders.current().root.recipe.embedding.contrastive
    contrastive.update(rules.contrastive)
    contrastive["optimization"]["peak_learning_rate"] = rules.contrastive_peak_learning_rate
    if "texts_per_step" in rules.contrastive:
        contrastive["texts_per_step"] = rules.contrastive["texts_per_step"] * texts // baseline.texts_per_step


def synthetic_documents(scale: Scale) -> int:
    """Return the number of documents in a synthetic corpus at a scale."""
    rules = rules_of(scale)
    return 4_000_000 if rules is None else rules.documents


def shortest_context(scale: Scale) -> int:
    """Return the shortest context of the ladder's variants at a scale, in tokens; all can be measured in it."""
    longest = (variant.recipe.pretraining.longest_context for variant in ladders.variants().values())
    shortest, rules = min(longest), rules_of(scale)
    return shortest if rules is None else _context(rules, shortest)


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
    large = {"threads": available_cores(), "micro_batch_tokens": 1 << 16, "checkpoint_interval_steps": 1000}
    return common.model_copy(update=large)
