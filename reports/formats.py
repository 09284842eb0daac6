"""Writers for tables: Markdown, LaTeX (booktabs) and CSV, the same bytes for the same cells."""

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DASH = "—"
BINARY_ERROR = 1e-9
"""More than what a mean of decimal numbers loses in binary, less than what anybody prints."""

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "§": r"\S{}",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "→": r"$\rightarrow$",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "×": r"$\times$",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
}


@dataclass(frozen=True)
class Table:
    """A table to print. `alignment` has one letter a column (l, c or r); a rule is drawn before the rows in `rules`."""

    title: str
    header: tuple[str, ...]
    alignment: str
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    rules: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert len(self.alignment) == len(self.header), (self.alignment, self.header)
        assert all(len(row) == len(self.header) for row in self.rows), self.title


MARKUP = re.compile(r"[\\|]|<(?=[A-Za-z/!?])|&(?=#|\w+;)|\](?=\()")
"""What Markdown would read as a column, a tag, an entity or a link; all else is text there as well."""
FORMULA = "=+-@\t\r"
"""What a cell starts with that spreadsheets compute."""


def escape_markdown(text: str) -> str:
    """One line of text in which Markdown sees no table column, HTML or link, whatever a record's labels hold."""
    return MARKUP.sub(r"\\\g<0>", " ".join(text.splitlines()))


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(escape_markdown(cell) for cell in cells)} |"


def markdown(table: Table) -> str:
    """The table as a Markdown page: title, cells, notes."""
    marks = {"l": ":---", "c": ":---:", "r": "---:"}
    lines = [f"# {escape_markdown(table.title)}", "", _markdown_line(table.header)]
    lines.append(f"| {' | '.join(marks[letter] for letter in table.alignment)} |")
    lines += [_markdown_line(row) for row in table.rows]
    if table.notes:
        lines += ["", *(f"- {escape_markdown(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Text in which LaTeX sees no command."""
    return "".join(_LATEX.get(character, character) for character in text)


def _latex_line(cells: Iterable[str]) -> str:
    return f"{' & '.join(escape_latex(cell) for cell in cells)} \\\\"


def booktabs(table: Table) -> str:
    """The table as a LaTeX float; the document needs `\\usepackage{booktabs}` and `\\usepackage{graphicx}`."""
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(table.title)}}}"]
    lines += [r"\resizebox{\linewidth}{!}{%", rf"\begin{{tabular}}{{{table.alignment}}}", r"\toprule"]
    lines += [_latex_line(table.header), r"\midrule"]
    for index, row in enumerate(table.rows):
        if index in table.rules:
            lines.append(r"\midrule")
        lines.append(_latex_line(row))
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if table.notes:
        lines += ["", r"\smallskip\raggedright\footnotesize"]
        lines += [rf"{escape_latex(note)}\par" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def csv_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells as CSV with Unix line ends; text that a spreadsheet would compute gets an apostrophe in front."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_inert(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def _inert(cell: str) -> str:
    if not cell.startswith(tuple(FORMULA)):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def number(value: float | None, digits: int = 1) -> str:
    """A number for people with a true minus sign; a dash where there is none.

    A half is rounded away from zero, as in the paper's tables, whether binary has it a little below or above.
    """
    if value is None:
        return DASH
    text = f"{value + math.copysign(BINARY_ERROR, value):.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def with_deviation(mean: float | None, deviation: float | None, digits: int = 1) -> str:
    """A mean for people, ± one standard deviation where there is one: the only thing that ± means in these reports."""
    if mean is None or deviation is None:
        return number(mean, digits)
    return f"{number(mean, digits)} ± {number(deviation, digits)}"


def signed_percent(value: float | None) -> str:
    """A relative change in percent with its sign; a dash where there is none."""
    if value is None:
        return DASH
    text = f"{value:+.1f}"
    return "0.0 %" if float(text) == 0 else f"{text.replace('-', '−')} %"


def p_value(value: float | None) -> str:
    """A p-value for people: three digits, and never 0; a dash where there is none."""
    return "<0.001" if value is not None and value < 0.0005 else number(value, 3)


def raw(value: float | None) -> str:
    """A number for machines: six digits behind the point, empty where there is none."""
    return "" if value is None else f"{value:.6f}"
