"""Shorter runs of a variant: `M4@steps0.25` is M4 with a quarter of the steps and a schedule that ends there.

An intermediate checkpoint of a longer run is not equivalent: its rate has not decayed, so its loss is above that of a
run that was planned to end there, by a difference that varies between arms.
"""

import re
from collections.abc import Iterable

from ablations.ladders import ladder, variants
from ablations.variant import Modification, Variant

SOURCE = "a budget of a forecast (reports/forecast.py), not the paper"
MARK = "@steps"
TEXT = re.compile(r"0\.\d{0,2}[1-9]")
"""Pattern of a share of the steps in names, with up to three digits: 0.5, 0.25, 0.125."""


def shorter(variant: Variant, share: float) -> Variant:
    """Return a variant with a share of the steps of each stage, in thousandths; warm-up and decay shrink alike."""
    text = share_text(share)
    stages = tuple(
        {name: round(getattr(stage, name) * share) for name in ("steps", "warmup_steps", "stable_steps", "decay_steps")}
        for stage in variant.recipe.pretraining.stages
    )
    change = Modification(f"{text} of the steps", source=SOURCE, stages=stages)
    return variant.derive(f"{variant.name}{MARK}{text}", change, kept=variant.kept)


def share_text(share: float) -> str:
    """Format a share as in names. Raises ValueError if it is no number of thousandths between 0 and 1."""
    text = f"{share:g}"
    if TEXT.fullmatch(text) is None:
        raise ValueError(f"{text} is no share of the steps: write one between 0 and 1 in up to three digits, as 0.25")
    return text


def variant_named(name: str) -> Variant | None:
    """Return the variant with a share of the steps from its name; None if the name has no share. Raises ValueError if
    the share is not written as in names."""
    base, mark, text = name.rpartition(MARK)
    if not mark or base not in variants():
        return None
    if TEXT.fullmatch(text) is None:
        raise ValueError(f"{name!r} names no share of the steps: write it in up to three digits, as {base}{MARK}0.25")
    return shorter(variants()[base], float(text))


def shares(names: Iterable[str]) -> tuple[float, ...]:
    """Return the shares of the steps in names of variants, in ascending order; names without a share are skipped."""
    texts = {text for _, mark, text in (name.rpartition(MARK) for name in names) if mark}
    return tuple(sorted(float(text) for text in texts if TEXT.fullmatch(text)))


def shorter_ladder(names: Iterable[str]) -> dict[str, Variant]:
    """Return the ladder's variants with every share of the steps in the names, by name."""
    found = [shorter(variant, share) for share in shares(names) for variant in ladder().values()]
    return {variant.name: variant for variant in found}
