"""Make forecasts for a larger budget from the records of smaller ones.

A budget is a scale with a share of its steps, in separate runs. Checkpoints of a longer run cannot replace a shorter
run, because their learning rate has not decayed.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NoReturn

from ablations.budgets import MARK, TEXT, share_text, shares, shorter
from ablations.ladders import current, known_scales, ladder
from ablations.scales import Scale, Vocabulary, scaled
from ablations.variant import Variant
from neobert.errors import MissingData, did_you_mean
from neobert.glue.tasks import TASKS
from neobert.model.size import stage_flops_per_token
from reports.analysis.pairing import Delta, pair_all
from reports.analysis.quantities import name_measurement
from reports.evidence import Evidence, select_group
from reports.forecasts.extrapolation import extrapolate
from reports.forecasts.sealed import AtBudget, Forecast, Place, Predicted, name_forecast
from reports.matching import group_of
from reports.scores import Group

LEAST_BUDGETS = LEAST_SEEDS = 2


@dataclass(frozen=True)
class Budget:
    """Runs of one scale with a share of its steps."""

    scale: Scale
    share: float = 1.0

    @property
    def suffix(self) -> str:
        return "" if self.share == 1 else f"{MARK}{share_text(self.share)}"

    @property
    def name(self) -> str:
        """Name as used by commands, such as study@steps0.25."""
        return f"{self.scale}{self.suffix}"

    def compute(self, variant: Variant, vocabulary: Vocabulary) -> float:
        """Return the floating-point operations of a variant's run, if all slots were tokens."""
        own = variant if self.share == 1 else shorter(variant, self.share)
        recipe = scaled(own.recipe, self.scale, vocabulary).pretraining
        return sum(stage_flops_per_token(recipe, number) * stage.tokens for number, stage in enumerate(recipe.stages))


def scale_named(name: str) -> Scale:
    """Return a scale by its name.

    Raises:
        ValueError: there is no such scale.
    """
    if name not in known_scales():
        raise ValueError(f"{name!r} is no scale: {did_you_mean(name, known_scales())}")
    return name


def budget_named(name: str) -> Budget:
    """Return a budget by its name.

    Raises:
        ValueError: the name has no known scale, or no valid share of the steps.
    """
    scale, mark, text = name.partition(MARK)
    if mark and TEXT.fullmatch(text) is None:
        raise ValueError(f"{name!r} names no share of the steps: write it in up to three digits, as {scale}{MARK}0.25")
    return Budget(scale_named(scale), float(text) if mark else 1.0)


def budgets_on_record(evidence: Evidence, scale: Scale, data: str) -> list[Budget]:
    """Return the budgets with shares of a scale's steps that have records."""
    runs = select_group(evidence.runs, scale, data)
    return [Budget(scale, share) for share in shares(name for names in runs.variants for name in names)]


def make_forecast(
    evidence: Evidence, scale: Scale, data: str, budgets: Sequence[Budget], seeds: int, declaration: str = ""
) -> Forecast:
    """Forecast the means over this many seeds at the full steps of a scale, from the records of some budgets. Budgets
    of other scales only give signs, as their losses have other tokens and lengths. `declaration` is the hash of the
    study's declaration.

    Raises:
        ValueError: all that could be forecast is recorded already, a budget is not smaller, or none has two seeds.
        MissingData: no step of the ladder is recorded at two of the budgets.
    """
    measured = _Measured.at(evidence, scale, data, budgets)
    known = measured.known
    families: dict[tuple[str, str], dict[Place, AtBudgets]] = defaultdict(dict)
    if not known:
        measured.refuse_nothing()
    for place, own in known.items():
        families[place[2:]][place] = own
    predictions: list[Predicted] = []
    left_out = list(measured.why_left_out())
    for family in families.values():
        if any(len(delta.differences) >= LEAST_SEEDS for own in family.values() for delta in own.values()):
            predictions += _predict(family, measured, seeds)
        else:
            left_out += [f"{_describe(each)} has one seed at every budget, so its noise is unknown" for each in family]
    if not predictions:
        raise ValueError(
            f"a forecast needs a budget with two seeds at least, which tell the noise: {'; '.join(left_out)}"
        )
    facts = {
        "scale": scale,
        "data": data,
        "budgets": tuple(budget.name for budget in budgets),
        "seeds": seeds,
        "predictions": tuple(predictions),
        "left_out": tuple(left_out),
        "records": tuple(sorted({name for own in known.values() for delta in own.values() for name in delta.ids})),
        "present": tuple(sorted(_ids_of_whole_runs(evidence, measured.there))),
    }
    context = {"ladder": current().name, "declaration": declaration}
    return name_forecast(facts | {name: value for name, value in context.items() if value})


AtBudgets = Mapping[Budget, Delta]
Family = Mapping[Place, AtBudgets]
"""The differences in one quantity and corpus."""


@dataclass(frozen=True)
class _Measured:
    """What was measured at some budgets below a target: `found` are the differences, `reasons` tell why others are
    missing, and `recorded` are those at the target itself. `octaves` has the compute of every variant at every budget,
    relative to the target: all are below 0. GLUE is averaged over `tasks`, and `there` are the groups of the target."""

    target: Budget
    budgets: Sequence[Budget]
    tasks: tuple[str, ...]
    octaves: Mapping[tuple[str, Budget], float]
    found: Family
    reasons: Mapping[Place, Sequence[str]]
    recorded: frozenset[Place]
    there: Sequence[tuple[Scale, str]]

    @classmethod
    def at(cls, evidence: Evidence, scale: Scale, data: str, budgets: Sequence[Budget]) -> "_Measured":
        """Read the records of the budgets and of the target."""
        target = Budget(scale)
        is_of_signs = any(budget.scale != scale for budget in budgets)
        there = [each for each in evidence.groups() if each[0] == scale and (is_of_signs or each[1] == data)]
        scales = {budget.scale for budget in budgets}
        groups = {each: group_of(evidence, *each) for each in {*there, *((own, data) for own in scales)}}
        octaves = _octaves_below(target, evidence.vocabulary(scale, data), budgets, groups, data)
        at_budgets = [(budget, groups[budget.scale, data]) for budget in budgets]
        tasks = _shared_tasks(at_budgets)
        found, reasons = _found_at(at_budgets, tasks)
        at_target = [delta for each in there for delta in differences_at(target, groups[each], tasks)]
        recorded = frozenset(delta.place for delta in at_target if delta.differences)
        return cls(target, budgets, tasks, octaves, found, reasons, recorded, there)

    @property
    def is_of_signs(self) -> bool:
        """Whether only signs can be forecast."""
        return any(budget.scale != self.target.scale for budget in self.budgets)

    @property
    def known(self) -> dict[Place, AtBudgets]:
        """What can be forecast: differences at two budgets or more that the target does not have."""
        return {
            place: own for place, own in self.found.items() if place not in self.recorded and len(own) >= LEAST_BUDGETS
        }

    def why_left_out(self) -> Iterator[str]:
        """Yield a sentence for each difference that has records at some budget but no forecast."""
        told = self.recorded | self.known.keys()
        yield from (
            f"{_describe(place)} is recorded at {self.target.name} already"
            for place in self.found
            if place in self.recorded
        )
        for place, own in self.found.items():
            if place not in told and len(self.budgets) >= LEAST_BUDGETS:
                yield f"{_describe(place)} is recorded at {', '.join(budget.name for budget in own)} alone"
        in_found = told & self.found.keys()
        pairs = {place[:2] for place in in_found}
        for place, reasons in self.reasons.items():
            if place not in in_found if place[2] == "GLUE" else place[:2] not in pairs:
                yield f"{_describe(place)}: {'; '.join(reasons)}"

    def refuse_nothing(self) -> NoReturn:
        """Raise the error of a forecast without any step."""
        left_out = "; ".join(self.why_left_out())
        if self.recorded:
            raise ValueError(f"nothing is left to forecast at {self.target.name}: {left_out}")
        listed = ", ".join(budget.name for budget in self.budgets) or "two shares of its steps"
        raise MissingData(
            f"no step of the ladder is recorded at two budgets below {self.target.name}: {listed}"
            f"{f' ({left_out})' if left_out else ''}"
        )


def _found_at(
    at_budgets: Sequence[tuple[Budget, Group]], tasks: Sequence[str]
) -> tuple[Family, Mapping[Place, Sequence[str]]]:
    """Return the differences at each budget, and the reasons for missing ones."""
    found: dict[Place, dict[Budget, Delta]] = defaultdict(dict)
    reasons: dict[Place, list[str]] = defaultdict(list)
    for budget, group in at_budgets:
        for delta in differences_at(budget, group, tasks):
            if delta.differences:
                found[delta.place][budget] = delta
            else:
                reasons[delta.place].append(f"{delta.reason} ({budget.name})")
    return found, reasons


def _octaves_below(
    target: Budget,
    vocabulary: Vocabulary,
    budgets: Sequence[Budget],
    groups: Mapping[tuple[Scale, str], Group],
    data: str,
) -> dict[tuple[str, Budget], float]:
    octaves = {}
    for (name, variant), budget in product(ladder().items(), budgets):
        compute = budget.compute(variant, groups[budget.scale, data].vocabulary)
        octaves[name, budget] = math.log2(compute / target.compute(variant, vocabulary))
        if octaves[name, budget] >= 0:
            raise ValueError(f"{budget.name} is no smaller budget than {target.name}: name shares of its steps")
    return octaves


def _shared_tasks(at_budgets: Sequence[tuple[Budget, Group]]) -> tuple[str, ...]:
    """Return the tasks that all rows with scores have at these budgets; all eight without any."""
    rows = [group.compared_rows.get(f"{name}{budget.suffix}") for budget, group in at_budgets for name in ladder()]
    scored = [row.scored_tasks for row in rows if row is not None and row.scored_tasks]
    return tuple(task for task in TASKS if all(task in own for own in scored)) or tuple(TASKS)


def differences_at(budget: Budget, group: Group, tasks: Sequence[str]) -> Iterator[Delta]:
    """Yield the deltas of every ladder step and quantity recorded at a budget, GLUE only if a side has scores, or the
    reason why there are none."""
    rows = {name: row for name, row in group.compared_rows.items() if row.has_records}
    for variant in ladder().values():
        base = variant.parent.name if variant.parent else ""
        ours, theirs = rows.get(f"{variant.name}{budget.suffix}"), rows.get(f"{base}{budget.suffix}")
        if ours is not None and theirs is not None:
            for delta in pair_all(ours, theirs, tasks, group):
                if delta.quantity != "GLUE" or ours.scored_tasks or theirs.scored_tasks:
                    yield replace(delta, variant=variant.name, base=base)


def _describe(place: Place) -> str:
    variant, base, quantity, corpus = place
    return f"{variant} against {base} ({name_measurement(quantity, corpus)})"


def _predict(family: Family, measured: _Measured, seeds: int) -> Iterator[Predicted]:
    """Yield the predictions for the differences in one quantity (and corpus, for a loss)."""
    by_octaves = [
        {measured.octaves[variant, budget]: delta.differences for budget, delta in own.items()}
        for (variant, *_), own in family.items()
    ]
    for (place, own), outlook in zip(family.items(), extrapolate(by_octaves, seeds), strict=True):
        variant, base, quantity, corpus = place
        at = [_at_budget(budget, measured.octaves[variant, budget], delta) for budget, delta in own.items()]
        low, high = (None, None) if measured.is_of_signs else outlook.interval
        yield Predicted(
            variant=variant,
            base=base,
            quantity=quantity,
            corpus=corpus,
            budgets=tuple(sorted(at, key=lambda each: each.octaves)),
            probability_higher=outlook.probability_above_zero,
            mean=None if measured.is_of_signs else outlook.mean,
            low=low,
            high=high,
            tasks=" ".join(measured.tasks) if quantity == "GLUE" else "",
        )


def _at_budget(budget: Budget, octaves: float, delta: Delta) -> AtBudget:
    values = list(delta.differences.values())
    return AtBudget(
        budget=budget.name,
        octaves=octaves,
        seeds=len(values),
        mean=math.fsum(values) / len(values),
        deviation=statistics.stdev(values) if len(values) > 1 else None,
    )


def _ids_of_whole_runs(evidence: Evidence, groups: Sequence[tuple[Scale, str]]) -> set[str]:
    """Return the records of runs with the full steps of their scale."""
    found: set[str] = set()
    for group in groups:
        runs = select_group(evidence.runs, *group)
        own = set(runs.id[[not shares(names) for names in runs.variants]])
        trials = select_group(evidence.trials, *group)
        found |= own | set(trials.id[trials.run.isin(own)]) | set(evidence.readouts.id[evidence.readouts.run.isin(own)])
    return found
