"""Effects of a factorial: main effects, interactions and Shapley values, each a contrast of cells seed by seed.

In a full factorial, the contrast of cells is the least-squares estimate in a model with all interactions and seeds as
blocks. Since it is taken within each seed, its interval only needs the spread over seeds, and no other noise model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import factorial, prod
from typing import Any

import numpy as np
import pandas as pd

from ablations.designs import Fraction, cautions, cell, cells, claims, possible_factorials
from reports.analysis.inference import (
    SEEDS_FOR_A_CLAIM,
    Comparison,
    collapsed_seeds,
    compare,
)
from reports.analysis.pairing import shared_corpora, why_losses_differ
from reports.analysis.quantities import QUANTITIES, name_measurement
from reports.analysis.verdicts import EXPLORATORY, Candidate, Verdict, judge
from reports.basis import why_scores_not_paired
from reports.notes import warnings
from reports.scores import Estimate, Group, Row
from reports.tables import (
    DASH,
    Table,
    facets,
    frame_of,
    number,
    p_value,
    print_by_seed,
    printed_range,
    rules_between,
    signed,
)

MOST_FACTORS_FOR_SHAPLEY = 6
Cell = tuple[str, ...]
Values = Mapping[Cell, np.ndarray[tuple[int], np.dtype[np.float64]]]  # by the factors that are on: one number a seed


@dataclass(frozen=True)
class Effect:
    """A contrast over seeds. `kind` is main, interaction, Shapley or whole (all factors on minus none); `alias` is the
    effect that it is confounded with in a half factorial. Shapley values are parts of the whole (`share`, percent) and
    are not tested."""

    kind: str
    factors: Cell
    comparison: Comparison
    alias: Cell = ()
    judged: Verdict = EXPLORATORY
    share: float | None = None

    @property
    def name(self) -> str:
        """Printed name of the effect, with its alias in a half factorial."""
        alias = f" (or {' × '.join(self.alias)})" if self.alias else ""
        return ("all" if self.kind == "whole" else " × ".join(self.factors)) + alias

    @property
    def is_contrast(self) -> bool:
        """Whether it is a main effect or an interaction."""
        return self.kind in ("main", "interaction")


@dataclass(frozen=True)
class Factorial:
    """The effects of one factorial in one quantity, for a loss on one `corpus`; none if there is a `reason` against it.
    `seeds` are the seeds of all cells, `ids` the records behind them."""

    factors: Cell
    fraction: Fraction
    quantity: str
    seeds: tuple[int, ...] = ()
    effects: tuple[Effect, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    corpus: str = ""

    @property
    def title(self) -> str:
        return ("half of " if self.fraction == "half" else "") + ", ".join(self.factors)

    @property
    def measured(self) -> str:
        """The quantity, with the corpus of a loss."""
        return name_measurement(self.quantity, self.corpus)


def find_factorials(group: Group, tasks: Sequence[str]) -> tuple[Factorial, ...]:
    """Return every factorial with records, in GLUE means over `tasks` and in held-out loss. If the factorial over all
    factors is complete, the smaller ones that it contains are omitted."""
    possible = possible_factorials(group.design_rows)
    shown = possible[:1] if possible and _is_complete(group, possible[0]) else possible[1:] or possible
    return tuple(each for factors in shown for each in _of_factors(group, factors, tasks))


def _rows_of(group: Group, wanted: Sequence[Cell]) -> dict[Cell, Row]:
    """Return the rows of the cells that have records."""
    rows = {on: group.compared_rows.get(cell(on).name) for on in wanted}
    return {on: row for on, row in rows.items() if row is not None and row.has_records}


def _is_complete(group: Group, factors: Cell) -> bool:
    """Whether every cell of the full or the half factorial has records."""
    there = set(_rows_of(group, cells(factors)))
    return len(there) == 2 ** len(factors) or (len(factors) > 2 and there >= set(cells(factors, "half")))


def _of_factors(group: Group, factors: Cell, tasks: Sequence[str]) -> Iterator[Factorial]:
    """Yield one factorial in GLUE, and in the loss on every corpus that all its cells were measured on."""
    there = _rows_of(group, cells(factors))
    fraction: Fraction = "half" if set(there) <= set(cells(factors, "half")) and len(factors) > 2 else "full"
    rows = {on: there[on] for on in cells(factors, fraction) if on in there}
    ids = [(each, id_) for row in rows.values() for task in tasks for each, id_ in row.cells[task].ids.items()]
    trials = pd.DataFrame({"id": [id_ for _, id_ in ids], "seed": [each.pretraining for each, _ in ids]})
    of_glue, of_loss = (Factorial(factors, fraction, quantity) for quantity in ("GLUE", "loss"))
    first, *others = rows.values()
    untrained = "; ".join(filter(None, (row.untrained for row in rows.values())))
    if reason := next(filter(None, (why_scores_not_paired(row, first, tasks) for row in others)), untrained):
        yield from (replace(each, reason=reason) for each in (of_glue, of_loss))
        return
    corpora = shared_corpora(list(rows.values()))
    yield _estimate(of_glue, {on: row.mean_over(tasks) for on, row in rows.items()}, trials)
    if reason := _why_not_comparable(list(rows.values()), corpora):
        yield replace(of_loss, reason=reason)
        return
    runs = pd.concat([row.runs for row in rows.values()])
    for corpus in corpora:
        losses = {on: row.losses[corpus] for on, row in rows.items()}
        yield _estimate(replace(of_loss, corpus=corpus), losses, runs, is_judged=corpus == corpora[0])


def _estimate(
    empty: Factorial, estimates: Mapping[Cell, Estimate | None], records: pd.DataFrame, *, is_judged: bool = False
) -> Factorial:
    """Estimate the effects from the seeds that all cells have, with the ids of their `records`; no effects if a cell
    has no estimate."""
    wanted = cells(empty.factors, empty.fraction)
    scores = {on: estimate.by_pretraining for on, estimate in estimates.items() if estimate}
    missing = [cell(on).name for on in wanted if on not in scores]
    if missing:
        counts = f"{len(wanted) - len(missing)} of {len(wanted)} cells have scores"
        return replace(empty, reason=f"{counts}; missing: {', '.join(missing)}")
    seeds = sorted(set.intersection(*map(set, scores.values())))
    if not seeds:
        return replace(empty, reason="no seed has all cells")
    values = {on: np.array([scores[on][seed] for seed in seeds]) for on in wanted}
    left_out = sorted({seed for by_seed in scores.values() for seed in by_seed} - set(seeds))
    collapsed = collapsed_seeds({cell(on).name: {seed: scores[on][seed] for seed in seeds} for on in wanted})
    far = sorted({seed for own in collapsed.values() for seed in own})
    effects = estimate_effects(values, empty.factors, empty.quantity)
    return replace(
        empty,
        seeds=tuple(seeds),
        effects=judge_effects(effects, [seeds.index(seed) for seed in far]) if is_judged else effects,
        notes=(
            *(f"seed {seed} lacks some cells and is left out" for seed in left_out),
            *(f"collapsed: seed {', '.join(map(str, own))} of {name}" for name, own in collapsed.items()),
        ),
        ids=tuple(sorted(set(records.id[records.seed.isin(seeds)]))),
    )


def _why_not_comparable(rows: Sequence[Row], corpora: Sequence[str]) -> str:
    if not corpora:
        own = sorted({row.recipe.pretraining.data.corpus for row in rows})
        return f"losses on other text: {' and '.join(own)}"
    others = [row for row in rows[1:] if row.recipe.pretraining != rows[0].recipe.pretraining]
    return next(filter(None, (why_losses_differ(row, rows[0]) for row in others)), "")


def estimate_effects(values: Values, factors: Cell, quantity: str) -> tuple[Effect, ...]:
    """Estimate main effects and interactions of all orders; in a full factorial also Shapley values and the whole."""
    margin = QUANTITIES[quantity].margin
    found = []
    for subset, alias in _contrasts(values, factors):
        signs = {on: prod(1 if name in on else -1 for name in subset) for on in values}
        numbers = np.sum([values[on] * sign for on, sign in signs.items()], axis=0) / (len(values) / 2)
        kind = "main" if len(subset) == 1 else "interaction"
        found.append(Effect(kind, subset, compare(numbers, margin), alias))
    return (*found, *_parts(values, factors, margin))


def judge_effects(effects: Sequence[Effect], collapsed: Sequence[int] = ()) -> tuple[Effect, ...]:
    """Return the effects with the verdicts of main effects and interactions, which are one family. If seeds at the
    given positions collapsed, p is the larger of the values with and without them."""
    contrasts = [effect for effect in effects if effect.is_contrast]
    tested = [
        [Candidate(dict(enumerate(each.comparison.differences)), each.comparison.margin, collapsed=collapsed)]
        for each in contrasts
    ]
    judged = [replace(each, judged=own) for each, (own,) in zip(contrasts, judge(tested), strict=True)]
    return (*judged, *(effect for effect in effects if not effect.is_contrast))


def _contrasts(values: Values, factors: Cell) -> Iterator[tuple[Cell, Cell]]:
    """Yield every estimable effect with its alias in a half factorial; each pair once."""
    is_half = len(values) < 2 ** len(factors)
    told: set[Cell] = set()
    for order in range(1, len(factors) + 1):
        for subset in combinations(factors, order):
            alias = tuple(name for name in factors if name not in subset) if is_half else ()
            if subset not in told and not (is_half and not alias):
                told.add(alias)
                yield subset, alias


def _parts(values: Values, factors: Cell, margin: float) -> Iterator[Effect]:
    """Yield Shapley values, seed by seed, and the whole that they add up to. No shares are given if the interval of
    the whole contains 0."""
    if len(values) < 2 ** len(factors):
        return
    whole = compare(values[factors] - values[()], margin)
    has_shares = whole.interval is None or whole.interval[0] > 0 or whole.interval[1] < 0
    for name in factors if len(factors) <= MOST_FACTORS_FOR_SHAPLEY else ():
        part = compare(shapley(values, factors, name), margin)
        share = 100 * part.mean / whole.mean if has_shares and whole.mean else None
        yield Effect("Shapley", (name,), part, share=share)
    yield Effect("whole", factors, whole)


def shapley(values: Values, factors: Cell, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a factor's Shapley value by seed: its gain, averaged over all orders of switching the factors on."""
    count = len(factors)
    total = np.zeros_like(values[()])
    for before in cells([other for other in factors if other != name]):
        orders = factorial(len(before)) * factorial(count - len(before) - 1)
        after = tuple(other for other in factors if other in before or other == name)
        total += orders / factorial(count) * (values[after] - values[before])
    return total


HEADER = (
    *("Factorial", "Quantity", "Kind", "Effect of", "Seeds", "Estimate", "95 % over seeds", "p (t)", "p (family)"),
    *("Share", "Verdict"),
)
FACTS = (
    *("factorial", "fraction", "quantity", "kind", "effect", "alias", "seeds", "estimate", "sd", "t_low"),
    *("t_high", "p_t", "p_family", "p_tost_holm", "margin", "share_percent", "verdict"),
    *("by_seed", "left_out", "records"),
)


def effects_table(factorials: Sequence[Factorial], group: Group, quantity: str) -> Table:
    """Return a table with one line per effect, and one per factorial without effects (at the end in the CSV file)."""
    lines = [(each, effect) for each in factorials for effect in each.effects or (None,)]
    facts = [_facts(each, effect) for each, effect in lines if effect is not None]
    return Table(
        title=f"Effects in factorials (scale {group.scale}, data {group.data})",
        shown=frame_of([_shown(each, effect) for each, effect in lines], HEADER),
        facts=frame_of([*facts, *(_facts(each, None) for each in factorials if not each.effects)], FACTS),
        alignment="llll" + "r" * (len(HEADER) - 5) + "l",
        notes=(*warnings(group), *_notes(factorials, quantity)),
        rules=rules_between(id(each) for each, _ in lines),
        records=tuple(each.ids for each, _ in lines),
        facets=tuple(facets(each.quantity, each.corpus) for each, _ in lines),
    )


def _shown(each: Factorial, effect: Effect | None) -> tuple[str, ...]:
    if effect is None:
        return (each.title, each.measured, *[DASH] * (len(HEADER) - 3), f"left out: {each.reason}")
    found, digits = effect.comparison, QUANTITIES[each.quantity].digits
    return (
        *(each.title, each.measured, effect.kind, effect.name, str(found.seeds), signed(found.mean, digits)),
        *(printed_range(found.interval, digits), p_value(found.p_t if effect.is_contrast else None)),
        p_value(effect.judged.p_difference),
        DASH if effect.share is None else f"{number(effect.share, 0)} %",
        effect.judged.words or DASH,
    )


def _facts(each: Factorial, effect: Effect | None) -> tuple[Any, ...]:
    """Return every number, seed by seed, with the ids of its records."""
    names = " ".join(each.factors), each.fraction, each.measured
    if effect is None:
        return (*names, *[None] * (len(FACTS) - 5), each.reason, "")
    found = effect.comparison
    return (
        *(*names, effect.kind, "*".join(effect.factors), "*".join(effect.alias)),
        *(found.seeds, found.mean, found.deviation, *(found.interval or (None, None))),
        found.p_t,
        *map(print_by_seed, (effect.judged.p_by_look, effect.judged.p_equivalence_by_look)),
        *(found.margin, effect.share, effect.judged.words),
        *(print_by_seed(dict(zip(each.seeds, found.differences, strict=True))), "; ".join(each.notes)),
        " ".join(each.ids),
    )


def _notes(factorials: Sequence[Factorial], quantity: str) -> list[str]:
    lines = [
        f"GLUE: {quantity}, in points; loss: held-out MLM loss in nats a token, lower is better.",
        "Main effect: mean of the cells with the factor on less mean of those with it off. Interaction: the same for "
        "the product of the factors' signs. Each is one number a seed; intervals, p and looks as for deltas. A family "
        "is all effects of one factorial in the loss on its first corpus; all else is exploratory and has no verdict.",
        "Shapley: what a factor adds, averaged over all orders of adding factors; the values add up to the whole. "
        f"Shares are given where the whole is not within noise, for up to {MOST_FACTORS_FOR_SHAPLEY} factors.",
    ]
    if any(len(each.seeds) < SEEDS_FOR_A_CLAIM for each in factorials if each.effects):
        lines.append(
            f"Below {SEEDS_FOR_A_CLAIM} seeds no effect is claimed; with one seed there is no interval either."
        )
    lines += [claims()["half" if half else "factorial"] for half in sorted({f.fraction == "half" for f in factorials})]
    factors = dict.fromkeys(name for each in factorials for name in each.factors)
    lines += cautions(factors)
    return [*lines, *(f"{each.title} ({each.measured}): {note}." for each in factorials for note in each.notes)]
