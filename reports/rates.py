"""Sweeps over peak learning rates, from the records of pilot seeds: the curve of each variant and its best rate.

A variant's sweep takes every pilot run with the variant's recipe except for the rate, whatever its labels are, so
variants with equal weights share a sweep.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from ablations.ladders import Ladder
from ablations.names import at_rate
from ablations.rates import Optimum, RateCurve, best_variant, shared_rate
from ablations.scales import Scale, Vocabulary
from ablations.scaling import scaled
from ablations.variant import Variant
from neobert.rates import rounded
from neobert.recipe import Pretraining
from reports.evidence import Evidence, select_group, split_repeats
from reports.facts import weights_up_to


@dataclass(frozen=True)
class Sweep:
    """The losses of a variant over peak rates on pilot seeds, at its last stage and on its own corpus.

    `shared_rate` is the rate of the ladder's comparisons, `best` the name of the variant at its best rate; empty if
    there is no optimum. `ids` are the records by rate and seed, `codes` the commits that made them, `notes` name those
    that are left out.
    """

    variant: str
    shared_rate: float
    curve: RateCurve
    optimum: Optimum | None
    best: str
    ids: Mapping[float, Mapping[int, str]]
    codes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_sweeps(evidence: Evidence, scale: Scale, data: str, vocabulary: Vocabulary) -> dict[str, Sweep]:
    """Return the sweep of every ladder variant that has one, by name."""
    ladder = evidence.ladder
    done, lost = (select_group(frame, scale, data) for frame in (evidence.pilots, evidence.failed_pilots))
    if done.empty and lost.empty:
        return {}
    own_context = evidence.heldout[evidence.heldout.context.isna() & evidence.heldout.run.isin(set(done.id))]
    measured = dict(zip(zip(own_context.run, own_context.corpus, strict=True), own_context.loss, strict=True))
    done, lost = _by_recipe(done), _by_recipe(lost)
    sweeps = {}
    for variant in ladder.steps.values():
        recipe = scaled(ladder, variant.recipe, scale, vocabulary).pretraining
        # A run that failed in an earlier stage has no later one.
        stages = [_but_for_rate(weights_up_to(recipe, stage)) for stage in range(len(recipe.stages))]
        found, failed = done[done.but_for_rate == stages[-1]], lost[lost.but_for_rate.isin(stages)]
        if found.empty and failed.empty:
            continue
        own, notes = _on_one_basis(found)
        losses: dict[float, dict[int, float]] = defaultdict(dict)
        failures: dict[float, dict[int, str]] = defaultdict(dict)
        ids: dict[float, dict[int, str]] = defaultdict(dict)
        for run, seed, rate in zip(own.id, own.seed, own.rate, strict=True):
            if (loss := measured.get((run, recipe.data.corpus))) is not None:
                losses[rate][seed] = loss
                ids[rate][seed] = run
        for seed, rate, error in zip(failed.seed, failed.rate, failed.error, strict=True):
            failures[rate][seed] = error
        if losses or failures:
            curve = RateCurve(losses, failures)
            optimum = curve.optimum()
            best = "" if optimum is None else best_variant(ladder, variant, optimum, scale).name
            shared = shared_rate(ladder, variant, scale)
            codes = tuple(sorted(own.code.dropna().unique()))
            sweeps[variant.name] = Sweep(variant.name, shared, curve, optimum, best, ids, codes, notes)
    return sweeps


def _on_one_basis(runs: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the runs on the most common data and numerics, one per rate and seed, and a sentence for each run left
    out."""
    is_common = runs.basis == (runs.basis.mode().iloc[0] if len(runs) else "")
    kept, repeats = split_repeats(runs[is_common].sort_values("id"), ["rate", "seed"])
    notes = [f"run {run} rests on other data or numerics and is left out" for run in sorted(runs.id[~is_common])]
    notes += [f"run {each.id} repeats {each.kept} and is left out" for each in repeats.itertuples()]
    return kept, tuple(notes)


def variants_at_rates(ladder: Ladder, runs: pd.DataFrame, scale: Scale, vocabulary: Vocabulary) -> dict[str, Variant]:
    """Return the ladder's variants at other rates than their own, if any of the runs have them, by name."""
    found, frame = {}, _by_recipe(runs)
    for variant in ladder.steps.values():
        recipe = scaled(ladder, variant.recipe, scale, vocabulary).pretraining
        rates = set(frame.rate[frame.but_for_rate == _but_for_rate(recipe)])
        for rate in sorted(rates - {recipe.optimization.peak_learning_rate}):
            if rate == rounded(rate):
                at = at_rate(variant, rate)
                found[at.name] = at
    return found


def _by_recipe(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the peak `rate` of each run, and its recipe `but_for_rate`."""
    known = dict(zip(runs.recipe, runs.weights, strict=True))
    keys = {recipe: _but_for_rate(weights) for recipe, weights in known.items()}
    rates = {recipe: weights.optimization.peak_learning_rate for recipe, weights in known.items()}
    return runs.assign(but_for_rate=runs.recipe.map(keys), rate=runs.recipe.map(rates))


def _but_for_rate(recipe: Pretraining) -> str:
    """Return, as JSON, all that determines a run's weights except seed and peak rate."""
    optimization = recipe.optimization.model_copy(update={"peak_learning_rate": 1.0})
    return recipe.model_copy(update={"seed": 0, "optimization": optimization}).model_dump_json()
