"""Experiment logs as runs: which column is the metric, which direction is better, what was kept, what was repeated."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from neobert.errors import MissingData, did_you_mean
from reports.logs.tables import Cells, has_decimal_comma, number_of, read_cells, status_of

LOWER = re.compile(
    "bpb|bpc|loss|nll|ppl|perplexity|rmse|mse|mae|wer|cer|fid|err|error|errors|latency|ms|ns|regret|kl", re.IGNORECASE
)
HIGHER = re.compile(
    "acc|accuracy|f1|auc|auroc|map|bleu|rouge|score|reward|return|profit|sharpe|tok|tokens|tps|throughput|psnr|ssim|"
    "war|r2|precision|recall|mcc|ndcg|speedup",
    re.IGNORECASE,
)
HELD_OUT = re.compile("val|valid|validation|eval|heldout|test|dev", re.IGNORECASE)
NO_METRIC = re.compile(
    "train|delta|improvement|best|prev|previous|memory|vram|params|num|total|m|expected|idx|index|id", re.IGNORECASE
)
NO_VALUE = ("n/a", "na", "nan", "none", "null", "-", "inf")
STATUS = ("status", "decision", "outcome", "verdict", "result")
DESCRIPTION = ("description", "desc", "hypothesis", "change", "idea", "label", "summary", "message", "notes", "name")
COMMIT = ("commit", "git_commit", "commit_hash", "git_sha", "solver_sha", "sha", "hash", "rev")
EXPERIMENT = ("exp_id", "experiment", "label", "name", "run", "run_id")
SERIES = ("agent", "task", "tier", "policy", "dataset", "benchmark", "env", "environment", "worker")
SOURCE = ("agent", "worker", "machine", "host", "hostname", "node", "gpu", "device")
WORK = ("num_steps", "steps", "train_steps", "optimizer_steps")
SECONDS = ("total_seconds", "wall_seconds", "seconds", "time_s", "duration_s", "train_seconds")
TIMES = ("timestamp", "time", "date", "started_at", "finished_at")
MOST_SERIES = 12
FEWEST_KEEPS_FOR_A_DIRECTION, SHARE_FOR_A_DIRECTION = 3, 0.8
REAL_COMMIT = re.compile(r"^[0-9a-f]{6,40}$")
SOURCE_PREFIX = re.compile(r"^\s*((?:agent|gpu|worker|node|machine|host)[ _-]?\w*)\s*:", re.IGNORECASE)
STEPS = re.compile(r"\b(\d+) steps\b", re.IGNORECASE)
REPETITION = re.compile(r"[_-](?:r|rep|run|try)\d+$")
"""The end of a name of an experiment that numbers its repetitions."""


@dataclass(frozen=True)
class Run:
    """One row of a log. `value` is the metric as recorded, None if the run crashed or measured nothing. `status` is one
    of those that `status_of` returns."""

    line: int
    value: float | None
    status: str
    description: str = ""
    commit: str = ""
    series: str = ""
    source: str = ""
    steps: float | None = None
    configuration: tuple[str, ...] = ()

    @property
    def has_commit(self) -> bool:
        return bool(REAL_COMMIT.match(self.commit))


@dataclass(frozen=True)
class Log:
    """The runs of a log in their order, and how it was read."""

    name: str
    metric: str
    lower_is_better: bool
    reason: str
    runs: tuple[Run, ...]
    has_marks: bool
    minutes_per_run: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> list[Run]:
        return [run for run in self.runs if run.value is not None]

    @property
    def sign(self) -> float:
        """The factor on values that makes lower better."""
        return 1.0 if self.lower_is_better else -1.0


@dataclass(frozen=True)
class Columns:
    """What the user says about a log; None is found by name and content."""

    metric: str | None = None
    status: str | None = None
    description: str | None = None
    commit: str | None = None
    lower_is_better: bool | None = None
    names: tuple[str, ...] | None = None
    by: tuple[str, ...] = ()


@dataclass
class _Reader:
    path: Path
    cells: Cells
    wanted: Columns
    notes: list[str] = field(default_factory=list)

    def named(self, flag: str, given: str | None, known: Sequence[str]) -> str | None:
        """Return the column that a flag names, else the first one with a known name."""
        if given is not None:
            if given not in self.cells.columns:
                hint = did_you_mean(given, self.cells.columns)
                raise ValueError(f"--{flag} {given}: {self.path} has no such column; {hint}")
            return given
        by_name = {column.lower(): column for column in reversed(self.cells.columns)}
        return next((by_name[name] for name in known if name in by_name), None)

    def column(self, name: str | None) -> list[str]:
        return [row.get(name, "").strip() if name else "" for _, row in self.cells.rows]


def read_log(path: Path, wanted: Columns | None = None) -> Log:
    """Read a log of experiments.

    Raises:
        MissingData: the file cannot be read as one; the sentence names the line.
        ValueError: a flag names a column that is not there, or the file leaves open what only a flag can tell.
    """
    wanted = wanted or Columns()
    cells = read_cells(path, wanted.names)
    reader = _Reader(path, cells, wanted, list(cells.notes))
    status = reader.named("status", wanted.status, STATUS)
    words = reader.column(status)
    statuses = [status_of(word) for word in words]
    has_marks = "keep" in statuses
    metric = _metric(reader, status, has_marks)
    for (line, _), cell in zip(cells.rows, reader.column(metric), strict=True):
        if has_decimal_comma(cell):
            raise MissingData(f"{path}, line {line}: {cell} in column {metric} has a decimal comma: write points")
    values = [number_of(cell) for cell in reader.column(metric)]
    values = [None if status == "crash" else value for value, status in zip(values, statuses, strict=True)]
    lower, reason = _direction(reader, metric, values, statuses)
    values = _without_zeros(reader, values, statuses, lower)
    if not any(value is not None for value in values):
        raise MissingData(f"{path}: no line has a number in column {metric}")
    runs = _runs(reader, values, statuses, metric)
    reader.notes += _note_on_statuses(words, statuses, has_column=status is not None)
    runs = _without_double_entries(reader, runs)
    return Log(path.name, metric, lower, reason, tuple(runs), has_marks, _minutes(reader), tuple(reader.notes))


def _note_on_statuses(words: Sequence[str], statuses: Sequence[str], *, has_column: bool) -> list[str]:
    if "keep" not in statuses:
        said = f"the statuses are {', '.join(sorted(set(words)))}" if has_column else "there is no status column"
        return [f"no run is marked as kept ({said}): each new best counts as kept"]
    others = dict.fromkeys(word for word, meant in zip(words, statuses, strict=True) if meant == "other" and word)
    return [f"statuses neither kept nor crashed: {', '.join(others)}; counted as tried"] if others else []


def _has(name: str, words: re.Pattern[str]) -> bool:
    """Return whether a part of a column's name is one of the words."""
    return any(words.fullmatch(part) for part in re.split(r"[^A-Za-z0-9]+", name))


def _metric(reader: _Reader, status: str | None, has_marks: bool) -> str:
    """Return the column of the metric: the one named by --metric, a held-out quantity, or another quality by name."""
    if reader.wanted.metric is not None or "metric" in reader.cells.columns:
        return str(reader.named("metric", reader.wanted.metric, ("metric",)))
    qualities = [
        name for name in reader.cells.columns if (_has(name, LOWER) or _has(name, HIGHER)) and not _has(name, NO_METRIC)
    ]
    named = [name for name in qualities if name != status and _has_numbers(reader, name)]
    found = [name for name in named if _has(name, HELD_OUT)] or named
    if not found:
        names = ", ".join(reader.cells.columns)
        raise ValueError(f"{reader.path}: no column is named like a metric ({names}): name it with --metric")
    if len(found) > 1 and not has_marks:
        raise ValueError(
            f"{reader.path}: {', '.join(found)} may each be the metric, and no line is marked as kept to tell which: "
            "name one with --metric"
        )
    if len(found) > 1:
        reader.notes.append(f"{found[0]} is taken as the metric, not {', '.join(found[1:])}: --metric names another")
    return found[0]


def _has_numbers(reader: _Reader, name: str) -> bool:
    cells = [cell for cell in reader.column(name) if cell]
    numeric = sum(number_of(cell) is not None or has_decimal_comma(cell) or cell.lower() in NO_VALUE for cell in cells)
    return bool(cells) and numeric >= len(cells) / 2


def _direction(
    reader: _Reader, metric: str, values: Sequence[float | None], statuses: Sequence[str]
) -> tuple[bool, str]:
    """Return whether lower is better, and why: a flag, what the kept runs did to the metric, or its name."""
    if reader.wanted.lower_is_better is not None:
        return reader.wanted.lower_is_better, "as given"
    by_name = True if _has(metric, LOWER) else False if _has(metric, HIGHER) else None
    kept = [v for v, status in zip(values, statuses, strict=True) if status in ("keep", "baseline") and v]
    lower, higher = _improvements(kept, lambda a, b: a < b), _improvements(kept, lambda a, b: a > b)
    most, all_moves = max(lower, higher), lower + higher
    clear = all_moves >= FEWEST_KEEPS_FOR_A_DIRECTION and most >= SHARE_FOR_A_DIRECTION * all_moves
    if by_name is not None and (not clear or (lower > higher) == by_name):
        return by_name, f"by the name {metric}"
    if clear:
        return (
            lower > higher,
            f"{most} of {len(kept) - 1} kept runs after the first {'lower' if lower > higher else 'raise'} it",
        )
    raise ValueError(f"{reader.path}: whether a lower {metric} is better is not clear: give --lower or --higher")


def _improvements(kept: Sequence[float], better: Callable[[float, float], bool]) -> int:
    """Return how many kept values beat all kept ones before."""
    best, found = kept[0] if kept else 0.0, 0
    for value in kept[1:]:
        if better(value, best):
            best, found = value, found + 1
    return found


def _without_zeros(
    reader: _Reader, values: Sequence[float | None], statuses: Sequence[str], lower: bool
) -> list[float | None]:
    """Return values without the zeros of runs that were not kept, where 0 would be a perfect value."""
    zeros = [
        line
        for (line, _), value, status in zip(reader.cells.rows, values, statuses, strict=True)
        if lower and value == 0 and status not in ("keep", "baseline")
    ]
    if zeros:
        reader.notes.append(f"0 in {len(zeros)} lines that were not kept (line {zeros[0]} first) is no measurement")
    return [None if line in zeros else value for (line, _), value in zip(reader.cells.rows, values, strict=True)]


def _runs(reader: _Reader, values: Sequence[float | None], statuses: Sequence[str], metric: str) -> list[Run]:
    wanted = reader.wanted
    texts = [name for name in EXPERIMENT if any(number_of(cell) is None for cell in filter(None, reader.column(name)))]
    experiment = reader.named("", None, texts)
    described = reader.named("description", wanted.description, DESCRIPTION) or experiment
    commit = reader.named("commit", wanted.commit, COMMIT)
    series, source = _series(reader), reader.named("", None, SOURCE)
    steps = reader.named("", None, WORK)
    configured = _configuration_columns(reader, metric) if experiment else []
    runs = []
    for (line, row), value, status in zip(reader.cells.rows, values, statuses, strict=True):
        cell = {name: text.strip() for name, text in row.items()}
        text = cell[described] if described else ""
        configuration = tuple(cell[name] for name in configured)
        if experiment and configuration:
            configuration += (REPETITION.sub("", cell[experiment]),)
        runs.append(
            Run(
                line=line,
                value=value,
                status=status,
                description=text,
                commit=cell[commit] if commit else "",
                series=" ".join(cell[name] for name in series),
                source=cell[source] if source else _named_source(text),
                steps=number_of(cell[steps]) if steps else _named_steps(text),
                configuration=configuration,
            )
        )
    return runs


def _named_source(text: str) -> str:
    prefix = SOURCE_PREFIX.match(text)
    return prefix[1].lower() if prefix else ""


def _named_steps(text: str) -> float | None:
    numbers = STEPS.findall(text)
    return float(numbers[0]) if len(numbers) == 1 else None


def _series(reader: _Reader) -> list[str]:
    """Return the columns by which runs are judged separately: several agents, tasks or tiers in one file."""
    if reader.wanted.by:
        return [str(reader.named("by", name, ())) for name in reader.wanted.by]
    found = []
    for name in reader.cells.columns:
        kinds = Counter(cell for cell in reader.column(name) if cell)
        if name.lower() in SERIES and 2 <= len(kinds) <= MOST_SERIES and len(reader.cells.rows) >= 3 * len(kinds):
            found.append(name)
    if found:
        reader.notes.append(f"judged separately by {' and '.join(found)}: --by names other columns")
    return found


NO_CONFIGURATION = re.compile(
    r"loss|error|acc|score|metric|mem|vram|second|time|date|tok|mfu|step_ms|status|note|desc|commit|result|gc|final|"
    r"train_|^exp_?id$|_exp$|label|peak|wall|latency|cost|flops|decision|hypothesis|interpretation|threshold",
    re.IGNORECASE,
)
FEWEST_CONFIGURATION_COLUMNS = 4


def _configuration_columns(reader: _Reader, metric: str) -> list[str]:
    """Return the columns that configure a run, where a log has many; outcomes and labels are told by name."""
    found = [name for name in reader.cells.columns if name != metric and not NO_CONFIGURATION.search(name)]
    found = [name for name in found if not (_has(name, LOWER) or _has(name, HIGHER) or _has(name, NO_METRIC))]
    return found if len(found) >= FEWEST_CONFIGURATION_COLUMNS else []


def _without_double_entries(reader: _Reader, runs: Sequence[Run]) -> list[Run]:
    """Return runs without those entered again with the same description, commit and value."""
    seen: dict[tuple[str, str, float, str], int] = {}
    kept: list[Run] = []
    for run in runs:
        key = (run.commit, run.description, run.value or 0.0, run.series)
        is_told = run.value is not None and (run.has_commit or len(run.description) >= 10) and not run.configuration
        if not is_told or key not in seen:
            seen.setdefault(key, len(kept))
            kept.append(run)
            continue
        first = kept[seen[key]]
        reader.notes.append(f"line {run.line} enters the run of line {first.line} again and is left out")
        if run.status == "keep" != first.status:
            kept[seen[key]] = replace(first, status="keep")
            reader.notes.append(f"of its two statuses, {first.status} and keep, the latter counts")
    return kept


def _minutes(reader: _Reader) -> float | None:
    """Return the median duration of a run in minutes, from a column of seconds or the times of lines."""
    seconds = reader.named("", None, SECONDS)
    found = [value for cell in reader.column(seconds) if (value := number_of(cell)) and value > 0]
    if found:
        return median(found) / 60
    times = []
    for cell in reader.column(reader.named("", None, TIMES)):
        try:
            times.append(datetime.fromisoformat(cell).timestamp())
        except ValueError:
            continue
    between = [b - a for a, b in pairwise(times) if b > a]
    return median(between) / 60 if len(between) >= 3 else None
