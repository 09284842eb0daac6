"""The ladder as a tree: a trunk of kept variants, arms beside it, and on every line score, delta and held-out loss."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ablations.ladders import current
from reports import published
from reports.analysis.inference import seed_interval
from reports.analysis.pairing import OWN_RATES, Delta
from reports.analysis.quantities import QUANTITIES
from reports.figures.figure1 import Bar
from reports.findings import Findings
from reports.notes import why_no_average
from reports.page.charts import Axis, Mark, axis_over, mark
from reports.page.register import NO_NUMBER, Number, Register
from reports.scores import Row
from reports.tables import number, printed_range, signed, signed_percent

STRIP_WIDTH = 136.0
EDGE = 8.0


@dataclass(frozen=True)
class Line:
    """One variant at a `depth` beside the trunk, which goes on above and below it or not. `why` says why there is no
    score, `loss_why` why no losses are compared."""

    bar: Bar
    depth: int
    has_above: bool
    has_below: bool
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


def draw_ladder(findings: Findings, register: Register) -> LadderChart:
    """The tree of everything that Figure 1 shows."""
    bars = {bar.row.name: bar for bar in findings.bars.bars}
    of_glue, of_loss = _deltas_to_parents(findings, bars)
    scores = [score for bar in bars.values() if bar.score for score in bar.score.by_seeds.values()]
    differences = [0.0, *(value for delta in of_glue.values() for value in delta.differences.values())]
    order = list(_in_tree_order(findings.group.last_rows))
    maker = _Lines(
        findings,
        register,
        axis_over(scores, EDGE, STRIP_WIDTH - EDGE),
        axis_over(differences, EDGE, STRIP_WIDTH - EDGE),
    )
    trunk = [index for index, (_, depth) in enumerate(order) if depth == 0]
    lines = [
        maker.line(bars[name], (depth, index > trunk[0], index < trunk[-1]), of_glue.get(name), of_loss.get(name))
        for index, (name, depth) in enumerate(order)
    ]
    return LadderChart(tuple(lines), maker.scores, maker.deltas, findings.bars.quantity)


def _deltas_to_parents(findings: Findings, bars: Mapping[str, Bar]) -> tuple[dict[str, Delta], dict[str, Delta]]:
    """The deltas of variants to their parents in GLUE, and in loss on the corpus that a variant's own loss is shown on,
    else on another that both were measured on."""
    of_glue: dict[str, Delta] = {}
    of_loss: dict[str, list[Delta]] = defaultdict(list)
    for delta in findings.deltas:
        is_to_parent = delta.variant in bars and delta.base == bars[delta.variant].row.parent
        if is_to_parent and delta.design != OWN_RATES:
            if delta.quantity == "GLUE":
                of_glue[delta.variant] = delta
            elif delta.quantity == "loss":
                of_loss[delta.variant].append(delta)
    shown = {name: bar.row.own_loss[0] if bar.row.own_loss else "" for name, bar in bars.items()}
    first = {name: min(own, key=lambda delta: delta.corpus != shown[name]) for name, own in of_loss.items()}
    return of_glue, first


def _in_tree_order(rows: Mapping[str, Row]) -> Iterator[tuple[str, int]]:
    """(name, depth beside the trunk): below each variant first its arms with theirs, then the trunk."""
    children: dict[str, list[str]] = defaultdict(list)
    for name, row in rows.items():
        children[row.parent].append(name)
    trunk = frozenset(current().end.lineage())

    def below(name: str, depth: int) -> Iterator[tuple[str, int]]:
        for child in sorted(children[name], key=lambda each: each in trunk):
            own = 0 if child in trunk else depth + 1
            yield child, own
            yield from below(child, own)

    return below("", 0)


class _Lines:
    """Makes lines; remembers what all of them share."""

    def __init__(self, findings: Findings, register: Register, scores: Axis, deltas: Axis) -> None:
        self._findings, self._register, self.scores, self.deltas = findings, register, scores, deltas

    def line(self, bar: Bar, place: tuple[int, bool, bool], delta: Delta | None, of_loss: Delta | None) -> Line:
        row, score = bar.row, bar.score
        found = delta.comparison if delta else None
        interval = seed_interval(score.by_pretraining.values()) if score else None
        seeds = list(score.by_seeds.values()) if score else []
        return Line(
            bar,
            *place,
            score=self._score(bar),
            interval="" if interval is None else f"{number(interval[0])} to {number(interval[1])}",
            strip=mark(self.scores, score.mean, seeds, interval) if score else None,
            paper=self._paper(bar),
            delta=self._delta(delta),
            delta_percent="" if bar.delta_percent is None else signed_percent(bar.delta_percent),
            delta_interval="" if found is None or found.interval is None else printed_range(found.interval, 1),
            forest=None if found is None else mark(self.deltas, found.mean, found.differences, found.interval),
            verdict=delta.verdict if delta else "",
            loss=self._loss(row),
            loss_delta=self._delta(of_loss),
            loss_why=of_loss.reason.partition(":")[0] if of_loss else "",
            why="" if score else why_no_average(row, self._findings.group),
        )

    def _score(self, bar: Bar) -> Number:
        if bar.score is None:
            return NO_NUMBER
        bars = self._findings.bars
        how = f"{bars.quantity}; of each task the best point of its grid, mean over seeds, in points"
        title, ids = f"{bar.row.name}: GLUE", bar.row.mean_ids(bars.tasks)
        return self._register.number(number(bar.score.mean), title, how, ids)

    def _delta(self, delta: Delta | None) -> Number:
        if delta is None or delta.comparison is None:
            return NO_NUMBER
        quantity = delta.quantity
        text = signed(delta.comparison.mean, 1 if quantity == "GLUE" else 3)
        how = f"mean over paired seeds of {delta.variant} less {delta.base}"
        change = signed(delta.comparison.mean, QUANTITIES[quantity].digits)
        title = f"{delta.variant} against {delta.base}: {delta.measured} {change}"
        return self._register.number(text, title, how, delta.ids)

    def _loss(self, row: Row) -> Number:
        if row.own_loss is None:
            return NO_NUMBER
        corpus, loss = row.own_loss
        ids = sorted(set(row.heldout[row.heldout.corpus == corpus].run))
        how = "held-out MLM loss in nats a token on fixed masks, mean over seeds"
        return self._register.number(number(loss.mean, 3), f"{row.name}: held-out loss on {corpus}", how, ids)

    def _paper(self, bar: Bar) -> Number:
        """What the paper prints: the average and, where it has one, the relative change; beside a mean of other tasks
        the change alone, which is of the average all the same."""
        paper = published.figure1().get(bar.row.name)
        if paper is None:
            return Number("")
        step = "" if paper.printed_delta_percent is None else signed_percent(paper.printed_delta_percent)
        if bar.paper is None:
            title = f"{bar.row.name}: change of the average of eight tasks to its parent in {current().published_as}"
            return self._register.number(step, title, "", paper.source)
        text = number(bar.paper.average) + (f" ({step})" if step else "")
        return self._register.number(
            text, f"{bar.row.name}: GLUE average in {current().published_as}", "", paper.source
        )
