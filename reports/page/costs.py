"""Costs of a study: tokens, operations and hours, a line per variant and a total at the end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ablations.ladders import current
from reports.curves import stages_of, stages_up_to
from reports.evidence import select_group
from reports.findings import Findings
from reports.tables import DASH, Column, Table, capitalized, make_table, number

POWERS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
EVERYTHING = "Everything, once"
NOTE = (
    "Hours by the clock times processes, from the records. A run that several variants share is in each of their lines "
    "and once in the last."
)


@dataclass(frozen=True)
class _Line:
    """A line of the table: the runs and trials behind a variant, or all of them, and the hours of the study."""

    label: str
    runs: pd.DataFrame
    trials: pd.DataFrame
    whole_hours: float

    def total(self, column: str) -> float:
        """Return the sum of a column of the runs; NaN if no run has it."""
        return float(self.runs[column].sum(min_count=1))

    @property
    def share(self) -> float:
        hours = self.runs.hours.sum() + self.trials.hours.sum()
        return hours / self.whole_hours if self.whole_hours else 0.0

    @property
    def records(self) -> dict[str, list[str]]:
        of_runs, of_trials = sorted(self.runs.id), sorted(self.trials.id)
        return dict.fromkeys(OF_RUNS, of_runs) | dict.fromkeys((capitalized(trials_name()), THEIR_HOURS), of_trials)


OF_RUNS = ("Stages", "Tokens read", "Operations", "Hours", "GPU-hours")
THEIR_HOURS = "Their hours"


def trials_name() -> str:
    """Return what the trials of the ladder in use are called: they are not of GLUE alone if it has tasks of its own."""
    return "fine-tuning trials" if current().own_tasks else "GLUE trials"


def _columns() -> Sequence[Column[_Line]]:
    return (
        Column("Variant", "", lambda line: line.label),
        Column("Stages", "", lambda line: len(line.runs), side="r"),
        Column("Tokens read", "", lambda line: shorten(line.total("real_tokens")), side="r"),
        Column("Operations", "", lambda line: print_powers(line.total("flops")), side="r"),
        Column("Hours", "", lambda line: print_hours(line.total("hours")), side="r"),
        Column("GPU-hours", "", lambda line: print_hours(line.total("gpu_hours")), side="r"),
        Column(capitalized(trials_name()), "", lambda line: len(line.trials) or None, side="r"),
        Column(THEIR_HOURS, "", lambda line: print_hours(line.trials.hours.sum(min_count=1)), side="r"),
        Column("Share of all hours", "", lambda line: f"{number(100 * line.share, 0)} %", side="r"),
    )


def costs_table(findings: Findings) -> Table:
    """Return the costs from the records. A run shared by several variants is in each of their lines, and once in the
    last line; hours are wall-clock hours times processes."""
    group, evidence = findings.group, findings.evidence
    trials = select_group(evidence.trials, group.scale, group.data)
    runs = evidence.runs_of(group.scale, group.data)
    whole, stages = runs.hours.sum() + trials.hours.sum(), stages_of(evidence.runs)
    lines = []
    for row in group.compared_rows.values():
        if row.has_records:
            used = {stage.id for run in row.runs.id for stage in stages_up_to(run, stages)}
            own = evidence.runs[evidence.runs.id.isin(used)]
            cells = (*row.cells.values(), *row.own_cells.values())
            lines.append(_Line(row.label, own, pd.concat([cell.recorded for cell in cells]), whole))
    unknown = int(runs.seconds.isna().sum() + trials.seconds.isna().sum())
    notes = [NOTE, *([f"{unknown} record(s) do not say what they cost."] if unknown else [])]
    lines.append(_Line(EVERYTHING, runs, trials, whole))
    return make_table(
        "Costs: sums over the records",
        _columns(),
        lines,
        notes,
        records=lambda line: line.records,
        rule_key=lambda line: line.label == EVERYTHING,
    )


def shorten(value: float) -> str:
    """Format a count, such as 2.6 M; a dash for NaN."""
    if math.isnan(value):
        return DASH
    factor, letter = next(((power, letter) for power, letter in POWERS if value >= power), (1.0, ""))
    return f"{value / factor:.3g} {letter}" if letter else f"{value:.0f}"


def print_powers(value: float) -> str:
    """Format a large count, such as 6.0 × 10¹²; a dash for NaN."""
    if math.isnan(value):
        return DASH
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}" if value else "0"


def print_hours(value: float) -> str:
    """Format hours; a dash for NaN."""
    return number(value, 2 if value < 10 else 0)
