"""Pilot runs: the spread of an arm's held-out losses over pilot seeds, which is known before a study's seeds are.

Joint sign flips divide each difference by it (`reports.analysis.verdicts`). An arm whose pilot seeds spread otherwise
than its other seeds may have seeds of two kinds, and gets no verdict.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ablations.arm_seeds import MOST_DEVIATIONS
from reports.analysis.inference import SEEDS_FOR_A_CLAIM, TINY, Array, shrink_variances
from reports.analysis.pairing import Delta
from reports.analysis.quantities import BITS, QUANTITIES
from reports.evidence import Evidence
from reports.facts import weights_up_to
from reports.scores import Row

LEAST_PILOTS = 4
ON_PILOTS = (BITS, "loss")
"""The quantities that are measured on pilot seeds."""
UNLIKE_LEVEL = 0.001
"""Pilot seeds spread otherwise if one standard deviation is more than three times the other, and an F test of both
variances has a smaller p than this."""


def are_unlike(variances: Array, degrees: int, of_pilots: Array, pilot_degrees: int) -> Array:
    """Whether arms spread otherwise over pilot seeds than over their other seeds, for variances of equal shapes and
    their degrees of freedom."""
    from scipy.special import fdtrc

    more, less = np.maximum(variances, of_pilots), np.minimum(variances, of_pilots)
    ratios = more / np.maximum(less, TINY**2)
    is_wider = variances > of_pilots
    above, below = np.where(is_wider, degrees, pilot_degrees), np.where(is_wider, pilot_degrees, degrees)
    return np.asarray((ratios > MOST_DEVIATIONS**2) & (fdtrc(above, below, ratios) < UNLIKE_LEVEL))


def why_unlike_pilots(delta: Delta, rows: Mapping[str, Row], evidence: Evidence, seeds: Collection[int]) -> str:
    """Return why a step gets no verdict from some seeds, as the pilot seeds of one of its arms spread otherwise than
    these; empty if they do not, or if there are too few seeds to tell."""
    for name, arm in delta.arms.items():
        pilots = np.array(_pilot_values(rows[name], delta, evidence))
        values = np.array([arm[seed] for seed in seeds])
        if len(pilots) < LEAST_PILOTS or len(values) < SEEDS_FOR_A_CLAIM:
            continue
        if are_unlike(values.var(ddof=1), len(values) - 1, pilots.var(ddof=1), len(pilots) - 1):
            digits = QUANTITIES[delta.quantity].digits
            spreads = f"sd {pilots.std(ddof=1):.{digits}f} and {values.std(ddof=1):.{digits}f}"
            return f"not measurable: the pilot seeds of {name} spread otherwise than its other seeds ({spreads})"
    return ""


def scale_by_pilots(deltas: Sequence[Delta], rows: Mapping[str, Row], evidence: Evidence) -> list[Delta]:
    """Return the deltas of one measure with the number of pilot seeds of both arms and the standard deviation of their
    differences that follows from them; if any arm has fewer than four, no delta has a deviation.

    The variance of a difference is the sum of those of both arms, with logarithms shrunk to their mean over all arms.
    """
    arms = {
        (name, delta.measured): _pilot_values(rows[name], delta, evidence)
        for delta in deltas
        for name in (delta.variant, delta.base)
    }
    own_arms = [((each.variant, each.measured), (each.base, each.measured)) for each in deltas]
    counted = [
        replace(each, pilots={arm[0]: len(arms[arm]) for arm in own})
        for each, own in zip(deltas, own_arms, strict=True)
    ]
    if min(map(len, arms.values())) < LEAST_PILOTS:
        return counted
    degrees = np.array([len(values) - 1 for values in arms.values()])
    variances = shrink_variances(np.array([np.var(values, ddof=1) for values in arms.values()]), degrees)
    known = dict(zip(arms, variances.tolist(), strict=True))
    return [
        replace(each, scale=math.sqrt(sum(known[arm] for arm in own)))
        for each, own in zip(counted, own_arms, strict=True)
    ]


def _pilot_values(row: Row, delta: Delta, evidence: Evidence) -> list[float]:
    """Return an arm's held-out losses on its pilot seeds, in the quantity of a delta; none for other quantities."""
    if delta.quantity not in ON_PILOTS or row.stage is None:
        return []
    recipe = weights_up_to(row.recipe.pretraining, row.stage).model_dump_json()
    pilots = evidence.pilots
    runs = pilots[(pilots.recipe == recipe) & (pilots.stage == row.stage) & pilots.basis.isin(set(row.runs.basis))]
    heldout = evidence.heldout
    own = heldout[heldout.run.isin(set(runs.id)) & (heldout.corpus == delta.corpus)]
    own = own[own.context.isna() if delta.context is None else own.context == delta.context]
    column = "loss" if delta.quantity == "loss" else "bits_per_byte"
    return own.sort_values("run").groupby("seed")[column].first().tolist()
