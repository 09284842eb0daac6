"""Readouts: variance over units in a difference of two models, and signal-to-noise ratio between arms.

A readout's value is a sum of numerators over a sum of denominators, one of each per unit: a stretch of text or an item.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from neobert.glue.tasks import TASKS
from neobert.runs.records import ReadoutScore, unpack_numbers
from reports.analysis.quantities import QUANTITIES, READOUTS, estimate_answers
from reports.notes import warnings
from reports.scores import Estimate, Group, Row, of_most
from reports.tables import Table, facets, frame_of, number

Array = np.ndarray[Any, np.dtype[Any]]

LEAST_SEEDS = 2


def influence(answer: ReadoutScore) -> Array:
    """Return the contribution of each unit to the error of the value, (units,) float32; the error is their mean.

    The value is a ratio of two sums; to first order its error is the mean of (numerator − value · denominator) over the
    mean denominator.
    """
    return _influence(answer.numerators, answer.denominators, answer.units)


@lru_cache(maxsize=1 << 15)
def _influence(numerators: str, denominators: str | None, units: int) -> Array:
    above = unpack_numbers(numerators, "<f4", units).astype(np.float64)
    below = np.ones(units) if denominators is None else unpack_numbers(denominators, "<i4", units)
    return np.asarray((above - above.sum() / below.sum() * below) / below.mean(), dtype=np.float32)


def paired_variance(pairs: Sequence[tuple[ReadoutScore, ReadoutScore]]) -> float | None:
    """Return the variance due to units in the mean over seeds of a difference of two models; None for a single unit.
    Each pair has the answers of both models at one seed.

    All models and seeds have the same units. The result is therefore the variance over units of their mean difference
    over seeds, divided by the number of units.
    """
    units = pairs[0][0].units
    if units < 2:
        return None
    mean = np.mean([influence(ours).astype(np.float64) - influence(theirs) for ours, theirs in pairs], axis=0)
    return float(mean.var(ddof=1) / units)


@dataclass(frozen=True)
class SignalToNoise:
    """How well a readout separates arms: the standard deviation of the arms' means, and the pooled one of seeds within
    arms. `seeds` is the total number of runs, `readout` the quantity of deltas."""

    name: str
    readout: str
    corpus: str
    arms: tuple[str, ...]
    seeds: int
    between_arms: float
    between_seeds: float
    ids: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Signal-to-noise ratio; None if seeds do not differ at all."""
        return self.between_arms / self.between_seeds if self.between_seeds > 0 else None


def find_signals(group: Group) -> tuple[SignalToNoise, ...]:
    """Return the signals of every readout, held-out loss and GLUE task with at least two trained arms of at least two
    seeds each, the best first."""
    rows = [row for row in group.last_rows.values() if row.has_records and not row.untrained]
    found = [signal for each in _measurements(rows) if (signal := _signal(*each)) is not None]
    return tuple(sorted(found, key=_sorting_ratio, reverse=True))


def _sorting_ratio(signal: SignalToNoise) -> float:
    # without any noise, arms are told apart perfectly, or never if they do not differ
    return (math.inf if signal.between_arms else 0.0) if signal.ratio is None else signal.ratio


Arms = Mapping[str, tuple[Estimate, Iterable[str]]]


def _measurements(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, str, str], Arms]]:
    """Yield ((name, readout, corpus), arms) for every measurement, each with comparable arms only."""
    for readout, quantity in READOUTS.items():
        comparable = of_most(rows, lambda row: row.tokens) if quantity.shares_tokens else rows
        items = Counter(name for row in comparable for name in row.answers["items"][row.answers.readout == readout])
        for corpus in sorted({corpus for row in comparable for corpus in row.answers.corpus}):
            own = {row.name: row.answers_to(readout, corpus) for row in comparable}
            usual = items.most_common(1)[0][0] if items else ""
            kept = {name: answers[answers["items"] == usual] for name, answers in own.items()}
            found = {name: answers for name, answers in kept.items() if len(answers)}
            arms = {name: (estimate_answers(answers, quantity.name), answers.id) for name, answers in found.items()}
            yield (f"{quantity.name} on {corpus}", quantity.name, corpus), arms
    comparable = of_most(rows, lambda row: (*row.tokens, row.context))
    for corpus in sorted({corpus for row in comparable for corpus in row.losses}):
        losses = {row.name: (row.losses[corpus], row.runs.id) for row in comparable if corpus in row.losses}
        yield (f"held-out loss on {corpus}", "loss", corpus), losses
    for task, about in TASKS.items():
        cells = {row.name: row.cells[task] for row in rows if task in row.cells}
        scores = {name: (cell.score, cell.ids.values()) for name, cell in cells.items() if cell.score is not None}
        yield (about.title, "GLUE", ""), scores


def _signal(about: tuple[str, str, str], arms: Arms) -> SignalToNoise | None:
    by_seed = {arm: list(estimate.by_pretraining.values()) for arm, (estimate, _) in arms.items()}
    by_seed = {arm: values for arm, values in by_seed.items() if len(values) >= LEAST_SEEDS}
    if len(by_seed) < 2:
        return None
    runs = sum(map(len, by_seed.values()))
    squares = sum(statistics.variance(values) * (len(values) - 1) for values in by_seed.values())
    return SignalToNoise(
        *about,
        arms=tuple(by_seed),
        seeds=runs,
        between_arms=statistics.stdev(map(statistics.fmean, by_seed.values())),
        between_seeds=math.sqrt(squares / (runs - len(by_seed))),
        ids=tuple(sorted({record for arm in by_seed for record in arms[arm][1]})),
    )


HEADER = ("Readout", "Unit", "Arms", "Runs", "Spread between arms", "Spread between seeds", "Signal to noise")
FACTS = ("readout", "unit", "arms", "runs", "between_arms", "between_seeds", "signal_to_noise", "names", "records")


def signals_table(signals: Sequence[SignalToNoise], group: Group) -> Table:
    """Return a table with one line per readout."""
    shown, facts = [], []
    for each in signals:
        unit, digits = QUANTITIES[each.readout].unit, QUANTITIES[each.readout].digits
        spreads = each.between_arms, each.between_seeds
        counts = len(each.arms), each.seeds
        shown.append(
            (each.name, unit, *map(str, counts), *(number(spread, digits) for spread in spreads), number(each.ratio))
        )
        facts.append((each.name, unit, *counts, *spreads, each.ratio, " ".join(each.arms), " ".join(each.ids)))
    return Table(
        title=f"Readouts by signal to noise (scale {group.scale}, data {group.data})",
        shown=frame_of(shown, HEADER),
        facts=frame_of(facts, FACTS),
        alignment="llrrrrr",
        notes=(
            *warnings(group),
            "Signal to noise: the standard deviation of the arms' means over that of seeds within an arm, pooled. Arms "
            "are those of the ladder that trained and have two seeds or more; losses in nats a token are of the "
            "tokenizer (held-out losses also of the context) that most arms have.",
            "A readout with a small ratio needs many seeds. The ratio says how well arms are told apart, not whether "
            "that in which they differ matters.",
        ),
        records=tuple(each.ids for each in signals),
        facets=tuple(facets(each.readout, each.corpus) for each in signals),
    )
