"""Waiting times: when the runs of each ladder step leave the plateau of token frequencies, and how they differ then.

The time is taken from records where all runs of both arms have it. Older records have the training loss alone, which is
only comparable between arms with the same masks.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from neobert.runs.records import Transition
from neobert.training.transitions import MARGIN_NATS, crossing
from reports.analysis.inference import seed_interval
from reports.analysis.pairing import why_losses_differ
from reports.analysis.plateau import ArmSeeds, Regime, timing_word
from reports.basis import why_not_paired
from reports.curves import Curves, Points
from reports.notes import warnings
from reports.scores import Group, Row
from reports.tables import DASH, Column, Table, facets, make_table, print_by_seed, printed_range, signed

LEVEL_MULTIPLE = 0.25
SMOOTHED_FOR_CROSSING, SMOOTHED_FOR_LOSS = 3, 5
"""Stretches of the training loss that are averaged for the transition, and for the loss at a step."""

SHARE_SINCE = 1 / 3
"""Time since the transition at which arms are compared, as a share of the run."""

Source = Literal["held-out", "training"]
MEASURED: Mapping[Source, str] = {"held-out": "held-out loss, small text", "training": "training loss"}


@dataclass(frozen=True)
class RunCurve:
    """One run: the step of its transition, None if it never left the plateau, and its loss over steps."""

    transition: float | None
    points: Points

    def loss_at(self, step: float) -> float | None:
        """Return the loss at a step, interpolated in the logarithm of steps; None outside the curve."""
        steps, losses = zip(*self.points, strict=True)
        if not steps[0] <= step <= steps[-1]:
            return None
        return float(np.interp(math.log(step), np.log(steps), losses))


@dataclass(frozen=True)
class Arm:
    """The runs of a row by seed, all measured in the same way. `level` is the loss at the transition."""

    name: str
    source: Source
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
    def word(self) -> str:
        return timing_word(*(tuple(each.values()) for each in (self.at_end, self.since, self.waiting)))


def level_of(frequency_loss: float) -> float:
    """Return the training loss at which older runs count as past the plateau: a multiple of a quarter of a nat, at
    least `MARGIN_NATS` below the loss of token frequencies on held-out text."""
    return math.floor((frequency_loss - MARGIN_NATS) / LEVEL_MULTIPLE) * LEVEL_MULTIPLE


def moving_mean(points: Points, count: int) -> Points:
    """Return the means of every `count` neighbours, of steps and values."""
    windows = [points[start : start + count] for start in range(len(points) - count + 1)]
    return tuple(
        (statistics.fmean(step for step, _ in window), statistics.fmean(value for _, value in window))
        for window in windows
    )


def trace_training(points: Points, level: float) -> RunCurve:
    """Return the curve of a run from its training loss over steps, with the first time that it is below `level`."""
    return RunCurve(crossing(moving_mean(points, SMOOTHED_FOR_CROSSING), level), moving_mean(points, SMOOTHED_FOR_LOSS))


def arm_of(row: Row, curves: Curves, source: Source) -> Arm | None:
    """Return the arm of a row with one stage; None if the source is not there for all of its runs."""
    if row.stage != 0 or row.runs.empty or row.own_loss is None:
        return None
    found = _recorded_transitions(row) if source == "held-out" else _training_transitions(row, curves)
    if found is None:
        return None
    level, runs = found
    return Arm(row.name, source, level, row.recipe.pretraining.stages[0].steps, runs, row.own_loss[1].by_pretraining)


def _recorded_transitions(row: Row) -> tuple[float, dict[int, RunCurve]] | None:
    """Return the level and the runs by seed from the transitions in records; None unless all runs have one."""
    known: dict[int, Transition | None] = dict(zip(row.runs.seed, row.runs.transition, strict=True))
    if not all(each is not None and each.curve for each in known.values()):
        return None
    transitions = {seed: each for seed, each in known.items() if each is not None}
    runs = {
        seed: RunCurve(each.step, tuple((point.step, point.loss) for point in each.curve))
        for seed, each in transitions.items()
    }
    return min(each.frequency_loss - each.margin for each in transitions.values()), runs


def _training_transitions(row: Row, curves: Curves) -> tuple[float, dict[int, RunCurve]] | None:
    """Return the level and the runs by seed from training losses; None unless all runs have a curve that is long enough
    and the loss of frequencies is known."""
    assert row.own_loss is not None
    heldout = row.heldout[row.heldout.corpus.eq(row.own_loss[0]) & row.heldout.context.eq(row.context)]
    found = {run.seed: curves.of(run.id) for run in row.runs.itertuples()}
    losses = {seed: curve.loss for seed, curve in found.items() if curve and len(curve.loss) >= SMOOTHED_FOR_LOSS}
    if len(losses) < len(row.runs) or heldout.frequency_loss.isna().all():
        return None
    level = level_of(float(heldout.frequency_loss.min()))
    return level, {seed: trace_training(loss, level) for seed, loss in losses.items()}


def find_waits(group: Group, curves: Curves) -> tuple[Wait, ...]:
    """Return the waits of all ladder steps, and of the same steps at the arms' own rates."""
    return tuple(compare_times(variant, base, curves) for variant, base in steps_of(group))


def steps_of(group: Group) -> Iterator[tuple[Row, Row]]:
    """Yield (variant, parent) with runs on both sides, also at own rates."""
    names = [(row.name, row.parent) for row in group.last_rows.values() if row.parent]
    shared = [(group.last_rows[name], group.compared_rows.get(parent)) for name, parent in names]
    own = [(group.row_at_best_rate(name), group.row_at_best_rate(parent)) for name, parent in names]
    seen = set()
    for variant, base in (*shared, *own):
        if variant is None or base is None or not (len(variant.runs) and len(base.runs)):
            continue
        if variant.recipe.pretraining != base.recipe.pretraining and (variant.name, base.name) not in seen:
            seen.add((variant.name, base.name))
            yield variant, base


def compare_times(variant: Row, base: Row, curves: Curves) -> Wait:
    """Compare when two rows leave the plateau, and their losses at the end and at equal time since."""
    if reason := why_not_paired(variant, base) or _why_no_times(variant, base):
        return Wait(variant.name, base.name, reason=reason)
    for source in ("held-out", "training"):
        ours, theirs = (arm_of(row, curves, source) for row in (variant, base))
        if ours is None or theirs is None:
            continue
        if source == "training" and variant.recipe.pretraining.masking != base.recipe.pretraining.masking:
            return Wait(variant.name, base.name, (ours, theirs), reason="training losses under other masks")
        other_text = variant.recipe.pretraining.data.corpus != base.recipe.pretraining.data.corpus
        no_losses = why_losses_differ(variant, base) or ("losses on other text" if other_text else "")
        ids = tuple(sorted([*variant.runs.id, *base.runs.id]))
        return subtract_times(ours, theirs, no_losses, ids)
    return Wait(variant.name, base.name, reason="no curve of the loss, or no loss of frequencies")


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
    for seed in pairs.keys() & steps.keys():
        ours, theirs = (run.loss_at(step) for run, step in zip(pairs[seed], steps[seed], strict=True))
        if ours is not None and theirs is not None:
            found[seed] = ours - theirs
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class TimedStep:
    """A line of the table: a wait, and why its step gets no verdict."""

    wait: Wait
    no_verdict: str


def _leaves(number: int) -> Callable[[Any, TimedStep], str]:
    """Return how to print the mean step of the transition of the variant (0) or its parent (1): with its share of the
    run, and the seeds that never leave the plateau."""

    def write(spread: tuple[float | None, float | None], step: TimedStep) -> str:
        arm, mean = step.wait.arms[number], spread[0]
        if mean is None:
            return "never"
        late = len(arm.runs) - len(arm.times)
        return f"{mean:,.0f} ({mean / arm.steps:.0%})" + (f", {late} never" if late else "")

    return write


LOSS_DIGITS, STEP_DIGITS = 3, 0
Mean = tuple[float, float | None, float | None]


def _mean(values: Mapping[int, float]) -> Mean | None:
    """Return the mean over seeds and the ends of its t interval; None without seeds."""
    if not values:
        return None
    low, high = seed_interval(values.values()) or (None, None)
    return statistics.fmean(values.values()), low, high


def _columns(
    heads: tuple[str, str], name: str, values: Callable[[Wait], Mapping[int, float]], digits: int
) -> tuple[Column[TimedStep], ...]:
    """Return the columns of a difference by seed: its mean, and its interval."""

    def print_interval(mean: Mean | None, _: TimedStep) -> str:
        return DASH if mean is None or mean[1] is None or mean[2] is None else printed_range(mean[1:], digits)

    return (
        Column(heads[0], "", lambda step: _mean(values(step.wait)), lambda m, _: signed(m and m[0], digits), "r"),
        Column(heads[1], f"{name} {name}_low {name}_high", lambda step: _mean(values(step.wait)), print_interval, "r"),
    )


COLUMNS: Sequence[Column[TimedStep]] = (
    Column("Variant", "variant", lambda step: step.wait.variant, always=True),
    Column("Against", "against", lambda step: step.wait.base, always=True),
    Column("Measured on", "measured", lambda step: MEASURED[step.wait.arms[0].source]),
    Column("", "level level_against", lambda step: [arm.level for arm in step.wait.arms]),
    Column("Seeds", "seeds", lambda step: len(step.wait.waiting), side="r"),
    Column("", "steps", lambda step: step.wait.arms[0].steps),
    Column("Leaves after", "transition transition_sd", lambda step: step.wait.arms[0].spread, _leaves(0), "r"),
    Column(
        "Parent leaves after",
        "transition_against transition_against_sd",
        lambda step: step.wait.arms[1].spread,
        _leaves(1),
        "r",
    ),
    Column(
        "",
        "shared_variance shared_variance_against",
        lambda step: [arm.seeds.shared_variance for arm in step.wait.arms],
    ),
    *_columns(("Waiting, steps", "95 % over seeds"), "waiting", lambda wait: wait.waiting, STEP_DIGITS),
    *_columns(("Loss at the end", "95 % over seeds"), "at_end", lambda wait: wait.at_end, LOSS_DIGITS),
    Column("", "steps_since", lambda step: step.wait.steps_since),
    *_columns(("At equal time since", "95 % over seeds"), "since", lambda wait: wait.since, LOSS_DIGITS),
    Column("", "reading", lambda step: step.wait.word),
    Column(
        "Reading",
        "",
        lambda step: "; ".join(filter(None, (step.wait.word, step.no_verdict, step.wait.left_out))) or DASH,
        always=True,
    ),
    Column("", "no_verdict", lambda step: step.no_verdict, always=True),
    Column("", "left_out", lambda step: step.wait.left_out, always=True),
    Column(
        "",
        "transitions_by_seed transitions_against_by_seed",
        lambda step: [print_by_seed(dict(sorted(arm.times.items()))) for arm in step.wait.arms],
    ),
    Column("", "records", lambda step: " ".join(step.wait.ids), always=True),
)


def waits_table(waits: Sequence[Wait], regime: Regime, group: Group) -> Table:
    """Return a table with one line per ladder step."""
    return make_table(
        f"Waiting and level (scale {group.scale}, data {group.data})",
        COLUMNS,
        [TimedStep(wait, regime.why_no_verdict(wait.variant, wait.base)) for wait in waits],
        (*warnings(group), *_notes(waits)),
        records=lambda step: step.wait.ids,
        facets=lambda _: facets("transition", ""),
        is_left_out=lambda step: not step.wait.arms,
    )


def _notes(waits: Sequence[Wait]) -> list[str]:
    sources = {arm.source for wait in waits for arm in wait.arms}
    since = sorted({f"{wait.steps_since:,}" for wait in waits if wait.waiting})
    lines = [
        "Leaves after: mean step at which the runs leave the plateau of token frequencies, and its share of the run. "
        "Waiting: variant minus parent at paired seeds; positive is later.",
        f"At equal time since: difference in loss {' or '.join(since)} steps after each run's own transition, a third "
        "of the run. The learning rate is not shifted, so a run that leaves late has a lower one by then.",
        "Reading: level if the difference at equal time since excludes 0 on the side of the end; by waiting if not, "
        "and the waiting excludes 0. It is a reading of uncorrected 95 % t intervals and claims nothing: an interval "
        "that includes 0 may be a wide one.",
    ]
    if "held-out" in sources:
        lines.append(
            f"Held-out loss: the transition is where the loss on the small text is {MARGIN_NATS:g} nats below that of "
            "token frequencies for the first time, interpolated in log tokens."
        )
    if "training" in sources:
        lines.append(
            "Training loss: these records have no transition. It is taken as the first time that the mean of "
            f"{SMOOTHED_FOR_CROSSING} stretches of the training loss is below a level: a multiple of a quarter of a "
            f"nat, at least {MARGIN_NATS:g} nats below the loss of frequencies on held-out text. Losses are means of "
            f"{SMOOTHED_FOR_LOSS} stretches. Only arms with the same masks are compared."
        )
    return lines
