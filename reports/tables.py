"""Tables as frames, written as Markdown, LaTeX and CSV; equal facts give equal bytes. The page writes them as HTML.

A table has two frames: the displayed cells, and the lines of its CSV file.
"""

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from reports.scores import Estimate

THIS_STUDY, PAPER = "this study", "paper"
DASH = "—"
BINARY_ERROR = 1e-9
"""More than the binary rounding error of a mean of decimal numbers, less than any printed digit."""
MARKUP = re.compile(r"[\\|]|<(?=[A-Za-z/!?])|&(?=#|\w+;)|\](?=\()")
"""Characters that Markdown would read as a column, a tag, an entity or a link."""
LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
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
    "≤": r"$\leq$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "²": "$^2$",
    "\u00a0": "~",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
}


@dataclass(frozen=True)
class Table:
    """A table: `shown` are the displayed cells, `facts` the unrounded lines of the CSV file.

    `alignment` has one letter per column (l, c or r); a rule is drawn before the lines in `rules`.
    """

    title: str
    shown: "pd.DataFrame"
    facts: "pd.DataFrame"
    alignment: str
    notes: tuple[str, ...] = ()
    rules: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert len(self.alignment) == len(self.header), (self.alignment, self.header)

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(self.shown.columns)

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        return tuple(self.shown.itertuples(index=False, name=None))

    @property
    def markdown(self) -> str:
        """The table as a Markdown page: title, cells, notes."""
        marks = {"l": ":---", "c": ":---:", "r": "---:"}
        lines = [f"# {escape_markdown(self.title)}", "", markdown_row(map(escape_markdown, self.header))]
        lines.append(markdown_row(marks[letter] for letter in self.alignment))
        lines += [markdown_row(map(escape_markdown, row)) for row in self.rows]
        if self.notes:
            lines += ["", *(f"- {escape_markdown(note)}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    @property
    def latex(self) -> str:
        """The table as a LaTeX float; the document needs `\\usepackage{booktabs}` and `\\usepackage{graphicx}`."""
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(self.title)}}}"]
        lines += [r"\resizebox{\linewidth}{!}{%", rf"\begin{{tabular}}{{{self.alignment}}}", r"\toprule"]
        lines += [_latex_line(self.header), r"\midrule"]
        for index, row in enumerate(self.rows):
            lines += [r"\midrule"] if index in self.rules else []
            lines.append(_latex_line(row))
        lines += [r"\bottomrule", r"\end{tabular}}"]
        if self.notes:
            lines += ["", r"\smallskip\raggedright\footnotesize"]
            lines += [rf"{escape_latex(note)}\par" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    @property
    def csv(self) -> str:
        """The facts as CSV with Unix line ends."""
        return csv_text(self.facts.columns, self.facts.itertuples(index=False, name=None))

    def files(self, name: str, formats: Collection[str] = ("md", "tex", "csv")) -> dict[str, bytes]:
        """Return the table in some formats, by file name."""
        texts = {"md": self.markdown, "tex": self.latex, "csv": self.csv}
        return {f"{name}.{suffix}": text.encode() for suffix, text in texts.items() if suffix in formats}


def frame_of(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> "pd.DataFrame":
    """Return rows of values as a frame, without conversion."""
    import pandas as pd

    assert all(len(row) == len(header) for row in rows), header
    return pd.DataFrame(rows, columns=list(header), dtype=object)


def escape_markdown(text: str) -> str:
    """Return the text as one line, with table columns, HTML and links escaped for Markdown."""
    return MARKUP.sub(r"\\\g<0>", " ".join(text.splitlines()))


def markdown_row(cells: Iterable[object]) -> str:
    """Return a line of a table in Markdown; the cells are not escaped."""
    return f"| {' | '.join(map(str, cells))} |"


def escape_latex(text: str) -> str:
    """Escape text for LaTeX."""
    return "".join(LATEX.get(character, character) for character in text)


def _latex_line(cells: Iterable[str]) -> str:
    return f"{' & '.join(escape_latex(cell) for cell in cells)} \\\\"


def csv_text(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return values as CSV: floats with six decimals, empty cells for missing values."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def _csv_cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def number(value: float | None, digits: int = 1) -> str:
    """Format a number with a true minus sign; a dash for None or NaN.

    Halves are rounded away from zero, as in the paper's tables, whatever their binary representation.
    """
    if value is None or math.isnan(value):
        return DASH
    text = f"{value + math.copysign(BINARY_ERROR, value):.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def capitalized(text: str) -> str:
    """Capitalize the first letter and leave the rest as it is."""
    return text[:1].upper() + text[1:]


def signed(value: float | None, digits: int) -> str:
    """Format a difference with its sign; a dash for None or NaN."""
    text = number(value, digits)
    return text if text.startswith((DASH, "−")) or float(text) == 0 else f"+{text}"


def printed_range(interval: tuple[float, float] | None, digits: int) -> str:
    """Format an interval of differences; a dash for None."""
    return DASH if interval is None else f"{signed(interval[0], digits)} to {signed(interval[1], digits)}"


def with_deviation(mean: float | None, deviation: float | None, digits: int = 1) -> str:
    """Format a mean, ± one standard deviation if known. In these reports, ± always means the standard deviation."""
    if mean is None or deviation is None:
        return number(mean, digits)
    return f"{number(mean, digits)} ± {number(deviation, digits)}"


def print_estimate(estimate: "Estimate | None", digits: int = 1) -> str:
    """Format a mean, ± the standard deviation over seeds."""
    return with_deviation(estimate.mean, estimate.spread, digits) if estimate else DASH


def signed_percent(value: float | None) -> str:
    """Format a relative change in percent with its sign; a dash for None."""
    return DASH if value is None else f"{signed(value, 1)} %"


def print_by_seed(values: Mapping[Any, float]) -> str:
    """Format numbers by seed for a CSV file."""
    return " ".join(f"{seed}:{value:.6f}" for seed, value in values.items())
