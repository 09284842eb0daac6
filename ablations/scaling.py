"""Recipes at the scales of a ladder, and what a scale implies for a run.

A scaled variant only differs from its scaled parent by what it declares, and in the same direction; where rules cannot
do that, they refuse.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any

from ablations.ladders import Ladder
from ablations.scales import (
    HALF_LIFE_SHARE,
    RULES,
    UNSCALED,
    Rules,
    Scale,
    Vocabulary,
    nearest_row,
    replaced,
    scaled_count,
    scaled_number,
    scaled_shape,
)
from ablations.variant import WAYS_OUT, Recipe, Variant, prove_scaled, validated
from neobert.data.sources import Source
from neobert.execution import Execution
from neobert.identity import difference
from neobert.processes import available_cores

BETA_DIGITS = 6
"""Decimals of a scaled beta2, so that ids do not depend on a platform's last bit of a power."""
AS_WRITTEN_DOCUMENTS = 100_000


def rules_of(ladder: Ladder, scale: Scale) -> Rules | None:
    """Return the rules of a scale, first looking in the ladder; None if recipes are used as they are."""
    return None if scale in UNSCALED else ladder.scales.get(scale) or RULES[scale]


def scaled(ladder: Ladder, recipe: Recipe, scale: Scale, vocabulary: Vocabulary) -> Recipe:
    """Return a recipe at a scale of a ladder, whose baseline `Rules` refer to; `vocabulary` says whether tokenizers are
    trained on the data or published. Raises ValueError if a number cannot keep its order and ratio, or the shrunk
    recipe is impossible."""
    rules = rules_of(ladder, scale)
    if rules is None:
        return recipe
    try:
        tree = _shrunk(recipe, ladder.root.recipe, rules, vocabulary)
    except ValueError as error:
        raise ValueError(f"scale {scale}: {error}") from error
    try:
        return validated(tree, f"scale {scale}")
    except ValueError as error:
        raise ValueError(f"{error}: give a scale of your own other rules for it, {WAYS_OUT}") from error


def scaled_recipes(ladder: Ladder, scale: Scale, vocabulary: Vocabulary) -> dict[str, Recipe]:
    """Return the recipes of a ladder's variants at a scale by name, without those that are impossible there, which are
    refused where they are planned."""
    found = {}
    for name, variant in ladder.variants.items():
        with suppress(ValueError):
            found[name] = scaled(ladder, variant.recipe, scale, vocabulary)
    return found


def _shrunk(recipe: Recipe, root: Recipe, rules: Rules, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the plain form of the recipe under rules; `root` is the recipe of the ladder's baseline.

    Unscaled fields take part with the baseline's values, and get their own at the end.
    """
    written, tree, baseline = recipe.model_dump(), recipe.model_dump(), root.model_dump()
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


def scaled_variant(
    ladder: Ladder, variant: Variant, scale: Scale, vocabulary: Vocabulary
) -> tuple[Recipe, Recipe | None]:
    """Return the recipes of a variant and its parent at a scale, after checking that they differ as declared.

    Raises:
        ValueError: as `scaled` and `prove_scaled`; or the scale turns a change around.
    """
    recipe = scaled(ladder, variant.recipe, scale, vocabulary)
    if variant.parent is None:
        return recipe, None
    parent = scaled(ladder, variant.parent.recipe, scale, vocabulary)
    prove_scaled(variant.name, parent, recipe, variant, _consequences(variant, rules_of(ladder, scale)))
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


def unrepresented(ladder: Ladder, variant: Variant, scale: Scale, vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return the fields that a variant changes and that are equal to its parent's at a scale, as dotted paths.

    A grid's axis, a mixture or a pretraining field each counts as one field.
    """
    if variant.parent is None:
        return ()
    recipe, parent = (scaled(ladder, each.recipe, scale, vocabulary) for each in (variant, variant.parent))
    fields = (_fields(change) for change in (variant.delta(), difference(parent, recipe)))
    declared, present = fields
    return tuple(field for field in declared if field not in present)


def _fields(paths: Collection[str]) -> dict[str, None]:
    """Return the fields of leaves, in order: a number at the end counts entries, and so does what is in a mixture."""
    ends = (path.partition(".mixture.")[0] + ".mixture" if ".mixture." in path else path for path in paths)
    fields = (re.sub(r"\.\d+$", "", path).removeprefix("pretraining.") for path in ends)
    return dict.fromkeys(fields)


def trained_vocabulary_size(ladder: Ladder, scale: Scale) -> int | None:
    """Return the size of vocabularies trained at a scale; None if they have the size of the published ones."""
    rules = rules_of(ladder, scale)
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


def synthetic_documents(ladder: Ladder, scale: Scale) -> int:
    """Return the number of documents in a synthetic corpus at a scale."""
    rules = rules_of(ladder, scale)
    if rules is None:
        return AS_WRITTEN_DOCUMENTS if scale == "as-written" else 4_000_000
    return rules.documents


def shortest_context(ladder: Ladder, scale: Scale) -> int:
    """Return the shortest context of a ladder's variants at a scale, in tokens; all can be measured in it."""
    contexts = {False: set[int](), True: set[int]()}  # of variants with scaled and with unscaled contexts
    for variant in ladder.variants.values():
        is_unscaled = any(path.endswith(".context") for path in variant.recipe.unscaled)
        contexts[is_unscaled].add(variant.recipe.pretraining.longest_context)
    rules = rules_of(ladder, scale)
    shrunk = (
        () if not contexts[False] else (scaled_count("context", rules.contexts if rules else {}, min(contexts[False])),)
    )
    return min((*shrunk, *contexts[True]))


def uses_one_thread(ladder: Ladder, scale: Scale) -> bool:
    """Return whether a scale's workers use one thread each.

    A second thread gains little for small models, and results are only bit-exact with the same number of threads.
    """
    rules = rules_of(ladder, scale)
    return rules is not None and not rules.large


def execution_at(ladder: Ladder, scale: Scale) -> Execution:
    """Return the default execution of a scale on one machine."""
    common = Execution(
        threads=1,
        processes=1,
        micro_batch_tokens=1 << 14,
        checkpoint_interval_steps=200,
        heldout_context=shortest_context(ladder, scale),
    )
    if uses_one_thread(ladder, scale):
        return common
    large = {
        "threads": available_cores(),
        "micro_batch_tokens": 1 << 16,
        "checkpoint_interval_steps": 100,  # steps between two looks at the clock
        "checkpoint_interval_seconds": 900,
    }
    return common.model_copy(update=large)
