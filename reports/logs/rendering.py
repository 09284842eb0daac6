"""A report on a log as Markdown and as CSV."""

import csv
import io
import textwrap
from dataclasses import asdict

from reports.logs.judging import Keep, Report
from reports.tables import escape_markdown, markdown_row, quoted

HEADER = ("line", "change", "gain", "gain in spreads", "e-value", "verdict", "suspicions")
SCOPE = (
    "Seeds cannot cure that one development set was used for every decision: what is real here is real on this set. "
    "Runs are compared with the best kept before them; runs that were never measured are not counted."
)
MOST_WORDS = 56


def headline(report: Report) -> str:
    """Return the result in a sentence or two."""
    changes = report.changes
    if not changes:
        return "No change was kept after the baseline."
    if report.spread is None:
        without = report.without_gain
        more = f" Without a gain even in their own numbers: {without}." if without else ""
        return f"The log cannot tell which of its {len(changes)} kept changes are real.{more}"
    seeds = f"; {report.need_seeds} to re-test" if report.need_seeds else ""
    return f"Shown to be real: {report.real} of {len(changes)} kept changes{seeds}.{_surviving_share(report)}"


def _surviving_share(report: Report) -> str:
    if not report.total_gain or report.surviving_gain is None or report.surviving_range is None:
        return ""
    low, high = (max(0.0, each / report.total_gain) for each in report.surviving_range)
    share = max(0.0, report.surviving_gain / report.total_gain)
    interval = "" if f"{low:.0%}" == f"{high:.0%}" else f" ({low:.0%} to {high:.0%}, as the spread is not exact)"
    return f" Of the total gain {share:.0%} survives{interval}."


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [f"# {escape_markdown(report.log)}", "", headline(report), "", *_facts(report), ""]
    lines += [markdown_row(HEADER), f"|{'---|' * len(HEADER)}", *(markdown_row(_cells(keep)) for keep in report.keeps)]
    for title, sentences in (("Runs that would settle it", report.plan), ("Suspicions", report.suspicions)):
        if sentences:
            lines += ["", f"## {title}", "", *(f"- {escape_markdown(sentence)}" for sentence in sentences)]
    lines += ["", "## Notes", "", *(f"- {escape_markdown(note)}" for note in report.notes), f"- {SCOPE}", ""]
    return "\n".join(lines)


def _facts(report: Report) -> list[str]:
    unit = " (relative, as values span a wide range)" if report.in_logarithms else ""
    facts = [
        f"{report.rows} rows, {report.measured} measured, {report.tried} changes tried",
        f"metric {escape_markdown(report.metric)}, {report.better} is better ({escape_markdown(report.direction)})",
    ]
    if report.spread is not None:
        facts.append(
            f"spread of single runs {report.spread:.3g}{unit}, degrees of freedom {report.degrees_of_freedom}: "
            f"{escape_markdown(report.spread_source)}"
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


def _cells(keep: Keep) -> list[str]:
    verdict = f"seeds needed: {keep.seeds}" if keep.verdict == "seeds needed" else keep.verdict
    if keep.real_below is not None:
        verdict += f" (real if the spread is below {keep.real_below:.2g})"
    return [
        str(keep.line),
        escape_markdown(textwrap.shorten(keep.description, MOST_WORDS, placeholder=" …")),
        "" if keep.gain is None else f"{keep.gain:+.4g}",
        "" if keep.gain_in_spreads is None else f"{keep.gain_in_spreads:+.1f}",
        "" if keep.e_value is None else f"{keep.e_value:.2g}",
        verdict,
        "; ".join(keep.suspicions),
    ]


SUMMARY_HEADER = (
    *("log", "metric", "tried", "kept", "real", "need seeds", "no gain", "spread (df)", "total gain", "survives"),
)
UNKNOWN = "–"


def summary_row(report: Report) -> str:
    """Return a line of Markdown under `SUMMARY_HEADER`."""
    real, seeds, spread, gain, share = UNKNOWN, UNKNOWN, "unknown", UNKNOWN, UNKNOWN
    if report.spread is not None:
        real, seeds = str(report.real), str(report.need_seeds)
        unit = " of the logarithm" if report.in_logarithms else ""
        spread = f"{report.spread:.2g} ({report.degrees_of_freedom}){unit}"
    if report.total_gain is not None:
        gain = f"{report.total_gain:.4g}"
    if report.surviving_gain is not None and report.total_gain:
        share = f"{max(0.0, report.surviving_gain / report.total_gain):.0%}"
    names = escape_markdown(report.log), escape_markdown(report.metric)
    counts = report.tried, len(report.changes), real, seeds, report.without_gain
    return markdown_row((*names, *counts, spread, gain, share))


def refusal_row(name: str, sentence: str) -> str:
    """Return a line of the summary for a log that was refused."""
    return f"| {escape_markdown(name)} | refused: {escape_markdown(sentence)} |{' |' * (len(SUMMARY_HEADER) - 2)}"


def comma_separated(report: Report) -> str:
    """Return the kept runs as CSV, unrounded. Cells that a spreadsheet would compute begin with a quote."""
    buffer = io.StringIO()
    rows = [{**asdict(keep), "suspicions": "; ".join(keep.suspicions)} for keep in report.keeps]
    writer = csv.DictWriter(buffer, list(Keep.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: quoted(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
    )
    return buffer.getvalue()
