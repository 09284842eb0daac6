"""The ladder as a tree: a trunk of kept variants, arms beside it, and on every line score, delta and held-out loss."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ablations.ladder import M10
from reports.bars import Bar
from reports.cells import Estimate
from reports.deltas import Delta
from reports.deltas_table import DIGITS, printed_range, signed
from reports.findings import Findings
from reports.formats import number, signed_percent
from reports.intervals import seed_interval, trial_ids
from reports.page.charts import Axis, Mark, axis_over, mark
from reports.page.numbers import NO_NUMBER, Number, Register
from reports.remarks import why_no_average
from reports.scores import Row

TRUNK = frozenset(M10.lineage())
STRIP_WIDTH = 136.0
EDGE = 8.0


@dataclass(frozen=True)
class Place:
    """Where a line stands in the tree: its depth beside the trunk, whether the trunk goes on above and below it."""

    depth: int
    has_above: bool
    has_below: bool


@dataclass(frozen=True)
class Line:
    """One variant. `why` says why there is no score; `delta_why` and `loss_why` why nothing is compared."""

    name: str
    title: str
    kept: bool
    parent: str
    place: Place
    score: Number
    interval: str
    strip: Mark | None
    paper: Number
    delta: Number
    delta_percent: str
    delta_interval: str
    forest: Mark | None
    verdict: str
    loss: Number
    loss_delta: Number
    loss_why: str
    why: str


@dataclass(frozen=True)
class LadderChart:
    """The lines in the order of the tree and the axes that they share."""

    lines: tuple[Line, ...]
    scores: Axis
    deltas: Axis
    quantity: str


def ladder_chart(findings: Findings, register: Register) -> LadderChart:
    """The tree of everything that Figure 1 shows."""
    bars = {bar.variant.name: bar for bar in findings.bars.bars}
    deltas = {
        (bar.variant.name, quantity): delta for bar in bars.values() for quantity, delta in _to_parent(bar, findings)
    }
    order = list(_in_tree_order(findings.group.last_rows()))
    scores = axis_over(_seed_scores(bars), EDGE, STRIP_WIDTH - EDGE)
    changes = axis_over([0.0, *_seed_deltas(deltas)], EDGE, STRIP_WIDTH - EDGE)
    maker = _Lines(findings, register, scores, changes)
    lines = [maker.line(bars[name], _place(order, index), deltas) for index, (name, _) in enumerate(order)]
    return LadderChart(tuple(lines), scores, changes, findings.bars.quantity)


def _to_parent(bar: Bar, findings: Findings) -> Iterator[tuple[str, Delta]]:
    """The deltas of a variant to its parent, one a quantity: in loss on the corpus that its own loss is shown on, else
    on another that both were measured on."""
    parent = bar.variant.parent
    own = [d for d in findings.deltas if parent and (d.variant, d.base) == (bar.variant.name, parent.name)]
    yield from ((delta.pair.quantity, delta) for delta in own if delta.pair.quantity == "GLUE")
    losses = [delta for delta in own if delta.pair.quantity == "loss"]
    shown = bar.loss[0] if bar.loss else ""
    if losses:
        yield "loss", min(losses, key=lambda delta: delta.pair.corpus != shown)


def _seed_scores(bars: Mapping[str, Bar]) -> Iterator[float]:
    for bar in bars.values():
        yield from bar.score.by_seeds.values() if bar.score else ()


def _seed_deltas(deltas: Mapping[tuple[str, str], Delta]) -> Iterator[float]:
    for (_, quantity), delta in deltas.items():
        if quantity == "GLUE":
            yield from delta.pair.differences.values()


def _in_tree_order(rows: Mapping[str, Row]) -> Iterator[tuple[str, int]]:
    """(name, depth beside the trunk): below each variant first its arms with theirs, then the trunk."""
    children: dict[str, list[str]] = defaultdict(list)
    for name, row in rows.items():
        children[row.variant.parent.name if row.variant.parent else ""].append(name)

    def below(name: str, depth: int) -> Iterator[tuple[str, int]]:
        for child in sorted(children[name], key=lambda each: each in TRUNK):
            own = 0 if child in TRUNK else depth + 1
            yield child, own
            yield from below(child, own)

    return below("", 0)


def _place(order: Sequence[tuple[str, int]], index: int) -> Place:
    trunk = [line for line, (_, depth) in enumerate(order) if depth == 0]
    return Place(order[index][1], has_above=index > trunk[0], has_below=index < trunk[-1])


class _Lines:
    """Makes lines; remembers what all of them share."""

    def __init__(self, findings: Findings, register: Register, scores: Axis, deltas: Axis) -> None:
        self._findings, self._register, self._scores, self._deltas = findings, register, scores, deltas

    def line(self, bar: Bar, place: Place, deltas: Mapping[tuple[str, str], Delta]) -> Line:
        name, parent = bar.variant.name, bar.variant.parent
        delta, of_loss = deltas.get((name, "GLUE")), deltas.get((name, "loss"))
        found = delta.comparison if delta else None
        interval = seed_interval(bar.score) if bar.score else None
        return Line(
            name=name,
            title=bar.label,
            kept=bar.variant.kept,
            parent=parent.name if parent else "",
            place=place,
            score=self._score(bar),
            interval="" if interval is None else printed_interval(interval),
            strip=mark(self._scores, bar.score.mean, list(bar.score.by_seeds.values()), interval)
            if bar.score
            else None,
            paper=_printed(bar, self._register),
            delta=self._delta(delta),
            delta_percent="" if bar.delta_percent is None else signed_percent(bar.delta_percent),
            delta_interval="" if found is None or found.interval is None else printed_range(found.interval, 1),
            forest=None if found is None else mark(self._deltas, found.mean, found.differences, found.interval),
            verdict=delta.verdict if delta else "",
            loss=loss_number(self._register, bar.row, *bar.loss) if bar.loss else NO_NUMBER,
            loss_delta=self._delta(of_loss),
            loss_why=of_loss.pair.reason.partition(":")[0] if of_loss else "",
            why="" if bar.score else why_no_average(bar.row, self._findings.group),
        )

    def _score(self, bar: Bar) -> Number:
        if bar.score is None:
            return NO_NUMBER
        bars = self._findings.bars
        how = f"{bars.quantity}; of each task the best point of its grid, mean over seeds, in points"
        title, ids = f"{bar.variant.name}: GLUE", trial_ids(bar.row, bars.tasks)
        return self._register.number(number(bar.score.mean), title, how, ids)

    def _delta(self, delta: Delta | None) -> Number:
        if delta is None or delta.comparison is None:
            return NO_NUMBER
        quantity = delta.pair.quantity
        text = signed(delta.comparison.mean, 1 if quantity == "GLUE" else 3)
        how = f"mean over paired seeds of {delta.variant} less {delta.base}"
        change = signed(delta.comparison.mean, DIGITS[quantity])
        title = f"{delta.variant} against {delta.base}: {delta.pair.measured} {change}"
        return self._register.number(text, title, how, delta.pair.ids)


def _printed(bar: Bar, register: Register) -> Number:
    """What the paper prints: the average and, where it has one, the relative change."""
    if bar.paper is None:
        return Number("")
    change = bar.paper.printed_delta_percent
    text = number(bar.paper.average) + ("" if change is None else f" ({signed_percent(change)})")
    return register.published(text, f"{bar.variant.name}: GLUE average in the paper", bar.paper.source)


def loss_number(register: Register, row: Row, corpus: str, loss: Estimate) -> Number:
    """A held-out loss with the runs behind it."""
    ids = [run.id for run in row.runs if corpus in run.heldout_loss]
    how = "held-out MLM loss in nats a token on fixed masks, mean over seeds"
    return register.number(number(loss.mean, 3), f"{row.variant.name}: held-out loss on {corpus}", how, ids)


def printed_interval(interval: tuple[float, float]) -> str:
    """An interval of scores for people."""
    return f"{number(interval[0])} to {number(interval[1])}"
