"""Every file that a study's records give, as bytes by name."""

from collections.abc import Mapping, Sequence

from reports.bars import figure1_csv
from reports.comparison import ComparedNumber
from reports.comparison_table import comparison_csv, comparison_json, comparison_table
from reports.deltas_table import deltas_csv, deltas_table
from reports.differences import deltas_figure, effects_figure
from reports.effects_table import effects_csv, effects_table
from reports.figure1 import figure1
from reports.figure4 import figure4, figure5
from reports.findings import Findings
from reports.formats import Table, booktabs, markdown
from reports.perplexity import figure2, figure2_csv
from reports.rank_agreement import RankAgreement
from reports.remarks import remarks_page
from reports.table2 import table2, table2_csv
from reports.table3 import table3, table3_csv
from reports.table4 import embeddings_csv, table4
from reports.table5 import table5, table5_csv
from reports.throughput import ThroughputLine, figure3, table9, table9_csv

Contents = dict[str, bytes]


def contents(findings: Findings) -> Contents:
    """Figures, tables and remarks of one scale and source of data."""
    group, bars = findings.group, findings.bars
    return {
        **figure_files("figure1", figure1(bars), figure1_csv(bars)),
        **table_files("table2", table2(group), table2_csv(group)),
        **table_files("table3", table3(group), table3_csv(group)),
        **table_files("table5", table5(group), table5_csv(group)),
        **_statistics(findings),
        **_embeddings(findings),
        "remarks.md": remarks_page(group).encode(),
    }


def table_files(name: str, table: Table, csv: str) -> Contents:
    """A table as Markdown, LaTeX and CSV."""
    return {
        f"{name}.md": markdown(table).encode(),
        f"{name}.tex": booktabs(table).encode(),
        f"{name}.csv": csv.encode(),
    }


def _statistics(findings: Findings) -> Contents:
    """The table of deltas and, where there is a factorial, that of its effects."""
    group, quantity = findings.group, findings.bars.quantity
    table = deltas_table(findings.deltas, group, quantity)
    files = table_files("deltas", table, deltas_csv(findings.deltas, quantity))
    if any(delta.comparison for delta in findings.deltas):
        files |= _named("deltas", deltas_figure(findings.deltas, group, quantity))
    if findings.factorials:
        table = effects_table(findings.factorials, group, quantity)
        files |= table_files("effects", table, effects_csv(findings.factorials))
    if any(each.effects for each in findings.factorials):
        files |= _named("effects", effects_figure(findings.factorials, group))
    return files


def _embeddings(findings: Findings) -> Contents:
    """What is on embeddings and pseudo-perplexity; nothing where there is no record."""
    group, embeddings, lines = findings.group, findings.embeddings, findings.perplexities
    files: Contents = {}
    if lines:
        files |= figure_files("figure2", figure2(lines, group), figure2_csv(lines))
    if rows := embeddings.of("zero_shot"):
        files |= figure_files("figure4", figure4(rows, group), embeddings_csv(rows, with_paper=False))
    if rows := embeddings.of("contrastive"):
        files |= table_files("table4", table4(embeddings, group), embeddings_csv(rows, with_paper=True))
        files |= figure_files("figure5", figure5(rows, group), embeddings_csv(rows, with_paper=True))
    return files


def throughput_contents(lines: Sequence[ThroughputLine]) -> Contents:
    """Figure 3 and Table 9; nothing where there is no record."""
    if not lines:
        return {}
    csv = table9_csv(lines)
    return figure_files("figure3", figure3(lines), csv) | table_files("table9", table9(lines), csv)


def figure_files(name: str, images: Mapping[str, bytes], csv: str) -> Contents:
    """A figure in all its formats, and what it shows as CSV."""
    return _named(name, images) | {f"{name}.csv": csv.encode()}


def _named(name: str, images: Mapping[str, bytes]) -> Contents:
    return {f"{name}.{suffix}": content for suffix, content in images.items()}


def comparison_contents(
    numbers: Sequence[ComparedNumber], agreements: Sequence[RankAgreement], findings: Findings
) -> Mapping[str, bytes]:
    """Our numbers beside the paper's."""
    table = comparison_table(numbers, agreements, findings.group)
    return {
        "comparison.md": markdown(table).encode(),
        "comparison.csv": comparison_csv(numbers).encode(),
        "comparison.json": comparison_json(numbers, agreements, findings.group).encode(),
    }
