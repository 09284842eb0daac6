"""Compare forecasts with later measurements, beside simple forecasts from the same budgets: errors, CRPS, Brier scores
of signs, coverage of intervals.

A forecast is only scored on differences whose records did not exist when it was made.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import pandas as pd

from neobert.errors import name_first
from reports.analysis.inference import seed_interval
from reports.analysis.pairing import LADDER, Delta
from reports.analysis.quantities import QUANTITIES, name_measurement
from reports.forecasts.comparators import (
    FORECAST,
    LINE,
    PERSISTENCE,
    Normal,
    Score,
    as_normal,
    mean_over_steps,
    pooled_variances,
    score,
    simple_forecasts,
)
from reports.forecasts.extrapolation import COVERAGE
from reports.forecasts.sealed import Forecast, Place, Predicted
from reports.notes import warnings
from reports.scores import Group
from reports.tables import (
    Column,
    Table,
    count,
    frame_of,
    make_table,
    number,
    print_range,
    print_signed,
    printed_range,
    rules_between,
    signed,
)


@dataclass(frozen=True)
class Outcome:
    """One difference that was forecast. `measured` is the mean over the forecast's number of first seeds; None if there
    is nothing to score, for the `reason`. `ids` are the records behind it. `variance` is that of one seed's difference
    at the budgets; None if unknown."""

    forecast: Forecast
    predicted: Predicted
    measured: float | None
    reason: str
    ids: tuple[str, ...]
    variance: float | None = None

    @cached_property
    def simple(self) -> Mapping[str, Normal]:
        """The simple forecasts from the same budgets, by name; none for signs, or without the variance."""
        if self.variance is None or self.predicted.mean is None:
            return {}
        return simple_forecasts(self.predicted, self.variance, self.forecast.seeds)

    @cached_property
    def scores(self) -> Mapping[str, Score]:
        """The scores of the forecast and of the simple ones, by name; empty without a measurement or for signs."""
        expected = as_normal(self.predicted)
        if self.measured is None or expected is None or self.brier is None:
            return {}
        own = replace(score(expected, self.measured), brier=self.brier, is_covered=bool(self.is_covered))
        return {FORECAST: own} | {name: score(each, self.measured) for name, each in self.simple.items()}

    @property
    def digits(self) -> int:
        return QUANTITIES[self.predicted.quantity].digits

    @property
    def measurement(self) -> str:
        return name_measurement(self.predicted.quantity, self.predicted.corpus)

    @property
    def unit(self) -> str:
        return QUANTITIES[self.predicted.quantity].unit

    @property
    def step(self) -> tuple[str, str]:
        return self.predicted.variant, self.predicted.base

    @property
    def is_covered(self) -> bool | None:
        """Whether the 80 % interval contains the measurement; None if there is no measurement or no interval."""
        interval = self.predicted.interval
        return None if self.measured is None or interval is None else interval[0] <= self.measured <= interval[1]

    @property
    def brier(self) -> float | None:
        """Squared error of the probability of a difference above 0."""
        return None if self.measured is None else (self.predicted.probability_higher - (self.measured > 0)) ** 2

    @property
    def naive_brier(self) -> float | None:
        """Brier score of predicting the sign at the smallest budget with certainty."""
        return None if self.measured is None else float(self.predicted.is_higher_at_smallest != (self.measured > 0))


def score_forecasts(
    forecasts: Sequence[Forecast], deltas: Sequence[Delta], group: Group, tasks: Sequence[str]
) -> tuple[Outcome, ...]:
    """Return the outcome of every difference forecast for a group, or forecast from its records for another scale.
    GLUE's deltas are of means over `tasks`."""
    at = {delta.place: delta for delta in deltas if delta.design == LADDER}
    ours = [forecast for forecast in forecasts if _belongs(forecast, group)]
    variances = {forecast.id: pooled_variances(forecast) for forecast in ours}
    return tuple(
        replace(
            _outcome(forecast, predicted, at, tasks),
            variance=variances[forecast.id].get((predicted.quantity, predicted.corpus)),
        )
        if forecast.scale == group.scale
        else Outcome(forecast, predicted, None, f"scored beside the records of scale {forecast.scale}", ())
        for forecast in ours
        for predicted in forecast.predictions
    )


def _belongs(forecast: Forecast, group: Group) -> bool:
    """Whether a forecast is about a group (with any data, for a forecast of signs), or was made from its records."""
    if forecast.scale == group.scale:
        return forecast.data == group.data or forecast.is_of_signs
    scales = {name.partition("@")[0] for name in forecast.budgets}
    return forecast.data == group.data and group.scale in scales


def _outcome(forecast: Forecast, predicted: Predicted, deltas: Mapping[Place, Delta], tasks: Sequence[str]) -> Outcome:
    delta = deltas.get(predicted.place)
    if delta is None or not delta.differences:
        reason = "not measured yet" if delta is None else delta.reason
        return Outcome(forecast, predicted, None, reason, ())
    if predicted.tasks and predicted.tasks != " ".join(tasks):
        reason = f"not scored: the forecast is of the mean of {predicted.tasks}, not of {' '.join(tasks)}"
        return Outcome(forecast, predicted, None, reason, delta.ids)
    if used := sorted({*forecast.records, *forecast.present} & set(delta.ids)):
        reason = f"not scored: record {used[0]} was there when the forecast was made"
        return Outcome(forecast, predicted, None, reason, delta.ids)
    seeds = delta.first(forecast.seeds)
    if len(seeds) < forecast.seeds:
        return Outcome(forecast, predicted, None, f"{len(seeds)} of {count(forecast.seeds, 'seed')}", delta.ids)
    return Outcome(forecast, predicted, fmean(delta.differences[seed] for seed in seeds), "", delta.ids)


def print_prediction(each: Predicted) -> tuple[str, ...]:
    """Return (variant, base, quantity, differences at the budgets, expected difference, its interval, P(higher))."""
    digits = QUANTITIES[each.quantity].digits
    expected = signed(each.mean, digits), printed_range(each.interval, digits)
    names = each.variant, each.base, name_measurement(each.quantity, each.corpus)
    return *names, _trend(each), *expected, number(each.probability_higher, 2)


def _trend(each: Predicted) -> str:
    return " → ".join(signed(at.mean, QUANTITIES[each.quantity].digits) for at in each.budgets)


def _of_simple(name: str, column: str) -> Column[Outcome]:
    """Return the columns of a simple forecast: mean, standard deviation, CRPS and Brier score."""

    def values(outcome: Outcome) -> tuple[float | None, ...]:
        expected, found = outcome.simple.get(name), outcome.scores.get(name)
        return (
            *((expected.mean, expected.deviation) if expected else (None, None)),
            *((found.crps, found.brier) if found else (None, None)),
        )

    return Column("", f"{column} {column}_sd {column}_crps {column}_brier", values)


HELD: Mapping[bool | None, str] = {True: "yes", False: "no", None: ""}
COLUMNS: Sequence[Column[Outcome]] = (
    Column("Forecast", "forecast", lambda outcome: outcome.forecast.id),
    Column("", "scale", lambda outcome: outcome.forecast.scale),
    Column("Variant", "variant", lambda outcome: outcome.predicted.variant),
    Column("Against", "against", lambda outcome: outcome.predicted.base),
    Column("Quantity", "", lambda outcome: f"{outcome.measurement} at {outcome.forecast.scale}"),
    Column("", "quantity", lambda outcome: outcome.predicted.quantity),
    Column("", "corpus", lambda outcome: outcome.predicted.corpus),
    Column("At budgets", "", lambda outcome: _trend(outcome.predicted)),
    Column("", "budgets", lambda outcome: " ".join(at.budget for at in outcome.predicted.budgets)),
    Column("", "octaves", lambda outcome: " ".join(f"{at.octaves:.3f}" for at in outcome.predicted.budgets)),
    Column("", "means", lambda outcome: " ".join(f"{at.mean:.6f}" for at in outcome.predicted.budgets)),
    Column("", "seeds", lambda outcome: outcome.forecast.seeds),
    Column("Expected", "expected", lambda outcome: outcome.predicted.mean, print_signed, "r"),
    Column("80 %", "low high", lambda outcome: outcome.predicted.interval, print_range, "r"),
    Column("P(higher)", "", lambda outcome: number(outcome.predicted.probability_higher, 2), side="r"),
    Column("", "probability_higher", lambda outcome: outcome.predicted.probability_higher),
    Column("Measured", "measured", lambda outcome: outcome.measured, print_signed, "r"),
    Column("In the interval", "", lambda outcome: HELD[outcome.is_covered] or outcome.reason or "signs only"),
    Column("", "covered", lambda outcome: "" if outcome.is_covered is None else str(outcome.is_covered).lower()),
    Column("", "brier", lambda outcome: outcome.brier),
    Column("", "naive_brier", lambda outcome: outcome.naive_brier),
    Column("", "reason", lambda outcome: outcome.reason),
    Column("", "crps", lambda outcome: outcome.scores[FORECAST].crps if outcome.scores else None),
    _of_simple(PERSISTENCE, "persistence"),
    _of_simple(LINE, "line"),
    Column("", "made_from", lambda outcome: " ".join(outcome.forecast.records)),
    Column("", "records", lambda outcome: " ".join(outcome.ids)),
)


def forecasts_table(outcomes: Sequence[Outcome], group: Group) -> Table:
    """Return a table with one line per difference that was forecast."""
    return make_table(
        f"Forecasts and outcomes (scale {group.scale}, data {group.data})",
        COLUMNS,
        outcomes,
        (*warnings(group), *_notes(outcomes)),
        records=lambda outcome: outcome.ids,
        rule_key=lambda outcome: outcome.forecast.id,
    )


def _notes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield (
        "A forecast is no result. It was made from runs with schedules of their own at the budgets, the smallest "
        "first; expected is the mean over the seeds of the larger runs, with its 80 % interval; P(higher) is the "
        "probability that it is above 0."
    )
    for forecast in dict.fromkeys(each.forecast for each in outcomes):
        own = [each for each in outcomes if each.forecast == forecast]
        younger = sorted({name for each in own if each.measured is not None for name in each.ids})
        yield (
            f"{forecast.id}: {'signs' if forecast.is_of_signs else 'differences'} at scale {forecast.scale} over "
            f"{count(forecast.seeds, 'seed')}, from {count(len(forecast.records), 'record')} at "
            f"{', '.join(forecast.budgets)}, made by {forecast.code}; {count(len(younger), 'record')} behind its "
            f"outcomes are younger{': ' + name_first(younger) if younger else ''}."
        )
        yield f"{forecast.id}: {describe_scores(own)}"
        yield from (f"{forecast.id} leaves out: {sentence}." for sentence in forecast.left_out)


def describe_scores(outcomes: Sequence[Outcome]) -> str:
    """Return a sentence with coverage and Brier scores, and one on the paired difference to each simple forecast."""
    scored = [each for each in outcomes if each.measured is not None]
    if not scored:
        return "nothing is measured here yet that it could be scored on."
    covered = [each.is_covered for each in scored if each.is_covered is not None]
    intervals = (
        f"{sum(covered)} of {count(len(covered), 'interval')} of {100 * COVERAGE:g} % hold what was measured; "
        if covered
        else ""
    )
    brier = fmean(each.brier for each in scored if each.brier is not None)
    naive = fmean(each.naive_brier for each in scored if each.naive_brier is not None)
    steps = len({each.step for each in scored})
    sentence = (
        f"{intervals}Brier score of the sign {number(brier, 3)}, of the smallest budget's sign {number(naive, 3)} "
        f"(lower is better; {count(len(scored), 'difference')} of {count(steps, 'step')}, which share arms and seeds)."
    )
    return " ".join([sentence, *_paired_sentences(scored)])


def _paired_sentences(scored: Sequence[Outcome]) -> Iterator[str]:
    """Yield how the forecast's CRPS differs from that of each simple forecast, paired over steps, by unit."""
    for unit in dict.fromkeys(each.unit for each in scored):
        told = [each for each in scored if each.unit == unit and len(each.scores) > 1]
        parts = []
        for name in (PERSISTENCE, LINE):
            pairs = [(each.step, each.scores[FORECAST].crps - each.scores[name].crps) for each in told]
            means = mean_over_steps(pairs)
            interval = seed_interval(means)
            if interval is not None:
                parts.append(f"{signed(fmean(means), 3)} ({printed_range(interval, 3)}) against {name}")
        if parts:
            steps = count(len({each.step for each in told}), "step")
            yield f"CRPS in {unit}, paired over {steps}, 95 % t interval: {', '.join(parts)} (below 0: it is better)."


SCORES_FACTS = ("forecast", "method", "unit", "differences", "steps", "mean_absolute_error", "crps", "brier", "covered")
SCORES_NOTE = (
    "Persistence: the difference at the largest budget. Straight line: the least-squares line over the logarithm of "
    "compute. Both are normal distributions with the variance over seeds that is pooled over the budgets of a quantity "
    "and corpus. CRPS: the forecast is taken as a normal distribution with its mean and the width of its interval. "
    "Lower is better but for intervals."
)


def scores_table(outcomes: Sequence[Outcome], group: Group) -> Table:
    """Return a table of the scores of forecasts and of the simple ones, with one line per method."""
    scores = pd.DataFrame(
        {"forecast": each.forecast.id, "method": name, "unit": each.unit, "step": each.step, **vars(own)}
        for each in outcomes
        for name, own in each.scores.items()
    )
    ids: dict[str, set[str]] = defaultdict(set)
    for each in outcomes:
        ids[each.forecast.id] |= set(each.ids if each.scores else ())
    units = list(scores.unit.unique())
    shown, facts = [], []
    for names, own in scores.groupby(["forecast", "method"], sort=False):
        cells: list[str] = []
        for unit in units:
            of_unit = own[own.unit == unit]
            error, crps = of_unit.error.mean(), of_unit.crps.mean()
            cells += [number(error, 3), number(crps, 3)]
            facts.append((*names, unit, len(of_unit), of_unit.step.nunique(), error, crps, None, None))
        brier, covered = own.brier.mean(), int(own.is_covered.sum())
        shown.append((*names, *cells, number(brier, 3), f"{covered} of {len(own)}"))
        facts.append((*names, "", len(own), own.step.nunique(), None, None, brier, covered))
    header = ("Forecast", "Method", *(f"{what}, {unit}" for unit in units for what in ("Mean absolute error", "CRPS")))
    return Table(
        title=f"Forecasts beside simple ones (scale {group.scale}, data {group.data})",
        shown=frame_of(shown, (*header, "Brier score of the sign", f"In the {100 * COVERAGE:g} % interval")),
        facts=frame_of(facts, SCORES_FACTS),
        alignment="ll" + "r" * (2 * len(units) + 2),
        notes=(SCORES_NOTE,),
        rules=rules_between(line[0] for line in shown),
        records=tuple(tuple(sorted(ids[line[0]])) for line in shown),
    )
