"""The noise of single runs: repeats of one configuration in a log, their spread, and when they are no yardstick."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pvariance

import numpy as np

from neobert.errors import MissingData, did_you_mean
from neobert.referee.evidence import Array
from reports.logs.reading import Log, Run
from reports.logs.tables import number_of, read_cells

SEED = re.compile(r"\b(?:random[ _]?)?seeds?(?![a-z])\s*[=:#]?\s*\d*(?:\s*(?:to|->|→)\s*\d+)?", re.IGNORECASE)
REPEATED = re.compile(
    r"\b(?:re-?runs?|repeat(?:ed|s)?|replicated?|reproduc\w+|variance check|noise check|"
    r"same config(?:uration)?|no changes?|unchanged)\b",
    re.IGNORECASE,
)
COMMENT = re.compile(r"\([^)]*\)|\[[^\]]*\]|\*+[^*]*\*+")
NUMBERED = re.compile(r"^\s*(?:exp|run|trial|iter|experiment)?[ _-]*#?\d+[a-z]?\s*[:.)-]\s*", re.IGNORECASE)
SOURCE = re.compile(r"^\s*(?:agent|gpu|worker|node|machine|host)[ _-]?\w*\s*:\s*", re.IGNORECASE)
JUDGEMENT = re.compile(
    r"\b(?:slightly|much|a bit|worse|better|best|same|result|concurrent|baseline|still|again|of|with|the|on|to|in)\b",
    re.IGNORECASE,
)
LOAD = re.compile(r"\b(?:contention|concurrent(?:ly)?|under load|machine load|shared gpu|throttl\w+)\b", re.IGNORECASE)
SEED_ALONE, OF_KEPT = "only the seed differs", "described as a repeat of what was kept"
LARGEST_STEP_RATIO = 1.15
"""Repeats whose numbers of steps differ by more ran under different load, as training is limited by time."""
COLLAPSED = 6.0  # robust standard deviations from the other repeats
FEWEST_FOR_A_COLLAPSE = 8
DRIFT_LEVEL = 0.05
SHUFFLES = 999
FEWEST_FOR_A_DRIFT = 4
TINY = 1e-12


@dataclass(frozen=True)
class Repeats:
    """Runs of one configuration, and what shows that they are."""

    runs: tuple[Run, ...]
    shown_by: str

    @property
    def lines(self) -> tuple[int, ...]:
        return tuple(run.line for run in self.runs)

    def with_positive_values(self) -> "Repeats":
        return replace(self, runs=tuple(run for run in self.runs if run.value is not None and run.value > 0))


@dataclass(frozen=True)
class Yardstick:
    """The standard deviation of single runs of one configuration, or the reason why it is not known.

    `spread` is in the unit of the analysis: of the metric, or of its logarithm.
    """

    spread: float | None
    degrees: int
    source: str
    refusal: str = ""
    notes: tuple[str, ...] = ()


def stem_of(description: str) -> str:
    """Return a description without comments, seed, number of the experiment and name of the agent."""
    text = COMMENT.sub(" ", SOURCE.sub("", description))
    text = SEED.sub(" ", REPEATED.sub(" ", NUMBERED.sub("", text)))
    return re.sub(r"[\s:;,.—–-]+", " ", text).strip().lower()


def find_repeats(log: Log) -> list[Repeats]:
    """Return the groups of repeated configurations that a log shows: the same commit with the same description, equal
    configuration columns and label, descriptions that differ in the seed alone, or a run that says it repeats what was
    kept last. Nothing is taken for a repeat because its value is near."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    last_kept: dict[str, Run] = {}
    for run in log.measured:
        kept = last_kept.get(run.series)
        shown = _shown_configuration(run, kept)
        if kept is not None and shown[0] == OF_KEPT and shown not in groups:
            groups[shown].append(kept)
        groups[shown].append(run)
        if run.status in ("keep", "baseline"):
            last_kept[run.series] = run
    order = sorted(groups, key=lambda shown: (shown[0] == OF_KEPT, shown[0] == SEED_ALONE))
    found = [Repeats(tuple(groups[shown]), shown[0]) for shown in order if shown[0] and len(groups[shown]) > 1]
    return sorted(_merged(found), key=lambda repeats: repeats.lines)


def _shown_configuration(run: Run, kept: Run | None) -> tuple[str, ...]:
    """Return what shows the configuration of a run after the one `kept` last, and its name; an empty text if nothing
    does."""
    stem, has_seed = stem_of(run.description), bool(SEED.search(COMMENT.sub(" ", run.description)))
    is_bare = not JUDGEMENT.sub(" ", stem).strip()
    if has_seed and not is_bare:
        return SEED_ALONE, run.series, stem
    if is_bare and kept is not None and (has_seed or _says_repeat(run, kept)):
        return OF_KEPT, str(kept.line)
    if len(run.configuration) > 1:
        return "equal configuration and label", run.series, *run.configuration
    if run.has_commit and stem:
        return "same commit and description", run.series, run.commit, stem
    return ("",)


def _says_repeat(run: Run, kept: Run) -> bool:
    """Return whether a run says it repeats the kept one, and its commit does not contradict."""
    differs = run.has_commit and kept.has_commit and run.commit != kept.commit
    return bool(REPEATED.search(run.description)) and not differs


def _merged(found: Sequence[Repeats]) -> list[Repeats]:
    """Return groups that share no run: those that do are one."""
    merged: list[Repeats] = []
    for group in found:
        shared = [other for other in merged if set(other.lines) & set(group.lines)]
        runs = {run.line: run for each in (*shared, group) for run in each.runs}
        merged = [other for other in merged if other not in shared]
        merged.append(Repeats(tuple(runs[line] for line in sorted(runs)), group.shown_by))
    return merged


def read_replicates(path: Path, metric: str) -> list[Repeats]:
    """Read repeated runs from a file: a number per line, or columns `value` (or the metric's) and, if there are several
    configurations, `group`.

    Raises:
        MissingData: the file cannot be read, or no configuration in it has two runs.
    """
    cells = read_cells(path) if not _is_bare(path) else read_cells(path, ["value"])
    column = next((name for name in ("value", metric) if name in cells.columns), None)
    if column is None:
        raise MissingData(f"{path} has no column value: {did_you_mean(metric, cells.columns)}")
    groups: dict[str, list[Run]] = defaultdict(list)
    for line, row in cells.rows:
        value = number_of(row[column])
        if value is None:
            raise MissingData(f"{path}, line {line}: {row[column]!r} is no number")
        groups[row.get("group", "")].append(Run(line, value, "other"))
    found = [Repeats(tuple(runs), f"from {path.name}") for runs in groups.values() if len(runs) > 1]
    if not found:
        raise MissingData(f"{path}: no configuration has two runs, so there is no spread")
    return found


def _is_bare(path: Path) -> bool:
    """Return whether the first line of a file is a number alone."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            return number_of(file.readline()) is not None
    except (OSError, UnicodeDecodeError):
        return False


def given_yardstick(spread: float, runs: int, unit: float = 1.0) -> Yardstick:
    """Return the yardstick of a standard deviation that the user knows from a number of runs; `unit` is the value that
    it is taken relative to, where noise is proportional to the value."""
    return Yardstick(spread / unit, runs - 1, f"given: {spread:g} from {runs} runs")


def measure_spread(groups: Sequence[Repeats], logarithms: bool) -> Yardstick:
    """Return the standard deviation of repeats, pooled within groups, or the reason why it is no yardstick."""
    usable = [group.with_positive_values() for group in groups] if logarithms else groups
    usable = [group for group in usable if len(group.runs) > 1]
    same_load = [group for group in usable if _has_same_load(group)]
    loaded = [group for group in usable if group not in same_load]
    notes = [_tell_load(loaded)] if loaded else []
    if not same_load:
        return _unknown(*notes or ["the log shows no configuration that was run twice"])
    residuals = [_residuals(group, logarithms) for group in same_load]
    if refusal := _source_refusal(same_load, residuals) or _exact_refusal(same_load, residuals):
        return _unknown(refusal, notes)
    equal = [group for group in same_load if len({run.value for run in group.runs}) == 1]
    if equal:
        notes.append(f"{_name(equal)} repeat exactly, which tells nothing of other seeds: left out of the spread")
        same_load = [group for group in same_load if group not in equal]
        residuals = [_residuals(group, logarithms) for group in same_load]
    residuals, collapsed = _without_collapsed(residuals)
    notes += collapsed
    if refusal := _drift_refusal(residuals):
        return _unknown(refusal, notes)
    return _pooled(same_load, residuals, notes)


def _pooled(groups: Sequence[Repeats], residuals: "Sequence[_Residuals]", notes: Sequence[str]) -> Yardstick:
    """Return the standard deviation of the residuals of repeats, pooled within groups."""
    degrees = sum(len(own.values) - 1 for own in residuals)
    if degrees < 1:
        return _unknown("too few repeats", notes)
    spread = math.sqrt(sum(float(own.values @ own.values) for own in residuals) / degrees)
    how = ", ".join(sorted({group.shown_by for group in groups}))
    runs = degrees + len(residuals)
    source = f"{runs} runs of {len(residuals)} repeated configurations ({_name(groups)}; {how})"
    return Yardstick(spread, degrees, source, notes=tuple(notes))


def _unknown(why: str, notes: Sequence[str] = ()) -> Yardstick:
    return Yardstick(None, 0, "none", why, tuple(notes))


def _exact_refusal(groups: Sequence[Repeats], residuals: "Sequence[_Residuals]") -> str:
    """Return why repeats that are equal tell nothing; empty if they differ."""
    if max(float(np.abs(own.values).max()) for own in residuals) >= TINY:
        return ""
    return f"{_name(groups)} repeat exactly: the metric is deterministic, and tells nothing of other seeds"


def _has_same_load(group: Repeats) -> bool:
    steps = [run.steps for run in group.runs if run.steps]
    is_told_of_some = len({bool(LOAD.search(run.description)) for run in group.runs}) > 1
    return not is_told_of_some and (len(steps) < 2 or max(steps) <= LARGEST_STEP_RATIO * min(steps))


def _tell_load(loaded: Sequence[Repeats]) -> str:
    first = loaded[0]
    low, high = (pick((run.value or 0.0, run.line) for run in first.runs) for pick in (min, max))
    steps = [f"{run.steps:,.0f}" for run in first.runs if run.steps]
    why = f"with {' and '.join(steps)} steps" if len(steps) > 1 else "under another load of the machine"
    more = f", and so do {len(loaded) - 1} more" if len(loaded) > 1 else ""
    return (
        f"lines {min(low[1], high[1])} and {max(low[1], high[1])} repeat one configuration {why}: {low[0]:.6g} and "
        f"{high[0]:.6g}{more}; load is no noise of seeds, so they are no yardstick"
    )


def _name(groups: Sequence[Repeats], most: int = 3) -> str:
    lines = [
        " and ".join(map(str, group.lines)) if len(group.lines) < 4 else f"{group.lines[0]} to {group.lines[-1]}"
        for group in groups[:most]
    ]
    return f"lines {', '.join(lines)}{f' and {len(groups) - most} more' if len(groups) > most else ''}"


@dataclass(frozen=True)
class _Residuals:
    """Deviations of repeats from their mean, and the lines where they stand."""

    values: Array
    lines: Array

    @classmethod
    def of(cls, values: Array, lines: Array) -> "_Residuals":
        return cls(values - values.mean(), lines)


def _residuals(group: Repeats, logarithms: bool) -> _Residuals:
    values = np.array([run.value for run in group.runs], float)
    return _Residuals.of(np.log(values) if logarithms else values, np.array(group.lines, float))


def _source_refusal(groups: Sequence[Repeats], residuals: Sequence[_Residuals]) -> str:
    """Return why the spread depends on the agent or machine; empty if it does not, or nothing tells."""
    mixed = [group for group in groups if len({run.source for run in group.runs}) > 1]
    if not mixed:
        return ""
    parts: dict[tuple[int, str], list[float]] = defaultdict(list)
    for number, (group, own) in enumerate(zip(groups, residuals, strict=True)):
        for run, value in zip(group.runs, own.values.tolist(), strict=True):
            parts[number, run.source].append(value)
    between = sum(len(part) * fmean(part) ** 2 for part in parts.values())
    within = sum(len(part) * pvariance(part) for part in parts.values())
    of_sources, of_rest = len(parts) - len(groups), sum(map(len, parts.values())) - len(parts)
    names = sorted({run.source for run in mixed[0].runs})
    where = f"the repeats of lines {', '.join(map(str, mixed[0].lines))} come from {' and '.join(names)}"
    if of_rest == 0:
        return f"{where}, and none from one of them twice: the spread may be that of agents or machines, not of runs"
    p = _f_tail(between / of_sources, within / of_rest, of_sources, of_rest)
    return f"{where}, which differ more than repeats of one do (p = {p:.2g})" if p < 0.01 else ""


def _f_tail(between: float, within: float, above: int, below: int) -> float:
    from scipy.special import fdtrc

    return float(fdtrc(above, below, between / within)) if within > 0 else 0.0


def _without_collapsed(residuals: Sequence[_Residuals]) -> tuple[list[_Residuals], list[str]]:
    """Leave out repeats that lie far from the others of their group: another kind of run, not the spread of one."""
    distances = [np.abs(own.values - np.median(own.values)) for own in residuals]
    told = [own for own in distances if len(own) > 2]
    if sum(map(len, distances)) < FEWEST_FOR_A_COLLAPSE or not told:
        return list(residuals), []
    most = COLLAPSED * 1.4826 * float(np.median(np.concatenate(told)))
    if most < TINY:  # most repeats are equal, as shares of few examples are: the others are no collapse
        return list(residuals), []
    stay = [(own <= most) | (len(own) < 3) for own in distances]
    pairs = list(zip(residuals, stay, strict=True))
    lines = sorted(int(line) for own, stays in pairs for line in own.lines[~stays])
    kept = [_Residuals.of(own.values[stays], own.lines[stays]) for own, stays in pairs if stays.sum() > 1]
    note = (
        f"{len(lines)} repeats lie more than {COLLAPSED:g} robust deviations from the others and are left out of the "
        f"spread: lines {', '.join(map(str, lines))}"
    )
    return kept, [note] if lines else []


def _drift_refusal(residuals: Sequence[_Residuals]) -> str:
    """Return why the noise drifts: repeats that stand near each other in the log are more alike than others.

    Values are permuted within groups. Statistics are the slope over lines and the sum of squares of successive
    differences (von Neumann 1941); the level is split between both.
    """
    if max((len(own.values) for own in residuals), default=0) < FEWEST_FOR_A_DRIFT:
        return ""
    draws = np.random.default_rng(0)
    slopes, steps = np.zeros(1 + SHUFFLES), np.zeros(1 + SHUFFLES)  # first as observed
    for own in residuals:
        values = own.values[np.argsort(own.lines)]
        drawn = np.vstack([values, draws.permuted(np.tile(values, (SHUFFLES, 1)), axis=1)])
        slopes += drawn @ (np.sort(own.lines) - own.lines.mean())
        steps += (np.diff(drawn, axis=1) ** 2).sum(axis=1)
    p_slope = float((np.abs(slopes) >= abs(slopes[0]) - TINY).mean())
    p = 2 * min(p_slope, float((steps <= steps[0] + TINY).mean()))
    if p > DRIFT_LEVEL:
        return ""
    lines = np.concatenate([own.lines for own in residuals])
    what = "rise or fall along the log" if 2 * p_slope == p else "are alike where they stand near each other"
    where = f"between lines {lines.min():.0f} and {lines.max():.0f}"
    return f"the repeats {where} {what} (p = {p:.2g}): the noise drifts"


def load_notes(log: Log) -> list[str]:
    """Return a sentence on lines that name the load of the machine."""
    lines = [run.line for run in log.runs if LOAD.search(run.description)]
    if not lines:
        return []
    shown = ", ".join(map(str, lines[:4]))
    return [f"{len(lines)} lines name load on the machine (line {shown} …): runs under load compare with none"]
