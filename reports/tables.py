"""Tables as frames, written as Markdown, LaTeX and CSV; equal facts give equal bytes. The page writes them as HTML.

A table has two frames: the displayed cells, and the lines of its CSV file.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import pandas as pd

    from reports.scores import Estimate

LineT = TypeVar("LineT")

THIS_STUDY = "this study"
DASH = "—"
BINARY_ERROR = 1e-9
"""More than the binary rounding error of a mean of decimal numbers, less than any printed digit."""
MARKUP = re.compile(r"[\\|]|<(?=[A-Za-z/!?])|&(?=#|\w+;)|\](?=\()")
"""Characters that Markdown would read as a column, a tag, an entity or a link."""
FORMULA = tuple("=+-@\t\r")
"""First characters of cells that spreadsheets would compute."""
LATEX = {
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

    def files(self, name: str, formats: Collection[str]) -> dict[str, bytes]:
        """Return the table in some formats, by file name."""
        texts = {"md": self.markdown, "tex": self.latex, "csv": self.csv}
        return {f"{name}.{suffix}": text.encode() for suffix, text in texts.items() if suffix in formats}


def _plain(value: Any, _: Any) -> str:
    return DASH if value is None else str(value)


def print_p(value: float | None, _: Any) -> str:
    """Format a p-value with three decimals, and never as 0; a dash for None."""
    return "<0.001" if value is not None and value < 0.0005 else number(value, 3)


def rounded(digits: int) -> Callable[[float | None, Any], str]:
    """Return a function that formats a number of a line with so many decimals."""
    return lambda value, _: number(value, digits)


@dataclass(frozen=True)
class Column(Generic[LineT]):
    """A column of a table: the `head` of its displayed cells, and the `names` of its columns in the CSV file.

    `value` returns the value of a line, or one for each name (None if all are missing). `text` prints the value.
    Without a head a column is in the CSV file alone, without names it is displayed alone. In a line that is left out of
    the numbers, only the columns that are `always` there have a value.
    """

    head: str
    names: str
    value: Callable[[LineT], Any]
    text: Callable[[Any, LineT], str] = _plain
    side: str = "l"
    always: bool = False

    def cell(self, line: LineT, is_left_out: bool) -> str:
        """Return the displayed cell of a line."""
        return DASH if is_left_out and not self.always else self.text(self.value(line), line)

    def facts(self, line: LineT, is_left_out: bool) -> tuple[Any, ...]:
        """Return the values of a line in the CSV file."""
        count = len(self.names.split())
        value = None if is_left_out and not self.always else self.value(line)
        return (value,) if count == 1 else (None,) * count if value is None else tuple(value)


def make_table(
    title: str,
    columns: Sequence[Column[LineT]],
    lines: Sequence[LineT],
    notes: Sequence[str],
    *,
    rule_key: Callable[[LineT], Any] = lambda _: None,
    is_left_out: Callable[[LineT], bool] = lambda _: False,
) -> "Table":
    """Return a table with a displayed line, and a line of the CSV file, for each of `lines`. Rules are drawn where
    `rule_key` changes."""
    left_out = [is_left_out(line) for line in lines]
    shown = [each for each in columns if each.head]
    cells = [[each.cell(*pair) for each in shown] for pair in zip(lines, left_out, strict=True)]
    keys = enumerate(pairwise(map(rule_key, lines)), 1)
    return Table(
        title=title,
        shown=frame_of(cells, [each.head for each in shown]),
        facts=facts_frame(columns, lines, left_out),
        alignment="".join(each.side for each in shown),
        notes=tuple(notes),
        rules=frozenset(line for line, (above, own) in keys if above != own),
    )


def facts_frame(
    columns: Sequence[Column[LineT]], lines: Sequence[LineT], left_out: Sequence[bool] | None = None
) -> "pd.DataFrame":
    """Return the lines of a CSV file; of those that are `left_out` only what is always there."""
    named = [each for each in columns if each.names]
    pairs = zip(lines, left_out or [False] * len(lines), strict=True)
    values = [list(chain.from_iterable(each.facts(*pair) for each in named)) for pair in pairs]
    return frame_of(values, " ".join(each.names for each in named).split())


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
    """Return values as CSV: floats with six decimals, empty cells for missing values, and an apostrophe before text
    that a spreadsheet would compute."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def _csv_cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.6f}"
    text = str(value)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(FORMULA) else text
    return text


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
