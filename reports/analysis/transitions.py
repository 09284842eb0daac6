"""Waiting times: when the runs of each ladder step leave the plateau of token frequencies, and how they differ then."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ablations.arm_seeds import ArmSeeds
from neobert.kinds.pretraining import Transition
from neobert.training.transitions import MARGIN_NATS, crossing
from reports.analysis.inference import seed_interval
from reports.analysis.pairing import why_losses_differ
from reports.analysis.parts import find_parts
from reports.analysis.plateau import Regime, timing_word
from reports.basis import why_not_paired
from reports.curves import Array, Points
from reports.notes import warnings
from reports.scores import Group, Row
from reports.tables import DASH, Column, Table, make_table, print_by_seed, printed_range, signed

SHARE_SINCE = 1 / 3
"""Time since the transition at which arms are compared, as a share of the run."""


@dataclass(frozen=True)
class RunCurve:
    """One run: the step of its transition, the first measured one if it was past the plateau by then, None if it never
    left it; and its loss over steps."""

    transition: float | None
    points: Points

    def losses_at(self, steps: Array) -> Array:
        """Return the losses at steps, interpolated in the logarithm of steps; NaN outside the curve."""
        measured, losses = np.array(self.points).T
        inside = (measured[0] <= steps) & (steps <= measured[-1])
        found = np.full(steps.shape, np.nan)
        found[inside] = np.interp(np.log(steps[inside]), np.log(measured), losses)
        return found


@dataclass(frozen=True)
class Arm:
    """The runs of a row by seed. `level` is the loss at the transition."""

    name: str
    level: float
    steps: int
    runs: Mapping[int, RunCurve]
    losses: Mapping[int, float]

    @property
    def times(self) -> dict[int, float]:
        """The step of the transition of each seed that has one."""
        return {seed: run.transition for seed, run in self.runs.items() if run.transition is not None}

    @property
    def spread(self) -> tuple[float | None, float | None]:
        """Mean and standard deviation of the times."""
        times = list(self.times.values())
        return statistics.fmean(times) if times else None, statistics.stdev(times) if len(times) > 1 else None

    @property
    def described_times(self) -> str:
        """The mean time and its share of the run, and the number of seeds that never leave the plateau."""
        mean, late = self.spread[0], len(self.runs) - len(self.times)
        if mean is None:
            return "never"
        return f"{mean:,.0f} ({mean / self.steps:.0%})" + (f", {late} never" if late else "")

    @property
    def seeds(self) -> ArmSeeds:
        """Final losses, and transitions as shares of the run."""
        shares = {seed: (run.transition or self.steps) / self.steps for seed, run in self.runs.items()}
        return ArmSeeds(self.name, self.losses, shares)


@dataclass(frozen=True)
class Wait:
    """A variant and its parent: differences by paired seed in the time of the transition (steps), in the loss at the
    end, and in the loss at equal time since each run's own transition (nats).

    If times cannot be compared, `reason` says why; if losses cannot, `no_losses`. `word` is the reading by
    `timing_word`.
    """

    variant: str
    base: str
    arms: tuple[Arm, ...] = ()
    waiting: Mapping[int, float] = field(default_factory=dict)
    at_end: Mapping[int, float] = field(default_factory=dict)
    since: Mapping[int, float] = field(default_factory=dict)
    steps_since: int = 0
    reason: str = ""
    no_losses: str = ""
    ids: tuple[str, ...] = ()

    @property
    def left_out(self) -> str:
        """Why times or losses are not compared."""
        return self.reason or self.no_losses

    @property
    def side(self) -> float:
        """The sign of the difference at the end; 0 without one."""
        return math.copysign(1, statistics.fmean(self.at_end.values())) if self.at_end else 0.0

    @property
    def word(self) -> str:
        return timing_word(*(tuple(each.values()) for each in (self.at_end, self.since, self.waiting)))


def trace_recorded(found: Transition) -> RunCurve:
    """Return the curve of a run from its record, which has no step of a run that was past the plateau when it was first
    measured."""
    points = tuple((float(point.step), point.loss) for point in found.curve)
    return RunCurve(found.step or crossing(points, found.frequency_loss - found.margin), points)


def arm_of(row: Row) -> Arm | None:
    """Return the arm of a row with one stage; None unless all of its runs have a transition and a curve."""
    if row.stage != 0 or row.runs.empty or row.own_loss is None:
        return None
    known: dict[int, Transition | None] = dict(zip(row.runs.seed, row.runs.transition, strict=True))
    transitions = {seed: each for seed, each in known.items() if each is not None and each.curve}
    if transitions.keys() != known.keys():
        return None
    runs = {seed: trace_recorded(each) for seed, each in transitions.items()}
    level = min(each.frequency_loss - each.margin for each in transitions.values())
    return Arm(row.name, level, row.recipe.pretraining.stages[0].steps, runs, row.own_loss[1].by_pretraining)


def find_waits(group: Group) -> tuple[Wait, ...]:
    """Return the waits of all ladder steps, of the same steps at the arms' own rates, and of parts of steps."""
    return tuple(compare_times(variant, base) for variant, base in steps_of(group))


def steps_of(group: Group) -> Iterator[tuple[Row, Row]]:
    """Yield (variant, base) with runs on both sides: the ladder, the same at own rates, and parts of steps."""
    names = [(row.name, row.parent) for row in group.last_rows.values() if row.parent]
    shared = [(group.last_rows[name], group.compared_rows.get(parent)) for name, parent in names]
    own = [(group.row_at_best_rate(name), group.row_at_best_rate(parent)) for name, parent in names]
    rows = group.compared_rows
    parts = [(row, rows[base]) for (whole, base), own in find_parts(group).items() for row in (rows[whole], *own)]
    seen = set()
    for variant, base in (*shared, *own, *parts):
        if variant is None or base is None or not (len(variant.runs) and len(base.runs)):
            continue
        if variant.recipe.pretraining != base.recipe.pretraining and (variant.name, base.name) not in seen:
            seen.add((variant.name, base.name))
            yield variant, base


def compare_times(variant: Row, base: Row) -> Wait:
    """Compare when two rows leave the plateau, and their losses at the end and at equal time since."""
    if reason := why_not_paired(variant, base) or _why_no_times(variant, base):
        return Wait(variant.name, base.name, reason=reason)
    ours, theirs = arm_of(variant), arm_of(base)
    if ours is None or theirs is None:
        return Wait(variant.name, base.name, reason="no record of the transition")
    other_text = variant.recipe.pretraining.data.corpus != base.recipe.pretraining.data.corpus
    no_losses = why_losses_differ(variant, base) or ("losses on other text" if other_text else "")
    return subtract_times(ours, theirs, no_losses, tuple(sorted([*variant.runs.id, *base.runs.id])))


def _why_no_times(variant: Row, base: Row) -> str:
    ours, theirs = (row.recipe.pretraining.stages for row in (variant, base))
    if len(ours) > 1 or len(theirs) > 1:
        return "a second stage begins after the transition"
    if (ours[0].steps, ours[0].tokens_per_step) != (theirs[0].steps, theirs[0].tokens_per_step):
        return "steps of other sizes"
    return ""


def subtract_times(ours: Arm, theirs: Arm, no_losses: str = "", ids: tuple[str, ...] = ()) -> Wait:
    """Subtract the parent's times and losses from the variant's, at the seeds that both have."""
    steps_since = round(SHARE_SINCE * ours.steps)
    pairs = {seed: (ours.runs[seed], theirs.runs[seed]) for seed in sorted(ours.runs.keys() & theirs.runs.keys())}
    times = {seed: (first.transition, second.transition) for seed, (first, second) in pairs.items()}
    known = {
        seed: (first, second) for seed, (first, second) in times.items() if first is not None and second is not None
    }
    ends = {seed: min(run.points[-1][0] for run in pair) for seed, pair in pairs.items()}
    compared = {} if no_losses else pairs
    return Wait(
        variant=ours.name,
        base=theirs.name,
        arms=(ours, theirs),
        waiting={seed: first - second for seed, (first, second) in known.items()},
        at_end=_differences(compared, {seed: (end, end) for seed, end in ends.items()}),
        since=_differences(
            compared, {seed: (first + steps_since, second + steps_since) for seed, (first, second) in known.items()}
        ),
        steps_since=steps_since,
        no_losses=no_losses,
        ids=ids,
    )


def _differences(
    pairs: Mapping[int, tuple[RunCurve, RunCurve]], steps: Mapping[int, tuple[float, float]]
) -> dict[int, float]:
    """Return the differences of losses, each run at its own step, where both curves reach it."""
    found = {}
    for seed in sorted(pairs.keys() & steps.keys()):
        ours, theirs = (
            float(run.losses_at(np.array([step]))[0]) for run, step in zip(pairs[seed], steps[seed], strict=True)
        )
        if not math.isnan(ours - theirs):
            found[seed] = ours - theirs
    return found


@dataclass(frozen=True)
class _Line:
    """A line of the table: a wait, and why its step gets no verdict."""

    wait: Wait
    no_verdict: str

    @property
    def ours(self) -> Arm:
        return self.wait.arms[0]

    @property
    def theirs(self) -> Arm:
        return self.wait.arms[1]

    @property
    def reading(self) -> str:
        return "; ".join(filter(None, (self.wait.word, self.no_verdict, self.wait.left_out))) or DASH


Mean = tuple[float, float | None, float | None]


def _mean(values: Mapping[int, float]) -> Mean | None:
    """Return the mean over seeds and the ends of its t interval; None without seeds."""
    low, high = (seed_interval(values.values()) if values else None) or (None, None)
    return (statistics.fmean(values.values()), low, high) if values else None


def _pair(
    head: str, name: str, values: Callable[[_Line], Mapping[int, float]], digits: int
) -> tuple[Column[_Line], ...]:
    """Return the columns of a difference by seed: its mean, and its interval."""

    def print_interval(mean: Mean | None, _: _Line) -> str:
        low, high = mean[1:] if mean else (None, None)
        return printed_range(None if low is None or high is None else (low, high), digits)

    names = f"{name} {name}_low {name}_high"
    return (
        Column(head, "", lambda line: _mean(values(line)), lambda mean, _: signed(mean and mean[0], digits), "r"),
        Column("95 % over seeds", names, lambda line: _mean(values(line)), print_interval, "r"),
    )


COLUMNS: Sequence[Column[_Line]] = (
    Column("Variant", "variant", lambda line: line.wait.variant, always=True),
    Column("Against", "against", lambda line: line.wait.base, always=True),
    Column("", "level level_against", lambda line: (line.ours.level, line.theirs.level)),
    Column("Seeds", "seeds", lambda line: len(line.wait.waiting), side="r"),
    Column("", "steps", lambda line: line.ours.steps),
    Column("Leaves after", "", lambda line: line.ours.described_times, side="r"),
    Column("Parent leaves after", "", lambda line: line.theirs.described_times, side="r"),
    Column("", "transition transition_sd", lambda line: line.ours.spread),
    Column("", "transition_against transition_against_sd", lambda line: line.theirs.spread),
    Column("", "shared_variance", lambda line: line.ours.seeds.shared_variance),
    Column("", "shared_variance_against", lambda line: line.theirs.seeds.shared_variance),
    *_pair("Waiting, steps", "waiting", lambda line: line.wait.waiting, digits=0),
    *_pair("Loss at the end", "at_end", lambda line: line.wait.at_end, digits=3),
    Column("", "steps_since", lambda line: line.wait.steps_since),
    *_pair("At equal time since", "since", lambda line: line.wait.since, digits=3),
    Column("", "reading", lambda line: line.wait.word),
    Column("Reading", "", lambda line: line.reading, always=True),
    Column("", "no_verdict", lambda line: line.no_verdict, always=True),
    Column("", "left_out", lambda line: line.wait.left_out, always=True),
    Column("", "transitions_by_seed", lambda line: print_by_seed(dict(sorted(line.ours.times.items())))),
    Column("", "transitions_against_by_seed", lambda line: print_by_seed(dict(sorted(line.theirs.times.items())))),
    Column("", "records", lambda line: " ".join(line.wait.ids), always=True),
)


def waits_table(waits: Sequence[Wait], regime: Regime, group: Group) -> Table:
    """Return a table with one line per ladder step."""
    return make_table(
        f"Waiting and level (scale {group.scale}, data {group.data})",
        COLUMNS,
        [_Line(wait, regime.why_no_verdict(wait.variant, wait.base)) for wait in waits],
        (*warnings(group), *_notes(waits)),
        records=lambda line: line.wait.ids,
        is_left_out=lambda line: not line.wait.arms,
    )


def _notes(waits: Sequence[Wait]) -> list[str]:
    since = sorted({f"{wait.steps_since:,}" for wait in waits if wait.waiting})
    return [
        "Leaves after: mean step at which the runs leave the plateau of token frequencies, and its share of the run. "
        "Waiting: variant minus parent at paired seeds; positive is later.",
        f"At equal time since: difference in loss {' or '.join(since)} steps after each run's own transition, a third "
        "of the run. The learning rate is not shifted, so a run that leaves late has a lower one by then.",
        "Reading: level if the difference at equal time since excludes 0 on the side of the end; waiting if not, "
        "and the waiting excludes 0. It is a reading of uncorrected 95 % t intervals and claims nothing: an interval "
        "that includes 0 may be a wide one.",
        f"Left: the loss on the small held-out text is {MARGIN_NATS:g} nats below that of token frequencies for the "
        "first time, interpolated in log tokens.",
    ]
