"""The committed study on real text: complete, from clean code, without paths, and the source of what is told of it."""

import csv
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from ablations.designs import cell, cells
from ablations.ladders import ladder
from ablations.scales import Scale
from reports import make_figures
from reports.analysis.quantities import QUANTITIES
from reports.evidence import Evidence, read_evidence
from reports.figures.figure1 import figure1, find_bars
from reports.matching import group_of
from reports.scores import Group
from reports.tables import number, printed_range, signed
from tests.reports.extents import require_texts_fit

pytestmark = pytest.mark.usefixtures("papers_ladder")

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDS, MADE = REPOSITORY / "reports" / "study", REPOSITORY / "docs" / "study"
RESULTS = REPOSITORY / "docs" / "study.md"
README, STUDY = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "README.md", RESULTS))
FACTORS = ("positions", "feedforward", "norm", "masking")
FIRST_SEEDS = (0, 1, 2)
FIRST_TASKS = ("rte", "sst2", "mrpc", "cola", "stsb")
ARMS = tuple(f"M{number}" for number in range(8))
SEEDS = tuple(range(6))
TASKS = ("sst2", "stsb")
READOUTS = {"loss", "loss_80_10_10", "words", "cloze", "pairs"}
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


def test_tables_in_latex_need_no_other_letters_than_those_of_every_font() -> None:
    assert not [path for path in MADE.rglob("*.tex") if not path.read_text(encoding="utf-8").isascii()]


def changed(made: dict[str, bytes], committed: dict[str, bytes]) -> set[str]:
    """Files that are on one side only, or differ otherwise than by how they are compressed."""
    return {
        name
        for name in made.keys() | committed.keys()
        if made.get(name) != committed.get(name)
        and not (Path(name).suffix in COMPRESSED and name in made and name in committed)
    }


def test_every_arm_has_every_seed_readout_and_task(evidence: Evidence) -> None:
    study = group_of(evidence, "laptop", "real_text")
    assert study.problems == ()
    for row in map(study.last_rows.__getitem__, ARMS):
        assert set(row.runs.seed) == set(SEEDS) and row.scored_tasks == TASKS and not row.untrained
        readouts = evidence.readouts[evidence.readouts.run.isin(row.runs.id)]
        assert readouts.groupby("seed").readout.unique().map(set).to_dict() == dict.fromkeys(SEEDS, READOUTS)


@pytest.mark.parametrize("scale", ["laptop", "laptop1"])
def test_texts_of_figure_1_lie_within_the_figure_and_beside_each_other(evidence: Evidence, scale: Scale) -> None:
    figure = figure1.__wrapped__(find_bars(group_of(evidence, scale, "real_text")))  # type: ignore[attr-defined]
    assert len(require_texts_fit(figure)) > 30


def test_the_forecast_is_made_from_smaller_budgets_alone(evidence: Evidence) -> None:
    (forecast,) = evidence.forecasts
    run_of = evidence.runs.set_index("id").variants.str[0]
    assert forecast.present == () and run_of[list(forecast.records)].str.contains("@steps").all()


def test_every_variant_of_the_first_study_has_every_seed_and_every_task(evidence: Evidence, group: Group) -> None:
    assert evidence.problems == () and group.problems == ()
    rows = group.last_rows
    assert set(rows) == set(ladder())
    for row in rows.values():
        assert set(row.runs.seed) >= set(FIRST_SEEDS) and set(row.losses) == {"web", "wikibook"}
        assert row.scored_tasks == FIRST_TASKS and row.is_best_of_whole_grid
        for task in FIRST_TASKS:
            score = row.cells[task].score
            assert score is not None and {seeds.pretraining for seeds in score.by_seeds} == set(FIRST_SEEDS)


def test_every_cell_of_the_factorial_is_there(evidence: Evidence) -> None:
    smoke = group_of(evidence, "smoke", "real_text")
    rows = {**smoke.design_rows, **smoke.last_rows}
    assert len(cells(FACTORS)) == 16 and not smoke.problems
    for on in cells(FACTORS):
        assert set(rows[cell(on).name].runs.seed) == {0}


def test_records_come_from_committed_code_and_name_no_folder_of_a_machine(evidence: Evidence) -> None:
    """Runs of one seed and budget, which are compared with each other, are of one commit."""
    code = pd.concat([evidence.runs, evidence.trials])
    budget = code.variants.str[0].str.partition("@")[2]
    assert set(code.dirty) == {False}
    assert (code.groupby([code.scale, budget, code.seed]).commit.nunique() == 1).all()
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


def in_words(line: dict[str, str], digits: int) -> str:
    interval = printed_range((float(line["t_low"]), float(line["t_high"])), digits)
    return f"{signed(float(line['difference']), digits)} ({interval})"


def test_costs_of_the_first_page_are_the_sums_of_its_records(evidence: Evidence) -> None:
    runs, trials = (frame[frame.scale.isin(["laptop1", "smoke"])] for frame in (evidence.runs, evidence.trials))
    hours, flops = runs.hours.sum() + trials.hours.sum(), runs.flops.sum()
    found = re.search(
        r"(\d+) runs of pre-training and (\d+) of fine-tuning, ([\d.]+) core-hours, ([\d.]+) × 10¹⁵", study_page()
    )
    assert found is not None
    assert (int(found[1]), int(found[2])) == (len(runs), len(trials))
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
        for task in FIRST_TASKS:
            score = row.cells[task].score
            assert score is not None and score.spread is not None
            assert f" {number(score.mean)} ± {number(score.spread)}" in table
            assert f">{number(score.mean)} ± {number(score.spread)}" in page
