"""Recipes at the scales of a ladder: what becomes of each field there, and how runs execute.

Equal numbers stay equal, a larger number never becomes a smaller one, and numbers that go with the same row of a table
keep their ratio, up to the rounding of whole numbers. So a scaled variant only differs from its scaled parent by what
it declares, and in the same direction. A number for which that is impossible is refused with a sentence that says what
to do. Values that a modification declares as unscaled are used as they are.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ablations.ladders import Ladder
from ablations.scales import HALF_LIFE_SHARE, RULES, UNSCALED, Rows, Rules, Scale, Shape, Vocabulary
from ablations.variant import WAYS_OUT, Recipe, Variant, prove_scaled, validated
from neobert.data.sources import Source
from neobert.errors import did_you_mean
from neobert.execution import Execution
from neobert.identity import difference
from neobert.processes import available_cores

# Numbers at a scale


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


def in_ratio(number: float, before: float, after: float) -> float:
    """Return `number` × `after` / `before` in twelve significant digits, so that 3 × 2e-3 is 6e-3."""
    return float(f"{number * after / before:.12g}")


def replaced(name: str, rule: Any, value: Any, baseline: Any) -> Any:
    """Return a value at a scale whose `rule` replaces the baseline's value.

    Another number keeps its ratio to the baseline's, whole numbers rounded down and at least 1. Another word stays.
    Mappings are replaced entry by entry; None stands for "all" and stays.

    Raises:
        ValueError: the baseline's value has no ratio to the number, because it is 0 or None.
    """
    if isinstance(rule, Mapping):
        if unknown := [key for key in rule if key not in value]:
            raise ValueError(f"{name.lstrip('.')} has no field {unknown[0]!r}: {did_you_mean(str(unknown[0]), value)}")
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


# Fields of a recipe

Tree = dict[str, Any]
"""A recipe, or a part of it, in its plain form."""
BETA2 = "pretraining.optimization.beta2"
BETA_DIGITS = 6
"""Decimals of a scaled beta2, so that ids do not depend on a platform's last bit of a power."""
PUBLISHED_VOCABULARIES = (30_522, 32_064)
"""Sizes of the paper's two published vocabularies. Tokenizers that are trained in their place have one size, so that
tokenizers are compared and not sizes."""


@dataclass(frozen=True)
class Scaling:
    """What a field's rule reads besides the field: the rules of the scale, whether tokenizers are trained on the data,
    and the recipe of the ladder's baseline."""

    rules: Rules
    vocabulary: Vocabulary
    baseline: Tree


def _shape(its: Scaling, model: Tree) -> tuple[int, int, int]:
    """Return layers, width and feed-forward width: those of the row, or in their ratios to another row.

    That is the row of the baseline's shape if the two have a number in common, or else the nearest, with the smallest
    sum of distances in the logarithms. Without a row the width is rounded to a multiple of two per head, and all three
    are rounded to at least one (unit).
    """
    rows, usual = its.rules.shapes[its.vocabulary], its.baseline["pretraining"]["model"]
    shape, baseline = (model["layers"], model["width"]), (usual["layers"], usual["width"])

    def distance(row: Shape) -> float:
        return sum(abs(math.log(ours / theirs)) for ours, theirs in zip(shape, row, strict=True))

    is_arm = shape not in rows and baseline in rows and (shape[0] == baseline[0] or shape[1] == baseline[1])
    near = baseline if is_arm else min(rows, key=distance)
    (layers, width), (small_layers, small_width) = near, rows[near]
    feedforward_width = max(1, round(Fraction(model["feedforward_width"] * small_width, width)))
    if shape == near:
        return small_layers, small_width, feedforward_width
    unit = 2 * model["heads"]
    units = max(1, round(Fraction(shape[1] * small_width, width * unit)))
    return max(1, round(Fraction(shape[0] * small_layers, layers))), units * unit, feedforward_width


def _vocabulary_size(its: Scaling, size: int) -> int:
    trained, usual = its.rules.trained_vocabulary_size, its.baseline["pretraining"]["model"]["vocabulary_size"]
    if trained is None or its.vocabulary == "published":
        return size
    sizes = PUBLISHED_VOCABULARIES if usual in PUBLISHED_VOCABULARIES else (usual,)
    return scaled_count("vocabulary_size", dict.fromkeys(sizes, trained), size)


def _context(its: Scaling, tokens: int) -> int:
    return scaled_count("context", its.rules.contexts, tokens)


def _share_of_steps(its: Scaling, stage: Tree) -> Fraction:
    """Return the share of a stage's steps that is left, exactly that of its row."""
    rows, steps = its.rules.steps, stage["steps"]
    near = nearest_row("steps", rows, steps) if rows else steps
    return Fraction(rows.get(near, near)) / Fraction(near)


def _warmup(its: Scaling, stage: Tree) -> int:
    usual = its.baseline["pretraining"]["stages"][0]
    stretch = Fraction(1)
    if usual["warmup_steps"]:
        stretch = Fraction(str(its.rules.warmup_fraction)) * usual["steps"] / usual["warmup_steps"]
    return round(stage["warmup_steps"] * _share_of_steps(its, stage) * stretch)


def _axis(its: Scaling, axis: str, values: tuple[Any, ...], scaled_value: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the values of a grid's axis that have a row, or else all in their ratio to the nearest."""
    rows = its.rules.grid[axis]
    kept = tuple(rows[value] for value in values if value in rows)
    return kept or tuple(scaled_value(f"grid.{axis}", rows, value) for value in values)


FIELDS: Mapping[str, Callable[[Scaling, Any, Tree], Any]] = {
    "pretraining.model.layers": lambda its, _, model: _shape(its, model)[0],
    "pretraining.model.width": lambda its, _, model: _shape(its, model)[1],
    "pretraining.model.feedforward_width": lambda its, _, model: _shape(its, model)[2],
    "pretraining.model.vocabulary_size": lambda its, size, _: _vocabulary_size(its, size),
    "pretraining.optimization.peak_learning_rate": lambda its, rate, _: scaled_number(
        "peak_learning_rate", its.rules.peak_learning_rates, rate
    ),
    "pretraining.stages.*.context": lambda its, tokens, _: _context(its, tokens),
    "pretraining.stages.*.tokens_per_step": lambda its, tokens, stage: scaled_count(
        "tokens_per_step", its.rules.tokens_per_step, tokens, _context(its, stage["context"])
    ),
    "pretraining.stages.*.steps": lambda its, steps, _: scaled_count("steps", its.rules.steps, steps),
    "pretraining.stages.*.warmup_steps": lambda its, _, stage: _warmup(its, stage),
    "pretraining.stages.*.stable_steps": lambda its, steps, stage: int(steps * _share_of_steps(its, stage)),
    "pretraining.stages.*.decay_steps": lambda its, steps, stage: (
        max(1, round(steps * _share_of_steps(its, stage))) if steps else 0
    ),
    "pretraining.stages.*.mixture.*.minimum_tokens": lambda its, tokens, _: _context(its, tokens),
    "finetuning.max_tokens": lambda its, tokens, _: _context(its, tokens),
    "grid.batch_sizes": lambda its, sizes, _: _axis(its, "batch_sizes", sizes, scaled_count),
    "grid.learning_rates": lambda its, rates, _: _axis(its, "learning_rates", rates, scaled_number),
    "grid.weight_decays": lambda its, decays, _: _axis(its, "weight_decays", decays, scaled_number),
}
"""For each field with a rule of its own, its value at a scale; the rule gets the field's value and the part that the
field is in, such as its stage. The values of `replacements` are in place then, so that a model has its scaled heads.
Other fields stay, but for beta2, which follows from the scaled stages."""


def replacements(rules: Rules) -> Tree:
    """Return the values that take the place of the baseline's, in the form of a recipe."""
    precision = {} if rules.precision is None else {"precision": rules.precision}
    rate = {"peak_learning_rate": rules.contrastive_peak_learning_rate}
    return {
        "pretraining": {**precision, "model": {**rules.model, "heads": rules.heads}, "data": rules.data},
        "finetuning": {**rules.finetuning, **precision},
        "embedding": {
            "precision": "fp32",  # for vectors of small models
            "contrastive": {**rules.contrastive, "optimization": rate, **precision},
        },
    }


def _by_fields(its: Scaling, path: str, value: Any, part: Tree) -> Any:
    """Return a value and all in it by the rules of their fields."""
    if rule := FIELDS.get(path):
        return rule(its, value, part)
    if isinstance(value, dict):
        return {name: _by_fields(its, f"{path}.{name}".lstrip("."), each, value) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_by_fields(its, f"{path}.*", each, part) for each in value)
    return value


def _shrunk(recipe: Recipe, root: Recipe, rules: Rules, vocabulary: Vocabulary) -> Tree:
    """Return the plain form of the recipe under rules; `root` is the recipe of the ladder's baseline.

    Unscaled fields take part with the baseline's values, and get their own at the end.
    """
    written, tree, baseline = recipe.model_dump(), recipe.model_dump(), root.model_dump()
    for path in recipe.unscaled:
        _copy(path, baseline, tree)
    usual = replaced("", replacements(rules), tree, baseline)
    small: Tree = _by_fields(Scaling(rules, vocabulary, baseline), "", usual, usual)
    for path in recipe.unscaled:
        _copy(path, written, small)
    if rules.second_moment == "token_half_life" and BETA2 not in recipe.unscaled:
        before, after = written["pretraining"]["stages"][0], small["pretraining"]["stages"][0]
        optimization, share = small["pretraining"]["optimization"], after["tokens_per_step"] / before["tokens_per_step"]
        longest = 0.5 ** (1 / (HALF_LIFE_SHARE * after["steps"]))
        optimization["beta2"] = round(min(optimization["beta2"] ** share, longest), BETA_DIGITS)
    return small


def _copy(path: str, source: Any, target: Any) -> None:
    """Copy the value at a dotted path from one plain recipe to another; of fewer stages the last one serves."""
    *parts, name = path.split(".")
    for part in parts:
        if part.isdigit():
            source, target = source[min(int(part), len(source) - 1)], target[int(part)]
        else:
            source, target = source[part], target[part]
    target[name] = source[name]


# Recipes and variants at a scale


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
    rules = rules_of(ladder, scale)
    follows = rules is not None and rules.second_moment != "as_written"
    follows = follows and any(path.endswith((".tokens_per_step", ".steps")) for path in variant.delta())
    prove_scaled(variant.name, parent, recipe, variant, (BETA2,) if follows else ())
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
    declared, present = (
        dict.fromkeys(re.sub(r"(?<=\.mixture)\..*|\.\d+$", "", path).removeprefix("pretraining.") for path in change)
        for change in (variant.delta(), difference(parent, recipe))
    )
    return tuple(field for field in declared if field not in present)


def trained_vocabulary_size(ladder: Ladder, scale: Scale) -> int | None:
    """Return the size of vocabularies trained at a scale; None if they have the size of the published ones."""
    rules = rules_of(ladder, scale)
    return None if rules is None else rules.trained_vocabulary_size


# Runs at a scale


def vocabulary_of(source: Source) -> Vocabulary:
    """Return whether a source trains its tokenizers or uses published ones."""
    return "trained" if source.trains_tokenizers else "published"


def synthetic_documents(ladder: Ladder, scale: Scale) -> int:
    """Return the number of documents in a synthetic corpus at a scale."""
    rules = rules_of(ladder, scale)
    if rules is None:
        return 100_000 if scale == "as-written" else 4_000_000
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
