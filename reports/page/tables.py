"""Tables of the reports as tables of the page, whose numbers know their records."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.deltas_table import deltas_table
from reports.effects_table import effects_table
from reports.findings import Findings
from reports.formats import DASH, Table
from reports.page.numbers import Number, Register

TEXT = "lc"


@dataclass(frozen=True)
class PageTable:
    """A table to show: `alignment` as in Table, `ruled` says of each row whether a rule stands before it."""

    title: str
    header: tuple[str, ...]
    alignment: str
    rows: tuple[tuple[bool, tuple[Number, ...]], ...]
    notes: tuple[str, ...]


def page_table(table: Table, ids: Sequence[Sequence[str]], register: Register) -> PageTable:
    """A table with the ids of the records behind each row; right-aligned cells are its numbers."""
    rows = []
    for index, (cells, own) in enumerate(zip(table.rows, ids, strict=True)):
        title = ", ".join(cell for cell, side in zip(cells, table.alignment, strict=True) if side in TEXT and cell)
        numbers = tuple(
            Number(cell)
            if side in TEXT or cell in ("", DASH)
            else register.number(cell, f"{title}: {name}", table.title, own)
            for cell, side, name in zip(cells, table.alignment, table.header, strict=True)
        )
        rows.append((index in table.rules, numbers))
    return PageTable(table.title, table.header, table.alignment, tuple(rows), table.notes)


def statistics_tables(findings: Findings, register: Register) -> tuple[PageTable, ...]:
    """Deltas with their tests and, where there is a factorial, its effects."""
    group, quantity = findings.group, findings.bars.quantity
    deltas = deltas_table(findings.deltas, group, quantity)
    tables = [page_table(deltas, [delta.pair.ids for delta in findings.deltas], register)]
    if findings.factorials:
        ids = [each.ids for each in findings.factorials for _ in each.effects or [None]]
        tables.append(page_table(effects_table(findings.factorials, group, quantity), ids, register))
    return tuple(tables)
