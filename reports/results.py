"""Results of a study for its Markdown page, all from records; written by `make_figures.py --results PAGE`."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from reports.analysis.delta_table import find_changed_verdicts
from reports.analysis.steps import answer
from reports.declared import declared_section
from reports.deviations import NONE
from reports.findings import Findings
from reports.forecasts.outcomes import Outcome, describe_scores
from reports.page.costs import costs_table, trials_name
from reports.tables import Table, capitalized

PLACE = re.compile(r"(<!-- results of (\S+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
DECLARED = re.compile(r"(<!-- declaration of (\S+) -->\n).*?(<!-- end of declaration -->)", re.DOTALL)
NO_RECORDS = "No run of the study is recorded yet.\n"


def read_page(path: Path) -> str:
    """Read a page for results.

    Raises:
        ValueError: there is no such page, or it has no markers.
    """
    if not path.is_file():
        raise ValueError(f"--results {path}: there is no such page")
    page = path.read_text(encoding="utf-8")
    if not PLACE.search(page):
        raise ValueError(f"{path} has no lines <!-- results of SCALE-DATA --> and <!-- end of results -->")
    return page


def with_results(page: str, studies: Sequence[Findings], recorded: Collection[str]) -> str:
    """Return the page with the results of each study inserted between the markers that name its folder. Sections of
    other `recorded` folders stay as they are. So are the declarations of the studies, between markers of their own."""
    by_folder: Mapping[str, Findings] = {study.folder: study for study in studies}

    def replaced(found: re.Match[str]) -> str:
        if found[2] in by_folder:
            return found[1] + describe(by_folder[found[2]]) + found[3]
        return found[0] if found[2] in recorded else found[1] + NO_RECORDS + found[3]

    def declared(found: re.Match[str]) -> str:
        study = by_folder.get(found[2])
        if study is None or study.declaration is None:
            return found[0]
        return found[1] + declared_section(study.declaration) + found[3]

    return PLACE.sub(replaced, DECLARED.sub(declared, page))


def describe(findings: Findings) -> str:
    """Describe answer, costs, readouts by signal to noise, outcomes of forecasts, and deviations."""
    return "\n\n".join([answer(findings.steps), _describe_costs(findings), *_parts(findings)]) + "\n"


def _describe_costs(findings: Findings) -> str:
    table, trials = costs_table(findings), trials_name()
    total = dict(zip(table.header, table.rows[-1], strict=True))
    return (
        f"Records: {total['Stages']} stages of pre-training ({total['Tokens read']} tokens, {total['Operations']} "
        f"operations, {total['Hours']} hours by the clock) and {total[capitalized(trials)]} {trials} "
        f"({total['Their hours']} hours)."
    )


def _parts(findings: Findings) -> Iterator[str]:
    untrained = [row.untrained for row in findings.group.last_rows.values() if row.untrained]
    yield from (f"{sentence}. It is compared with nothing." for sentence in untrained)
    if "answer" in findings.tables:
        yield _without_title(findings.tables["answer"])
    yield from filter(None, [" ".join(find_changed_verdicts(findings.deltas))])
    if findings.signals:
        yield from ("### Readouts by signal to noise", _without_title(findings.tables["readouts"]))
    yield from _forecasts(findings)
    if findings.declaration is not None:
        yield "### Deviations from the declaration"
        yield _without_title(findings.tables["deviations"]) if findings.deviations else NONE


def _forecasts(findings: Findings) -> Iterator[str]:
    if findings.outcomes:
        yield "### The forecast"
    if "forecast-scores" in findings.tables:
        yield _without_title(findings.tables["forecast-scores"])
    by_forecast: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in findings.outcomes:
        by_forecast[outcome.forecast.id].append(outcome)
    yield from (f"{name}: {describe_scores(own)}" for name, own in by_forecast.items())


def _without_title(table: Table) -> str:
    """Return the lines of a table without title and notes, as a part of a page."""
    return "\n".join(line for line in table.markdown.splitlines() if line.startswith("|"))
