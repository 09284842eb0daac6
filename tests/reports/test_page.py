"""The page: what it shows, that names are only ever text, and that every link leads somewhere."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from ablations.loading import papers
from neobert.runs.layout import Layout
from reports import make_figures
from reports.curves import PIECES
from reports.figures import drawing
from reports.frames import read_frames
from reports.rows import read_study
from tests.reports.made_up_study import MadeUpStudy, figures
from tests.reports.measurements import embed, perplexity, throughput

HOSTILE = '<img src=x onerror=alert(1)> & $\\alpha_1 \\undefined{$ "quoted" \'</script><script>alert(2)</script>'


class Outline(HTMLParser):
    """Text, ids, links, pictures and tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words, self.elements = list[str](), list[tuple[str, dict[str, str | None]]]()
        self.handle_data = self.words.append  # type: ignore[method-assign]
        self.feed(text)
        self.tags = [tag for tag, _ in self.elements]
        self.ids = [given["id"] for _, given in self.elements if "id" in given]
        self.links = [str(given["href"]) for tag, given in self.elements if tag == "a" and "href" in given]
        self.pictures = [str(given["src"]) for _, given in self.elements if "src" in given]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def test_the_page_shows_figure_1_the_tables_and_the_curves(study: MadeUpStudy, tmp_path: Path) -> None:
    study.common_context = 64
    study.write(["M0", "M1"], seeds=(0, 1))
    study.pretrain("M0@steps0.5")
    for name in ("M0", "M1"):
        study.metrics(name)
    assert figures(study.root, tmp_path / "out") == 0
    page = Outline((tmp_path / "out" / "index.html").read_text())
    names = ("figure1", "differences", "curves")
    assert page.pictures == [f"smoke-synthetic/{name}.svg" for name in names]
    assert {f"smoke-synthetic-{part}" for part in ("scores", "differences", "curves")} <= set(page.ids)
    words = " ".join(page.words)
    for said in ("M1 − M0", "too few seeds", "GLUE average", "M0@steps0.5", "not evidence"):
        assert said in words
    assert len(set(page.ids)) == len(page.ids)
    assert set(page.links) == {path.relative_to(tmp_path / "out").as_posix() for path in tmp_path.glob("out/*/*")}


def test_names_with_html_or_latex_are_only_ever_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suffix in ("pdf", "png"):  # the page shows the others
        monkeypatch.delitem(drawing.NO_DATES, suffix)
    study = MadeUpStudy(tmp_path / "runs", data=HOSTILE, without={"mnli": HOSTILE}, version=HOSTILE)
    study.write(["M0"])
    perplexity(study, "M0", (8.0, 900.0))
    embed(study, "M0", HOSTILE.replace("/", ""), "sts", 0.5)
    throughput(study, HOSTILE, 512, 1000.0)
    of_task = study.study("M0", "cola").model_copy(update={"weights": "model-0123456789ab"})
    study.begin("M0", of_task)
    for point in of_task.points:
        study.trial("M0", of_task, point, labels=study.labels("M0") | {"model": "org/<i>bert</i>"})
    (study.root / "glue" / "cola" / "<b>torn.json").write_text("{")
    assert make_figures.main(["--runs", str(study.root), "--out", str(tmp_path / "out")]) == 0
    page = Outline((tmp_path / "out" / "index.html").read_text())
    assert not {"b", "i", "script"} & set(page.tags)
    assert page.pictures and all((tmp_path / "out" / picture).is_file() for picture in page.pictures)
    words = "".join(page.words)
    assert f"data {HOSTILE}" in words and "<b>torn.json" in words and "org/<i>bert</i>" in words
    for text in (path.read_text() for path in (tmp_path / "out").rglob("*.md")):
        assert not [tag for tag in ("<img", "<script", "</script", "<i>") if tag in text.replace(f"\\{tag}", "")]
    latex = next((tmp_path / "out").glob("*/table3.tex")).read_text()
    assert "\\alpha" not in latex and "\\$\\textbackslash{}alpha\\_1 \\textbackslash{}undefined\\{\\$" in latex
    assert r"| this study | org/\<i>bert\</i> |" in next((tmp_path / "out").glob("*/table5.md")).read_text()


def test_a_curve_is_thinned_counts_steps_over_stages_and_leaves_out_a_torn_end(study: MadeUpStudy) -> None:
    study.pretrain("M9")
    study.metrics("M9", lines=250)
    first, last = study.runs("M9")
    path = Layout(study.root).pretraining(last.id) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 99, "lo')
    evidence = read_frames(papers(), study.root)
    row = read_study(evidence, "smoke", "synthetic").last_rows["M9"]
    curves = evidence.curves
    points = curves.training(row.runs.id.iloc[0])
    assert PIECES / 2 <= len(points) <= PIECES and not curves.problems
    places = [step for step, _ in points]
    assert places == sorted(places)
    assert first.recipe.stages[-1].steps < places[-1] < sum(stage.steps for stage in last.recipe.stages)


@pytest.mark.parametrize(
    "line", ['{"step": 1, "loss": NaN}', '{"step": 1, "loss": -3}', '{"loss": 2}', '{"step": "x", "loss": 1}', "3"]
)
def test_a_curve_with_a_line_that_is_none_is_named_and_left_out(study: MadeUpStudy, line: str) -> None:
    study.pretrain("M1")
    study.metrics("M1")
    (run,) = study.runs("M1")
    path = Layout(study.root).pretraining(run.id) / "metrics.jsonl"
    path.write_text(line + "\n" + path.read_text())
    curves = read_frames(papers(), study.root).curves
    assert curves.training(run.id) == () and "the curve of" in curves.problems[0]
