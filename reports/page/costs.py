"""What the study cost: tokens, operations and hours, a line for each variant and everything once at the end."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.curves import stages_up_to
from reports.findings import Findings
from reports.formats import DASH, number
from reports.page.numbers import NO_NUMBER, Number, Register
from reports.remarks import row_label
from reports.trials import Evidence, Run, Trial

POWERS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
HOW = "sum over the records"


@dataclass(frozen=True)
class CostLine:
    """Costs of one variant, or of everything. Hours are by the clock times processes; `share` is of all hours."""

    label: str
    runs: Number
    real_tokens: Number
    flops: Number
    hours: Number
    gpu_hours: Number
    trials: Number
    trial_hours: Number
    share: float


@dataclass(frozen=True)
class Costs:
    """A line for each variant that has records; the total counts shared runs and trials once."""

    lines: tuple[CostLine, ...]
    total: CostLine
    unknown: int


def costs(findings: Findings, register: Register) -> Costs:
    """Costs as the records say them; `unknown` counts records that do not."""
    group, evidence = findings.group, findings.evidence
    known = {run.id: run for run in evidence.runs}
    rows = {row.variant.name: row for row in (*group.design_rows.values(), *group.last_rows().values())}
    everything = _of_group(findings, evidence)
    whole = _hours(everything[0]) + _hours(everything[1])
    lines = []
    for row in rows.values():
        if row.has_records:
            runs = {stage.id: stage for run in row.runs for stage in stages_up_to(run, known)}
            trials = [
                t for cell in row.cells.values() for by_point in cell.recorded.values() for t in by_point.values()
            ]
            lines.append(_line(row_label(row), list(runs.values()), trials, whole, register))
    total = _line("Everything, once", *everything, whole, register)
    unknown = sum(made.seconds is None for made in [each.made for units in everything for each in units])
    return Costs(tuple(lines), total, unknown)


def _of_group(findings: Findings, evidence: Evidence) -> tuple[list[Run], list[Trial]]:
    name = findings.group.scale, findings.group.data
    trials = [trial for trial in evidence.trials if (trial.scale, trial.data) == name]
    used = {trial.run_id for trial in trials}
    runs = [run for run in evidence.runs if (run.scale, run.data) == name or run.id in used]
    return runs, trials


def _line(label: str, runs: Sequence[Run], trials: Sequence[Trial], whole: float, register: Register) -> CostLine:
    run_ids, trial_ids = sorted(run.id for run in runs), sorted(trial.id for trial in trials)

    def of_runs(name: str, text: str) -> Number:
        return register.number(text, f"{label}: {name}", HOW, run_ids)

    def of_trials(name: str, text: str) -> Number:
        return register.number(text, f"{label}: {name}", HOW, trial_ids)

    made = [run.made for run in runs]
    return CostLine(
        label=label,
        runs=of_runs("stages of pre-training", str(len(runs))),
        real_tokens=of_runs("tokens read", short(_sum(each.real_tokens for each in made))),
        flops=of_runs("floating-point operations", powers(_sum(each.flops for each in made))),
        hours=of_runs("hours of pre-training", hours(_sum(each.hours for each in made))),
        gpu_hours=of_runs("GPU-hours", hours(_sum(each.gpu_hours for each in made))),
        trials=of_trials("GLUE trials", str(len(trials))) if trials else NO_NUMBER,
        trial_hours=of_trials("hours of GLUE", hours(_sum(each.made.hours for each in trials)))
        if trials
        else NO_NUMBER,
        share=round((_hours(runs) + _hours(trials)) / whole, 3) if whole else 0.0,
    )


def _hours(units: Sequence[Run] | Sequence[Trial]) -> float:
    return sum(unit.made.hours or 0.0 for unit in units)


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def short(value: float | None) -> str:
    """A count for people: 2.6 M."""
    if value is None:
        return DASH
    factor, letter = next(((power, letter) for power, letter in POWERS if value >= power), (1.0, ""))
    return f"{value / factor:.3g} {letter}".strip() if letter else f"{value:.0f}"


def powers(value: float | None) -> str:
    """A large count for people: 6.0 × 10¹²."""
    if not value:
        return DASH if value is None else "0"
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def hours(value: float | None) -> str:
    """Hours for people."""
    return number(value, 2 if value is not None and value < 10 else 0)


def counted(count: int, name: str) -> str:
    """A count with its noun."""
    plural = "es" if name.endswith("s") else "s"
    return f"{count:,} {name}" + ("" if count == 1 else plural)
