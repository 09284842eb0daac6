"""The committed study on real text: complete, from clean code, without paths, and the source of what is told of it."""

import csv
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from neobert.runs.collected import Collected
from reports import make_figures
from reports.evidence import Evidence, read_evidence
from reports.figures.figure1 import figure1, find_bars
from reports.matching import group_of
from reports.scores import Group
from reports.tables import escape_latex, number, signed
from tests.reports.extents import require_texts_fit

pytestmark = pytest.mark.usefixtures("papers_ladder")

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDS, MADE = REPOSITORY / "reports" / "study", REPOSITORY / "docs" / "study"
RESULTS = REPOSITORY / "docs" / "study.md"
README, STUDY = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "README.md", RESULTS))
ARMS = tuple(f"M{number}" for number in range(8))
SEEDS = tuple(range(6))
TASKS = ("sst2", "stsb")
READOUTS = {"loss", "loss_80_10_10", "words", "cloze", "pairs"}
FORMATS = ("csv", "md", "png")
COMPRESSED = {".png", ".pdf"}  # their bytes also depend on the machine's compression library


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return read_evidence(RECORDS)


@pytest.fixture(scope="module")
def group(evidence: Evidence) -> Group:
    return group_of(evidence, "laptop", "real_text")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_records_give_the_committed_figures_tables_pages_and_results(tmp_path: Path, write_golden: bool) -> None:
    records, out = tmp_path / RECORDS.relative_to(REPOSITORY), tmp_path / MADE.relative_to(REPOSITORY)
    for folder in (records, out):
        folder.parent.mkdir()
    records.symlink_to(RECORDS)  # the page links to records from where it lies
    page = shutil.copy(RESULTS, out.parent)
    assert (
        make_figures.main(
            ["--runs", str(records), "--out", str(out), "--compare", "--results", str(page), "--formats", *FORMATS]
        )
        == 0
    )
    made = files(out)
    if write_golden:
        shutil.copy(page, RESULTS)
    assert Path(page).read_bytes() == RESULTS.read_bytes(), "docs/study.md holds other results than the records"
    if write_golden and changed(made, files(MADE)):
        shutil.rmtree(MADE)
        shutil.copytree(out, MADE)
    assert not changed(made, files(MADE))


def test_tables_in_latex_need_no_other_letters_than_those_of_every_font() -> None:
    without_latex = ("comparison.md", "remarks.md")
    texts = [path.read_text(encoding="utf-8") for path in MADE.rglob("*.md") if path.name not in without_latex]
    assert any(not text.isascii() for text in texts)
    assert not [text for text in texts if not escape_latex(text).isascii()]


def changed(made: dict[str, bytes], committed: dict[str, bytes]) -> set[str]:
    """Files that are on one side only, or differ otherwise than by how they are compressed."""
    return {
        name
        for name in made.keys() | committed.keys()
        if made.get(name) != committed.get(name)
        and not (Path(name).suffix in COMPRESSED and name in made and name in committed)
    }


def test_every_arm_has_every_seed_readout_and_task(evidence: Evidence, group: Group) -> None:
    assert evidence.problems == () and group.problems == ()
    for row in map(group.last_rows.__getitem__, ARMS):
        assert set(row.runs.seed) == set(SEEDS) and row.scored_tasks == TASKS and not row.untrained
        readouts = evidence.readouts[evidence.readouts.run.isin(row.runs.id)]
        assert readouts.groupby("seed").readout.unique().map(set).to_dict() == dict.fromkeys(SEEDS, READOUTS)


def test_texts_of_figure_1_lie_within_the_figure_and_beside_each_other(group: Group) -> None:
    figure = figure1.__wrapped__(find_bars(group))  # type: ignore[attr-defined]
    assert len(require_texts_fit(figure)) > 30


def test_the_forecast_is_made_from_smaller_budgets_alone(evidence: Evidence) -> None:
    (forecast,) = evidence.forecasts
    run_of = evidence.runs.set_index("id").variants.str[0]
    assert forecast.present == () and run_of[list(forecast.records)].str.contains("@steps").all()


def test_records_come_from_committed_code_and_name_no_folder_of_a_machine(evidence: Evidence) -> None:
    """Runs of one seed and budget, which are compared with each other, are of one commit."""
    code = pd.concat([evidence.runs, evidence.trials])
    budget = code.variants.str[0].str.partition("@")[2]
    assert set(code.dirty) == {False}
    assert (code.groupby([code.scale, budget, code.seed]).commit.nunique() == 1).all()
    files = {name: content.decode() for name, content in Collected(RECORDS).files.items()}
    assert not [name for name, text in files.items() if re.search(r"(^|[\"' ])/[a-z]+/", text)]


def test_numbers_of_the_readme_are_those_of_the_study() -> None:
    folder = MADE / "laptop-real_text"
    lines = csv.DictReader((folder / "deltas.csv").read_text(encoding="utf-8").splitlines())
    told = {(line["variant"], line["measured"]): line["difference"] for line in lines if line["design"] == "ladder"}

    def change(variant: str, measured: str, digits: int = 2) -> str:
        return signed(float(told[variant, measured]), digits)

    loss, bits = "held-out loss on", "held-out bits per byte on"
    web, books = (change("M2", f"{loss} {corpus}") for corpus in ("web", "wikibook"))
    costs = [change("M4", f"{loss} {corpus}").lstrip("+") for corpus in ("wikibook", "web")]
    costs += [change("M3", f"{bits} {corpus}, 64 tokens").lstrip("+") for corpus in ("wikibook", "web")]
    waits = (folder / "waiting.md").read_text(encoding="utf-8")
    cells = next(line.split(" | ") for line in waits.splitlines() if line.startswith("| M1 | M0 |"))
    for phrase in (
        f"{int(cells[6].lstrip('−')):,} steps later",
        f"the training losses differ by {cells[10]} ±",
        f"at equal steps by {float(cells[8].replace('−', '-')):.2f}".replace("-", "−"),
        f"{web} nats on web and {books} on Wikipedia and books",
        f"worse than M2 by {costs[0]} and {costs[1]} nats",
        f"(M3) costs {costs[2]} and {costs[3]} bits per byte",
    ):
        assert phrase in " ".join(README.split()), phrase


def test_plus_minus_is_one_standard_deviation_over_seeds_wherever_it_stands(group: Group) -> None:
    """Every ± of tables, page and figures belongs to a number or to the sentence that says what it is."""
    shown = [path for path in MADE.rglob("*") if path.suffix in (".md", ".html", ".svg")]
    for path in shown:
        text = path.read_text(encoding="utf-8")
        numbers = re.findall(r"\d ± \d", text)
        said = re.findall(r"± (?:is )?one (?:standard deviation \(sd\)|sd)", text)
        assert text.count("±") == len(numbers) + len(said), path
        assert bool(numbers) <= bool(said), path
    table, page = ((MADE / name).read_text(encoding="utf-8") for name in ("laptop-real_text/table3.md", "index.html"))
    for row in map(group.last_rows.__getitem__, ARMS):
        for task in TASKS:
            score = row.cells[task].score
            assert score is not None and score.spread is not None
            assert f" {number(score.mean)} ± {number(score.spread)}" in table
            assert f">{number(score.mean)} ± {number(score.spread)}" in page
