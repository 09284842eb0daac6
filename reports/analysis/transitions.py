"""Waiting times: when the runs of each ladder step leave the plateau of token frequencies, and how they differ then.

The time is taken from records where all runs of both arms have it. Older records have the training loss alone, which is
only comparable between arms with the same masks.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from neobert.kinds.pretraining import Transition
from neobert.training.transitions import MARGIN_NATS, crossing
from reports.analysis.inference import Interval, seed_interval
from reports.analysis.pairing import why_losses_differ
from reports.analysis.plateau import ArmSeeds, Regime, timing_word
from reports.basis import why_not_paired
from reports.curves import Curves, Points
from reports.notes import warnings
from reports.scores import Group, Row
from reports.tables import DASH, Table, facets, frame_of, print_by_seed, printed_range, signed

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
    runs = list(row.runs.itertuples())
    losses = row.own_loss[1].by_pretraining
    steps = row.recipe.pretraining.stages[0].steps
    if source == "held-out":
        known: dict[int, Transition] = {run.seed: run.transition for run in runs if run.transition is not None}
        if len(known) < len(runs) or not all(transition.curve for transition in known.values()):
            return None
        level = min(each.frequency_loss - each.margin for each in known.values())
        traced = {
            seed: RunCurve(each.step, tuple((point.step, point.loss) for point in each.curve))
            for seed, each in known.items()
        }
        return Arm(row.name, source, level, steps, traced, losses)
    frequencies = row.heldout[row.heldout.corpus.eq(row.own_loss[0]) & row.heldout.context.eq(row.context)]
    found = {run.seed: curve.loss for run in runs if (curve := curves.of(run.id)) is not None}
    if len(found) < len(runs) or frequencies.frequency_loss.isna().all():
        return None
    if min(map(len, found.values())) < SMOOTHED_FOR_LOSS:
        return None
    level = level_of(float(frequencies.frequency_loss.min()))
    return Arm(
        row.name, source, level, steps, {seed: trace_training(own, level) for seed, own in found.items()}, losses
    )


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


HEADER = (
    *("Variant", "Against", "Measured on", "Seeds", "Leaves after", "Parent leaves after", "Waiting, steps"),
    *("95 % over seeds", "Loss at the end", "95 % over seeds", "At equal time since", "95 % over seeds", "Reading"),
)
FACTS = (
    *("variant", "against", "measured", "level", "level_against", "seeds", "steps", "transition", "transition_sd"),
    *("transition_against", "transition_against_sd", "shared_variance", "shared_variance_against"),
    *("waiting", "waiting_low", "waiting_high", "at_end", "at_end_low", "at_end_high", "steps_since"),
    *("since", "since_low", "since_high", "reading", "no_verdict", "left_out", "transitions_by_seed"),
    *("transitions_against_by_seed", "records"),
)
LOSS_DIGITS, STEP_DIGITS = 3, 0


def waits_table(waits: Sequence[Wait], regime: Regime, group: Group) -> Table:
    """Return a table with one line per ladder step."""
    return Table(
        title=f"Waiting and level (scale {group.scale}, data {group.data})",
        shown=frame_of([_shown(wait, regime) for wait in waits], HEADER),
        facts=frame_of([_facts(wait, regime) for wait in waits], FACTS),
        alignment="lllrrrrrrrrrl",
        notes=(*warnings(group), *_notes(waits)),
        records=tuple(wait.ids for wait in waits),
        facets=tuple(facets("transition", "") for _ in waits),
    )


def _mean(values: Mapping[int, float]) -> tuple[float | None, Interval | None]:
    """Return the mean over seeds and its t interval."""
    return (statistics.fmean(values.values()), seed_interval(values.values())) if values else (None, None)


def _shown(wait: Wait, regime: Regime) -> tuple[str, ...]:
    names, without = (wait.variant, wait.base), wait.reason or wait.no_losses
    no_verdict = regime.why_no_verdict(wait.variant, wait.base)
    remark = "; ".join(filter(None, (wait.word, no_verdict, without))) or DASH
    if not wait.arms:
        return (*names, *[DASH] * (len(HEADER) - 3), remark)
    cells = [
        cell
        for values, digits in ((wait.waiting, STEP_DIGITS), (wait.at_end, LOSS_DIGITS), (wait.since, LOSS_DIGITS))
        for mean, interval in (_mean(values),)
        for cell in (signed(mean, digits), printed_range(interval, digits))
    ]
    ours, theirs = wait.arms
    return *names, MEASURED[ours.source], str(len(wait.waiting)), _leaves(ours), _leaves(theirs), *cells, remark


def _leaves(arm: Arm) -> str:
    """Format the mean step of an arm's transition and its share of the run, and the seeds that never leave."""
    times = list(arm.times.values())
    late = len(arm.runs) - len(times)
    if not times:
        return "never"
    mean = statistics.fmean(times)
    return f"{mean:,.0f} ({mean / arm.steps:.0%})" + (f", {late} never" if late else "")


def _facts(wait: Wait, regime: Regime) -> tuple[Any, ...]:
    no_verdict = regime.why_no_verdict(wait.variant, wait.base)
    left_out = wait.reason or wait.no_losses
    ids = " ".join(wait.ids)
    if not wait.arms:
        return wait.variant, wait.base, *[None] * (len(FACTS) - 7), no_verdict, left_out, None, None, ids
    ours, theirs = wait.arms
    spreads = [
        found
        for arm in wait.arms
        for times in (list(arm.times.values()),)
        for found in (statistics.fmean(times) if times else None, statistics.stdev(times) if len(times) > 1 else None)
    ]
    tested = [
        (mean, *(interval or (None, None))) for mean, interval in map(_mean, (wait.waiting, wait.at_end, wait.since))
    ]
    return (
        *(wait.variant, wait.base, MEASURED[ours.source], ours.level, theirs.level, len(wait.waiting), ours.steps),
        *spreads,
        *(arm.seeds.shared_variance for arm in wait.arms),
        *(*tested[0], *tested[1], wait.steps_since, *tested[2]),
        *(wait.word, no_verdict, left_out),
        *(print_by_seed(dict(sorted(arm.times.items()))) for arm in wait.arms),
        ids,
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
