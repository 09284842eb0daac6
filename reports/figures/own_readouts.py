"""Readouts that a ladder declares: the accuracy of every arm, of all items and by group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from ablations.ladders import current
from reports.figures.glue_tables import print_estimate
from reports.notes import warnings
from reports.scores import POINTS_OF_SCORE, Estimate, Group, Row, estimate_by_seed
from reports.tables import DASH, Column, Table, make_table, number

NOTES = (
    "Share of items answered right, ×100, ± one standard deviation over seeds; a tie counts half, and chance is 50. "
    "Ties are counted in items; many tell of words that the tokenizer does not know. "
    "Minimal pairs: the acceptable sentence has the higher pseudo-log-likelihood. Cloze items and pass keys: the word "
    "is more probable than its distractor.",
)


@dataclass(frozen=True)
class _Line:
    """An arm's accuracy in a readout, of the items of a group or of all; of all also the mean number of ties."""

    readout: str
    group: str
    row: Row
    accuracy: Estimate
    ties: float | None
    ids: tuple[str, ...]


def own_readouts_table(group: Group) -> Table | None:
    """Return a table with a line for every readout and group of items of every arm; None without records. Of arms with
    records of other items than most, there is none."""
    lines = [line for readout in current().readouts for line in _lines_of(group, readout)]
    if not lines:
        return None
    columns: list[Column[_Line]] = [
        Column("Readout", "readout", lambda line: line.readout),
        Column("Items", "group", lambda line: line.group),
        Column("Arm", "variant", lambda line: line.row.label),
        Column(
            "Accuracy",
            "accuracy sd",
            lambda line: (line.accuracy.mean, line.accuracy.spread),
            lambda _, line: print_estimate(line.accuracy, 2),
            "r",
        ),
        Column("Ties", "ties", lambda line: line.ties, lambda ties, _: DASH if ties is None else number(ties, 1), "r"),
        Column("Seeds", "seeds", lambda line: len(line.ids), side="r"),
        Column("", "records", lambda line: " ".join(line.ids)),
    ]
    return make_table(
        f"Own readouts (scale {group.scale}, data {group.data})",
        columns,
        lines,
        (*warnings(group), *NOTES),
        records=lambda line: line.ids,
        rule_key=lambda line: (line.readout, line.group),
    )


def _lines_of(group: Group, readout: str) -> Iterator[_Line]:
    answers = group.answers_to(readout)
    if answers.empty:
        return
    rows = {row.name: row for row in group.last_rows.values()}
    groups = dict.fromkeys(name for answer in answers.answer for name in answer.groups if name != readout)
    for arm, own in answers.groupby("arm", sort=False):
        ties = fmean(answer.ties or 0 for answer in own.answer)
        yield _line(readout, "all", rows[str(arm)], own, [answer.value for answer in own.answer], ties)
    for part in groups:
        for arm, own in answers.groupby("arm", sort=False):
            yield _line(readout, part, rows[str(arm)], own, [answer.groups[part] for answer in own.answer], None)


def _line(
    readout: str, part: str, row: Row, answers: pd.DataFrame, values: Sequence[float], ties: float | None
) -> _Line:
    accuracy = estimate_by_seed(answers.seed, (POINTS_OF_SCORE * value for value in values))
    return _Line(readout, part, row, accuracy, ties, tuple(answers.id))
