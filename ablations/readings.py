"""Variants with another value that is used as it is at every scale: `M4@beta2-0.95` is M4 with beta2 = 0.95.

Scales change some numbers, and what is equal at a scale cannot be told apart there. A reading has the number of its
name whatever the scale does to the variant's own.
"""

import re
from collections.abc import Iterable

from ablations import budgets
from ablations.ladders import variants
from ablations.scales import Scale, scaled
from ablations.variant import Modification, Variant
from neobert.errors import did_you_mean
from neobert.recipe import Optimization

SOURCE = "a reading of this study, not the paper"
PATTERN = re.compile(r"(?P<base>.+)@(?P<field>(?!rate|steps)[a-z]\w*)-(?P<value>\d\S*)")
FIELDS = tuple(name for name, field in Optimization.model_fields.items() if field.annotation is float)
"""The fields that names can set: the numbers of the optimizer."""


def with_value(variant: Variant, name: str, field: str, value: float, title: str, source: str) -> Variant:
    """Return a variant with a number of the optimizer that scales leave as it is."""
    change = Modification(title, source=source, optimization={field: value}, unscaled=True)
    return variant.derive(name, change, kept=variant.kept)


def variant_named(name: str) -> Variant | None:
    """Return the variant with another value from its name; None if the name has none.

    The base can also be a reading, or have a share of the steps (`M4@steps0.25@beta2-0.95`).

    Raises:
        ValueError: there is no such field, or the value is impossible or not written as in names.
    """
    found = PATTERN.fullmatch(name)
    if found is None:
        return None
    base, field, text = found["base"], found["field"], found["value"]
    variant = variants().get(base) or variant_named(base) or budgets.variant_named(base)
    if variant is None:
        return None
    if field not in FIELDS:
        raise ValueError(f"{name!r} names no number of the optimizer: {did_you_mean(field, FIELDS)}")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if f"{value:g}" != text:
        hint = "" if value < 0 else f", as {base}@{field}-{value:g}"
        raise ValueError(f"{name!r} names no value of {field}: write it in up to six digits{hint}")
    return with_value(variant, name, field, value, f"{field} {text} at every scale", SOURCE)


def readings_in(names: Iterable[str]) -> dict[str, Variant]:
    """Return the readings among names of variants, by name; names that this version does not know are skipped."""
    found: dict[str, Variant] = {}
    for name in dict.fromkeys(names):
        try:
            variant = variant_named(name)
        except ValueError:
            continue
        if variant is not None:
            found[name] = variant
    return found


def at_scale(variant: Variant, scale: Scale) -> Variant:
    """Return a variant, or its parent if its own modification is unscaled and the parent has the value anyway.

    So `M4@rate2e-3` is M4 at a scale that trains M4 at 2e-3.
    """
    parent = variant.parent
    if parent is None or not all(each.unscaled for each in variant.modifications):
        return variant
    own, theirs = (scaled(each.recipe, scale, "published") for each in (variant, parent))
    same = own.model_copy(update={"unscaled": ()}) == theirs.model_copy(update={"unscaled": ()})
    return at_scale(parent, scale) if same else variant
