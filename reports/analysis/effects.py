"""Effects of a factorial: main effects and interactions, each a contrast of cells seed by seed.

In a full factorial, the contrast of cells is the least-squares estimate in a model with all interactions and seeds as
blocks. Since it is taken within each seed, its interval only needs the spread over seeds, and no other noise model.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from math import prod

import numpy as np
import pandas as pd

from ablations.declarations import Protocol
from ablations.designs import Fraction, cautions, cell, cells, claims, possible_factorials
from reports.analysis.inference import (
    LOOKS,
    Comparison,
    collapsed_at_looks,
    collapsed_seeds,
    compare,
)
from reports.analysis.pairing import shared_corpora, why_losses_differ
from reports.analysis.plateau import UNKNOWN, Regime
from reports.analysis.quantities import QUANTITIES, name_measurement
from reports.analysis.readouts import SignalToNoise, tells_apart
from reports.analysis.verdicts import EXPLORATORY, Candidate, Verdict, judge
from reports.basis import why_scores_not_paired
from reports.notes import warnings
from reports.scores import Estimate, Group, Row
from reports.tables import (
    DASH,
    Column,
    Table,
    make_table,
    print_by_seed,
    print_p,
    print_range,
    print_signed,
)

Cell = tuple[str, ...]
Values = Mapping[Cell, np.ndarray[tuple[int], np.dtype[np.float64]]]  # by the factors that are on: one number a seed


@dataclass(frozen=True)
class Effect:
    """A main effect or an interaction, a contrast over seeds. `alias` is the effect that it is confounded with in a
    half factorial."""

    factors: Cell
    comparison: Comparison
    alias: Cell = ()
    judged: Verdict = EXPLORATORY

    @property
    def kind(self) -> str:
        return "main" if len(self.factors) == 1 else "interaction"

    @property
    def name(self) -> str:
        """Printed name of the effect, with its alias in a half factorial."""
        alias = f" (or {' × '.join(self.alias)})" if self.alias else ""
        return " × ".join(self.factors) + alias


@dataclass(frozen=True)
class Factorial:
    """The effects of one factorial in one quantity, for a loss on one `corpus`; none if there is a `reason` against it.
    `margin` is the bound of equivalence, `looks` are those of the protocol and count the `declared` seeds, or all if it
    is None; `seeds` are the seeds of all cells, `ids` the records behind them."""

    factors: Cell
    fraction: Fraction
    quantity: str
    margin: float
    seeds: tuple[int, ...] = ()
    effects: tuple[Effect, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    corpus: str = ""
    looks: Mapping[int, float] = field(default_factory=lambda: LOOKS)
    declared: Collection[int] | None = None

    @property
    def title(self) -> str:
        return ("half of " if self.fraction == "half" else "") + ", ".join(self.factors)

    @property
    def counted(self) -> tuple[int, ...]:
        """The places of the seeds that looks count."""
        own = self.declared
        return tuple(place for place, seed in enumerate(self.seeds) if own is None or seed in own)

    @property
    def measured(self) -> str:
        """The quantity, with the corpus of a loss."""
        return name_measurement(self.quantity, self.corpus)


def find_factorials(
    group: Group,
    tasks: Sequence[str],
    signals: Sequence[SignalToNoise],
    protocol: Protocol,
    regime: Regime = UNKNOWN,
    declared: Collection[int] | None = None,
) -> tuple[Factorial, ...]:
    """Return every factorial with records, in GLUE means over `tasks` and in held-out loss. If the factorial over all
    factors is complete, the smaller ones that it contains are omitted. `signals` tell which losses can tell arms apart,
    and `regime` which cells bar a verdict. Looks count the `declared` seeds alone, or all if it is None."""
    possible = possible_factorials(group.design_rows)
    shown = possible[:1] if possible and _is_complete(group, possible[0]) else possible[1:] or possible
    found = (_of_factors(group, factors, tasks, signals, protocol, regime, declared) for factors in shown)
    return tuple(chain.from_iterable(found))


def _rows_of(group: Group, wanted: Sequence[Cell]) -> dict[Cell, Row]:
    """Return the rows of the cells that have records."""
    rows = {on: group.compared_rows.get(cell(on).name) for on in wanted}
    return {on: row for on, row in rows.items() if row is not None and row.has_records}


def _is_complete(group: Group, factors: Cell) -> bool:
    """Whether every cell of the full or the half factorial has records."""
    there = set(_rows_of(group, cells(factors)))
    return len(there) == 2 ** len(factors) or (len(factors) > 2 and there >= set(cells(factors, "half")))


def _of_factors(
    group: Group,
    factors: Cell,
    tasks: Sequence[str],
    signals: Sequence[SignalToNoise],
    protocol: Protocol,
    regime: Regime,
    declared: Collection[int] | None,
) -> Iterator[Factorial]:
    """Yield one factorial in GLUE, and in the loss on every corpus that all its cells were measured on."""
    there = _rows_of(group, cells(factors))
    fraction: Fraction = "half" if set(there) <= set(cells(factors, "half")) and len(factors) > 2 else "full"
    rows = {on: there[on] for on in cells(factors, fraction) if on in there}
    of_glue, of_loss = (
        Factorial(factors, fraction, quantity, protocol.margin_of(quantity), looks=protocol.looks, declared=declared)
        for quantity in ("GLUE", "loss")
    )
    if reason := _why_not_paired(list(rows.values()), tasks):
        yield from (replace(each, reason=reason) for each in (of_glue, of_loss))
        return
    yield _estimate(of_glue, {on: row.mean_over(tasks) for on, row in rows.items()}, _trials_of(rows.values(), tasks))
    corpora = shared_corpora(list(rows.values()))
    if reason := _why_not_comparable(list(rows.values()), corpora):
        yield replace(of_loss, reason=reason)
        return
    runs = {(seed, id_) for row in rows.values() for seed, id_ in zip(row.runs.seed, row.runs.id, strict=True)}
    for corpus in corpora:
        losses = {on: row.losses[corpus] for on, row in rows.items()}
        found = _estimate(replace(of_loss, corpus=corpus), losses, runs)
        by_cell = {rows[on].name: own.by_pretraining for on, own in losses.items()}
        yield judge_effects(found, by_cell, signals, regime) if found.effects and corpus == corpora[0] else found


def _why_not_paired(rows: Sequence[Row], tasks: Sequence[str]) -> str:
    """Return why cells cannot be compared at all: other data or numerics, or one that did not train."""
    reasons = (why_scores_not_paired(row, rows[0], tasks) for row in rows[1:])
    return next(filter(None, reasons), "") or "; ".join(filter(None, (row.untrained for row in rows)))


def _trials_of(rows: Iterable[Row], tasks: Sequence[str]) -> set[tuple[int, str]]:
    """Return (pre-training seed, id) of the trials behind the scores of some tasks."""
    ids = [row.cells[task].ids for row in rows for task in tasks]
    return {(seeds.pretraining, id_) for own in ids for seeds, id_ in own.items()}


def _estimate(
    empty: Factorial,
    estimates: Mapping[Cell, Estimate | None],
    records: Collection[tuple[int, str]],
) -> Factorial:
    """Estimate the effects from the seeds that all cells have, with the ids of their `records`, (seed, id); no effects
    if a cell has no estimate."""
    wanted = cells(empty.factors, empty.fraction)
    missing = [cell(on).name for on in wanted if estimates.get(on) is None]
    if missing:
        counts = f"{len(wanted) - len(missing)} of {len(wanted)} cells have scores"
        return replace(empty, reason=f"{counts}; missing: {', '.join(missing)}")
    by_cell = {cell(on).name: estimate.by_pretraining for on, estimate in estimates.items() if estimate}
    scores = pd.DataFrame(by_cell).sort_index()
    whole = scores.dropna()
    if whole.empty:
        return replace(empty, reason="no seed has all cells")
    seeds = tuple(map(int, whole.index))
    collapsed = collapsed_seeds({str(name): own.to_dict() for name, own in whole.items()})
    return replace(
        empty,
        seeds=seeds,
        effects=estimate_effects({on: whole[cell(on).name].to_numpy() for on in wanted}, empty.factors, empty.margin),
        notes=tuple(_notes_on_seeds(scores.index.difference(whole.index), collapsed)),
        ids=tuple(sorted({id_ for seed, id_ in records if seed in seeds})),
    )


def _notes_on_seeds(left_out: Iterable[int], collapsed: Mapping[str, Sequence[int]]) -> Iterator[str]:
    yield from (f"seed {seed} lacks some cells and is left out" for seed in left_out)
    yield from (f"collapsed: seed {', '.join(map(str, own))} of {name}" for name, own in collapsed.items())


def _why_not_comparable(rows: Sequence[Row], corpora: Sequence[str]) -> str:
    if not corpora:
        own = sorted({row.recipe.pretraining.data.corpus for row in rows})
        return f"losses on other text: {' and '.join(own)}"
    others = [row for row in rows[1:] if row.recipe.pretraining != rows[0].recipe.pretraining]
    return next(filter(None, (why_losses_differ(row, rows[0]) for row in others)), "")


def estimate_effects(values: Values, factors: Cell, margin: float) -> tuple[Effect, ...]:
    """Estimate main effects and interactions of all orders."""
    found = []
    for subset, alias in _contrasts(values, factors):
        signs = {on: prod(1 if name in on else -1 for name in subset) for on in values}
        numbers = np.sum([values[on] * sign for on, sign in signs.items()], axis=0) / (len(values) / 2)
        found.append(Effect(subset, compare(numbers, margin), alias))
    return tuple(found)


def judge_effects(
    of: Factorial, losses: Mapping[str, Mapping[int, float]], signals: Sequence[SignalToNoise], regime: Regime
) -> Factorial:
    """Return a factorial with the verdicts of its effects, which are one family; `losses` are those of its cells by
    seed. If a cell is barred at the last look, there are none, and a note says why."""
    seeds = [of.seeds[place] for place in of.counted]
    looks = [look for look in of.looks if look <= len(seeds)]
    told = {look: [reason for name in losses if (reason := regime.why_barred(name, look))] for look in looks}
    barred = {look: reasons[0] for look, reasons in told.items() if reasons}
    if looks and max(looks) in barred:
        return replace(of, notes=(*of.notes, barred[max(looks)]))
    counted = {name: {seed: arm[seed] for seed in seeds} for name, arm in losses.items()}
    found = collapsed_at_looks(counted, looks)
    is_apart = tells_apart(signals, of.quantity, of.corpus, losses.values())
    candidates = [
        Candidate(
            {seed: own for seed, own in zip(of.seeds, each.comparison.differences, strict=True) if seed in seeds},
            of.margin,
            collapsed={look: set(chain(*own.values())) for look, own in found.items()},
            barred=barred.keys(),
            tells_apart=is_apart,
        )
        for each in of.effects
    ]
    verdicts = judge([[each] for each in candidates], of.looks)
    effects = (replace(each, judged=own) for each, (own,) in zip(of.effects, verdicts, strict=True))
    return replace(of, effects=tuple(effects))


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


@dataclass(frozen=True)
class _Line:
    """A line of the table: an effect of a factorial, or none if the factorial has no effects."""

    of: Factorial
    effect: Effect | None

    @property
    def own(self) -> Effect:
        assert self.effect is not None
        return self.effect

    @property
    def found(self) -> Comparison:
        return self.own.comparison

    @property
    def digits(self) -> int:
        return QUANTITIES[self.of.quantity].digits

    @property
    def verdict(self) -> str:
        return (self.effect.judged.words or DASH) if self.effect else f"left out: {self.of.reason}"


COLUMNS: Sequence[Column[_Line]] = (
    Column("Factorial", "", lambda line: line.of.title, always=True),
    Column("", "factorial", lambda line: " ".join(line.of.factors), always=True),
    Column("", "fraction", lambda line: line.of.fraction, always=True),
    Column("Quantity", "quantity", lambda line: line.of.measured, always=True),
    Column("Kind", "kind", lambda line: line.own.kind),
    Column("Effect of", "", lambda line: line.own.name),
    Column("", "effect alias", lambda line: ("*".join(line.own.factors), "*".join(line.own.alias))),
    Column("Seeds", "seeds", lambda line: line.found.seeds, side="r"),
    Column("Estimate", "estimate", lambda line: line.found.mean, print_signed, "r"),
    Column("", "sd", lambda line: line.found.deviation),
    Column("95 % over seeds", "t_low t_high", lambda line: line.found.interval, print_range, "r"),
    Column("p (t)", "p_t", lambda line: line.found.p_t, print_p, "r"),
    Column("p (family)", "", lambda line: line.own.judged.p_difference, print_p, "r"),
    Column("", "p_family", lambda line: print_by_seed(line.own.judged.p_by_look)),
    Column("", "p_tost_holm", lambda line: print_by_seed(line.own.judged.p_equivalence_by_look)),
    Column("", "margin", lambda line: line.found.margin),
    Column("", "verdict", lambda line: line.own.judged.words),
    Column("Verdict", "", lambda line: line.verdict, always=True),
    Column("", "by_seed", lambda line: print_by_seed(dict(zip(line.of.seeds, line.found.differences, strict=True)))),
    Column("", "left_out", lambda line: "; ".join(line.of.notes) if line.effect else line.of.reason, always=True),
    Column("", "records", lambda line: " ".join(line.of.ids)),
)


def effects_table(factorials: Sequence[Factorial], group: Group, quantity: str) -> Table:
    """Return a table with one line per effect, and one per factorial without effects."""
    return make_table(
        f"Effects in factorials (scale {group.scale}, data {group.data})",
        COLUMNS,
        [_Line(each, effect) for each in factorials for effect in each.effects or (None,)],
        (*warnings(group), *_notes(factorials, quantity)),
        records=lambda line: line.of.ids,
        rule_key=lambda line: id(line.of),
        is_left_out=lambda line: line.effect is None,
    )


def _notes(factorials: Sequence[Factorial], quantity: str) -> list[str]:
    lines = [
        f"GLUE: {quantity}, in points; loss: held-out MLM loss in nats per token, lower is better.",
        "Main effect: mean of the cells with the factor on less mean of those with it off. Interaction: the same for "
        "the product of the factors' signs. Each is one number a seed; intervals, p and looks as for deltas. A family "
        "is all effects of one factorial in the loss on its first corpus; all else is exploratory and has no verdict.",
    ]
    first = min(factorials[0].looks)
    if any(len(each.counted) < first for each in factorials if each.effects):
        lines.append(f"Below {first} seeds no effect is claimed; with one seed there is no interval either.")
    lines += [claims()["half" if half else "factorial"] for half in sorted({f.fraction == "half" for f in factorials})]
    factors = dict.fromkeys(name for each in factorials for name in each.factors)
    lines += cautions(factors)
    return [*lines, *(f"{each.title} ({each.measured}): {note}." for each in factorials for note in each.notes)]
