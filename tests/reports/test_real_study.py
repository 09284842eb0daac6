"""The committed study on real text: complete, from clean code, without paths, and the source of what is told of it."""

import csv
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from ablations.designs import cell, cells
from ablations.ladders import ladder
from reports import make_figures
from reports.analysis.quantities import QUANTITIES
from reports.evidence import Evidence, read_evidence
from reports.matching import group_of
from reports.scores import Group
from reports.tables import number, printed_range, signed

pytestmark = pytest.mark.usefixtures("papers_ladder")

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDS, MADE = REPOSITORY / "reports" / "study", REPOSITORY / "docs" / "study"
RESULTS = REPOSITORY / "docs" / "study.md"
FACTORS = ("positions", "feedforward", "norm", "masking")
SEEDS = (0, 1, 2)
TASKS_OF_THE_STUDY = ("rte", "sst2", "mrpc", "cola", "stsb")
COMPRESSED = {".png", ".pdf"}  # their bytes also depend on the machine's compression library


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return read_evidence(RECORDS)


@pytest.fixture(scope="module")
def group(evidence: Evidence) -> Group:
    return group_of(evidence, "laptop1", "real_text")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def study_page() -> str:
    return (REPOSITORY / "docs" / "laptop-study.md").read_text(encoding="utf-8")


def test_records_give_the_committed_figures_tables_pages_and_results(tmp_path: Path, write_golden: bool) -> None:
    records, out = tmp_path / RECORDS.relative_to(REPOSITORY), tmp_path / MADE.relative_to(REPOSITORY)
    for folder in (records, out):
        folder.parent.mkdir()
    records.symlink_to(RECORDS)  # the page links to records from where it lies
    page = shutil.copy(RESULTS, out.parent)
    assert make_figures.main(["--runs", str(records), "--out", str(out), "--compare", "--results", str(page)]) == 0
    made = files(out)
    if write_golden:
        shutil.copy(page, RESULTS)
    assert Path(page).read_bytes() == RESULTS.read_bytes(), "docs/study.md holds other results than the records"
    if write_golden and changed(made, files(MADE)):
        shutil.rmtree(MADE)
        shutil.copytree(out, MADE)
    assert not changed(made, files(MADE))


def changed(made: dict[str, bytes], committed: dict[str, bytes]) -> set[str]:
    """Files that are on one side only, or differ otherwise than by how they are compressed."""
    return {
        name
        for name in made.keys() | committed.keys()
        if made.get(name) != committed.get(name)
        and not (Path(name).suffix in COMPRESSED and name in made and name in committed)
    }


def test_every_variant_has_every_seed_and_every_task(evidence: Evidence, group: Group) -> None:
    assert evidence.problems == () and group.problems == ()
    rows = group.last_rows
    assert set(rows) == set(ladder())
    for row in rows.values():
        assert set(row.runs.seed) >= set(SEEDS) and set(row.losses) == {"web", "wikibook"}
        assert row.scored_tasks == TASKS_OF_THE_STUDY and row.is_best_of_whole_grid
        for task in TASKS_OF_THE_STUDY:
            score = row.cells[task].score
            assert score is not None and {seeds.pretraining for seeds in score.by_seeds} == set(SEEDS)


def test_every_cell_of_the_factorial_is_there(evidence: Evidence) -> None:
    smoke = group_of(evidence, "smoke", "real_text")
    rows = {**smoke.design_rows, **smoke.last_rows}
    assert len(cells(FACTORS)) == 16 and not smoke.problems
    for on in cells(FACTORS):
        assert set(rows[cell(on).name].runs.seed) == {0}


def test_records_come_from_committed_code_and_name_no_folder_of_a_machine(evidence: Evidence) -> None:
    code = pd.concat([evidence.runs, evidence.trials])
    assert set(code.dirty) == {False} and code.commit.nunique() == 1
    texts = [path.read_text(encoding="utf-8") for path in RECORDS.rglob("*") if path.suffix in (".json", ".jsonl")]
    assert not [text for text in texts if re.search(r"(^|[\"' ])/[a-z]+/", text)]


def test_numbers_of_the_page_are_those_of_the_records() -> None:
    """Each line of the page's table of differences, from deltas.csv as committed."""
    lines = list(csv.DictReader((MADE / "laptop1-real_text" / "deltas.csv").read_text(encoding="utf-8").splitlines()))
    by_name = {(line["variant"], line["against"], line["measured"]): line for line in lines}
    printed = re.findall(
        r"^\| (M\d+) − (M\d+) \|[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|[^|]*\|$", study_page(), flags=re.MULTILINE
    )
    assert len(printed) == len(ladder()) - 1
    quantities = {line["measured"] for line in lines if line["quantity"] == "GLUE"}
    assert len(quantities) == 1
    for variant, base, *shown in printed:
        for measured, text in zip(
            (*quantities, "held-out loss on web", "held-out loss on wikibook"), shown, strict=True
        ):
            line = by_name.get((variant, base, measured))
            digits = QUANTITIES["GLUE" if measured in quantities else "loss"].digits - 1
            expected = "—" if line is None or not line["difference"] else in_words(line, digits)
            assert text.strip() == expected, (variant, base, measured)


def in_words(line: dict[str, str], digits: int) -> str:
    interval = printed_range((float(line["t_low"]), float(line["t_high"])), digits)
    return f"{signed(float(line['difference']), digits)} ({interval})"


def test_costs_of_the_page_are_the_sums_of_the_records(evidence: Evidence) -> None:
    hours = evidence.runs.hours.sum() + evidence.trials.hours.sum()
    flops = evidence.runs.flops.sum()
    found = re.search(
        r"(\d+) runs of pre-training and (\d+) of fine-tuning, ([\d.]+) core-hours, ([\d.]+) × 10¹⁵", study_page()
    )
    assert found is not None
    assert (int(found[1]), int(found[2])) == (len(evidence.runs), len(evidence.trials))
    assert (found[3], found[4]) == (f"{hours:.1f}", f"{flops / 1e15:.2f}")


def test_plus_minus_is_one_standard_deviation_over_seeds_wherever_it_stands(group: Group) -> None:
    """Every ± of tables, page and figures belongs to a number or to the sentence that says what it is."""
    shown = [path for path in MADE.rglob("*") if path.suffix in (".md", ".html", ".svg")]
    for path in shown:
        text = path.read_text(encoding="utf-8")
        numbers = re.findall(r"\d ± \d", text)
        said = re.findall(r"± (?:is )?one (?:standard deviation \(sd\)|sd)", text)
        assert text.count("±") == len(numbers) + len(said), path
        assert bool(numbers) <= bool(said), path
    table, page = ((MADE / name).read_text(encoding="utf-8") for name in ("laptop1-real_text/table3.md", "index.html"))
    for row in group.last_rows.values():
        for task in TASKS_OF_THE_STUDY:
            score = row.cells[task].score
            assert score is not None and score.spread is not None
            assert f" {number(score.mean)} ± {number(score.spread)}" in table
            assert f">{number(score.mean)} ± {number(score.spread)}" in page
