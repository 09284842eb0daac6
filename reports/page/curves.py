"""Small multiples of pre-training: loss and tokens a second of each variant, its parent's in grey behind."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from reports.curves import Curve, Curves, Points
from reports.findings import Findings
from reports.page.charts import Axis, axis_over, path
from reports.page.costs import shorten
from reports.page.register import Number, Register
from reports.scores import Row
from reports.tables import count

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 236.0, 128.0, 34.0, 108.0, 8.0
MOST_SEEDS = 20  # lines a panel: more nobody could tell apart
SKIPPED_SHARE = 0.02  # of a curve's start, where the loss falls from that of guessing, left out of the axis


class Line(NamedTuple):
    """A run and its curve as an SVG path."""

    run: str
    seed: int
    path: str


@dataclass(frozen=True)
class Panel:
    """One variant in one quantity, a line a seed, and the parent's first seed behind them."""

    name: str
    kept: bool
    lines: tuple[Line, ...]
    behind: str
    dots: tuple[tuple[float, float], ...]
    summary: str
    runs: Number


@dataclass(frozen=True)
class CurveChart:
    """All panels of one quantity; they share both axes. Variants with the same runs share a panel."""

    title: str
    note: str
    up: tuple[tuple[float, str], ...]
    across: tuple[tuple[float, str], ...]
    panels: tuple[Panel, ...]


def draw_curves(findings: Findings, curves: Curves, register: Register) -> tuple[CurveChart, ...]:
    """Loss and tokens a second; empty where no run keeps its metrics."""
    rows = findings.group.rated_rows
    first_of = {tuple(row.runs.id): name for name, row in reversed(rows.items())}
    known = {
        name: {run: curve for run in rows[name].runs.sort_values("seed").id[:MOST_SEEDS] if (curve := curves.of(run))}
        for name in first_of.values()
    }
    drawn = {name: known[name] for name in rows if known.get(name)}
    if not drawn:
        return ()
    maker = _Panels(rows, drawn, register)
    return maker.loss(), maker.rate()


class _Panels:
    """Makes panels; remembers what all of them share."""

    def __init__(self, rows: dict[str, Row], drawn: dict[str, dict[str, Curve]], register: Register) -> None:
        self._rows, self._drawn, self._register = rows, drawn, register
        steps = (step for curve in self._all() for step, _ in (*curve.loss, *curve.tokens_per_second))
        self._across = Axis(0.0, max(steps, default=0.0) or 1.0, LEFT, WIDTH - 6)

    def loss(self) -> CurveChart:
        losses = [curve.loss for curve in self._all()]
        tails = [value for own in losses for _, value in own[int(len(own) * SKIPPED_SHARE) + (len(own) > 1) :]]
        up = axis_over([*tails, *(value for curve in self._all() for _, value in curve.heldout)], BOTTOM, TOP)
        panels = [self._panel(name, "loss", up) for name in self._drawn]
        note = "training loss in nats a token; dots: held-out loss; grey: the parent; steps count over all stages"
        return self._chart("Loss", note, up.ticks(), panels)

    def rate(self) -> CurveChart:
        values = [value for curve in self._all() for _, value in curve.tokens_per_second]
        up = axis_over([0.0, *values], BOTTOM, TOP, padding=0.0)
        panels = [self._panel(name, "tokens_per_second", up) for name in self._drawn]
        return self._chart("Tokens a second", "real tokens, medians; grey: the parent", up.ticks(write=shorten), panels)

    def _chart(self, title: str, note: str, up: Sequence[tuple[float, str]], panels: Sequence[Panel]) -> CurveChart:
        return CurveChart(title, note, tuple(up), tuple(self._across.ticks(3, shorten)), tuple(panels))

    def _all(self) -> Iterable[Curve]:
        return [curve for own in self._drawn.values() for curve in own.values()]

    def _panel(self, name: str, quantity: Literal["loss", "tokens_per_second"], up: Axis) -> Panel:
        row, own = self._rows[name], self._drawn[name]
        lines: dict[str, Points] = {run: getattr(curve, quantity) for run, curve in own.items()}
        behind: list[Points] = [
            getattr(curve, quantity) for curve in list(self._drawn.get(row.parent, {}).values())[:1]
        ]
        dots = [point for curve in own.values() for point in curve.heldout] if quantity == "loss" else []
        ids, seeds = list(row.runs.id), dict(zip(row.runs.id, row.runs.seed, strict=True))
        same = [other for other, each in self._rows.items() if list(each.runs.id) == ids]
        shown = f" ({MOST_SEEDS} drawn)" if len(ids) > MOST_SEEDS else ""
        return Panel(
            name=", ".join(same),
            kept=row.kept,
            lines=tuple(Line(run, seeds[run], path(line, self._across, up)) for run, line in lines.items()),
            behind="".join(path(line, self._across, up) for line in behind),
            dots=tuple((self._across.at(step), up.at(value)) for step, value in dots),
            summary=_summary(list(lines.values()), quantity),
            runs=self._register.number(
                f"{count(len(ids), 'run')}{shown}", f"{name}: curves", "metrics.jsonl of the runs", ids
            ),
        )


def _summary(lines: Sequence[Points], quantity: str) -> str:
    """What the panel shows, for those who cannot see it."""
    last = [line[-1][1] for line in lines if line]
    if not last:
        return "nothing measured"
    if quantity == "loss":
        return f"training loss ends at {min(last):.3g}" + (f" to {max(last):.3g}" if len(last) > 1 else "")
    return f"about {shorten(max(last))} tokens a second at the end"
