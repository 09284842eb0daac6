"""Sweeps over peak learning rates, from the records of pilot seeds: the curve of each variant and its best rate.

A variant's sweep takes every pilot run with the variant's recipe except for the rate, whatever its labels are, so
variants with equal weights share a sweep.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablations.rates import Optimum, RateCurve, best_variant, shared_rate
from ablations.scales import Scale
from neobert.recipe import Pretraining
from reports.facts import weights_up_to
from reports.frames import Frames, select_group


@dataclass(frozen=True)
class PilotSweep:
    """The losses of a variant over peak rates on pilot seeds, at its last stage and on its own corpus.

    `shared_rate` is the rate of the ladder's comparisons, `best` the name of the variant at its best rate; empty if
    there is no optimum. `ids` are the records by rate and seed, `notes` name those that are left out.
    """

    variant: str
    shared_rate: float
    curve: RateCurve
    optimum: Optimum | None
    best: str
    ids: Mapping[float, Mapping[int, str]]
    notes: tuple[str, ...]


def find_sweeps(frames: Frames, recipes: Mapping[str, Pretraining], scale: Scale, data: str) -> dict[str, PilotSweep]:
    """Return the sweep of every ladder variant that has one, by name."""
    pilots, lost = (_by_rate(select_group(frame, scale, data)) for frame in (frames.pilots, frames.failed_pilots))
    of_pilots = frames.heldout[frames.heldout.context.isna() & frames.heldout.run.isin(set(pilots.id))]
    losses = of_pilots.set_index(["run", "corpus"]).loss.to_dict()
    sweeps = {}
    for name, recipe in recipes.items():
        # A run that failed in an earlier stage has no later one.
        stages = [_but_for_rate(weights_up_to(recipe, stage)) for stage in range(len(recipe.stages))]
        found, failed = pilots[pilots.but_for_rate == stages[-1]], lost[lost.but_for_rate.isin(stages)]
        own, notes = _of_one_version(found)
        own = own.assign(loss=[losses.get((run, recipe.data.corpus)) for run in own.id])
        curve = RateCurve(_by_rate_and_seed(own, "loss"), _by_rate_and_seed(failed, "error"))
        if curve.rates:
            ladder, variant, optimum = frames.ladder, frames.ladder.variants[name], curve.optimum()
            sweeps[name] = PilotSweep(
                variant=name,
                shared_rate=shared_rate(ladder, variant, scale),
                curve=curve,
                optimum=optimum,
                best="" if optimum is None else best_variant(ladder, variant, optimum, scale).name,
                ids=_by_rate_and_seed(own[own.loss.notna()], "id"),
                notes=notes,
            )
    return sweeps


def _of_one_version(runs: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the runs on the most common data and numerics, and a sentence for each run left out."""
    is_common = runs.version == (runs.version.mode().iloc[0] if len(runs) else "")
    notes = [f"run {run} rests on other data or numerics and is left out" for run in sorted(runs.id[~is_common])]
    return runs[is_common], tuple(notes)


def _by_rate_and_seed(runs: pd.DataFrame, column: str) -> dict[float, dict[int, Any]]:
    known = runs[runs[column].notna()]
    return {rate: dict(zip(own.seed, own[column], strict=True)) for rate, own in known.groupby("rate", sort=False)}


def _by_rate(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the peak `rate` of each run, and its recipe `but_for_rate`."""
    known = dict(zip(runs.recipe, runs.weights, strict=True))
    keys = {recipe: _but_for_rate(weights) for recipe, weights in known.items()}
    rates = {recipe: weights.optimization.peak_learning_rate for recipe, weights in known.items()}
    return runs.assign(but_for_rate=runs.recipe.map(keys), rate=runs.recipe.map(rates))


def _but_for_rate(recipe: Pretraining) -> str:
    """Return, as JSON, all that determines a run's weights except seed and peak rate."""
    optimization = recipe.optimization.model_copy(update={"peak_learning_rate": 1.0})
    return recipe.model_copy(update={"seed": 0, "optimization": optimization}).model_dump_json()
