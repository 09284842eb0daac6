"""What a factorial says: main effects, interactions and Shapley values, each as a contrast of cells seed by seed.

In a full factorial the contrast of cells is the least-squares estimate in a model with all interactions and seeds as
blocks; taken within each seed, its interval needs no model of the noise but the seeds' own spread.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import factorial, prod

import numpy as np

from ablations.designs import Fraction, cell, cells, possible_factorials
from reports.cells import Estimate
from reports.inference import Comparison, adjusted, compared, verdict
from reports.pairs import MARGINS, by_pretraining_seed, measured_name, recipe_at, shared_corpora, why_losses_differ
from reports.scores import Group, Row

MOST_FACTORS_FOR_SHAPLEY = 6
Cell = tuple[str, ...]
Values = Mapping[Cell, np.ndarray[tuple[int], np.dtype[np.float64]]]  # by the factors that are on: one number a seed

Records = Mapping[int, Sequence[str]]  # ids by seed of pre-training


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
    """The effects of one factorial in one quantity, a loss on one `corpus`; none where `reason` says why. `seeds` are
    those of all cells, `ids` the records behind them."""

    factors: Cell
    fraction: Fraction
    quantity: str
    seeds: tuple[int, ...]
    effects: tuple[Effect, ...]
    reason: str
    notes: tuple[str, ...]
    ids: tuple[str, ...] = ()
    corpus: str = ""

    @property
    def measured(self) -> str:
        """The quantity, with the corpus of a loss."""
        return measured_name(self.quantity, self.corpus)


def factorials_of(group: Group, tasks: Sequence[str]) -> tuple[Factorial, ...]:
    """Every factorial that has records: in GLUE means over `tasks` and in held-out loss. Where one over all factors
    is complete, the smaller ones in it are not told by themselves."""
    possible = possible_factorials(group.design_rows)
    shown = possible[:1] if possible and _is_complete(group, possible[0]) else possible[1:] or possible
    return tuple(each for factors in shown for each in _of_factors(group, factors, tasks))


def _of_factors(group: Group, factors: Cell, tasks: Sequence[str]) -> Iterator[Factorial]:
    """One factorial in GLUE, and in the loss on every corpus that all its cells were measured on."""
    there = {on: row for on in cells(factors) if (row := _row(group, on)) is not None}
    fraction: Fraction = "half" if set(there) <= set(cells(factors, "half")) and len(factors) > 2 else "full"
    rows = {on: there[on] for on in cells(factors, fraction) if on in there}
    empty = Factorial(factors, fraction, "GLUE", (), (), "", ())
    yield _factorial(empty, {on: row.mean_over(tasks) for on, row in rows.items()}, _trials_of(rows, tasks))
    empty, corpora = replace(empty, quantity="loss"), shared_corpora(list(rows.values()))
    if reason := _why_not_comparable(group, cells(factors, fraction), corpora):
        yield replace(empty, reason=reason)
        return
    for corpus in corpora:
        losses = {on: row.losses[corpus] for on, row in rows.items()}
        yield _factorial(replace(empty, corpus=corpus), losses, _runs_of(rows))


def _is_complete(group: Group, factors: Cell) -> bool:
    """Whether every cell of the full or of the half factorial has records."""
    there = {on for on in cells(factors) if _row(group, on) is not None}
    return len(there) == 2 ** len(factors) or (len(factors) > 2 and there >= set(cells(factors, "half")))


def _factorial(empty: Factorial, estimates: Mapping[Cell, Estimate | None], records: Records) -> Factorial:
    """The effects, from the seeds that all cells have; without any where a cell has no estimate."""
    wanted = cells(empty.factors, empty.fraction)
    scores = {on: by_pretraining_seed(estimate.by_seeds) for on, estimate in estimates.items() if estimate}
    missing = [cell(on).name for on in wanted if on not in scores]
    if missing:
        counts = f"{len(wanted) - len(missing)} of {len(wanted)} cells have scores"
        return replace(empty, reason=f"{counts}; missing: {', '.join(missing)}")
    seeds = sorted(set.intersection(*map(set, scores.values())))
    if not seeds:
        return replace(empty, reason="no seed has all cells")
    values = {on: np.array([scores[on][seed] for seed in seeds]) for on in wanted}
    left_out = sorted({seed for by_seed in scores.values() for seed in by_seed} - set(seeds))
    return replace(
        empty,
        seeds=tuple(seeds),
        effects=effects_of(values, empty.factors, empty.quantity),
        notes=tuple(f"seed {seed} lacks some cells and is left out" for seed in left_out),
        ids=tuple(sorted({record for seed in seeds for record in records[seed]})),
    )


def _trials_of(rows: Mapping[Cell, Row], tasks: Sequence[str]) -> Records:
    """The trials behind the scores of all cells, by seed of pre-training."""
    found: dict[int, list[str]] = defaultdict(list)
    for row in rows.values():
        for task in tasks:
            for seeds, trial in row.cells[task].ids.items():
                found[seeds.pretraining].append(trial)
    return found


def _runs_of(rows: Mapping[Cell, Row]) -> Records:
    """The runs behind the losses of all cells, by seed."""
    found: dict[int, list[str]] = defaultdict(list)
    for row in rows.values():
        for run in row.runs:
            found[run.seed].append(run.id)
    return found


def _row(group: Group, switched_on: Cell) -> Row | None:
    row = {**group.design_rows, **group.last_rows()}.get(cell(switched_on).name)
    return row if row is not None and row.has_records else None


def _why_not_comparable(group: Group, wanted: Sequence[Cell], corpora: Sequence[str]) -> str:
    recipes = [recipe_at(cell(on), group) for on in wanted]
    if not corpora:
        return f"losses on other text: {' and '.join(sorted({recipe.pretraining.data.corpus for recipe in recipes}))}"
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
