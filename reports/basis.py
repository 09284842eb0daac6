"""Basis of records: records of different data or numerics are never averaged or paired; different code is reported.

A record's `basis` (`reports.evidence`) has the origins of its data and the numerics versions of its mechanisms.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from neobert.errors import name_first
from neobert.glue.tasks import task_title
from neobert.identity import canonical
from reports.scores import Group, Row

MOST_NAMED = 8
SHORTENED = r"\1"
FULL_COMMIT = re.compile(r"^(\S{7})\S{33}(?!\S)")


def describe_difference(first: str, second: str) -> str:
    """Describe the difference of two bases; empty if they are equal."""
    ours, theirs = json.loads(first), json.loads(second)
    return _difference(ours, theirs, sorted({*ours, *theirs}))


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], names: Sequence[str]) -> str:
    values = [(name, ours.get(name), theirs.get(name)) for name in names]
    return ", ".join(f"{name} {own} and {other}" for name, own, other in values if own != other)


def split_by_basis(records: pd.DataFrame, keys: Sequence[str], weights: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return which records have the most common basis among those with the same `keys` (by sum of weights, then by
    number), and this basis for each record."""
    sizes = records.assign(weight=weights, size=1).groupby([*keys, "basis"], as_index=False)[["weight", "size"]].sum()
    order = sizes.sort_values(["weight", "size", "basis"], ascending=[False, False, True])
    most_common = order.drop_duplicates(list(keys))[[*keys, "basis"]]
    basis = records[list(keys)].merge(most_common, how="left", on=list(keys)).basis.set_axis(records.index)
    return records.basis == basis, basis


def why_not_paired(first: Row, second: Row) -> str:
    """Return why two variants cannot be compared: corpora, tokenizers or mechanisms with the same name differ. Empty if
    they can; a different corpus or tokenizer in the recipe is an effect, not a reason."""
    if first.runs.empty or second.runs.empty:
        return ""
    ours, theirs = (json.loads(row.runs.basis.iloc[0]) for row in (first, second))
    if first.recipe.pretraining.data.corpus != second.recipe.pretraining.data.corpus:
        ours.pop("corpus", None)
    if first.tokens != second.tokens:
        ours.pop("tokenizer", None)
    difference = _difference(ours, theirs, sorted(ours.keys() & theirs.keys()))
    return f"{first.name} and {second.name} rest on other data or numerics: {difference}" if difference else ""


def why_scores_not_paired(first: Row, second: Row, tasks: Sequence[str]) -> str:
    """Return why two variants cannot be compared in tasks, whose data must be the same too."""
    if reason := why_not_paired(first, second):
        return reason
    for task in tasks:
        cells = [row.cells[task] if task in row.cells else row.own_cells[task] for row in (first, second)]
        searches = {canonical(cell.tried.search) if cell.tried else "" for cell in cells if cell.score}
        if len(searches) > 1:
            return f"{task_title(task)} of {first.name} and {second.name} is not of the same grid or kind of search"
        bases = sorted({own for cell in cells for own in cell.recorded.basis.dropna()})
        if len(bases) > 1:
            return (
                f"{first.name} and {second.name} rest on other data or numerics of {task_title(task)}: "
                f"{describe_difference(bases[0], bases[1])}"
            )
    return ""


def describe_code(group: Group) -> list[str]:
    """Return sentences if the group's records come from several commits, versions of torch or processors, or from
    uncommitted code."""
    lines = []
    codes, versions, processors = (dict(_rows_by(group, column)) for column in ("code", "torch", "processor"))
    if len(codes) > 1 or any(" " in code for code in codes):
        lines.append(f"Not all records are of one committed code: {_listed(codes)}.")
    if len(versions) > 1:
        lines.append(f"Records are of several versions of torch: {_listed(versions)}.")
    if len(processors) > 1:
        lines.append(f"Records are of several processors: {_listed(processors)}.")
    return lines


def _rows_by(group: Group, column: str) -> Iterator[tuple[str, list[str]]]:
    names: dict[str, list[str]] = defaultdict(list)
    for row in group.recorded_rows:
        cells = (*row.cells.values(), *row.own_cells.values())
        recorded = [row.runs, row.answers, *(cell.recorded for cell in cells)]
        found: set[Any] = set().union(*(frame[column].dropna() for frame in recorded if column in frame.columns))
        for value in sorted(found):
            if row.name not in names[value]:
                names[value].append(row.name)
    pilots: dict[str, list[str]] = defaultdict(list)
    for name, sweep in group.sweeps.items() if column == "code" else ():
        for value in sweep.codes:
            pilots[value].append(name)
    for value, own in pilots.items():
        names[value].append(f"pilots of {', '.join(own)}")
    yield from sorted(names.items())


def _listed(names: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(
        f"{FULL_COMMIT.sub(SHORTENED, value)}: {name_first(rows, MOST_NAMED)}" for value, rows in names.items()
    )
