"""Designs of experiments: the ladder, leave-one-out, add-one, and factorials over the same modifications.

A factor is one or more of the ladder's modifications under a short name. Variants of designs are made from their
names: `M9-norm` (M9 without one factor), `M0+masking` (the baseline with one), and `F:positions+norm` (a cell of a
factorial). M9 and M0 stand for the ladder's `full_variant` and `root`. Runs are named by recipes, so equal cells and
the ladder share them.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, wraps
from itertools import product
from typing import Literal, TypeVar

from ablations import budgets, ladders, rates, readings
from ablations.ladders import Ladder
from ablations.scales import Scale, Vocabulary, scaled_variant
from ablations.variant import Variant
from neobert.errors import did_you_mean

DesignKind = Literal["ladder", "leave-one-out", "add-one", "factorial"]
Fraction = Literal["full", "half"]
MOST_FACTORS = 8  # 256 variants: more is probably a typing error
CELL = "F:"
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Design:
    """Variants and the claims that they support.

    `factors` are the varied ones, in the order of the ladder. `left_out` has a sentence for each variant that is not
    possible at the scale.
    """

    kind: DesignKind
    factors: tuple[str, ...]
    fraction: Fraction
    variants: tuple[Variant, ...]
    left_out: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """A short title: the kind and its factors."""
        half = "half of the " if self.fraction == "half" else ""
        return self.kind if self.kind == "ladder" else f"{half}{self.kind} over {', '.join(self.factors)}"

    @property
    def notes(self) -> tuple[str, ...]:
        """The claims that it supports, and the cautions of its factors."""
        claim = claims()["half" if self.fraction == "half" else self.kind]
        return (claim, *cautions(self.factors))


def cautions(names: Iterable[str]) -> list[str]:
    factors = ladders.current().factors
    return [factors[name].caution for name in names if name in factors and factors[name].caution]


def claims() -> Mapping[str, str]:
    """Return the claims that each design supports."""
    ladder = ladders.current()
    root, whole, end = ladder.root.name, ladder.full_variant.name, ladder.last_kept.name
    return {
        "ladder": "Ladder: every delta is the effect of one step on top of all kept steps before it. Steps are "
        f"cumulative, so effects depend on their order; it supports claims about this path from {root} to {end}, and "
        "none about a modification by itself or about interactions.",
        "own rates": "Own rates: the ladder's deltas again, each arm at the peak rate that a sweep found best for it "
        "on pilot seeds, which no delta counts. It supports claims about arms that are tuned alike; a verdict that is "
        "another at the shared rate is one about that rate.",
        "leave-one-out": f"Leave-one-out: every delta is what {whole} owes to one modification in the presence of all "
        f"others. It supports claims that {whole} needs it; deltas do not add up where modifications overlap or depend "
        "on each other.",
        "add-one": f"Add-one: every delta is what one modification does to {root} alone. It supports claims about the "
        "baseline" + ("." if whole == root else f"; what it does to {whole} may be another thing."),
        "factorial": "Factorial: all combinations are there. It supports main effects (the mean over all settings of "
        f"the other factors) and interactions; all over {root}.",
        "half": "Half factorial: every effect is mixed with the interaction of all other factors (I = their product). "
        "It supports main effects where interactions of higher order are taken to be absent.",
    }


def design_of(kind: DesignKind, factors: Sequence[str] = (), fraction: Fraction = "full") -> Design:
    """Return a design over the named factors; no name means all that it can vary (a factorial needs names). Raises
    ValueError if a name is unknown, the design cannot vary a factor, or there are too few or too many."""
    ladder = ladders.current()
    known = ladder.factors
    if fraction == "half" and kind != "factorial":
        raise ValueError(f"--fraction half goes with --design factorial, not with {kind}")
    for name in factors:
        if name not in known:
            raise ValueError(f"there is no factor {name!r}: {did_you_mean(name, known)}")
    if kind == "ladder":
        if factors:
            raise ValueError("the ladder has an order and no --factors: choose leave-one-out, add-one or factorial")
        return Design(kind, (), fraction, tuple(ladder.steps.values()))
    chosen = _varied(kind, factors)
    if kind == "leave-one-out":
        if not chosen:
            whole = ladder.full_variant.name
            raise ValueError(
                f"leave-one-out has nothing to take out of {whole}, whose lineage changes nothing: derive a variant "
                "with all modifications and name it in END, or choose add-one"
            )
        variants = [ladder.full_variant, *map(without, chosen)]
    elif kind == "add-one":
        variants = [ladder.root, *map(with_one, chosen)]
    else:
        least = 3 if fraction == "half" else 2
        if not least <= len(chosen) <= MOST_FACTORS:
            raise ValueError(f"a {fraction} factorial takes {least} to {MOST_FACTORS} factors, not {len(chosen)}")
        variants = list(map(cell, cells(chosen, fraction)))
    return Design(kind, chosen, fraction, tuple(variants))


def design_at(design: Design, scale: Scale, vocabulary: Vocabulary, *, strict: bool) -> Design:
    """Return the design without the variants that are impossible at a scale; if `strict`, none may be. Raises
    ValueError if all variants are impossible, or one is and `strict`."""
    problems = {}
    for variant in design.variants:
        try:
            scaled_variant(variant, scale, vocabulary)
        except ValueError as error:
            problems[variant.name] = str(error)
    sentences = tuple(f"{name}: {problem}" for name, problem in problems.items())
    kept = tuple(variant for variant in design.variants if variant.name not in problems)
    if sentences and (strict or not kept):
        raise ValueError(f"{sentences[0]} (take another factor or another --scale)")
    return replace(design, variants=kept, left_out=sentences)


def _varied(kind: DesignKind, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the wanted factors in the order of the ladder, each once, after checking them."""
    known = ladders.current().factors
    parts = {name: factor.removed if kind == "leave-one-out" else factor.added for name, factor in known.items()}
    possible = tuple(name for name, modifications in parts.items() if modifications)
    if kind == "factorial" and not wanted:
        raise ValueError(f"a factorial needs --factors, its number of runs doubles with each: {', '.join(possible)}")
    for name in wanted:
        if name not in possible:
            raise ValueError(f"{kind} cannot vary {name!r}: {known[name].reason}")
    return tuple(name for name in possible if not wanted or name in wanted)


def cells(factors: Sequence[str], fraction: Fraction = "full") -> list[tuple[str, ...]]:
    """Return the combinations of a factorial, as the factors that are on.

    The half fraction has those with an even number of factors off, so also the one with all factors on (defining
    relation I = the product of all factors).
    """
    settings = product((False, True), repeat=len(factors))
    return [
        tuple(name for name, is_on in zip(factors, setting, strict=True) if is_on)
        for setting in settings
        if fraction == "full" or setting.count(False) % 2 == 0
    ]


def _of_ladder(make: Callable[[Ladder, Name], Variant]) -> Callable[[Name], Variant]:
    """Wrap a function to use the current ladder and to cache each variant."""
    once = cache(make)
    return wraps(make)(lambda name: once(ladders.current(), name))


@_of_ladder
def cell(ladder: Ladder, switched_on: tuple[str, ...]) -> Variant:
    """Return the root with some factors on; without factors the root itself."""
    if not switched_on:
        return ladder.root
    modifications = [modification for name in switched_on for modification in ladder.factors[name].added]
    return ladder.root.derive(f"{CELL}{'+'.join(switched_on)}", *modifications)


@_of_ladder
def with_one(ladder: Ladder, name: str) -> Variant:
    """Return the root with one factor on."""
    return ladder.root.derive(f"{ladder.root.name}+{name}", *ladder.factors[name].added)


@_of_ladder
def without(ladder: Ladder, name: str) -> Variant:
    """Return the full variant without one factor, derived from the root with all its modifications except the
    factor's."""
    whole, removed = ladder.full_variant, ladder.factors[name].removed
    left = [modification for modification in ladders.modifications_of(whole) if modification not in removed]
    title = f"{whole.name} without {', '.join(modification.title for modification in removed)}"
    return ladder.root.derive(f"{whole.name}-{name}", *left, title=title, left_out=removed)


def single_variants() -> dict[str, Variant]:
    """Return all variants that leave one factor out of the full variant or add one to the root, by name."""
    factors = ladders.current().factors
    left_out = [without(name) for name, factor in factors.items() if factor.removed]
    added = [with_one(name) for name, factor in factors.items() if factor.added]
    return {variant.name: variant for variant in (*left_out, *added)}


def variants_of_designs(labels: Iterable[str]) -> dict[str, Variant]:
    """Return all variants of designs that records may name: those with one factor more or less, and all cells of the
    factorials in the labels of records."""
    factorials = possible_factorials(labels)
    over = [cell(each) for factors in factorials for each in cells(factors) if each]
    return single_variants() | {variant.name: variant for variant in over}


def possible_factorials(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the factor sets of the factorials that named cells may belong to.

    The union of all factors comes first, because the cell with all factors on may have the name of the ladder's
    variant; then the sets that no other one contains.
    """
    found = sorted({switched_on for name in names if (switched_on := factors_of_cell(name))})
    together = tuple(factor for factor in ladders.current().factors if any(factor in one for one in found))
    largest = [one for one in found if len(one) > 1 and not any(set(one) < set(other) for other in found)]
    return [each for each in dict.fromkeys([together, *largest]) if 1 < len(each) <= MOST_FACTORS]


def factors_of_cell(name: str) -> tuple[str, ...] | None:
    """Return the factors that are on in a cell of a factorial, from its name; None for any other name."""
    words = tuple(name.removeprefix(CELL).split("+"))
    in_order = tuple(name for name, factor in ladders.current().factors.items() if name in words and factor.added)
    return words if name.startswith(CELL) and words == in_order else None


def named(name: str) -> Variant | None:
    """Return the variant of a design, at a rate, with another value or with a share of the steps, from its name; None
    for other names. Raises ValueError as `variant_named` of `rates`, `readings` and `budgets`."""
    switched_on = factors_of_cell(name)
    if switched_on is not None:
        return cell(switched_on)
    by_name = (rates.variant_named, readings.variant_named, budgets.variant_named)
    return single_variants().get(name) or next(filter(None, (each(name) for each in by_name)), None)


def chosen_variants(names: Sequence[str]) -> list[Variant]:
    """Return variants by name, `all` (the ladder) or a range such as M0..M5, each once, in the order of the ladder.

    Variants of designs (M9-norm, F:positions+norm), at other rates (M4@rate4e-3) and with fewer steps (M4@steps0.25,
    also M0..M5@steps0.25) or with another value (M4@beta2-0.95) come after them.

    Raises:
        ValueError: a name is unknown, or its rate or share of the steps is impossible.
    """
    known = ladders.variants()
    chosen = {variant.name: variant for name in names for variant in _expanded(name)}
    others = [variant for name, variant in chosen.items() if name not in known]
    return [*(variant for name, variant in known.items() if name in chosen), *others]


def _expanded(name: str) -> list[Variant]:
    """Return the variants that one name stands for."""
    known, on_ladder = ladders.variants(), list(ladders.ladder().values())
    several, mark, share = name.rpartition(budgets.MARK)
    if mark and (several == "all" or ".." in name):
        shorter = [named(f"{each.name}{mark}{share}") for each in _expanded(several)]
        return [each for each in shorter if each is not None]
    if name == "all":
        return on_ladder
    first, dots, last = name.partition("..")
    if dots:
        names = list(ladders.ladder())
        start, end = (names.index(_known(end, names)) for end in (first, last))
        if start > end:
            raise ValueError(f"{name} names no variant, as {last} comes before {first}: did you mean {last}..{first}?")
        return on_ladder[start : end + 1]
    if name in known:
        return [known[name]]
    if variant := named(name):
        return [variant]
    raise ValueError(_unknown(name, [*known, *single_variants()]))


def one_variant(name: str) -> Variant:
    """Return the variant of a name. Raises ValueError if there is none, or if the name stands for several."""
    found = chosen_variants([name])
    if len(found) != 1:
        raise ValueError(f"{name} names {len(found)} variants, and this is about one: name them one by one")
    return found[0]


def _known(name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ValueError(_unknown(name, names))
    return name


def _unknown(name: str, names: Sequence[str]) -> str:
    return f"there is no variant {name!r}: {did_you_mean(name, names)} (all: run.py --list)"
