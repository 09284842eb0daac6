"""Differences: every step of the ladder and of designs in every measure, judged by `reports.statistics`."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product

from reports.analysis.pairing import Pair, pair_all
from reports.analysis.quantities import BITS, LOSS
from reports.figures.embeddings import EmbeddingRow
from reports.notes import searches_noted, warnings
from reports.scores import Group, Row
from reports.statistics import LEAST_SEEDS_OF_INTERVAL, LEAST_SEEDS_OF_WORD, Difference, Judged, judge
from reports.tables import Column, Table, make_table, print_by_seed, print_p, printed_range, signed

LADDER, ALTERNATIVES, LEAVE_ONE_OUT, ADD_ONE, OWN_RATES = (
    "ladder",
    "alternatives",
    "leave-one-out",
    "add-one",
    "own rates",
)
CLAIMS = {
    LADDER: "Ladder: each difference is the effect of one step on top of all kept steps before it, so effects depend "
    "on the order of the steps.",
    OWN_RATES: "Own rates: each arm at the peak rate that a sweep found best for it on pilot seeds, which no "
    "difference counts. It supports claims about arms that are tuned alike.",
    LEAVE_ONE_OUT: "Leave-one-out: each difference is what a variant owes to one modification in the presence of all "
    "others. The differences do not add up where modifications overlap or depend on each other.",
    ADD_ONE: "Add-one: each difference is what one modification does to a variant by itself.",
}
"""What each design supports."""


@dataclass(frozen=True)
class Step:
    """A pair of a design, and how it is judged; None if there is nothing to compare."""

    design: str
    pair: Pair
    judged: Judged | None

    @property
    def name(self) -> str:
        return f"{self.pair.variant} − {self.pair.parent}"

    @property
    def digits(self) -> int:
        return self.pair.measure.digits

    @property
    def measured(self) -> str:
        """The measure, with the corpus or tasks."""
        return self.pair.measure.name + (f" on {self.pair.measured}" if self.pair.measured else "")

    @property
    def found(self) -> Difference:
        """The difference of a step that has one."""
        assert self.judged is not None, self.pair.reason
        return self.judged.difference

    @property
    def word(self) -> str:
        return f"not compared: {self.pair.reason}" if self.judged is None else self.judged.word


def find_steps(group: Group, tasks: Sequence[str], embeddings: Sequence[EmbeddingRow]) -> tuple[Step, ...]:
    """Return all steps by design and measure, in the order of the ladder; `tasks` are those of GLUE's mean. The steps
    of one design in one measure are one family of tests."""
    families: dict[tuple[str, str], list[tuple[Pair, bool]]] = defaultdict(list)
    for design, variant, parent in _compared_rows(group):
        is_trained = not (variant.untrained or parent.untrained)
        for pair in pair_all(variant, parent, tasks, group, embeddings):
            families[design, pair.measure.name].append((pair, is_trained))
    return tuple(chain.from_iterable(_judge(design, pairs) for (design, _), pairs in families.items()))


def _compared_rows(group: Group) -> Iterator[tuple[str, Row, Row]]:
    """Yield (design, variant, parent) for every pair that designs compare. Pairs with the runs of an earlier one are
    left out of leave-one-out and add-one."""
    seen = set()
    for design, variant, parent in _pairs_of_designs(group):
        runs = variant.run_ids, parent.run_ids
        if design in (LADDER, OWN_RATES) or not all(runs) or runs not in seen:
            seen.add(runs)
            yield design, variant, parent


def _pairs_of_designs(group: Group) -> Iterator[tuple[str, Row, Row]]:
    rows = group.compared_rows
    for row in group.last_rows.values():
        if row.parent:
            yield ALTERNATIVES if "@" in row.name else LADDER, row, rows[row.parent]
    ladder = group.ladder
    for name, modification in product(ladder.steps, ladder.modifications):
        less, more = rows.get(f"{name}-{modification}"), rows.get(f"{name}+{modification}")
        if less is not None:
            yield LEAVE_ONE_OUT, rows[name], less
        if more is not None:
            yield ADD_ONE, more, rows[name]
    yield from ((OWN_RATES, *pair) for pair in pairs_at_own_rates(group))


def pairs_at_own_rates(group: Group) -> Iterator[tuple[Row, Row]]:
    """Yield the steps of the ladder with both arms at the best rates of their sweeps."""
    for row in group.last_rows.values():
        if row.name in group.ladder.steps and row.parent:
            ours, theirs = group.row_at_best_rate(row.name), group.row_at_best_rate(row.parent)
            if ours is not None and theirs is not None:
                yield ours, theirs


def _judge(design: str, pairs: Sequence[tuple[Pair, bool]]) -> Iterator[Step]:
    """Yield the steps of one family."""
    compared = [_difference(pair, is_trained) for pair, is_trained in pairs if not pair.reason]
    judged = iter(judge(compared))
    yield from (Step(design, pair, None if pair.reason else next(judged)) for pair, _ in pairs)


def _difference(pair: Pair, is_trained: bool) -> Difference:
    own = pair.measure
    return Difference(
        variant=pair.variant,
        parent=pair.parent,
        measure=own.name,
        ours=pair.ours,
        theirs=pair.theirs,
        margin=own.margin,
        higher_is_better=own.higher_is_better,
        trained=is_trained,
    )


COLUMNS: Sequence[Column[Step]] = (
    Column("Design", "design", lambda step: step.design, always=True),
    Column("Step", "", lambda step: step.name, always=True),
    Column("", "variant parent", lambda step: (step.pair.variant, step.pair.parent), always=True),
    Column("Measure", "measure", lambda step: step.measured, always=True),
    Column("Unit", "unit", lambda step: step.pair.measure.unit, always=True),
    Column("n", "n", lambda step: step.found.n, side="r"),
    Column("Mean", "mean", lambda step: step.found.mean, lambda mean, step: signed(mean, step.digits), "r"),
    Column(
        "95 % interval",
        "low high",
        lambda step: step.found.interval,
        lambda ends, step: printed_range(ends, step.digits),
        "r",
    ),
    Column("p (Holm)", "p_holm", lambda step: step.judged and step.judged.p, print_p, "r"),
    Column("", "p_t", lambda step: step.found.p if step.found.is_tested else None),
    Column("", "p_equivalence_holm", lambda step: step.judged and step.judged.p_equivalence),
    Column("", "margin", lambda step: step.pair.measure.margin),
    Column("Word", "word", lambda step: step.word, always=True),
    Column("", "by_seed", lambda step: print_by_seed(step.found.by_seed)),
    Column("", "notes", lambda step: "; ".join(step.pair.notes), always=True),
    Column("", "records", lambda step: " ".join(step.pair.ids)),
)


def differences_table(steps: Sequence[Step], group: Group, quantity: str) -> Table:
    """Return a table with one line per step and measure; `quantity` describes the tasks over which GLUE is averaged."""
    return make_table(
        f"Differences at paired seeds (scale {group.scale}, data {group.data})",
        COLUMNS,
        steps,
        (*warnings(group), *_notes(steps, quantity), *searches_noted(_rows_of(steps, group), mark="")),
        rule_key=lambda step: (step.design, step.pair.measure.name),
        is_left_out=lambda step: step.judged is None,
    )


def _rows_of(steps: Sequence[Step], group: Group) -> Iterator[Row]:
    """Yield the rows that are subtracted from each other, each once."""
    names = {name for step in steps if step.judged for name in (step.pair.variant, step.pair.parent)}
    yield from (row for name, row in group.compared_rows.items() if name in names)


def _notes(steps: Sequence[Step], quantity: str) -> Iterator[str]:
    yield (
        "Mean: variant minus parent over the seeds of pre-training that both have, with its t interval. GLUE: "
        f"{quantity}. Loss: on held-out text of the variant's own corpus, lower is better."
    )
    yield (
        "p (Holm): paired t test, adjusted by Holm's method for all steps of a design in one measure. A step is better "
        "or worse if it is below 0.05, and equivalent within the margin if two one-sided t tests are "
        "(docs/statistics.md)."
    )
    if any(step.judged and step.found.n < LEAST_SEEDS_OF_WORD for step in steps):
        yield f"Below {LEAST_SEEDS_OF_INTERVAL} seeds there is no interval, below {LEAST_SEEDS_OF_WORD} no word."
    if any(step.judged and step.pair.measure.name == LOSS and step.pair.measure.unit == BITS for step in steps):
        yield (
            "Bits per byte: the loss a token times the tokens of the text over its bytes. Masks hide tokens, so a "
            "tokenizer of shorter ones shows more beside each mask: between tokenizers it is no strict comparison."
        )
    yield from (CLAIMS[design] for design in dict.fromkeys(step.design for step in steps) if design in CLAIMS)
    yield from dict.fromkeys(f"{step.name}: {note}." for step in steps for note in step.pair.notes)
