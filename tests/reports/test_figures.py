"""Figure 1, Tables 2 and 3, and the command that writes them: equal records give equal bytes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.text import Text

from ablations import loading
from neobert.glue.tasks import TASKS
from neobert.runs.layout import Layout
from reports import rows
from reports.figures import figure1
from reports.figures.figure1 import Bars, find_bars
from reports.figures.glue_tables import table2, table3, table5
from tests.reports.made_up_study import MadeUpStudy, contents, facts_of, figures
from tests.support.golden_files import GoldenFiles

pytestmark = pytest.mark.usefixtures("papers_ladder")

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = Path("reports", "make_figures.py")
TABLES, FIGURES = ("table2", "table3", "table5", "differences"), ("figure1", "differences", "curves")
FILES = {f"{name}.{suffix}" for name in TABLES for suffix in ("md", "tex", "csv")} | {"figure1.csv"}
FILES |= {f"{name}.svg" for name in FIGURES}


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> MadeUpStudy:
    """Two seeds of M0, M1, M2, M4; one unfinished grid of M5; an alternative of M7; nothing of the others."""
    study = MadeUpStudy(tmp_path_factory.mktemp("partial") / "runs")
    study.write(["M0", "M1", "M2", "M4"], seeds=(0, 1))
    study.write(["M7@code"])
    study.pretrain("M5")
    for of_task in study.studies("M5"):
        study.begin("M5", of_task)
        study.fail(of_task, of_task.points[0])
        study.trial("M5", of_task, of_task.points[1])
    return study


@pytest.fixture(scope="module")
def found(partial: MadeUpStudy) -> rows.Study:
    return partial.read()


@pytest.fixture(scope="module")
def bars(found: rows.Study) -> Bars:
    return find_bars(found)


def drawn(study: rows.Study) -> str:
    """The words of the figure, from left to right and from top to bottom."""
    picture = figure1.draw(study)
    assert picture is not None
    figure = picture.figure
    return " ".join(" ".join(text.get_text() for text in figure.findobj(Text)).split())


def test_bars_stand_in_the_order_of_the_ladder_and_change_against_the_parent_in_the_tree(bars: Bars) -> None:
    by_name = {bar.row.name: bar for bar in bars.bars}
    assert list(by_name) == [*loading.papers().steps, "M7@code"] and len(bars.bars) == len(by_name)
    assert bars.missing == ["M3", "M6", "M7", "M8", "M9", "M10"] and bars.incomplete == ["M5"]
    scores = {name: bar.score.mean for name, bar in by_name.items() if bar.score}
    for name, parent in (("M4", "M2"), ("M7@code", "M5")):
        assert by_name[name].delta_percent == pytest.approx(100 * (scores[name] / scores[parent] - 1))
    assert by_name["M0"].delta_percent is None and by_name["M7"].delta_percent is None


def test_figure_says_what_it_is_and_what_is_missing(found: rows.Study) -> None:
    words = drawn(found)
    for sentence in (
        "Pipeline check, not evidence — scale smoke, data synthetic",
        "M0, M1, M2, M4: n = 2 seeds, standard deviation",
        "printed in the paper, at its own scale and data",
        "Not run: M3, M6, M7, M8, M9, M10.",
        "others: one seed.",
        "Grey with an @: not discarded, another reading of the paper or its code.",
    ):
        assert sentence in words


def test_losses_beside_bars_are_one_readout(study: MadeUpStudy) -> None:
    """M3 has other tokens, M9 reads longer rows: their losses are of something else."""
    study.measured = ("web", "wikibook")
    study.write(["M0", "M1", "M2", "M3", "M9"])
    bars = find_bars(study.read())
    assert "Loss: held-out MLM loss on web" in drawn(study.read())
    assert bars.corpus == "web" and [bar.row.name for bar in bars.bars if bar.loss] == ["M0", "M1", "M2"]


def test_a_partial_ladder_is_a_figure_of_what_was_run(study: MadeUpStudy) -> None:
    """One bar as wide as any other, with its own label and the paper's value, and in words what else there could be."""
    study.write(["M7"])
    words = drawn(study.read())
    assert "One seed: spread unknown." in words and "each seed" not in words and "interval" not in words
    assert "Not run: M0, M1, M2, M3, M4, M5, M6, M8, M9, M10." in words and "no value" not in words
    assert " M7 " in words and "(vs M5)" in words and "85.3" in words
    assert "3 × 128 → 4 × 144 (paper: 16 × 1056)" in words and "250M" not in words


def test_without_a_task_the_shared_mean_is_named_and_the_paper_is_left_out(tmp_path: Path) -> None:
    study = MadeUpStudy(tmp_path / "runs", data="corpus", without={"mnli": "mnli has no train split here"})
    study.write(["M0", "M1"])
    found = study.read()
    assert found.averaged_tasks == tuple(task for task in TASKS if task != "mnli")
    assert all(bar.paper is None for bar in find_bars(found).bars)
    words = drawn(found)
    assert "Mean of 7 GLUE tasks" in words and "Averages printed in the paper are over all eight" in words
    assert "Mean of shared tasks: QNLI, QQP, RTE, SST-2, MRPC, CoLA, STS-B on development data" in words


def test_files_hold_type_42_fonts_and_no_dates_whatever_style_the_user_has(found: rows.Study) -> None:
    import matplotlib

    def files() -> dict[str, bytes]:
        picture = figure1.draw(found)
        assert picture is not None
        return {Path(name).suffix[1:]: content for name, content in picture.files("figure1").items()}

    images = files()
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.hashsalt": "other"}):
        assert files() == images
        assert matplotlib.rcParams["axes.facecolor"] == "red"
    assert b"/Type3" not in images["pdf"] and b"/CIDFontType2" in images["pdf"]
    assert b"CreationDate" not in images["pdf"] and b"<dc:date>" not in images["svg"]
    assert images["png"].startswith(b"\x89PNG")


def test_table_2_lists_every_declared_leaf_of_every_variant(partial: MadeUpStudy) -> None:
    shown = {(row[2], row[3]) for row in table2(partial.read()).rows}
    for variant in loading.papers().steps.values():
        for row, delta in variant.delta_by_row().items():
            for path in delta:
                field = path.removeprefix("pretraining.")
                assert any(found == row and field.startswith(name) for found, name in shown), (row, path)


def test_every_row_of_ours_names_its_records(partial: MadeUpStudy) -> None:
    found = partial.read()
    known = {path.stem for path in partial.root.glob("glue/*/*.json")}
    runs = {path.parent.name for path in partial.root.glob("pretraining/*/done.json")}
    for table in (table3(found), table5(found), figure1.table(found)):
        assert table is not None
        for row in (row for row in facts_of(table) if row.get("source", "this study") == "this study"):
            ids = {name: set(value.split()) for name, value in row.items() if name.endswith("records")}
            losses = ids.pop("loss_records", set())
            assert losses <= runs and set().union(*ids.values()) <= known
            scored = any(value for name, value in row.items() if name in ("score", *TASKS))
            assert bool(set().union(*ids.values())) == scored
            measured = any(value for name, value in row.items() if name.startswith("heldout_loss"))
            assert bool(losses) == measured


def test_table_3_is_golden(tmp_path: Path, golden: GoldenFiles) -> None:
    study = MadeUpStudy(tmp_path / "runs", scale="paper", data="hub", levels={"M0": 79.2, "M1": 81.1})
    study.write(["M0"], seeds=(0, 1))
    study.pretrain("M1")
    for of_task in study.studies("M1"):
        study.begin("M1", of_task)
        for point in of_task.points if of_task.task != "cola" else of_task.points[:2]:
            study.trial("M1", of_task, point)
    for seed in (0, 1):
        for of_task in study.studies("M0", seed):
            study.select(of_task, nested=0.78 + seed / 100)
    golden.compare_text("table3.md", table3(study.read()).markdown)


def test_same_records_give_the_same_bytes_whatever_the_process(study: MadeUpStudy, tmp_path: Path) -> None:
    """Neither folders nor their order, hash seed, locale or time zone move a byte; vector graphics stand for all
    figures. Help imports little, and a report no torch."""
    for name in ("M0", "M1"):
        for seed in (0, 1, 2):
            study.pretrain(name, seed)
            for task in ("cola", "stsb"):
                study.search(name, study.study(name, task, seed))
        study.metrics(name)
    study.pretrain("M2")
    (Layout(study.root).pretraining(study.runs("M2")[0].id) / "metrics.jsonl").write_text("3\n")
    (study.root / "glue" / "cola" / "torn.json").write_text("{")
    shuffled = tmp_path / "elsewhere" / study.root.name
    for path in sorted(study.root.rglob("*"), reverse=True):
        if path.is_file():
            (shuffled / path.relative_to(study.root)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, shuffled / path.relative_to(study.root))
    code = f"""if True:
        import runpy, sys
        def run(*flags):
            sys.argv[1:] = flags
            try:
                runpy.run_path({str(REPOSITORY / SCRIPT)!r}, run_name="__main__")
            except SystemExit as end:
                assert not end.code, end.code
        flags = sys.argv[1:]
        run("--help")
        assert not {{"pydantic", "numpy", "pandas", "matplotlib"}} & set(sys.modules)
        from reports.figures import drawing
        del drawing.NO_DATES["png"], drawing.NO_DATES["pdf"]
        run(*flags)
        assert not {{"torch", "transformers", "matplotlib.pyplot"}} & set(sys.modules)"""
    one = {"TZ": "UTC", "PYTHONHASHSEED": "1", "LC_ALL": "C"}
    other = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2", "LC_ALL": "de_DE.UTF-8", "SOURCE_DATE_EPOCH": "1"}
    for cwd, runs, out, environment in (
        (REPOSITORY, study.root, str(tmp_path / "a"), one),
        (tmp_path, shuffled, "elsewhere/a", other),
    ):
        command = [sys.executable, "-P", "-c", code, "--runs", str(runs), "--out", out, "--compare"]
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
        done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "Exit codes" in done.stdout, done.stderr
    ours, theirs = (contents(tmp_path / name) for name in ("a", "elsewhere/a"))
    assert set(ours) == {f"smoke-synthetic/{name}" for name in FILES} | {"index.html"}
    assert ours == theirs
    page = ours["index.html"].decode()
    assert "torn.json" in page and "the curve of pretraining/" in page and str(tmp_path) not in page


def test_command_lists_what_it_wrote_and_names_what_it_left_out(
    partial: MadeUpStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(partial.root, runs)
    (runs / "glue" / "cola" / "torn.json").write_text('{"schema": 1, ')
    assert figures(runs, tmp_path / "out", "--compare") == 0
    printed = capsys.readouterr()
    assert "no score: M3, M6, M7, M8, M9, M10" in printed.out and "figure1.pdf" in printed.out
    assert "the paper: M0 79.2  M1 81.1  M2 84.0" in printed.out
    assert "1 finding(s)" in printed.err and "torn.json" in printed.err
    assert figures(runs, tmp_path / "out", "--json") == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["scores"]["M3"] is None and summary["scores"]["M0"] > 0
    assert all(Path(path).is_file() for path in summary["files"])


def test_each_scale_and_data_has_its_own_folder_and_can_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    for data in ("synthetic", "corpus"):
        MadeUpStudy(runs, data=data).pretrain("M0")
    assert figures(runs, out, "--data", "./texts/corpus") == 0
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "smoke-corpus"]
    assert figures(runs, out) == 0
    assert sorted(path.name for path in out.iterdir()) == ["index.html", "smoke-corpus", "smoke-synthetic"]
    page = (out / "index.html").read_text()
    assert '<section id="smoke-corpus">' in page and '<section id="smoke-synthetic">' in page
    assert figures(runs, out, "--scale", "paper") == 3
    assert figures(runs, out, "--scale", "papre") == 2
    errors = capsys.readouterr().err
    assert "no record has scale paper; there are records of scale smoke" in errors and "did you mean 'paper'?" in errors
