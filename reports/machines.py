"""Runs of one configuration on two machines: how much a processor moves the held-out loss, beside the seeds.

A folder of runs has one record of each id, so the other machine's records are in a folder of their own.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.evidence import Evidence
from reports.notes import warnings
from reports.scores import Group, Row
from reports.tables import Column, Table, make_table, print_by_seed, rounded, signed

UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Repeated:
    """The runs of a row that are also in the other folder: the held-out loss there minus here on the row's own corpus,
    by seed, the processors of both, and the standard deviation of the row's seeds."""

    name: str
    corpus: str
    differences: Mapping[int, float]
    here: str
    there: str
    deviation: float | None
    ids: tuple[str, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences.values())

    @property
    def size(self) -> float:
        """The mean absolute difference."""
        return statistics.fmean(map(abs, self.differences.values()))

    @property
    def ratio(self) -> float | None:
        return self.size / self.deviation if self.deviation else None


def find_repeated(group: Group, evidence: Evidence, other: Evidence) -> tuple[Repeated, ...]:
    """Return the rows with runs in both folders."""
    found = (_compare(row, evidence, other) for row in group.recorded_rows)
    return tuple(each for each in found if each is not None)


def _compare(row: Row, evidence: Evidence, other: Evidence) -> Repeated | None:
    if row.own_loss is None:
        return None
    corpus, loss = row.own_loss
    own = other.heldout[(other.heldout.corpus == corpus) & other.heldout.context.isna()]
    there = dict(zip(own.run, own.loss, strict=True))
    seeds = {seed: run for seed, run in zip(row.runs.seed, row.runs.id, strict=True) if run in there}
    here = loss.by_pretraining
    if not seeds:
        return None
    ids = tuple(sorted(seeds.values()))
    return Repeated(
        name=row.name,
        corpus=corpus,
        differences={seed: there[run] - here[seed] for seed, run in sorted(seeds.items())},
        here=_processors(evidence, ids),
        there=_processors(other, ids),
        deviation=loss.spread,
        ids=ids,
    )


def _processors(evidence: Evidence, ids: Sequence[str]) -> str:
    found = evidence.runs[evidence.runs.id.isin(ids)].processor
    return ", ".join(Counter(each or UNKNOWN for each in found))


COLUMNS: Sequence[Column[Repeated]] = (
    Column("Variant", "variant", lambda each: each.name),
    Column("Corpus", "corpus", lambda each: each.corpus),
    Column("Runs", "runs", lambda each: len(each.differences), side="r"),
    Column("Here", "processor", lambda each: each.here),
    Column("There", "other_processor", lambda each: each.there),
    Column("Mean difference", "difference", lambda each: each.mean, lambda value, _: signed(value, 4), "r"),
    Column("Mean absolute", "absolute", lambda each: each.size, rounded(4), "r"),
    Column("sd of seeds", "sd", lambda each: each.deviation, rounded(4), "r"),
    Column("Absolute over sd", "ratio", lambda each: each.ratio, rounded(2), "r"),
    Column("", "differences_by_seed", lambda each: print_by_seed(each.differences)),
    Column("", "records", lambda each: " ".join(each.ids)),
)


def machines_table(repeated: Sequence[Repeated], group: Group) -> Table:
    """Return a table with one line per arm that was repeated."""
    same = [each.name for each in repeated if each.here == each.there != UNKNOWN]
    notes = [
        "The same configuration and seed on two machines: held-out loss in nats per token, there minus here. Where the "
        "difference is not small beside the standard deviation (sd) of seeds, arms must not be trained on different "
        "machines.",
        *([f"Both records name the same processor: {', '.join(same)}."] if same else []),
    ]
    return make_table(
        f"The same runs on another machine (scale {group.scale}, data {group.data})",
        COLUMNS,
        repeated,
        (*notes, *warnings(group)),
        records=lambda each: each.ids,
    )
