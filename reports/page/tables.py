"""Tables of the reports as tables of the page, whose numbers know their records."""

from collections.abc import Sequence
from dataclasses import dataclass

from reports import published
from reports.deltas_table import deltas_table
from reports.effects_table import effects_table
from reports.findings import Findings
from reports.formats import Table
from reports.page.numbers import Number, Register
from reports.perplexity import perplexity_table
from reports.table4 import embedding_table, table4
from reports.throughput import ThroughputLine, table9

TEXT = "lc"


@dataclass(frozen=True)
class PageTable:
    """A table to show: `alignment` as in Table, `ruled` says of each row whether a rule stands before it."""

    title: str
    header: tuple[str, ...]
    alignment: str
    rows: tuple[tuple[bool, tuple[Number, ...]], ...]
    notes: tuple[str, ...]


def page_table(table: Table, origins: Sequence[Sequence[str]], register: Register) -> PageTable:
    """A table with the ids of the records behind each row, or with the place where the paper prints it (a string);
    right-aligned cells are its numbers."""
    rows = []
    for index, (cells, origin) in enumerate(zip(table.rows, origins, strict=True)):
        title = ", ".join(cell for cell, side in zip(cells, table.alignment, strict=True) if side in TEXT and cell)
        columns = zip(cells, table.alignment, table.header, strict=True)
        numbers = [
            Number(cell) if side in TEXT else _number(cell, f"{title}: {name}", table.title, origin, register)
            for cell, side, name in columns
        ]
        rows.append((index in table.rules, tuple(numbers)))
    return PageTable(table.title, table.header, table.alignment, tuple(rows), table.notes)


def _number(cell: str, title: str, how: str, origin: Sequence[str], register: Register) -> Number:
    if isinstance(origin, str):
        return register.published(cell, title, origin)
    return register.number(cell, title, how, origin) if cell else Number(cell)


def statistics_tables(findings: Findings, register: Register) -> tuple[PageTable, ...]:
    """Deltas with their tests and, where there is a factorial, its effects."""
    group, quantity = findings.group, findings.bars.quantity
    deltas = deltas_table(findings.deltas, group, quantity)
    tables = [page_table(deltas, [delta.pair.ids for delta in findings.deltas], register)]
    if findings.factorials:
        ids = [each.ids for each in findings.factorials for _ in each.effects or [None]]
        tables.append(page_table(effects_table(findings.factorials, group, quantity), ids, register))
    return tuple(tables)


def embedding_tables(findings: Findings, register: Register) -> tuple[PageTable, ...]:
    """Embeddings after fine-tuning and zero-shot, and pseudo-perplexity, as far as there are records."""
    group, embeddings, lines = findings.group, findings.embeddings, findings.perplexities
    tables = []
    if rows := embeddings.of("contrastive"):
        ids = [*(row.source for row in published.table4()), *(row.records(row.scores) for row in rows)]
        tables.append(page_table(table4(embeddings, group), ids, register))
    if rows := embeddings.of("zero_shot"):
        table = embedding_table(rows, group, "Zero-shot embeddings", ())
        tables.append(page_table(table, [row.records(row.scores) for row in rows], register))
    if lines:
        ids = [(line.id,) for line in lines for _ in line.points]
        tables.append(page_table(perplexity_table(lines, group), ids, register))
    return tuple(tables)


def throughput_tables(lines: Sequence[ThroughputLine], register: Register) -> tuple[PageTable, ...]:
    """Table 9, where there are records."""
    if not lines:
        return ()
    ids = [
        *(row.source for row in published.table9()),
        *(tuple(each.id for each in line.results.values()) for line in lines),
    ]
    return (page_table(table9(lines), ids, register),)
