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
from neobert.runs.records import unpack_numbers
from reports.analysis.quantities import BITS, QUANTITIES, READOUTS, Units, estimate_answers, name_measurement
from reports.notes import warnings
from reports.scores import Estimate, Group, Row, of_most
from reports.tables import Table, facets, frame_of, number

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
    more than any modification does."""
    trained = [row for row in group.last_rows.values() if row.has_records and not row.untrained]
    rows = of_most(trained, lambda row: row.recipe.pretraining.data.corpus)
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
    for corpus, context in sorted({place for row in rows for place in row.bits_per_byte}):
        place = corpus, context
        bits = {row.name: (row.bits_per_byte[place], row.runs.id) for row in rows if place in row.bits_per_byte}
        yield (name_measurement(BITS, corpus, int(context)), BITS, corpus), bits
    for task, about in TASKS.items():
        cells = {row.name: row.cells[task] for row in rows if task in row.cells}
        scores = {name: (cell.score, cell.ids.values()) for name, cell in cells.items() if cell.score is not None}
        yield (about.title, "GLUE", ""), scores


def _signal(about: tuple[str, str, str], arms: Arms) -> SignalToNoise | None:
    by_seed = {arm: list(estimate.by_pretraining.values()) for arm, (estimate, _) in arms.items()}
    by_seed = {arm: values for arm, values in by_seed.items() if len(values) >= LEAST_SEEDS}
    if len(by_seed) < 2:
        return None
    return SignalToNoise(
        *about,
        seeds=sum(map(len, by_seed.values())),
        between_arms=statistics.stdev(map(statistics.fmean, by_seed.values())),
        between_seeds={arm: statistics.stdev(values) for arm, values in by_seed.items()},
        ids=tuple(sorted({record for arm in by_seed for record in arms[arm][1]})),
    )


HEADER = (
    *("Readout", "Unit", "Arms", "Runs", "Spread between arms", "Spread between seeds", "Least", "Most"),
    "Signal to noise",
)
FACTS = (
    *("readout", "unit", "arms", "runs", "between_arms", "between_seeds", "least_between_seeds", "most_between_seeds"),
    *("signal_to_noise", "by_arm", "records"),
)


def signals_table(signals: Sequence[SignalToNoise], group: Group) -> Table:
    """Return a table with one line per readout."""
    shown, facts = [], []
    for each in signals:
        unit, digits = QUANTITIES[each.readout].unit, QUANTITIES[each.readout].digits
        counts = len(each.between_seeds), each.seeds
        least, most = (choose(each.between_seeds, key=each.between_seeds.__getitem__) for choose in (min, max))
        spreads = each.between_arms, each.noise
        ends = [f"{number(each.between_seeds[arm], digits)} ({arm})" for arm in (least, most)]
        printed = [number(spread, digits) for spread in spreads]
        shown.append((each.name, unit, *map(str, counts), *printed, *ends, number(each.ratio)))
        by_arm = " ".join(f"{arm}:{spread:.6f}" for arm, spread in each.between_seeds.items())
        numbers = *spreads, each.between_seeds[least], each.between_seeds[most], each.ratio
        facts.append((each.name, unit, *counts, *numbers, by_arm, " ".join(each.ids)))
    return Table(
        title=f"Readouts by signal to noise (scale {group.scale}, data {group.data})",
        shown=frame_of(shown, HEADER),
        facts=frame_of(facts, FACTS),
        alignment="llrrrrrrr",
        notes=(
            *warnings(group),
            "Signal to noise: the standard deviation of the arms' means over that of seeds within the median arm; "
            "least and most are those of single arms. Arms are those of the ladder on the most common training corpus "
            "that trained and have two seeds or more; losses in nats a token are of the tokenizer (held-out losses "
            "also of the context) that most arms have.",
            "A readout with a small ratio needs many seeds. The ratio says how well arms are told apart, not whether "
            "that in which they differ matters.",
        ),
        records=tuple(each.ids for each in signals),
        facets=tuple(facets(each.readout, each.corpus) for each in signals),
    )
