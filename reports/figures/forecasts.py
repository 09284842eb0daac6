"""Differences over budgets with the sealed forecast as a fan and what was measured as a ring: a panel per step."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ablations.ladders import ladder
from reports.analysis.inference import seed_interval
from reports.analysis.pairing import LADDER, Delta
from reports.analysis.quantities import BITS
from reports.figures.drawing import GREY_INK, INK, describe_data, format_ticks, panel_grid, rendered
from reports.figures.tones import Tone, draw_tones, tone_of
from reports.forecasts.outcomes import Outcome
from reports.forecasts.sealed import AtBudget
from reports.scores import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAN = "#C9C9C9"
FOOT = (
    "Variant minus parent over compute, from runs with schedules of their own. Dots: the budgets that the forecast was "
    "made from, with the standard error over seeds where its file has it; fan: the sealed forecast, mean and 80 % "
    "interval at the full budget; ring: the mean that was measured there over as many seeds, in the colour of the "
    "verdict, with its 95 % interval. Each step is in one quantity, on the corpus that the variant was trained on."
)


def choose_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return one outcome with an expected mean for each step of each forecast: in bits per byte if it has it, on the
    variant's own corpus if possible."""
    own = {name: variant.recipe.pretraining.data.corpus for name, variant in ladder().items()}
    known = [each for each in outcomes if each.predicted.mean is not None and each.predicted.variant in own]
    order = sorted(
        known, key=lambda each: (each.predicted.quantity != BITS, each.predicted.corpus != own[each.predicted.variant])
    )
    first: dict[tuple[str, ...], Outcome] = {}
    for each in order:
        first.setdefault((each.forecast.id, *each.step), each)
    names = list(ladder())
    return sorted(first.values(), key=lambda each: names.index(each.step[0]))


@rendered
def draw_forecasts(chosen: Sequence[Outcome], deltas: Sequence[Delta], group: Group) -> "Figure":
    """Draw the chosen outcome of each step."""
    found = {delta.place: delta for delta in deltas if delta.design == LADDER and delta.comparison}
    title = f"Differences over budgets, and the sealed forecast — {describe_data(group)}"
    figure, panels = panel_grid(len(chosen), title, "", FOOT)
    tones: dict[Tone, None] = {}
    for axes, outcome in zip(panels, chosen, strict=True):
        delta = found.get(outcome.predicted.place)
        tone = tone_of(delta) if delta else Tone.NOTHING
        tones |= {tone: None} if outcome.measured is not None else {}
        _draw_panel(axes, outcome, delta, tone)
    draw_tones(figure, tones, 1 - 0.42 / figure.get_figheight())
    return figure


def _draw_panel(axes: "Axes", outcome: Outcome, delta: Delta | None, tone: Tone) -> None:
    budgets, predicted = outcome.predicted.budgets, outcome.predicted
    axes.axhline(0, color=INK, lw=0.6, zorder=1)
    last = budgets[-1]
    assert predicted.mean is not None and predicted.interval is not None
    low, high = predicted.interval
    axes.fill_between((last.octaves, 0), (last.mean, low), (last.mean, high), color=FAN, alpha=0.6, lw=0, zorder=0)
    axes.plot((last.octaves, 0), (last.mean, predicted.mean), color=GREY_INK, lw=0.8, ls=(0, (3, 2)), zorder=2)
    dots: dict[str, Any] = {"color": GREY_INK, "marker": "o", "ms": 2.6, "lw": 0.8, "capsize": 0, "zorder": 3}
    axes.errorbar([at.octaves for at in budgets], [at.mean for at in budgets], [_error(at) for at in budgets], **dots)
    ends = [low, high, *(at.mean for at in budgets)]
    if outcome.measured is not None:
        seeds = delta.first(outcome.forecast.seeds) if delta else []
        interval = seed_interval(delta.differences[seed] for seed in seeds) if delta else None
        if interval:
            axes.plot((0, 0), interval, color=tone.colour, lw=1.2, zorder=4, clip_on=False)
        ring: dict[str, Any] = {"marker": "o", "ms": 4.4, "mfc": "white", "mec": tone.colour, "mew": 1.2}
        axes.plot(0, outcome.measured, ls="", zorder=5, clip_on=False, **ring)
        ends += [outcome.measured, *(interval or ())]
    _format(axes, outcome, ends)


def _format(axes: "Axes", outcome: Outcome, ends: Sequence[float]) -> None:
    """Set the axes, which hold 0 and all `ends`, their ticks and the title."""
    budgets = outcome.predicted.budgets
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = 0.12 * (high - low) or 0.1
    axes.set_ylim(low - room, high + room)
    axes.set_xlim(min(at.octaves for at in budgets) - 0.2, 0.15)
    axes.set_xticks([*(at.octaves for at in budgets), 0], [*(_share(at) for at in budgets), "1"])
    variant, base = outcome.step
    axes.set_title(f"{variant} − {base}", fontsize=7, weight="bold", color=INK, loc="left", pad=10)
    name = outcome.measurement if outcome.unit in outcome.measurement else f"{outcome.measurement}, {outcome.unit}"
    axes.text(0, 1.03, name, transform=axes.transAxes, fontsize=6, color=GREY_INK)
    axes.locator_params(axis="y", nbins=4)
    format_ticks(axes.yaxis)
    axes.tick_params(length=2.5, width=0.6, labelsize=6, labelcolor=GREY_INK)
    axes.spines[["top", "right"]].set_visible(False)


def _error(at: AtBudget) -> float:
    """Return the standard error of a mean over seeds; 0, which is not drawn, if the file has no deviation."""
    return 0.0 if at.deviation is None else at.deviation / math.sqrt(at.seeds)


def _share(at: AtBudget) -> str:
    return at.budget.partition("@steps")[2] or at.budget
