"""Compute-equivalent gain: how much less compute a variant needs for its parent's held-out loss, from their curves.

A gain of 2 means half the compute. Losses between two measurements are interpolated over the logarithm of compute. At a
crossing before its end, a curve's learning rate has not decayed yet: a run planned to end there would need even less.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neobert.training.transitions import crossing
from reports.analysis.inference import Interval, seed_interval
from reports.analysis.pairing import shared_corpora, why_losses_differ
from reports.basis import why_not_paired
from reports.curves import Curves, Points
from reports.notes import warnings
from reports.scores import Group, Row
from reports.tables import DASH, Column, Table, make_table, number, print_by_seed

LEAST_POINTS = 2


@dataclass(frozen=True)
class Crossing:
    """Natural logarithm of the gain of one curve over another. `bound` is "least" or "most" if a curve was already past
    the other's final loss at its first measurement, so that the gain is only a bound; else empty."""

    log_gain: float
    bound: str = ""


@dataclass(frozen=True)
class ComputeGain:
    """The gain of a variant over its parent on one corpus, by seed; compute is counted in `unit`. `interval` is the
    95 % t interval of the geometric mean over seeds; None for one seed, or if some seed only gives a bound."""

    variant: str
    base: str
    corpus: str
    unit: str
    by_seed: Mapping[int, Crossing]
    ids: tuple[str, ...]

    @property
    def mean(self) -> float:
        return math.exp(sum(each.log_gain for each in self.by_seed.values()) / len(self.by_seed))

    @property
    def bound(self) -> str:
        """Bound on the mean that follows from the seeds: "least", "most", "none" if they conflict, or empty."""
        bounds = {each.bound for each in self.by_seed.values()} - {""}
        return "none" if len(bounds) > 1 else "".join(bounds)

    @property
    def interval(self) -> Interval | None:
        ends = None if self.bound else seed_interval([each.log_gain for each in self.by_seed.values()])
        return None if ends is None else (math.exp(ends[0]), math.exp(ends[1]))


def cross(ours: Points, theirs: Points) -> Crossing:
    """Return the gain of one curve over another. Curves are (compute, loss) in the order of compute, which is above 0.

    If our loss reaches their final loss, the gain is their total compute over ours at that point; otherwise it is their
    compute on reaching our final loss over our total compute. Exchanging the curves changes the sign of the logarithm.
    """
    (our_compute, our_loss), (their_compute, their_loss) = (
        ([math.log(compute) for compute, _ in points], [loss for _, loss in points]) for points in (ours, theirs)
    )
    if our_loss[-1] == their_loss[-1]:
        return Crossing(their_compute[-1] - our_compute[-1])
    if our_loss[-1] < their_loss[-1]:
        reached, is_first = _reached(our_compute, our_loss, their_loss[-1])
        return Crossing(their_compute[-1] - reached, "least" if is_first else "")
    reached, is_first = _reached(their_compute, their_loss, our_loss[-1])
    return Crossing(reached - our_compute[-1], "most" if is_first else "")


def _reached(compute: Sequence[float], loss: Sequence[float], target: float) -> tuple[float, bool]:
    """Return the log compute at which a loss that ends below a target reaches it, and whether its first measurement is
    already below."""
    found = crossing(list(zip(compute, loss, strict=True)), target)
    assert found is not None
    return found, loss[0] < target


def find_gains(group: Group, curves: Curves) -> tuple[ComputeGain, ...]:
    """Return the gains of every ladder step with comparable losses, on each corpus for which both have curves."""
    return tuple(gain for variant, base in _comparable_pairs(group) for gain in _gains(variant, base, curves))


def _comparable_pairs(group: Group) -> Iterator[tuple[Row, Row]]:
    """Yield (variant, parent) for single-stage, trained variants with comparable losses."""
    for variant in group.last_rows.values():
        base = group.last_rows.get(variant.parent)
        if base is None or variant.stage or base.stage or variant.untrained or base.untrained:
            continue
        if not (why_losses_differ(variant, base) or why_not_paired(variant, base)):
            yield variant, base


def _gains(variant: Row, base: Row, curves: Curves) -> Iterator[ComputeGain]:
    ours, theirs = (dict(zip(row.runs.seed, row.runs.id, strict=True)) for row in (variant, base))
    runs = {name: run for row in (variant, base) for name, run in row.runs.set_index("id").iterrows()}
    unit = "FLOPs" if all(run.flops > 0 for run in runs.values()) else "tokens"
    for corpus in shared_corpora([variant, base]):
        found = {}
        for seed in sorted(ours.keys() & theirs.keys()):
            pair = [_loss_over_compute(run, corpus, runs[run], unit, curves) for run in (ours[seed], theirs[seed])]
            if all(len(points) >= LEAST_POINTS for points in pair):
                found[seed] = cross(*pair)
        if found:
            ids = tuple(sorted(run for seed in found for run in (ours[seed], theirs[seed])))
            yield ComputeGain(variant.name, base.name, corpus, unit, found, ids)


def _loss_over_compute(run: str, corpus: str, facts: Any, unit: str, curves: Curves) -> Points:
    """Return held-out losses over the compute spent so far, which is proportional to steps."""
    total = facts.flops if unit == "FLOPs" else facts.real_tokens
    points = curves.heldout_by_corpus(run).get(corpus, ())
    steps = facts.weights.stages[0].steps
    return tuple((total * step / steps, loss) for step, loss in points if step > 0) if total > 0 else ()


WORDS = {"": "{}", "least": "at least {}", "most": "at most {}", "none": DASH}
COLUMNS: Sequence[Column[ComputeGain]] = (
    Column("Variant", "variant", lambda gain: gain.variant),
    Column("Against", "against", lambda gain: gain.base),
    Column("Loss on", "corpus", lambda gain: gain.corpus),
    Column("Compute in", "unit", lambda gain: gain.unit),
    Column("Seeds", "seeds", lambda gain: len(gain.by_seed), side="r"),
    Column("Gain", "gain", lambda gain: gain.mean, lambda mean, gain: WORDS[gain.bound].format(number(mean, 2)), "r"),
    Column("", "bound", lambda gain: gain.bound),
    Column("95 % over seeds", "low high", lambda gain: gain.interval, lambda ends, _: _print_ends(ends), "r"),
    Column("", "gains_by_seed", lambda gain: print_by_seed({s: math.exp(e.log_gain) for s, e in gain.by_seed.items()})),
    Column("", "bounds_by_seed", lambda gain: " ".join(f"{s}:{e.bound}" for s, e in gain.by_seed.items() if e.bound)),
    Column("", "records", lambda gain: " ".join(gain.ids)),
)
NOTES = (
    "Gain: the compute after which the variant has its parent's final held-out loss, as a factor that it needs less; "
    "below 1 it needs more. Geometric mean over paired seeds, t interval over their logarithms.",
    "Losses are interpolated between measurements over log compute. A curve that is crossed on its way has not decayed "
    "its rate: a run planned to end there would have needed still less. At least, at most: a curve was past the "
    "other's final loss when it was first measured.",
    "What is claimed is the verdict of the difference in loss, not the gain.",
)


def _print_ends(interval: Interval | None) -> str:
    return DASH if interval is None else " to ".join(number(end, 2) for end in interval)


def gains_table(gains: Sequence[ComputeGain], group: Group) -> Table:
    """Return a table with one line per ladder step and corpus."""
    return make_table(
        f"Compute-equivalent gains (scale {group.scale}, data {group.data})",
        COLUMNS,
        gains,
        (*warnings(group), *NOTES),
        records=lambda gain: gain.ids,
    )
