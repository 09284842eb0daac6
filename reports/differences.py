"""The figures of deltas and of factorial effects."""

import textwrap
from collections.abc import Sequence

from ablations.ladder import variants
from reports.deltas import Delta
from reports.deltas_table import DIGITS
from reports.drawing import drawn, provenance_line
from reports.effects import Factorial
from reports.effects_table import effect_name
from reports.forest import Forest, Strip, forest_drawn
from reports.pairs import BITS
from reports.remarks import row_change
from reports.scores import Group

UNITS = {
    "GLUE": "points, higher is better",
    "loss": "nats a token, lower is better",
    BITS: "bits a byte, lower is better",
}
MOST_LETTERS = 40  # of a reason, as many as a column holds
SEEDS = "line: 95 % t interval over paired seeds; rings: seeds"
CUT = "An interval much wider than all seeds is cut at the edge; numbers and tests are in the table of the same name."


def deltas_figure(deltas: Sequence[Delta], group: Group, quantity: str) -> dict[str, bytes]:
    """All deltas as {"pdf": …, "svg": …, "png": …}; `quantity` says over which tasks GLUE is averaged."""
    return drawn(lambda: forest_drawn(forest_of_deltas(deltas, group, quantity)))


def effects_figure(factorials: Sequence[Factorial], group: Group) -> dict[str, bytes]:
    """The tested effects of factorials, likewise."""
    return drawn(lambda: forest_drawn(forest_of_effects(factorials, group)))


def forest_of_deltas(deltas: Sequence[Delta], group: Group, quantity: str) -> Forest:
    """A line for every pair of variants, a column for each quantity in which some pair is compared."""
    pairs = list(dict.fromkeys((delta.variant, delta.base) for delta in deltas))
    units = {delta.pair.measured: UNITS[delta.pair.quantity] for delta in deltas if delta.comparison is not None}
    cells: dict[tuple[int, int], Strip | str] = {}
    for delta in deltas:
        for place, (measured, unit) in enumerate(units.items()):
            if delta.pair.measured == measured or (delta.comparison is None and unit == UNITS[delta.pair.quantity]):
                cells[pairs.index((delta.variant, delta.base)), place] = _strip(delta)
    lines = [(f"{variant} − {base}", _changes(variant, base, group)) for variant, base in pairs]
    foot = (
        f"GLUE: {quantity}. Diamond: mean, grey of discarded variants; {SEEDS}; thin line: 95 % over development "
        f"examples. {CUT}"
    )
    return Forest(tuple(lines), tuple(units.items()), cells, _title("Differences", group), foot)


def forest_of_effects(factorials: Sequence[Factorial], group: Group) -> Forest:
    """A line for every tested effect, a column for each quantity of each factorial that has any."""
    told = [each for each in factorials if each.effects]
    several = len({each.factors for each in told}) > 1
    tested = [[effect for effect in each.effects if effect.verdict] for each in told]
    lines = list(dict.fromkeys(effect_name(effect) for effects in tested for effect in effects))
    cells: dict[tuple[int, int], Strip | str] = {}
    for place, (each, effects) in enumerate(zip(told, tested, strict=True)):
        for effect in effects:
            strip = Strip(effect.comparison, DIGITS[each.quantity], quiet=effect.kind != "main")
            cells[lines.index(effect_name(effect)), place] = strip
    titles = [f"{each.measured}\n({', '.join(each.factors)})" if several else each.measured for each in told]
    columns = [(title, UNITS[each.quantity]) for title, each in zip(titles, told, strict=True)]
    foot = f"Diamond: mean, grey of interactions; {SEEDS}. {CUT}"
    return Forest(tuple((line, "") for line in lines), tuple(columns), cells, _title("Effects", group), foot)


def _strip(delta: Delta) -> Strip | str:
    if delta.comparison is None:
        return textwrap.shorten(delta.pair.reason, MOST_LETTERS, placeholder=" …")
    variant = variants().get(delta.variant)
    is_discarded = variant is not None and not variant.kept
    return Strip(delta.comparison, DIGITS[delta.pair.quantity], delta.examples, is_discarded)


def _changes(variant: str, base: str, group: Group) -> str:
    """What a variant of the ladder changes; the names of designs say it themselves."""
    rows = group.last_rows()
    return row_change(rows[variant], group) if {variant, base} <= set(rows) else ""


def _title(what: str, group: Group) -> str:
    return f"{what} — {provenance_line(group)}"
