"""The table of a factorial's effects, for people and for machines."""

from collections.abc import Sequence

from ablations.designs import CAUTIONS, CLAIMS
from reports.deltas_table import DIGITS, printed_range, signed
from reports.effects import MOST_FACTORS_FOR_SHAPLEY, Effect, Factorial
from reports.formats import DASH, Table, csv_text, number, p_value, raw
from reports.inference import SEEDS_FOR_A_CLAIM
from reports.remarks import warnings
from reports.scores import Group

HEADER = (
    "Factorial",
    "Quantity",
    "Kind",
    "Effect of",
    "Seeds",
    "Estimate",
    "95 % over seeds",
    "p (t)",
    "p (Holm)",
    "Share",
    "Verdict",
)


def effects_table(factorials: Sequence[Factorial], group: Group, quantity: str) -> Table:
    """One line an effect."""
    rows: list[tuple[str, ...]] = []
    rules = set()
    for each in factorials:
        rules |= {len(rows)} - {0}
        rows += [_cells(each, effect) for effect in each.effects] or [_empty(each)]
    return Table(
        title=f"Effects in factorials (scale {group.scale}, data {group.data})",
        header=HEADER,
        alignment="llll" + "r" * (len(HEADER) - 5) + "l",
        rows=tuple(rows),
        notes=(*warnings(group), *_notes(factorials, quantity)),
        rules=frozenset(rules),
    )


def _title(each: Factorial) -> str:
    return ("half of " if each.fraction == "half" else "") + ", ".join(each.factors)


def effect_name(effect: Effect) -> str:
    """An effect for people, with what a half factorial cannot tell it from."""
    alias = f" (or {' × '.join(effect.alias)})" if effect.alias else ""
    return ("all" if effect.kind == "whole" else " × ".join(effect.factors)) + alias


def _empty(each: Factorial) -> tuple[str, ...]:
    return (_title(each), each.measured, *[DASH] * (len(HEADER) - 3), f"left out: {each.reason}")


def _cells(each: Factorial, effect: Effect) -> tuple[str, ...]:
    found, digits = effect.comparison, DIGITS[each.quantity]
    tested = effect.verdict != ""
    return (
        _title(each),
        each.measured,
        effect.kind,
        effect_name(effect),
        str(found.seeds),
        signed(found.mean, digits),
        printed_range(found.interval, digits),
        p_value(found.p_t if tested else None),
        p_value(effect.p_holm),
        DASH if effect.share is None else f"{number(effect.share, 0)} %",
        effect.verdict or DASH,
    )


def _notes(factorials: Sequence[Factorial], quantity: str) -> list[str]:
    lines = [
        f"GLUE: {quantity}, in points; loss: held-out MLM loss in nats a token, lower is better.",
        "Main effect: mean of the cells with the factor on less mean of those with it off. Interaction: the same for "
        "the product of the factors' signs. Each is one number a seed; intervals and p as for deltas, Holm over all "
        "effects of a factorial in one quantity.",
        "Shapley: what a factor adds, averaged over all orders of adding factors; the values add up to the whole. "
        f"Shares are given where the whole is not within noise, for up to {MOST_FACTORS_FOR_SHAPLEY} factors.",
    ]
    if any(len(each.seeds) < SEEDS_FOR_A_CLAIM for each in factorials if each.effects):
        lines.append(
            f"Below {SEEDS_FOR_A_CLAIM} seeds no effect is claimed; with one seed there is no interval either."
        )
    lines += [CLAIMS["half" if half else "factorial"] for half in sorted({f.fraction == "half" for f in factorials})]
    factors = dict.fromkeys(name for each in factorials for name in each.factors)
    lines += [CAUTIONS[name] for name in factors if name in CAUTIONS]
    return [*lines, *(f"{_title(each)} ({each.measured}): {note}." for each in factorials for note in each.notes)]


def effects_csv(factorials: Sequence[Factorial]) -> str:
    """Every number unrounded, seed by seed, with the ids of the records behind it."""
    header = ["factorial", "fraction", "quantity", "kind", "effect", "alias", "seeds", "estimate", "sd", "t_low"]
    header += ["t_high", "p_t", "p_holm", "p_sign_flip", "p_tost_holm", "margin", "share_percent", "verdict"]
    header += ["by_seed", "left_out", "records"]
    rows = [_csv_row(each, effect) for each in factorials for effect in each.effects]
    empty = [each for each in factorials if not each.effects]
    rows += [
        [" ".join(each.factors), each.fraction, each.measured, *[""] * (len(header) - 5), each.reason, ""]
        for each in empty
    ]
    return csv_text(header, rows)


def _csv_row(each: Factorial, effect: Effect) -> list[str]:
    found = effect.comparison
    low, high = found.interval or (None, None)
    numbers = [found.mean, found.deviation, low, high, found.p_t, effect.p_holm, found.p_sign_flip]
    numbers += [effect.p_equivalence_holm, found.margin, effect.share]
    by_seed = " ".join(f"{seed}:{value:.6f}" for seed, value in zip(each.seeds, found.differences, strict=True))
    cells = [" ".join(each.factors), each.fraction, each.measured, effect.kind, "*".join(effect.factors)]
    cells += ["*".join(effect.alias), str(found.seeds), *map(raw, numbers), effect.verdict, by_seed]
    return [*cells, "; ".join(each.notes), " ".join(each.ids)]
