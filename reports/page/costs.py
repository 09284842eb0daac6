"""Costs of a study: tokens, operations and hours, a line per variant and a total at the end."""

import math

import pandas as pd

from reports.curves import stages_of, stages_up_to
from reports.evidence import select_group
from reports.findings import Findings
from reports.tables import DASH, Table, frame_of, number

POWERS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
OF_RUNS = ("Stages", "Tokens read", "Operations", "Hours", "GPU-hours")
OF_TRIALS = ("GLUE trials", "Their hours")
HEADER = ("Variant", *OF_RUNS, *OF_TRIALS, "Share of all hours")


def costs_table(findings: Findings) -> Table:
    """Return the costs from the records. A run shared by several variants is in each of their lines, and once in the
    last line; hours are wall-clock hours times processes."""
    group, evidence = findings.group, findings.evidence
    all_trials = select_group(evidence.trials, group.scale, group.data)
    all_runs = evidence.runs_of(group.scale, group.data)
    whole, stages = all_runs.hours.sum() + all_trials.hours.sum(), stages_of(evidence.runs)
    rows, records = [], []
    for row in group.compared_rows.values():
        if row.has_records:
            used = {stage.id for run in row.runs.id for stage in stages_up_to(run, stages)}
            runs = evidence.runs[evidence.runs.id.isin(used)]
            trials = pd.concat([cell.recorded for cell in row.cells.values()])
            rows.append((row.label, *_sums(runs, trials, whole)))
            records.append(_ids(runs, trials))
    rows.append(("Everything, once", *_sums(all_runs, all_trials, whole)))
    records.append(_ids(all_runs, all_trials))
    unknown = int(all_runs.seconds.isna().sum() + all_trials.seconds.isna().sum())
    shared = "A run that several variants share is in each of their lines and once in the last."
    notes = [f"Hours by the clock times processes, from the records. {shared}"]
    return Table(
        title="Costs: sums over the records",
        shown=frame_of(rows, HEADER),
        facts=frame_of([], ()),
        alignment="l" + "r" * (len(HEADER) - 1),
        notes=(*notes, *([f"{unknown} record(s) do not say what they cost."] if unknown else [])),
        rules=frozenset({len(rows) - 1}),
        records=tuple(records),
    )


def _sums(runs: pd.DataFrame, trials: pd.DataFrame, whole: float) -> tuple[str, ...]:
    known = runs[["real_tokens", "flops", "hours", "gpu_hours"]].sum(min_count=1)
    share = (runs.hours.sum() + trials.hours.sum()) / whole if whole else 0.0
    return (
        str(len(runs)),
        shorten(known.real_tokens),
        print_powers(known.flops),
        print_hours(known.hours),
        print_hours(known.gpu_hours),
        str(len(trials)) if len(trials) else DASH,
        print_hours(trials.hours.sum(min_count=1)),
        f"{number(100 * share, 0)} %",
    )


def _ids(runs: pd.DataFrame, trials: pd.DataFrame) -> dict[str, list[str]]:
    run_ids, trial_ids = sorted(runs.id), sorted(trials.id)
    return dict.fromkeys(OF_RUNS, run_ids) | dict.fromkeys(OF_TRIALS, trial_ids)


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
