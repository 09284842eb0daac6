"""Figure 1: one bar per variant of the ladder, with its relative change to the parent and the paper's value."""

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neobert.errors import name_first
from reports.differences import relative_change
from reports.figures import published
from reports.figures.drawing import DISCARDED, INK, KEPT, PAPER_DIAMOND, PAPER_INK, Picture, describe_data
from reports.remarks import describe_change, searches_noted, why_no_average
from reports.rows import Study
from reports.scores import Estimate, ScoreRow
from reports.tables import DASH, Table, capitalized, frame_of, number, print_by_seed, signed_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES_PER_BAR, HEIGHT_INCHES = 0.66, 4.05
LEFT_INCHES, RIGHT_INCHES = 0.66, 0.12
LEAST_WIDTH_INCHES = 5.6  # needed by the lines of text, even with few bars
BAR_WIDTH = 0.74
ALTERNATIVES_GAP = 0.35  # in bars, before the first variant with an @
NAME_SIZES = ((4, 7.5), (10, 6.2), (99, 5.2))  # maximum letters of a name, and their size in points
FOOT_SHARE = 0.30  # share of the axis below the lowest value, for the numbers printed on the bars


@dataclass(frozen=True)
class Bar:
    """One variant at its last checkpoint, in points. `label` describes its change at the study's scale, `delta_percent`
    is the relative change to the parent over the common seeds, `loss` the held-out loss on the figure's corpus, `paper`
    the published bar, for the average only."""

    row: ScoreRow
    label: str
    score: Estimate | None
    delta_percent: float | None
    loss: Estimate | None
    paper: Any


@dataclass(frozen=True)
class Bars:
    """All bars of a figure, in the mean of the study's averaged tasks. Their losses are on one `corpus`, with the same
    tokens and lengths."""

    study: Study
    bars: tuple[Bar, ...]
    corpus: str

    @property
    def missing(self) -> list[str]:
        return [bar.row.name for bar in self.bars if bar.score is None]

    @property
    def incomplete(self) -> list[str]:
        """Variants whose bar is the best of an incomplete grid."""
        return [bar.row.name for bar in self.bars if bar.score and bar.row.is_of_incomplete_grid]


def find_bars(study: Study) -> Bars:
    """Return the bars in the order of the ladder, followed by alternatives."""
    rows, tasks = study.last_rows, study.averaged_tasks
    paper = published.figure1(study.ladder) if study.is_average_of_eight else {}
    corpus, losses = _most_common_loss(rows)
    bars = []
    for name, row in rows.items():
        score, change = row.mean_over(tasks), describe_change(row, study)
        delta = relative_change(row, rows[row.parent], tasks) if row.parent in rows else None
        bars.append(Bar(row, change, score, delta, losses.get(name), paper.get(name)))
    return Bars(study, tuple(bars), corpus)


def _most_common_loss(rows: Mapping[str, ScoreRow]) -> tuple[str, Mapping[str, Estimate]]:
    """Return the corpus on which most rows have a held-out loss with the same tokens and lengths (the first by name if
    there are several), and these losses."""
    found: dict[tuple[Any, ...], dict[str, Estimate]] = defaultdict(dict)
    for name, row in rows.items():
        for corpus, loss in row.losses.items():
            found[corpus, *row.tokens, row.context][name] = loss
    if not found:
        return "", {}
    place = max(sorted(found), key=lambda each: len(found[each]))
    return place[0], found[place]


def table(study: Study) -> Table | None:
    """Return the figure's numbers with the ids of their records, and a remark for each variant without a bar; None if
    the ladder has none of GLUE's tasks."""
    if not study.ladder.glue_tasks:
        return None
    bars = find_bars(study)
    corpora = sorted({corpus for bar in bars.bars for corpus in bar.row.losses})
    places = sorted({place for bar in bars.bars for place in bar.row.bits_per_byte})
    header = [
        *("variant", "title", "parent", "kept", "quantity", "score", "sd", "seeds", "scores_by_seed", "delta_percent"),
        *("whole_grid", "paper_score", "paper_printed_delta_percent"),
        *(f"heldout_loss_{corpus}" for corpus in corpora),
        *(f"heldout_bits_per_byte_{corpus}_{context}_tokens" for corpus, context in places),
        *("remark", "records", "loss_records"),
    ]
    facts = frame_of([_facts(bar, bars, corpora, places) for bar in bars.bars], header)
    return Table(title="Figure 1", shown=frame_of([], ()), facts=facts, alignment="")


def _facts(bar: Bar, bars: Bars, corpora: list[str], places: list[tuple[str, int]]) -> list[Any]:
    row, score, paper = bar.row, bar.score, bar.paper
    printed = None if paper is None else paper.printed_delta_percent
    losses = [*map(row.losses.get, corpora), *map(row.bits_per_byte.get, places)]
    return [
        *(row.name, bar.label, row.parent, "yes" if row.kept else "no", bars.study.quantity),
        *((score.mean, score.spread, len(score.by_seeds)) if score else (None, None, 0)),
        print_by_seed(score.by_seeds) if score else "",
        bar.delta_percent,
        "yes" if score and row.is_best_of_whole_grid else "no",
        "" if paper is None else f"{paper.average:.1f}",
        "" if printed is None else f"{printed:+.1f}",
        *(loss.mean if loss else None for loss in losses),
        "" if score else why_no_average(row, bars.study),
        " ".join(row.mean_ids(bars.study.averaged_tasks)),
        " ".join(row.run_ids),
    ]


def draw(study: Study) -> Picture | None:
    return Picture(lambda: _draw(find_bars(study))) if study.ladder.glue_tasks else None


def _draw(bars: Bars) -> "Figure":
    from matplotlib.figure import Figure

    shown = _shown(bars)
    places = [index + ALTERNATIVES_GAP * ("@" in bar.row.name) for index, bar in enumerate(shown)]
    width = max(LEAST_WIDTH_INCHES, LEFT_INCHES + RIGHT_INCHES + INCHES_PER_BAR * (places[-1] + 1))
    figure = Figure(figsize=(width, HEIGHT_INCHES))
    axes = figure.add_axes((LEFT_INCHES / width, 0.32, 1 - (LEFT_INCHES + RIGHT_INCHES) / width, 0.515))
    low, high = _limits(shown)
    for place, bar in zip(places, shown, strict=True):
        _draw_bar(axes, place, bar, low)
    _label_bars(axes, shown, places, (width - LEFT_INCHES - RIGHT_INCHES) / INCHES_PER_BAR)
    axes.set_ylim(low, high)
    _label_axis(axes, bars, low)
    _caption(figure, bars, width)
    return figure


def _shown(bars: Bars) -> list[Bar]:
    """Return the bars of the variants with records, or all bars if there are no records."""
    return [bar for bar in bars.bars if bar.row.has_records] or list(bars.bars)


def _limits(bars: Sequence[Bar]) -> tuple[float, float]:
    """Return the ends of the axis: a multiple of five well below the lowest value, at least 0, and the top."""
    values = [bar.paper.average for bar in bars if bar.paper]
    values += [score for bar in bars if bar.score for score in bar.score.by_seeds.values()]
    values += [end for bar in bars if bar.score for end in bar.score.interval or ()]
    lowest, highest = min(values, default=0.0), max(values, default=100.0)
    top = highest + max(1.0, 0.06 * (highest - lowest))
    low = lowest - FOOT_SHARE / (1 - FOOT_SHARE) * (top - lowest)
    return max(0.0, 5 * (low // 5)), top


def _draw_bar(axes: "Axes", place: float, bar: Bar, low: float) -> None:
    if bar.paper is not None:
        axes.plot(place, bar.paper.average, zorder=6, **PAPER_DIAMOND)
    if bar.score is None:
        axes.text(place, 0.035, DASH, transform=axes.get_xaxis_transform(), ha="center", color=INK, fontsize=10)
        return
    fill = KEPT if bar.row.kept else DISCARDED
    hatch = None if bar.row.is_best_of_whole_grid else "////"
    mean = bar.score.mean
    axes.bar(place, mean - low, BAR_WIDTH, bottom=low, color=fill, hatch=hatch, edgecolor="white", lw=0, zorder=2)
    if (interval := bar.score.interval) is not None:
        for colour, width in (("white", 2.6), (INK, 1.0)):  # a white border, visible on dark bars
            style: dict[str, Any] = {"color": colour, "capsize": 2.2, "lw": width, "capthick": width, "zorder": 4}
            axes.errorbar(place - 0.2, mean, interval[1] - mean, **style)
    if bar.score.spread is not None:
        # each seed as a dot in the right half of the bar, away from the error bar and the paper's mark
        values = list(bar.score.by_seeds.values())
        places = [place + 0.12 + index * (0.2 / max(1, len(values) - 1)) for index in range(len(values))]
        axes.plot(places, values, ls="", marker="o", markersize=2.8, mfc="white", mec=INK, mew=0.6, zorder=5)
    # score and relative change at the foot of the bar, where no mark can cover them
    ink = "white" if bar.row.kept else INK
    box = {"boxstyle": "round,pad=0.15", "fc": fill, "ec": "none"}
    foot: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "zorder": 7}
    axes.text(place, 0.125, number(mean), color=ink, weight="bold", fontsize=8.5, bbox=box, **foot)
    if bar.delta_percent is not None:
        axes.text(place, 0.045, signed_percent(bar.delta_percent), color=ink, fontsize=6.6, bbox=box, **foot)


def _label_axis(axes: "Axes", bars: Bars, low: float) -> None:
    from matplotlib.ticker import MaxNLocator

    study = bars.study
    tasks = len(study.averaged_tasks)
    what = f"Mean of {tasks} GLUE tasks" if tasks > 1 else study.quantity
    what = "GLUE dev average" if study.is_average_of_eight else what
    axes.set_ylabel(f"{what} (points)" + (f"\naxis starts at {low:g}" if low else ""), color=INK, labelpad=4)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    axes.tick_params(axis="y", length=2.5, width=0.6)
    axes.grid(axis="y", color="#DDDDDD", lw=0.5, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _label_bars(axes: "Axes", bars: Sequence[Bar], places: list[float], room: float) -> None:
    """Write names, the paper's values, losses and changes below the axis, which is `room` bars long. Few bars are
    centred."""
    middle, half = (places[0] + places[-1]) / 2, max(room, places[-1] + 1.1) / 2
    axes.set_xlim(middle - half, middle + half)
    axes.set_xticks(places, [bar.row.name for bar in bars], weight="bold")
    axes.tick_params(axis="x", length=0, pad=3)
    for label, bar in zip(axes.get_xticklabels(), bars, strict=True):
        label.set_color(INK if bar.row.kept else "#777777")
        label.set_fontsize(next(size for most, size in NAME_SIZES if len(bar.row.name) <= most))
    names = ["", *(bar.row.name for bar in bars)]
    for place, bar, follows in zip(places, bars, names[:-1], strict=True):
        below: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top"}
        if bar.paper is not None:
            printed = bar.paper.printed_delta_percent
            text = f"◆ {number(bar.paper.average)}" + ("" if printed is None else f" ({signed_percent(printed)})")
            axes.text(place, -0.085, text.replace(" %", "%"), fontsize=5.4, color=PAPER_INK, **below)
        if bar.loss is not None:
            text = f"loss {number(bar.loss.mean, 3)}"
            axes.text(place, -0.133, text, fontsize=5.4, color="#444444", **below)
        colour = "#333333" if bar.row.kept else "#777777"
        change = bar.label.replace("Depth-to-", "Depth-to- ").replace(" × ", "\u00a0×\u00a0")  # do not break shapes
        lines = textwrap.wrap(change, 11, break_on_hyphens=False)
        lines += [f"(vs {bar.row.parent})"] if bar.row.parent not in ("", follows) else []
        axes.text(place, -0.19, "\n".join(lines), linespacing=1.15, fontsize=5.9, color=colour, **below)


def _caption(figure: "Figure", bars: Bars, width: float) -> None:
    left = LEFT_INCHES / width
    title = ("" if bars.study.scale == "smoke" else "GLUE along the ladder — ") + describe_data(bars.study)
    figure.text(left, 0.95, title, fontsize=9.5, weight="bold", color=INK)
    quantity = "flat mean of the eight GLUE tasks" if bars.study.is_average_of_eight else bars.study.quantity
    figure.text(left, 0.905, f"{capitalized(quantity)} on development data", fontsize=7, color="#444444")
    handles = _legend_handles(bars)
    style: dict[str, Any] = {"frameon": False, "fontsize": 6.6, "bbox_to_anchor": (left - 0.004, 0.889)}
    style |= {"handletextpad": 0.5, "columnspacing": 1.3, "handlelength": 1.3, "borderaxespad": 0.0}
    figure.legend(handles=handles, loc="upper left", ncols=len(handles), **style)
    note = "\n".join(textwrap.wrap(_foot(bars), int(width * 21)))
    figure.text(left, 0.015, note, fontsize=6, color="#444444", va="bottom", linespacing=1.3)


def _legend_handles(bars: Bars) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(fc=KEPT, label="this study")]
    if any(not bar.row.kept for bar in _shown(bars)):
        handles.append(Patch(fc=DISCARDED, label=f"this study, {bars.study.ladder.not_kept}"))
    if any(bar.score and not bar.row.is_best_of_whole_grid for bar in bars.bars):
        handles.append(Patch(fc=KEPT, hatch="////", ec="white", lw=0, label="not the whole grid"))
    if any(bar.score and bar.score.spread is not None for bar in bars.bars):
        seed: dict[str, Any] = {"marker": "o", "lw": 1.0, "color": INK, "mfc": "white", "mew": 0.5, "markersize": 2.7}
        has_interval = any(bar.score and bar.score.interval for bar in bars.bars)
        label = "each seed, 95 % t interval" if has_interval else "each seed"
        handles.append(Line2D([], [], label=label, **seed | {"lw": 1.0 if has_interval else 0.0}))
    if any(bar.paper for bar in bars.bars):
        handles.append(Line2D([], [], label="printed in the paper, at its own scale and data", ls="", **PAPER_DIAMOND))
    return handles


def _foot(bars: Bars) -> str:
    """Return the sentences below the figure; of each pair the second is left out if the first is false."""
    shown = {bar.row.name for bar in _shown(bars)}
    without, not_run = ([name for name in bars.missing if (name in shown) == is_shown] for is_shown in (True, False))
    scored = [bar for bar in bars.bars if bar.score]
    sentences = (
        (
            published.figure1(bars.study.ladder) and not bars.study.is_average_of_eight,
            "Averages printed in the paper are over all eight tasks and are not shown.",
        ),
        (True, _about_seeds(scored)),
        (True, "On the bars: score, and relative change to the parent in the tree of variants over the seeds of both."),
        (
            any("@" in name for name in shown),
            "Grey with an @: not discarded, another reading of the paper or its code.",
        ),
        (without, f"{DASH} no value: {', '.join(without)} (reasons in figure1.csv)."),
        (len(shown) < len(bars.bars), f"Not run: {', '.join(not_run)}."),
        (bars.incomplete, f"Best of an incomplete grid: {', '.join(bars.incomplete)}."),
        (
            bars.corpus,
            f"Loss: held-out MLM loss on {bars.corpus}, nats per token, where tokens and lengths are the same.",
        ),
    )
    of_searches = searches_noted((bar.row for bar in scored), mark="")
    return " ".join([*(sentence for is_told, sentence in sentences if is_told), *of_searches])


def _about_seeds(bars: Sequence[Bar]) -> str:
    """Describe the seeds behind the bars that have a score, and their spread."""
    repeated = {bar.row.name: bar.score for bar in bars if bar.score and bar.score.spread is not None}
    if not repeated:
        return "One seed: spread unknown." if bars else "No scores yet."
    counts = sorted(len(score.by_seeds) for score in repeated.values())
    spreads = sorted(score.spread or 0.0 for score in repeated.values())
    seeds = " to ".join(dict.fromkeys((f"{counts[0]}", f"{counts[-1]}")))
    between = " to ".join(dict.fromkeys((number(spreads[0]), number(spreads[-1]))))
    told = f"n = {seeds} seeds, standard deviation {between} points"
    return f"{told}." if len(repeated) == len(bars) else f"{name_first(list(repeated), 4)}: {told}; others: one seed."
