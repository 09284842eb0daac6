"""Make forecasts for a larger budget from the records of smaller ones.

A budget is a scale with a share of its steps, in separate runs. Checkpoints of a longer run cannot replace a shorter
run, because their learning rate has not decayed.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from ablations.budgets import MARK, TEXT, share_text, shares, shorter
from ablations.ladders import current, ladder
from ablations.scales import Scale, Vocabulary, known_scales, scaled
from ablations.variant import Variant
from neobert.errors import MissingData, did_you_mean
from neobert.glue.tasks import TASKS
from neobert.model.size import training_flops_per_token
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
        """Name as used by commands, such as laptop@steps0.25."""
        return f"{self.scale}{self.suffix}"

    def compute(self, variant: Variant, vocabulary: Vocabulary) -> float:
        """Return the floating-point operations of a variant's run, if all slots were tokens."""
        own = variant if self.share == 1 else shorter(variant, self.share)
        recipe = scaled(own.recipe, self.scale, vocabulary).pretraining
        return sum(
            training_flops_per_token(recipe.model, stage.context, recipe.masking.mean_rate(number)) * stage.tokens
            for number, stage in enumerate(recipe.stages)
        )


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
    target = Budget(scale)
    group_at = cache(partial(group_of, evidence))
    groups = {each: group_at(each, data) for each in sorted({budget.scale for budget in budgets})}
    octaves = _octaves_below(target, evidence.vocabulary(scale, data), budgets, groups)
    is_of_signs = any(budget.scale != scale for budget in budgets)
    there = [each for each in evidence.groups() if each[0] == scale and (is_of_signs or each[1] == data)]
    tasks = _shared_tasks(budgets, groups)
    recorded = {
        delta.place for each in there for delta in differences_at(target, group_at(*each), tasks) if delta.differences
    }
    found, reasons = _measured(budgets, groups, tasks)
    known = {place: own for place, own in found.items() if place not in recorded and len(own) >= LEAST_BUDGETS}
    left_out = [f"{describe_place(each)} is recorded at {target.name} already" for each in found if each in recorded]
    left_out += _why_left_out(found, reasons, recorded, budgets)
    if not known:
        _refuse_nothing(target, budgets, left_out, is_recorded=bool(recorded))
    predictions, without_noise = _predict_all(known, octaves, seeds, tasks, is_of_signs=is_of_signs)
    left_out += without_noise
    if not predictions:
        raise ValueError(
            f"a forecast needs a budget with two seeds at least, which tell the noise: {'; '.join(left_out)}"
        )
    facts = {
        "scale": scale,
        "data": data,
        "budgets": tuple(budget.name for budget in budgets),
        "seeds": seeds,
        "predictions": predictions,
        "left_out": tuple(left_out),
        "records": tuple(sorted({name for own in known.values() for delta in own.values() for name in delta.ids})),
        "present": tuple(sorted(_ids_at(evidence, there, target))),
    }
    context = {"ladder": current().name, "declaration": declaration}
    return name_forecast(facts | {name: value for name, value in context.items() if value})


def _octaves_below(
    target: Budget, vocabulary: Vocabulary, budgets: Sequence[Budget], groups: Mapping[Scale, Group]
) -> dict[tuple[str, Budget], float]:
    """Return the compute of every variant at every budget, in octaves relative to the target: all are below 0."""
    octaves = {
        (name, budget): math.log2(
            budget.compute(variant, groups[budget.scale].vocabulary) / target.compute(variant, vocabulary)
        )
        for name, variant in ladder().items()
        for budget in budgets
    }
    for (_, budget), less in octaves.items():
        if less >= 0:
            raise ValueError(f"{budget.name} is no smaller budget than {target.name}: name shares of its steps")
    return octaves


def _refuse_nothing(target: Budget, budgets: Sequence[Budget], left_out: Sequence[str], *, is_recorded: bool) -> None:
    """Raise the error of a forecast without any step."""
    if is_recorded:
        raise ValueError(f"nothing is left to forecast at {target.name}: {'; '.join(left_out)}")
    listed = ", ".join(budget.name for budget in budgets) or "two shares of its steps"
    more = f" ({'; '.join(left_out)})" if left_out else ""
    raise MissingData(f"no step of the ladder is recorded at two budgets below {target.name}: {listed}{more}")


def _predict_all(
    known: "Known",
    octaves: Mapping[tuple[str, Budget], float],
    seeds: int,
    tasks: Sequence[str],
    *,
    is_of_signs: bool,
) -> tuple[tuple[Predicted, ...], list[str]]:
    """Return the predictions of every family (quantity and corpus), and a sentence for each place whose noise is
    unknown."""
    families: dict[tuple[str, str], dict[Place, Mapping[Budget, Delta]]] = defaultdict(dict)
    for place, own in known.items():
        families[place[2:]][place] = own
    predictions: list[Predicted] = []
    without_noise: list[str] = []
    for (quantity, _), family in families.items():
        if any(len(delta.differences) >= LEAST_SEEDS for own in family.values() for delta in own.values()):
            own_tasks = tasks if quantity == "GLUE" else ()
            predictions += _predict(family, octaves, seeds, own_tasks, is_of_signs=is_of_signs)
        else:
            without_noise += [
                f"{describe_place(place)} has one seed at every budget, so its noise is unknown" for place in family
            ]
    return tuple(predictions), without_noise


def _shared_tasks(budgets: Sequence[Budget], groups: Mapping[Scale, Group]) -> tuple[str, ...]:
    """Return the tasks that all rows with scores have at these budgets; all eight without any."""
    rows = [groups[budget.scale].compared_rows.get(f"{name}{budget.suffix}") for budget in budgets for name in ladder()]
    scored = [row.scored_tasks for row in rows if row is not None and row.scored_tasks]
    return tuple(task for task in TASKS if all(task in own for own in scored)) or tuple(TASKS)


def differences_at(budget: Budget, group: Group, tasks: Sequence[str]) -> Iterator[Delta]:
    """Yield the deltas of every ladder step and quantity recorded at a budget, GLUE only if a side has scores, or the
    reason why there are none."""
    rows = group.compared_rows
    for variant in ladder().values():
        base = variant.parent.name if variant.parent else ""
        ours, theirs = rows.get(f"{variant.name}{budget.suffix}"), rows.get(f"{base}{budget.suffix}")
        if ours is None or theirs is None or not (ours.has_records and theirs.has_records):
            continue
        for delta in pair_all(ours, theirs, tasks, group):
            if delta.quantity != "GLUE" or ours.scored_tasks or theirs.scored_tasks:
                yield replace(delta, variant=variant.name, base=base)


Known = Mapping[Place, Mapping[Budget, Delta]]


def _measured(
    budgets: Sequence[Budget], groups: Mapping[Scale, Group], tasks: Sequence[str]
) -> tuple[dict[Place, dict[Budget, Delta]], dict[Place, list[str]]]:
    """Return the differences at each budget, and the reasons for missing ones."""
    found: dict[Place, dict[Budget, Delta]] = defaultdict(dict)
    reasons: dict[Place, list[str]] = defaultdict(list)
    for budget in budgets:
        for delta in differences_at(budget, groups[budget.scale], tasks):
            if delta.differences:
                found[delta.place][budget] = delta
            else:
                reasons[delta.place].append(f"{delta.reason} ({budget.name})")
    return found, reasons


def _why_left_out(
    found: Known, reasons: Mapping[Place, Sequence[str]], recorded: set[Place], budgets: Sequence[Budget]
) -> Iterator[str]:
    """Yield a sentence for each step that has records at some budget but no forecast."""
    enough = {place for place, own in found.items() if len(own) >= LEAST_BUDGETS or place in recorded}
    pairs = {place[:2] for place in enough}
    for place, own in found.items():
        if len(own) < LEAST_BUDGETS <= len(budgets) and place not in recorded:
            yield f"{describe_place(place)} is recorded at {', '.join(budget.name for budget in own)} alone"
    for place, own_reasons in reasons.items():
        if place not in enough if place[2] == "GLUE" else place[:2] not in pairs:
            yield f"{describe_place(place)}: {'; '.join(own_reasons)}"


def describe_place(place: Place) -> str:
    """Describe the subject of a forecast."""
    variant, base, quantity, corpus = place
    return f"{variant} against {base} ({name_measurement(quantity, corpus)})"


def _predict(
    family: Known,
    octaves: Mapping[tuple[str, Budget], float],
    seeds: int,
    tasks: Sequence[str],
    *,
    is_of_signs: bool,
) -> Iterator[Predicted]:
    """Yield the predictions for the differences in one quantity (and corpus, for a loss)."""
    by_octaves = {
        place: {octaves[place[0], budget]: delta.differences for budget, delta in own.items()}
        for place, own in family.items()
    }
    outlooks = extrapolate(list(by_octaves.values()), seeds)
    for (place, own), outlook in zip(family.items(), outlooks, strict=True):
        variant, base, quantity, corpus = place
        at = [
            AtBudget(
                budget=budget.name,
                octaves=octaves[variant, budget],
                seeds=len(delta.differences),
                mean=math.fsum(delta.differences.values()) / len(delta.differences),
                deviation=statistics.stdev(delta.differences.values()) if len(delta.differences) > 1 else None,
            )
            for budget, delta in own.items()
        ]
        low, high = (None, None) if is_of_signs else outlook.interval
        yield Predicted(
            variant=variant,
            base=base,
            quantity=quantity,
            corpus=corpus,
            budgets=tuple(sorted(at, key=lambda each: each.octaves)),
            probability_higher=outlook.probability_above_zero,
            mean=None if is_of_signs else outlook.mean,
            low=low,
            high=high,
            tasks=" ".join(tasks),
        )


def _ids_at(evidence: Evidence, groups: Sequence[tuple[Scale, str]], target: Budget) -> set[str]:
    """Return the existing records of a scale at its full steps."""
    found: set[str] = set()
    for scale, data in groups:
        runs = select_group(evidence.runs, scale, data)
        is_whole = [not shares(names) for names in runs.variants]
        trials = select_group(evidence.trials, scale, data)
        own = set(runs.id[is_whole])
        found |= own | set(trials.id[trials.run.isin(own)]) | set(evidence.readouts.id[evidence.readouts.run.isin(own)])
    return found
