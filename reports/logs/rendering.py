"""A report on a log as Markdown and as CSV."""

import csv
import io
import textwrap
from dataclasses import asdict

from reports.logs.judging import Keep, Report
from reports.tables import MARKUP

HEADER = ("line", "change", "gain", "gain in spreads", "e-value", "verdict", "suspicions")
SCOPE = (
    "Seeds cannot cure that one development set was used for every decision: what is real here is real on this set. "
    "Runs are compared with the best kept before them; runs that were never measured are not counted."
)
MOST_WORDS = 56


def headline(report: Report) -> str:
    """Return the result in a sentence or two."""
    changes = [keep for keep in report.keeps if keep.verdict not in ("baseline", "repeat")]
    if not changes:
        return "No change was kept after the baseline."
    if report.spread is None:
        without = sum((keep.gain or 0) <= 0 for keep in changes)
        more = f" Without a gain even in their own numbers: {without}." if without else ""
        return f"The log cannot tell which of its {len(changes)} kept changes are real.{more}"
    seeds = sum(keep.verdict == "seeds needed" for keep in changes)
    told = f"Shown to be real: {report.real} of {len(changes)} kept changes" + (
        f"; {seeds} to re-test" if seeds else ""
    )
    if not report.total_gain or report.surviving_gain is None or report.surviving_range is None:
        return f"{told}."
    low, high = (max(0.0, each / report.total_gain) for each in report.surviving_range)
    share = max(0.0, report.surviving_gain / report.total_gain)
    interval = "" if f"{low:.0%}" == f"{high:.0%}" else f" ({low:.0%} to {high:.0%}, as the spread is not exact)"
    return f"{told}. Of the total gain {share:.0%} survives{interval}."


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    better = "lower" if report.lower_is_better else "higher"
    lines = [f"# {_plain(report.log)}", "", headline(report), ""]
    lines += _facts(report, better)
    shown = [_cells(keep) for keep in report.keeps]
    lines += ["", f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    lines += [f"| {' | '.join(row)} |" for row in shown]
    for title, sentences in (("Runs that would settle it", report.plan), ("Suspicions", report.suspicions)):
        if sentences:
            lines += ["", f"## {title}", "", *(f"- {_plain(sentence)}" for sentence in sentences)]
    lines += ["", "## Notes", "", *(f"- {_plain(note)}" for note in report.notes), f"- {SCOPE}", ""]
    return "\n".join(lines)


def _facts(report: Report, better: str) -> list[str]:
    unit = " (relative, as values span a wide range)" if report.in_logarithms else ""
    facts = [
        f"{report.rows} rows, {report.measured} measured, {report.tried} changes tried",
        f"metric {_plain(report.metric)}, {better} is better ({_plain(report.direction)})",
    ]
    if report.spread is not None:
        facts.append(
            f"spread of single runs {report.spread:.3g}{unit}, degrees of freedom {report.degrees_of_freedom}: "
            f"{_plain(report.spread_source)}"
        )
    if report.total_gain is not None:
        facts.append(f"total gain {report.total_gain:.4g}{_surviving(report)}")
    if report.expected_false_keeps is not None:
        facts.append(f"expected keeps without a gain: {report.expected_false_keeps:.1f}")
    facts.append(f"error: of the changes called real, at most {report.alpha:.0%} are expected to be no gain")
    return [f"- {fact}" for fact in facts]


def _surviving(report: Report) -> str:
    if report.surviving_gain is None or report.surviving_range is None:
        return ""
    low, high = report.surviving_range
    return f", of which {report.surviving_gain:.4g} survives the winner's curse ({low:.4g} to {high:.4g})"


def _plain(words: str) -> str:
    """Return text of a log without what Markdown would read as markup."""
    return MARKUP.sub(lambda found: "\\" + found[0], words)


def _cells(keep: Keep) -> list[str]:
    verdict = f"seeds needed: {keep.seeds}" if keep.verdict == "seeds needed" else keep.verdict
    if keep.real_below is not None:
        verdict += f" (real if the spread is below {keep.real_below:.2g})"
    return [
        str(keep.line),
        _plain(textwrap.shorten(keep.description, MOST_WORDS, placeholder=" …")),
        "" if keep.gain is None else f"{keep.gain:+.4g}",
        "" if keep.gain_in_spreads is None else f"{keep.gain_in_spreads:+.1f}",
        "" if keep.e_value is None else f"{keep.e_value:.2g}",
        verdict,
        "; ".join(keep.suspicions),
    ]


SUMMARY_HEADER = (
    "log",
    "metric",
    "tried",
    "kept",
    "real",
    "need seeds",
    "no gain",
    "spread (df)",
    "total gain",
    "survives",
)


def summary_row(report: Report) -> str:
    """Return a line of Markdown under `SUMMARY_HEADER`."""
    changes = [keep for keep in report.keeps if keep.verdict not in ("baseline", "repeat")]
    spread = "unknown" if report.spread is None else f"{report.spread:.2g} ({report.degrees_of_freedom})"
    is_known = report.surviving_gain is not None and report.total_gain
    cells = (
        _plain(report.log),
        _plain(report.metric),
        report.tried,
        len(changes),
        report.real if report.spread is not None else "–",
        sum(keep.verdict == "seeds needed" for keep in changes) if report.spread is not None else "–",
        sum((keep.gain or 0) <= 0 for keep in changes),
        f"{spread} of the logarithm" if report.spread is not None and report.in_logarithms else spread,
        f"{report.total_gain:.4g}" if report.total_gain is not None else "–",
        f"{max(0.0, (report.surviving_gain or 0.0) / (report.total_gain or 1.0)):.0%}" if is_known else "–",
    )
    return f"| {' | '.join(map(str, cells))} |"


def refusal_row(name: str, sentence: str) -> str:
    """Return a line of the summary for a log that was refused."""
    return f"| {_plain(name)} | refused: {_plain(sentence)} |{' |' * (len(SUMMARY_HEADER) - 2)}"


def comma_separated(report: Report) -> str:
    """Return the kept runs as CSV, unrounded. Cells that a spreadsheet would compute begin with a quote."""
    buffer = io.StringIO()
    rows = [{**asdict(keep), "suspicions": "; ".join(keep.suspicions)} for keep in report.keeps]
    writer = csv.DictWriter(buffer, list(Keep.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def _safe(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value
