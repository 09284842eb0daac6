"""Variants by name: those of the ladder, and others that are made from their names.

- `M7-rope` is M7 without its modification RoPE, `M0+rope` is M0 with that modification alone.
- `M4@beta2-0.95` is M4 with this number of the optimizer at every scale, whatever a scale does to the variant's own.
  `M4@rate4e-3` is short for `M4@peak_learning_rate-4e-3`.
- `M4@steps0.25` is M4 with a quarter of the steps and a schedule that ends there. A checkpoint of a longer run is not
  equivalent: its rate has not decayed.

Runs are named by recipes, so variants with equal recipes share them.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from ablations.ladders import Ladder, modifications_of
from ablations.scales import Scale, Vocabulary
from ablations.scaling import scaled, scaled_variant
from ablations.variant import Modification, Variant
from neobert.errors import did_you_mean
from neobert.rates import FIELDS, RATE, rate_text, with_number

SETTING = re.compile(r"(?P<base>.+)@(?P<field>rate|steps|[a-z]\w*(?=-))-?(?P<value>\d\S*)")
SHARE = re.compile(r"0\.\d{0,2}[1-9]")
"""Pattern of a share of the steps, with up to three digits: 0.5, 0.25, 0.125."""
DesignKind = Literal["leave-one-out", "add-one"]


# Numbers in names


def at_number(variant: Variant, field: str, value: float) -> Variant:
    """Return a variant at another number of the optimizer, which scales leave as it is."""
    name, text = field.replace("_", " "), rate_text(value) if field == RATE else f"{value:g}"
    source = "a reading of this study, not the paper"
    change = Modification(f"{name} {text}", source, optimization={field: float(text)}, unscaled=True)
    return variant.derive(with_number(variant.name, field, value), change, kept=variant.kept)


def at_rate(variant: Variant, rate: float) -> Variant:
    """Return a variant at another peak rate, rounded to two digits."""
    return at_number(variant, RATE, rate)


def shorter(variant: Variant, share: float) -> Variant:
    """Return a variant with a share of the steps of each stage, in thousandths; warm-up and decay shrink alike."""
    text = f"{share:g}"
    stages = tuple(
        {name: round(getattr(stage, name) * share) for name in ("steps", "warmup_steps", "stable_steps", "decay_steps")}
        for stage in variant.recipe.pretraining.stages
    )
    change = Modification(f"{text} of the steps", source="a shorter run of this study, not the paper", stages=stages)
    return variant.derive(f"{variant.name}@steps{text}", change, kept=variant.kept)


FORMS = {
    "steps": "a share between 0 and 1 in up to three digits, as @steps0.25",
    "rate": "one or two digits and a power of ten, as @rate2.8e-3",
}


def split_numbers(ladder: Ladder, name: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the name of the variant that a name sets numbers of, and these: fields with their values as text."""
    base, numbers = name, list[tuple[str, str]]()
    while base not in ladder.variants and (found := SETTING.fullmatch(base)):
        base, field = found["base"], found["field"]
        numbers.insert(0, ("rate" if field == RATE else field, found["value"]))
    return base, numbers


def _with_numbers(ladder: Ladder, name: str) -> Variant | None:
    """Return the variant of a name with numbers; None if the name has none, or there is no such variant."""
    base, numbers = split_numbers(ladder, name)
    variant = named(ladder, base) if numbers else None
    if variant is None:
        return None
    for field, text in numbers:
        if field not in (*FORMS, *FIELDS):
            raise ValueError(
                f"{name!r} names no number of the optimizer: {did_you_mean(field, FIELDS)}; for another peak learning "
                f"rate write {base}@rate1e-3"
            )
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        shown = rate_text if field == "rate" else "{:g}".format
        is_no_share = field == "steps" and not SHARE.fullmatch(text)
        if not math.isfinite(value) or shown(value) != text or is_no_share:
            form = FORMS.get(field, f"up to six digits, as @{field}-0.95")
            raise ValueError(f"{name!r} names no value of {field}: write {form}")
    fields = [field for field, _ in numbers]
    if fields != sorted(dict.fromkeys(fields), key=lambda field: (field == "rate") - (field == "steps")):
        raise ValueError(f"{name!r}: name each number once, @steps first and @rate last")
    for field, text in numbers:
        value, number = float(text), RATE if field == "rate" else field
        variant = shorter(variant, value) if field == "steps" else at_number(variant, number, value)
    return variant


def at_scale(ladder: Ladder, variant: Variant, scale: Scale) -> Variant:
    """Return a variant, or its parent if its own modification is unscaled and the parent has the value anyway.

    So `M4@rate2e-3` is M4 at a scale that trains M4 at 2e-3.
    """
    parent = variant.parent
    if parent is None or not all(each.unscaled for each in variant.modifications):
        return variant
    own, theirs = (scaled(ladder, each.recipe, scale, "published") for each in (variant, parent))
    same = own.model_copy(update={"unscaled": ()}) == theirs.model_copy(update={"unscaled": ()})
    return at_scale(ladder, parent, scale) if same else variant


# One modification more or less


def without(ladder: Ladder, variant: Variant, name: str) -> Variant:
    """Return a variant without one of its modifications, derived from the baseline with all others. Raises ValueError
    if the variant does not have it, or the others are impossible or change nothing without it."""
    removed, way = ladder.modifications[name], modifications_of(variant)
    if removed not in way:
        raise ValueError(f"{variant.name} does not have {removed.title!r}, so it cannot be left out of it")
    root = ladder.variants[variant.lineage()[0]]
    title = f"{variant.name} without {removed.title}"
    left = [each for each in way if each is not removed]
    found = root.derive(f"{variant.name}-{name}", *left, title=title)
    if found.recipe == variant.recipe:
        raise ValueError(f"without {removed.title!r} {variant.name} has the same recipe")
    return found


def _by_one(ladder: Ladder, name: str) -> Variant | None:
    """Return the variant of a name with one modification more or less; None for other names."""
    for variant in ladder.steps.values():
        for sign in "-+":
            modification = name.removeprefix(f"{variant.name}{sign}")
            if modification != name and modification in ladder.modifications:
                left_out = sign == "-"
                add = ladder.modifications[modification]
                return without(ladder, variant, modification) if left_out else variant.derive(name, add)
    return None


def names_of_design(ladder: Ladder, kind: DesignKind) -> list[str]:
    """Return the names of a design: the full variant and it without each of its modifications, or the baseline and it
    with each modification of the ladder."""
    if kind == "add-one":
        return [ladder.root.name, *(f"{ladder.root.name}+{name}" for name in ladder.modifications)]
    full, way = ladder.full_variant.name, modifications_of(ladder.full_variant)
    return [full, *(f"{full}-{name}" for name, each in ladder.modifications.items() if each in way)]


def variants_of_design(
    ladder: Ladder, kind: DesignKind, scale: Scale, vocabulary: Vocabulary
) -> tuple[list[Variant], list[str]]:
    """Return the variants of a design that are possible at a scale, and a sentence for each other one. Raises
    ValueError if there are fewer than two."""
    variants, left_out = list[Variant](), list[str]()
    for name in names_of_design(ladder, kind):
        try:
            variant = one_variant(ladder, name)
            scaled_variant(ladder, variant, scale, vocabulary)
        except ValueError as error:
            left_out.append(f"{name}: {error}")
        else:
            variants.append(variant)
    if len(variants) < 2:
        found = left_out[0] if left_out else f"{names_of_design(ladder, kind)[0]} has no modification"
        raise ValueError(f"--design {kind} has nothing to vary: {found}")
    return variants, left_out


# Names on a command line and in records


def named(ladder: Ladder, name: str) -> Variant | None:
    """Return the variant of a name; None if there is none. Raises ValueError if its numbers or its modification are
    impossible."""
    return ladder.variants.get(name) or _with_numbers(ladder, name) or _by_one(ladder, name)


def variants_in(ladder: Ladder, names: Iterable[str]) -> dict[str, Variant]:
    """Return the variants that names in records stand for beside the ladder's own, by name; names that this version
    does not know are skipped."""
    found: dict[str, Variant] = {}
    for name in dict.fromkeys(names):
        try:
            variant = None if name in ladder.variants else named(ladder, name)
        except ValueError:
            continue
        if variant is not None:
            found[variant.name] = variant
    return found


def chosen_variants(ladder: Ladder, names: Sequence[str]) -> list[Variant]:
    """Return variants by name, `all` (the ladder) or a range such as M0..M5, each once, in the order of the ladder.

    A range can have numbers (M0..M5@steps0.25). Variants that are not on the ladder come last.

    Raises:
        ValueError: a name is unknown or impossible.
    """
    known = ladder.variants
    chosen = {variant.name: variant for name in names for variant in _expanded(ladder, name)}
    others = [variant for name, variant in chosen.items() if name not in known]
    return [*(variant for name, variant in known.items() if name in chosen), *others]


def _expanded(ladder: Ladder, name: str) -> list[Variant]:
    """Return the variants that one name stands for."""
    on_ladder = list(ladder.steps.values())
    several, mark, numbers = name.partition("@")
    if mark and (several == "all" or ".." in several):
        return [one_variant(ladder, f"{each.name}{mark}{numbers}") for each in _expanded(ladder, several)]
    if name == "all":
        return on_ladder
    first, dots, last = name.partition("..")
    if dots:
        names = list(ladder.steps)
        if unknown := [end for end in (first, last) if end not in names]:
            raise ValueError(_unknown(unknown[0], names))
        start, end = names.index(first), names.index(last)
        if start > end:
            raise ValueError(f"{name} names no variant, as {last} comes before {first}: did you mean {last}..{first}?")
        return on_ladder[start : end + 1]
    if variant := named(ladder, name):
        return [variant]
    of_designs = (each for kind in get_args(DesignKind) for each in names_of_design(ladder, kind))
    raise ValueError(_unknown(name, [*ladder.variants, *of_designs]))


def one_variant(ladder: Ladder, name: str) -> Variant:
    """Return the variant of a name. Raises ValueError if there is none, or if the name stands for several."""
    found = chosen_variants(ladder, [name])
    if len(found) != 1:
        raise ValueError(f"{name} names {len(found)} variants, and this is about one: name them one by one")
    return found[0]


def _unknown(name: str, names: Sequence[str]) -> str:
    return f"there is no variant {name!r}: {did_you_mean(name, names)} (all: run.py --list)"
