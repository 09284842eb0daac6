"""Readouts: variance over units in a difference of two models, and signal-to-noise ratio between arms.

A readout's value is a sum of numerators over a sum of denominators, one of each per unit: a stretch of text or an item.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from neobert.glue.tasks import TASKS
from neobert.kinds.readouts import ReadoutName
from neobert.runs.records import unpack_numbers
from reports.analysis.parts import find_parts
from reports.analysis.quantities import BITS, QUANTITIES, READOUTS, Units, estimate_answers, name_measurement
from reports.notes import warnings
from reports.scores import Estimate, Group, Row, largest
from reports.tables import Column, Table, make_table, number, print_by_seed, rounded

Array = np.ndarray[Any, np.dtype[Any]]

LEAST_SEEDS = 2
LEAST_RATIO = 2.0
"""Signal to noise below which a readout claims no equivalence: arms look alike in it, whatever they are."""


def influence(own: Units) -> Array:
    """Return the contribution of each unit to the error of the value, (units,); the error is their mean.

    The value is a ratio of two sums; to first order its error is the mean of (numerator − value · denominator) over the
    mean denominator.
    """
    return own.factor * _influence(own.numerators, own.denominators, own.units).astype(np.float64)


@lru_cache(maxsize=1 << 15)
def _influence(numerators: str, denominators: str | None, units: int) -> Array:
    above = unpack_numbers(numerators, "<f4", units).astype(np.float64)
    below = np.ones(units) if denominators is None else unpack_numbers(denominators, "<i4", units)
    return np.asarray((above - above.sum() / below.sum() * below) / below.mean(), dtype=np.float32)


def paired_variance(pairs: Sequence[tuple[Units, Units]]) -> float | None:
    """Return the variance due to units in the mean over seeds of a difference of two models; None for a single unit.
    Each pair has the numbers of both models at one seed.

    All models and seeds have the same units. The result is therefore the variance over units of their mean difference
    over seeds, divided by the number of units.
    """
    units = pairs[0][0].units
    if units < 2:
        return None
    mean = np.mean([influence(ours) - influence(theirs) for ours, theirs in pairs], axis=0)
    return float(mean.var(ddof=1) / units)


@dataclass(frozen=True)
class SignalToNoise:
    """How well a readout separates arms that were trained on one corpus: the standard deviation of the arms' means, and
    that of seeds within each arm, by arm. `seeds` is the total number of runs, `readout` the quantity of deltas."""

    name: str
    readout: str
    corpus: str
    seeds: int
    between_arms: float
    between_seeds: Mapping[str, float]
    ids: tuple[str, ...]

    @property
    def noise(self) -> float:
        """The standard deviation of seeds within the median arm."""
        return statistics.median(self.between_seeds.values())

    @property
    def ratio(self) -> float | None:
        """Signal-to-noise ratio of the median arm; None if its seeds do not differ at all."""
        return self.between_arms / self.noise if self.noise > 0 else None


def tells_apart(
    signals: Sequence[SignalToNoise], readout: str, corpus: str, arms: Iterable[Mapping[int, float]]
) -> bool:
    """Whether a readout tells arms apart that are as noisy as these two, given by seed: whether the spread between arms
    is at least twice their noise. Without a signal on record it does not."""
    noise = math.sqrt(statistics.fmean(statistics.variance(arm.values()) if len(arm) > 1 else 0.0 for arm in arms))
    return any(
        each.between_arms >= LEAST_RATIO * noise for each in signals if (each.readout, each.corpus) == (readout, corpus)
    )


def find_signals(group: Group) -> tuple[SignalToNoise, ...]:
    """Return the signals of every readout, held-out loss and GLUE task with at least two trained arms of at least two
    seeds each, the best first. Only the arms of the most common training corpus count: another corpus moves a readout
    more than any modification does. Nor do parts of steps count, whose number says how often a step was taken apart."""
    parts = {row.name for own in find_parts(group).values() for row in own if not row.kept}
    trained = [
        row for row in group.last_rows.values() if row.has_records and not row.untrained and row.name not in parts
    ]
    rows = largest(trained, lambda row: row.recipe.pretraining.data.corpus)
    found = [signal for each in _measurements(rows) if (signal := each.signal()) is not None] if rows else []
    return tuple(sorted(found, key=_sorting_ratio, reverse=True))


def _sorting_ratio(signal: SignalToNoise) -> float:
    # without any noise, arms are told apart perfectly, or never if they do not differ
    return (math.inf if signal.between_arms else 0.0) if signal.ratio is None else signal.ratio


@dataclass(frozen=True)
class _Measurement:
    """One measurement of comparable arms: their estimates and records, by name."""

    name: str
    readout: str
    corpus: str
    estimates: Mapping[str, Estimate]
    ids: Mapping[str, Iterable[str]]

    def signal(self) -> SignalToNoise | None:
        """Return the signal to noise; None for fewer than two arms with two seeds each."""
        by_seed = {arm: list(estimate.by_pretraining.values()) for arm, estimate in self.estimates.items()}
        by_seed = {arm: values for arm, values in by_seed.items() if len(values) >= LEAST_SEEDS}
        if len(by_seed) < 2:
            return None
        return SignalToNoise(
            *(self.name, self.readout, self.corpus),
            seeds=sum(map(len, by_seed.values())),
            between_arms=statistics.stdev(map(statistics.fmean, by_seed.values())),
            between_seeds={arm: statistics.stdev(values) for arm, values in by_seed.items()},
            ids=tuple(sorted({record for arm in by_seed for record in self.ids[arm]})),
        )


def _measurements(rows: Sequence[Row]) -> Iterator[_Measurement]:
    for readout, quantity in READOUTS.items():
        yield from _answers(largest(rows, lambda row: row.tokens) if quantity.shares_tokens else rows, readout)
    run_ids = {row.name: row.runs.id for row in rows}
    comparable = largest(rows, lambda row: (*row.tokens, row.context))
    for corpus, losses in _by_place(comparable, lambda row: row.losses):
        yield _Measurement(f"held-out loss on {corpus}", "loss", corpus, losses, run_ids)
    for (corpus, context), bits in _by_place(rows, lambda row: row.bits_per_byte):
        yield _Measurement(name_measurement(BITS, corpus, int(context)), BITS, corpus, bits, run_ids)
    for task, about in TASKS.items():
        cells = {row.name: row.cells[task] for row in rows if task in row.cells}
        scores = {name: cell.score for name, cell in cells.items() if cell.score is not None}
        yield _Measurement(about.title, "GLUE", "", scores, {name: cells[name].ids.values() for name in scores})


def _by_place(
    rows: Sequence[Row], estimates_of: Callable[[Row], Mapping[Any, Estimate]]
) -> Iterator[tuple[Any, dict[str, Estimate]]]:
    """Yield the estimates at each place, by row."""
    found = {row.name: estimates_of(row) for row in rows}
    for place in sorted({place for own in found.values() for place in own}):
        yield place, {name: own[place] for name, own in found.items() if place in own}


def _answers(rows: Sequence[Row], readout: ReadoutName) -> Iterator[_Measurement]:
    """Yield the measurements of one readout by corpus, over the answers to the items that most records have."""
    quantity = READOUTS[readout].name
    answers = pd.concat([row.answers.assign(arm=row.name) for row in rows])
    items = Counter(answers["items"][answers.readout == readout])
    usual = max(items, key=items.__getitem__, default="")
    kept = answers[(answers.readout == readout) & (answers["items"] == usual)]
    for corpus in sorted(set(answers.corpus)):
        own = dict(list(kept[kept.corpus == corpus].groupby("arm", sort=False)))
        estimates = {arm: estimate_answers(frame, quantity) for arm, frame in own.items()}
        ids = {arm: frame.id for arm, frame in own.items()}
        yield _Measurement(name_measurement(quantity, corpus), quantity, corpus, estimates, ids)


def _print(spread: float, signal: SignalToNoise) -> str:
    return number(spread, QUANTITIES[signal.readout].digits)


def _with_arm(spread: float, signal: SignalToNoise) -> str:
    arm = next(name for name, own in signal.between_seeds.items() if own == spread)
    return f"{_print(spread, signal)} ({arm})"


COLUMNS: Sequence[Column[SignalToNoise]] = (
    Column("Readout", "readout", lambda signal: signal.name),
    Column("Unit", "unit", lambda signal: QUANTITIES[signal.readout].unit),
    Column("Arms", "arms", lambda signal: len(signal.between_seeds), side="r"),
    Column("Runs", "runs", lambda signal: signal.seeds, side="r"),
    Column("Spread between arms", "between_arms", lambda signal: signal.between_arms, _print, "r"),
    Column("Spread between seeds", "between_seeds", lambda signal: signal.noise, _print, "r"),
    Column("Least", "least_between_seeds", lambda signal: min(signal.between_seeds.values()), _with_arm, "r"),
    Column("Most", "most_between_seeds", lambda signal: max(signal.between_seeds.values()), _with_arm, "r"),
    Column("Signal to noise", "signal_to_noise", lambda signal: signal.ratio, rounded(1), "r"),
    Column("", "by_arm", lambda signal: print_by_seed(signal.between_seeds)),
    Column("", "records", lambda signal: " ".join(signal.ids)),
)
NOTES = (
    "Signal to noise: the standard deviation of the arms' means over that of seeds within the median arm; least and "
    "most are those of single arms. Arms are those of the ladder, but for parts of its steps, on the most common "
    "training corpus, that trained and have two seeds or more; losses in nats per token are of the tokenizer (held-out "
    "losses also of the context) that most arms have.",
    "A readout with a small ratio needs many seeds. The ratio says how well arms are told apart, not whether that in "
    "which they differ matters.",
)


def signals_table(signals: Sequence[SignalToNoise], group: Group) -> Table:
    """Return a table with one line per readout."""
    return make_table(
        f"Readouts by signal to noise (scale {group.scale}, data {group.data})",
        COLUMNS,
        signals,
        (*warnings(group), *NOTES),
        records=lambda signal: signal.ids,
    )
