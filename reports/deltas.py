"""Every delta of a study with its statistics: the ladder's, and those of leave-one-out and add-one designs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ablations.designs import FACTORS
from ablations.ladder import M0, M9
from neobert.errors import MissingData
from reports.cells import POINTS_OF_SCORE, Seeds
from reports.inference import Comparison, adjusted, compared, verdict
from reports.pairs import MARGINS, Pair, glue_pair, loss_pairs
from reports.predictions import StoredPredictions
from reports.scores import Group, Row

Array = np.ndarray[Any, np.dtype[Any]]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Delta:
    """A variant less its base in one quantity. `comparison` is None where `pair.reason` says why there is none.

    `p_holm` and `p_equivalence_holm` are corrected over all deltas of the same design and quantity, a loss on
    each corpus by itself. `examples` is the
    95 % interval over development examples at these seeds; None where `no_examples` says why.
    """

    design: str
    variant: str
    base: str
    pair: Pair
    comparison: Comparison | None
    p_holm: float | None
    p_equivalence_holm: float | None
    examples: Interval | None
    no_examples: str

    @property
    def verdict(self) -> str:
        """What may be claimed; empty where nothing is compared."""
        return "" if self.comparison is None else verdict(self.comparison, self.p_holm, self.p_equivalence_holm)


def deltas_of(group: Group, tasks: Sequence[str], stored: StoredPredictions) -> tuple[Delta, ...]:
    """All deltas in the order of the ladder: GLUE means over `tasks`, then held-out losses, then the designs."""
    found = []
    for design, variant, base in _compared_rows(group):
        for pair in (glue_pair(variant, base, tasks, group), *loss_pairs(variant, base, group)):
            found.append(_delta(design, variant, base, pair, tasks, stored))
    families: dict[tuple[str, str], list[Delta]] = defaultdict(list)
    for delta in found:
        families[delta.design, delta.pair.measured].append(delta)
    return tuple(delta for family in families.values() for delta in _corrected(family))


def _compared_rows(group: Group) -> Iterator[tuple[str, Row, Row]]:
    """(design, variant, base) of everything that designs compare."""
    rows: Mapping[str, Row] = {**group.design_rows, **group.last_rows()}
    for row in group.last_rows().values():
        parent = row.variant.parent
        if parent is not None:
            yield "alternatives" if "@" in row.variant.name else "ladder", row, rows[parent.name]
    for name in FACTORS:
        less, more = rows.get(f"{M9.name}-{name}"), rows.get(f"{M0.name}+{name}")
        if less is not None:
            yield "leave-one-out", rows[M9.name], less
        if more is not None:
            yield "add-one", more, rows[M0.name]


def _delta(design: str, variant: Row, base: Row, pair: Pair, tasks: Sequence[str], stored: StoredPredictions) -> Delta:
    names = design, variant.variant.name, base.variant.name
    if not pair.differences:
        return Delta(*names, pair, None, None, None, None, "")
    comparison = compared(list(pair.differences.values()), MARGINS[pair.quantity][0])
    examples, reason = None, ""
    if pair.quantity == "GLUE":
        try:
            examples = bootstrap_interval(variant, base, tasks, stored, pair)
        except MissingData as error:
            reason = str(error)
    return Delta(*names, pair, comparison, None, None, examples, reason)


def _corrected(family: Sequence[Delta]) -> list[Delta]:
    comparisons = [delta.comparison for delta in family]
    of_difference = adjusted([each.p_t if each else None for each in comparisons])
    of_equivalence = adjusted([each.p_equivalence if each else None for each in comparisons])
    return [
        replace(delta, p_holm=difference, p_equivalence_holm=equivalence)
        for delta, difference, equivalence in zip(family, of_difference, of_equivalence, strict=True)
    ]


def bootstrap_interval(
    variant: Row, base: Row, tasks: Sequence[str], stored: StoredPredictions, pair: Pair
) -> Interval:
    """The 95 % percentile interval of a GLUE delta over development examples, in points: the seeds stay as they are.

    The same examples are drawn for both sides and all seeds.

    Raises:
        MissingData: predictions or labels of some trial are not there.
    """
    seeds = pair.seeds
    differences = [resampled(variant, task, stored, seeds) - resampled(base, task, stored, seeds) for task in tasks]
    low, high = np.nanpercentile(POINTS_OF_SCORE * np.mean(differences, axis=0), (2.5, 97.5))
    return float(low), float(high)


def resampled(row: Row, task: str, stored: StoredPredictions, seeds: Sequence[Seeds]) -> Array:
    """A row's score on each resample of the development examples, 0..1, the mean over some seeds: (DRAWS).

    Raises:
        MissingData: predictions or labels of some trial are not there.
    """
    ids, weights = row.cells[task].ids, row.runs[0].id
    scores = np.stack([stored.resampled(task, ids[each], weights) for each in seeds], axis=1)
    return np.asarray(scores @ _weights_of(seeds))


def _weights_of(seeds: Sequence[Seeds]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The mean over pre-training seeds of the means over their fine-tuning seeds."""
    counts = {each.pretraining: sum(other.pretraining == each.pretraining for other in seeds) for each in seeds}
    return np.array([1 / (len(counts) * counts[each.pretraining]) for each in seeds])
