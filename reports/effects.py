"""What a factorial says: main effects, interactions and Shapley values, each as a contrast of cells seed by seed.

In a full factorial the contrast of cells is the least-squares estimate in a model with all interactions and seeds as
blocks; taken within each seed, its interval needs no model of the noise but the seeds' own spread.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import factorial, prod

import numpy as np

from ablations.designs import Fraction, cell, cells, possible_factorials
from reports.inference import Comparison, adjusted, compared, verdict
from reports.pairs import MARGINS, by_pretraining_seed, recipe_at, why_losses_differ
from reports.scores import Group, Row

MOST_FACTORS_FOR_SHAPLEY = 6
Cell = tuple[str, ...]
Values = Mapping[Cell, np.ndarray[tuple[int], np.dtype[np.float64]]]  # by the factors that are on: one number a seed


@dataclass(frozen=True)
class Effect:
    """A contrast over seeds. `kind` is main, interaction, Shapley or whole (all factors on less none); `alias` is what
    a half factorial cannot tell it from. Shapley values are parts of the whole (`share`, percent) and not tested."""

    kind: str
    factors: Cell
    comparison: Comparison
    alias: Cell = ()
    p_holm: float | None = None
    p_equivalence_holm: float | None = None
    share: float | None = None

    @property
    def verdict(self) -> str:
        """What may be claimed; empty for what is not tested."""
        tested = self.kind in ("main", "interaction")
        return verdict(self.comparison, self.p_holm, self.p_equivalence_holm) if tested else ""


@dataclass(frozen=True)
class Factorial:
    """The effects of one factorial in one quantity; none where `reason` says why. `seeds` are those of all cells, `ids`
    the records behind them."""

    factors: Cell
    fraction: Fraction
    quantity: str
    seeds: tuple[int, ...]
    effects: tuple[Effect, ...]
    reason: str
    notes: tuple[str, ...]
    ids: tuple[str, ...] = ()


def factorials_of(group: Group, tasks: Sequence[str]) -> tuple[Factorial, ...]:
    """Every factorial that has records: in GLUE means over `tasks` and in held-out loss. Where one over all factors
    is complete, the smaller ones in it are not told by themselves."""
    possible = possible_factorials(group.design_rows)
    shown = possible[:1] if possible and _is_complete(group, possible[0]) else possible[1:] or possible
    return tuple(_factorial(group, factors, tasks, quantity) for factors in shown for quantity in MARGINS)


def _is_complete(group: Group, factors: Cell) -> bool:
    """Whether every cell of the full or of the half factorial has records."""
    there = {on for on in cells(factors) if _row(group, on) is not None}
    return len(there) == 2 ** len(factors) or (len(factors) > 2 and there >= set(cells(factors, "half")))


def _factorial(group: Group, factors: Cell, tasks: Sequence[str], quantity: str) -> Factorial:
    rows = {on: row for on in cells(factors) if (row := _row(group, on)) is not None}
    fraction: Fraction = "half" if set(rows) <= set(cells(factors, "half")) and len(factors) > 2 else "full"
    wanted = cells(factors, fraction)
    scores = {on: _by_seed(rows[on], tasks, quantity) for on in wanted if on in rows}
    missing = [cell(on).name for on in wanted if not scores.get(on)]
    reason = _why_not_comparable(group, wanted) if quantity == "loss" else ""
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in scores.values()))) if not missing else []
    if missing:
        reason = (
            reason or f"{len(wanted) - len(missing)} of {len(wanted)} cells have scores; missing: {', '.join(missing)}"
        )
    elif not seeds:
        reason = reason or "no seed has all cells"
    if reason:
        return Factorial(factors, fraction, quantity, (), (), reason, ())
    values = {on: np.array([scores[on][seed] for seed in seeds]) for on in wanted}
    left_out = sorted({seed for by_seed in scores.values() for seed in by_seed} - set(seeds))
    notes = [f"seed {seed} lacks some cells and is left out" for seed in left_out]
    effects, ids = effects_of(values, factors, quantity), _ids([rows[on] for on in wanted], seeds, tasks, quantity)
    return Factorial(factors, fraction, quantity, tuple(seeds), effects, "", tuple(notes), ids)


def _ids(rows: Sequence[Row], seeds: Sequence[int], tasks: Sequence[str], quantity: str) -> tuple[str, ...]:
    """The records behind the cells: trials for GLUE, runs of pre-training for the loss."""
    if quantity == "GLUE":
        trials = (row.cells[task].ids.items() for row in rows for task in tasks)
        return tuple(sorted({each for own in trials for key, each in own if key.pretraining in seeds}))
    return tuple(sorted({run.id for row in rows for run in row.runs if run.seed in seeds}))


def _row(group: Group, switched_on: Cell) -> Row | None:
    row = {**group.design_rows, **group.last_rows()}.get(cell(switched_on).name)
    return row if row is not None and row.has_records else None


def _by_seed(row: Row, tasks: Sequence[str], quantity: str) -> dict[int, float]:
    corpus = row.runs[0].weights.data.corpus
    estimate = row.mean_over(tasks) if quantity == "GLUE" else row.losses.get(corpus)
    return {} if estimate is None else by_pretraining_seed(estimate.by_seeds)


def _why_not_comparable(group: Group, wanted: Sequence[Cell]) -> str:
    recipes = [recipe_at(cell(on), group) for on in wanted]
    others = [recipe for recipe in recipes[1:] if recipe.pretraining != recipes[0].pretraining]
    return next(filter(None, (why_losses_differ(recipe, recipes[0]) for recipe in others)), "")


def effects_of(values: Values, factors: Cell, quantity: str) -> tuple[Effect, ...]:
    """Main effects and interactions of all orders, tested; in a full factorial Shapley values and the whole."""
    margin = MARGINS[quantity][0]
    found = []
    for subset, alias in _contrasts(values, factors):
        numbers = np.sum([values[on] * _sign(on, subset) for on in values], axis=0) / (len(values) / 2)
        kind = "main" if len(subset) == 1 else "interaction"
        found.append(Effect(kind, subset, compared(list(numbers), margin), alias))
    of_difference = adjusted([effect.comparison.p_t for effect in found])
    of_equivalence = adjusted([effect.comparison.p_equivalence for effect in found])
    tested = [
        replace(effect, p_holm=difference, p_equivalence_holm=equivalence)
        for effect, difference, equivalence in zip(found, of_difference, of_equivalence, strict=True)
    ]
    return (*tested, *_parts(values, factors, margin))


def _contrasts(values: Values, factors: Cell) -> Iterator[tuple[Cell, Cell]]:
    """Every effect that the cells can estimate and, in a half, the one that it is mixed with; each pair once."""
    is_half = len(values) < 2 ** len(factors)
    told: set[Cell] = set()
    for order in range(1, len(factors) + 1):
        for subset in combinations(factors, order):
            alias = tuple(name for name in factors if name not in subset) if is_half else ()
            if subset not in told and not (is_half and not alias):
                told.add(alias)
                yield subset, alias


def _sign(switched_on: Cell, subset: Cell) -> int:
    """+1 or −1: the product of the settings of the subset's factors."""
    return prod(1 if name in switched_on else -1 for name in subset)


def _parts(values: Values, factors: Cell, margin: float) -> Iterator[Effect]:
    """Shapley values, seed by seed, and the whole that they add up to. Shares are given where the whole is not within
    noise: parts of nothing have none."""
    if len(values) < 2 ** len(factors):
        return
    whole = compared(list(values[factors] - values[()]), margin)
    has_shares = whole.interval is None or whole.interval[0] > 0 or whole.interval[1] < 0
    for name in factors if len(factors) <= MOST_FACTORS_FOR_SHAPLEY else ():
        part = compared(list(shapley(values, factors, name)), margin)
        share = 100 * part.mean / whole.mean if has_shares and whole.mean else None
        yield Effect("Shapley", (name,), part, share=share)
    yield Effect("whole", factors, whole)


def shapley(values: Values, factors: Cell, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A factor's Shapley value, seed by seed: what it adds, averaged over all orders of switching the factors on."""
    count = len(factors)
    total = np.zeros_like(values[()])
    for before in cells([other for other in factors if other != name]):
        orders = factorial(len(before)) * factorial(count - len(before) - 1)
        after = tuple(other for other in factors if other in before or other == name)
        total += orders / factorial(count) * (values[after] - values[before])
    return total
