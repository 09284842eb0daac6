"""Compare forecasts with later measurements, beside simple forecasts from the same budgets: errors, CRPS, Brier scores
of signs, coverage of intervals.

A forecast is only scored on differences whose records did not exist when it was made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

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
from reports.tables import Table, count, facets, frame_of, number, printed_range, rules_between, signed


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
    variances = {forecast.id: pooled_variances(forecast, group, tasks) for forecast in ours}
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
    seeds = sorted(delta.differences)[: forecast.seeds]
    if len(seeds) < forecast.seeds:
        return Outcome(forecast, predicted, None, f"{len(seeds)} of {count(forecast.seeds, 'seed')}", delta.ids)
    return Outcome(forecast, predicted, fmean(delta.differences[seed] for seed in seeds), "", delta.ids)


HEADER = (
    *("Forecast", "Variant", "Against", "Quantity", "At budgets", "Expected", "80 %", "P(higher)"),
    *("Measured", "In the interval"),
)
FACTS = (
    *("forecast", "scale", "variant", "against", "quantity", "corpus", "budgets", "octaves", "means", "seeds"),
    *("expected", "low", "high", "probability_higher", "measured", "covered", "brier", "naive_brier", "reason"),
    *("crps", "persistence", "persistence_sd", "persistence_crps", "persistence_brier", "line", "line_sd", "line_crps"),
    *("line_brier", "made_from", "records"),
)


def forecasts_table(outcomes: Sequence[Outcome], group: Group) -> Table:
    """Return a table with one line per difference that was forecast."""
    return Table(
        title=f"Forecasts and outcomes (scale {group.scale}, data {group.data})",
        shown=frame_of([_shown(each) for each in outcomes], HEADER),
        facts=frame_of([_facts(each) for each in outcomes], FACTS),
        alignment="lllllrrrrl",
        notes=(*warnings(group), *_notes(outcomes)),
        rules=rules_between(each.forecast.id for each in outcomes),
        records=tuple(each.ids for each in outcomes),
        facets=tuple(facets(each.predicted.quantity, each.predicted.corpus) for each in outcomes),
    )


def print_prediction(each: Predicted) -> tuple[str, ...]:
    """Return (variant, base, quantity, differences at the budgets, expected difference, its interval, P(higher))."""
    digits = QUANTITIES[each.quantity].digits
    trend = " → ".join(signed(at.mean, digits) for at in each.budgets)
    names = each.variant, each.base, name_measurement(each.quantity, each.corpus)
    interval = printed_range(each.interval, digits)
    return *names, trend, signed(each.mean, digits), interval, number(each.probability_higher, 2)


def _shown(outcome: Outcome) -> tuple[str, ...]:
    variant, base, quantity, *numbers = print_prediction(outcome.predicted)
    measured = signed(outcome.measured, QUANTITIES[outcome.predicted.quantity].digits)
    held = {True: "yes", False: "no", None: outcome.reason or "signs only"}[outcome.is_covered]
    return outcome.forecast.id, variant, base, f"{quantity} at {outcome.forecast.scale}", *numbers, measured, held


def _facts(outcome: Outcome) -> tuple[Any, ...]:
    forecast, each = outcome.forecast, outcome.predicted
    return (
        *(forecast.id, forecast.scale, each.variant, each.base, each.quantity, each.corpus),
        " ".join(at.budget for at in each.budgets),
        " ".join(f"{at.octaves:.3f}" for at in each.budgets),
        " ".join(f"{at.mean:.6f}" for at in each.budgets),
        forecast.seeds,
        *(each.mean, *(each.interval or (None, None)), each.probability_higher, outcome.measured),
        *("" if outcome.is_covered is None else str(outcome.is_covered).lower(), outcome.brier, outcome.naive_brier),
        *(outcome.reason, outcome.scores[FORECAST].crps if outcome.scores else None),
        *(value for name in (PERSISTENCE, LINE) for value in _simple_facts(outcome, name)),
        *(" ".join(forecast.records), " ".join(outcome.ids)),
    )


def _simple_facts(outcome: Outcome, name: str) -> tuple[float | None, ...]:
    """Return mean, standard deviation, CRPS and Brier score of a simple forecast."""
    expected, found = outcome.simple.get(name), outcome.scores.get(name)
    distribution = (None, None) if expected is None else (expected.mean, expected.deviation)
    return *distribution, *((None, None) if found is None else (found.crps, found.brier))


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


def scores_table(outcomes: Sequence[Outcome], group: Group) -> Table:
    """Return a table of the scores of forecasts and of the simple ones, with one line per method."""
    scored = [each for each in outcomes if each.scores]
    units = list(dict.fromkeys(each.unit for each in scored))
    lines: list[tuple[str, ...]] = []
    facts: list[tuple[Any, ...]] = []
    for forecast in dict.fromkeys(each.forecast for each in scored):
        own = [each for each in scored if each.forecast == forecast]
        for name in (FORECAST, PERSISTENCE, LINE):
            found = [(each, each.scores[name]) for each in own if name in each.scores]
            if not found:
                continue
            cells = []
            for unit in units:
                of_unit = [(each, scores) for each, scores in found if each.unit == unit]
                error, crps = (
                    fmean(vars(scores)[field] for _, scores in of_unit) if of_unit else None
                    for field in ("error", "crps")
                )
                cells += [number(error, 3), number(crps, 3)]
                facts.append((forecast.id, name, unit, *_counts(of_unit), error, crps, None, None))
            brier, covered = fmean(scores.brier for _, scores in found), sum(scores.is_covered for _, scores in found)
            lines.append((forecast.id, name, *cells, number(brier, 3), f"{covered} of {len(found)}"))
            facts.append((forecast.id, name, "", *_counts(found), None, None, brier, covered))
    header = ("Forecast", "Method", *(f"{what}, {unit}" for unit in units for what in ("Mean absolute error", "CRPS")))
    return Table(
        title=f"Forecasts beside simple ones (scale {group.scale}, data {group.data})",
        shown=frame_of(lines, (*header, "Brier score of the sign", f"In the {100 * COVERAGE:g} % interval")),
        facts=frame_of(facts, SCORES_FACTS),
        alignment="ll" + "r" * (2 * len(units) + 2),
        notes=(
            "Persistence: the difference at the largest budget. Straight line: the least-squares line over the "
            "logarithm of compute. Both are normal distributions with the variance over seeds that is pooled over the "
            "budgets of a quantity and corpus. CRPS: the forecast is taken as a normal distribution with its mean and "
            "the width of its interval. Lower is better but for intervals.",
        ),
        rules=rules_between(line[0] for line in lines),
        records=tuple(_ids_of(scored, line[0]) for line in lines),
    )


def _ids_of(scored: Sequence[Outcome], forecast: str) -> tuple[str, ...]:
    """Return the records behind the outcomes of a forecast."""
    return tuple(sorted({name for each in scored if each.forecast.id == forecast for name in each.ids}))


def _counts(found: Sequence[tuple[Outcome, Score]]) -> tuple[int, int]:
    """Return the numbers of differences and of steps."""
    return len(found), len({each.step for each, _ in found})
