"""The page: what it shows, that names are only ever text, that equal records give equal bytes, and in time."""

import json
import math
import re
from contextlib import nullcontext
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ablations.designs import cell, cells

from ablations import ladders
from neobert.glue.tasks import Task
from neobert.runs.layout import Layout
from reports import make_figures
from reports.curves import PIECES, Curves
from reports.evidence import read_evidence
from reports.matching import group_of
from reports.page.costs import print_powers, shorten
from reports.tables import capitalized
from tests.reports.made_up_study import Study, undrawn_figures
from tests.reports.measurements import embed, perplexity, throughput

HOSTILE = '<img src=x onerror=alert(1)> & $\\alpha_1 \\undefined{$ "quoted" \'</script><script>alert(2)</script>'


def written(study: Study, out: Path, *flags: str, drawn: bool = False) -> str:
    """The page of a study; its figures are empty files unless they are to be drawn."""
    with nullcontext() if drawn else undrawn_figures():
        assert make_figures.main(["--runs", str(study.root), "--out", str(out), *flags]) == 0
    return (out / "index.html").read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Text, ids, links and buttons of a page; of the register its JSON."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.keys: list[int] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.register: dict[str, Any] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._inside = given.get("id") or tag
        self.tags.append(tag)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given["href"]))
        if tag == "img":
            self.pictures.append(str(given["src"]))
        if "data-n" in given:
            self.keys.append(int(str(given["data-n"])))

    def handle_data(self, data: str) -> None:
        if self._inside == "register":
            self.register = json.loads(data)
            self._inside = ""
        elif self._inside not in ("style", "script"):
            self.words.append(data)

    def ids_of(self, key: int) -> list[str]:
        """The records behind a number."""
        places = self.register["lists"][self.register["numbers"][key][2]]
        return [self.register["ids"][place] for place in places]

    def described(self, record_id: str) -> dict[str, str]:
        """What the page says of a record."""
        fields = self.register["records"][self.register["ids"].index(record_id)]
        words = [self.register["words"][place] for place in fields]
        return dict(zip(words[::2], words[1::2], strict=True))


def answers(text: str) -> list[list[str]]:
    """The cells of the table on top of the page, without its head."""
    table = text[text.index('aria-label="The answer"') :].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table, flags=re.DOTALL)
    return [re.findall(r">([^<>\n]*)(?:</button>)?</t[hd]>", row) for row in rows]


def test_the_answer_stands_on_top_of_its_section(study: Study, tmp_path: Path) -> None:
    """A table of the steps that are compared; beside it the paper's change of the average, whatever tasks there are."""
    study.without, study.common_context = {"mnli": "no data"}, 64
    study.write(["M0", "M1", "M2", "M3"])
    text = written(study, tmp_path)
    place = text.index('<p class="answer">')
    table = text.index('aria-label="The answer"')
    assert text.index("<h2 id=") < place < table < text.index('class="facts"')
    assert text[place:].startswith('<p class="answer">Too few seeds: M1 − M0, M3 − M2; not tested: M2 − M1.</p>')
    assert [row[0] for row in answers(text)] == ["M1 − M0", "M2 − M1", "M3 − M2"]
    assert {row[2] for row in answers(text)} == {"too few seeds", "—"} and ">+2.9</button>" in text
    assert "Nothing is compared" in text and "M4 − M2 (M4" in text and "not evidence" in text


def test_no_column_of_a_table_of_answers_or_scores_is_empty(study: Study, tmp_path: Path) -> None:
    """Columns and steps without any number are named in a sentence; budgets stand apart from the ladder."""
    study.common_context = 64
    study.write(["M0", "M1"], seeds=(0, 1))
    study.pretrain("M0@steps0.5")
    text = written(study, tmp_path)
    for row in zip(*answers(text), strict=True):
        assert set(row) - {"—", ""}
    first = text[text.index("GLUE development scores and held-out losses</caption>") :].partition("</table>")[0]
    other = text[text.index("The same of designs, budgets and rates</caption>") :].partition("</table>")[0]
    assert "M0@steps0.5" in other and "M0@steps0.5" not in first and ">CoLA</th>" not in other
    assert "No row has: MNLI, " in text


def test_steps_are_the_ladders_whatever_else_a_design_compares(tmp_path: Path) -> None:
    study = Study(tmp_path / "runs", measured=("web", "wikibook"), common_context=64)
    study.levels["M9-norm"] = 40.0
    study.write(["M1", "M2", "M8", "M9", "M9-norm"], seeds=(0, 1))
    page = Outline(text := written(study, tmp_path / "out"))
    assert [row[0] for row in answers(text)] == ["M2 − M1", "M9 − M8"]
    titles = [page.register["words"][page.register["numbers"][key][0]] for key in page.keys]
    assert any(title.startswith("M2 − M1, ") and title.endswith(": Bits per byte") for title in titles)


def test_every_number_knows_records_that_the_page_describes(study: Study, tmp_path: Path) -> None:
    study.write(["M0", "M1"], seeds=(0, 1))
    page = Outline(written(study, tmp_path / "out"))
    evidence = read_evidence(study.root)
    known = {*evidence.runs.id, *evidence.trials.id}
    assert len(page.keys) > 50
    for key in page.keys:
        how = page.register["words"][page.register["numbers"][key][1]]
        assert bool(page.ids_of(key)) != how.startswith("printed in the paper: Figure 1")
        assert set(page.ids_of(key)) <= known
    for record_id in page.register["ids"]:
        described = page.described(record_id)
        assert {"Seed", "Data id", "Commit", "State"} <= described.keys()


def test_provenance_names_commit_data_and_what_the_recipe_changes(study: Study, tmp_path: Path) -> None:
    study.pretrain("M0")
    study.pretrain("M1", commit="abc123", dirty=True, real_tokens=1234, seconds=60.0, processes=2)
    page = Outline(written(study, tmp_path / "out"))
    (run,) = study.runs("M1")
    described = page.described(run.id)
    assert described["Commit"] == "abc123 with uncommitted changes"
    assert described["Data id"] == run.data_id and described["Time"] == "60 s × 2 processes"
    assert described["Config unlike M0's"].splitlines() == [
        "model.feedforward: gelu → swiglu",
        "model.norm: layer_norm → rms_norm",
        "model.norm_epsilon: 1e-08 → 1e-05",
        "model.positions: learned → rotary",
    ]


def test_every_record_of_the_page_links_to_its_file(study: Study, tmp_path: Path) -> None:
    study.write(["M0", "M1"])
    page = Outline(written(study, tmp_path / "out"))
    for place, record_id in enumerate(page.register["ids"]):
        path = page.register["words"][page.register["files"][place]].replace("*", record_id)
        record = json.loads((tmp_path / "out" / page.register["folder"] / path).read_text())
        assert record["id"] == record_id


def test_costs_count_a_shared_run_once_in_the_total(study: Study, tmp_path: Path) -> None:
    for name in ("M9", "M8"):
        study.pretrain(name, seconds=3600.0, real_tokens=10**6, flops=2e12, gpu_hours=0.5)
    text = written(study, tmp_path / "out")
    table = text[text.index("Costs: sums over the records") :]
    lines = re.findall(r'<tr[^>]*><th scope="row" class="first">([^<]*)</th>(.*?)</tr>', table, flags=re.DOTALL)
    costs = {label: re.findall(r">([^<>\n]+)</button>", cells) for label, cells in lines}
    stages = len(study.runs("M9"))
    assert (
        costs["M9"]
        == costs["NeoBERT-192 (M10)"]
        == [
            str(stages),
            f"{stages} M",
            f"{2.0 * stages:.1f} × 10¹²",
            f"{stages:.2f}",
            f"{0.5 * stages:.2f}",
        ]
    )
    assert costs["Everything, once"][:2] == [str(stages + 1), f"{stages + 1} M"]


def test_names_with_html_or_latex_are_only_ever_text(tmp_path: Path) -> None:
    study = Study(tmp_path / "runs", data=HOSTILE, without={"mnli": HOSTILE}, version=HOSTILE)
    study.write(["M0"])
    perplexity(study, "M0", (8.0, 900.0))
    embed(study, "M0", HOSTILE.replace("/", ""), "sts", 0.5)
    throughput(study, HOSTILE, 512, 1000.0)
    (study.root / "glue" / "cola" / "<b>torn.json").write_text("{")
    text = written(study, tmp_path / "out", drawn=True)
    page = Outline(text)
    assert "b" not in page.tags and page.tags.count("script") == 2
    assert page.pictures and all((tmp_path / "out" / picture).is_file() for picture in page.pictures)
    assert f"data {HOSTILE}" in "".join(page.words) and "<b>torn.json" in "".join(page.words)
    assert any(HOSTILE in word for word in page.register["words"])
    latex = next((tmp_path / "out").glob("*/table3.tex")).read_text()
    assert "\\alpha" not in latex and "\\$\\textbackslash{}alpha\\_1 \\textbackslash{}undefined\\{\\$" in latex


def test_every_link_leads_somewhere_and_the_page_needs_no_network(study: Study, tmp_path: Path) -> None:
    study.write(["M0"])
    out = tmp_path / "out"
    text = written(study, out, "--compare")
    assert not re.search(r"https?://|//cdn|@import|url\(", text)
    page = Outline(text)
    assert len(set(page.ids)) == len(page.ids)
    for link in page.links:
        assert link[1:] in page.ids if link.startswith("#") else (out / link).is_file(), link
    listed = {link for link in page.links if not link.startswith("#")}
    assert listed == {path.relative_to(out).as_posix() for path in out.glob("*/*")}


def test_designs_stand_in_scores_costs_and_statistics(study: Study, tmp_path: Path) -> None:
    names = [cell(on).name for on in cells(("positions", "norm"))]
    study.levels |= {name: 50.0 + place for place, name in enumerate(names)}
    study.write(["M0", *names[1:]], seeds=(0, 1))
    text = written(study, tmp_path / "out")
    assert "Effects in factorials" in text and 'class="first">F:positions+norm</th>' in text
    rows = (tmp_path / "out" / "smoke-synthetic" / "effects.csv").read_text().splitlines()
    assert rows[0].endswith(",records") and len(rows[1].rsplit(",", 1)[1].split()) == 4 * 2 * 8


def test_external_models_stand_in_scores_and_table_5(study: Study, tmp_path: Path) -> None:
    study.write(["M0"])
    of_task = study.study("M0", "cola").model_copy(update={"weights": "model-0123456789ab"})
    study.begin("M0", of_task)
    for point in of_task.points:
        study.trial("M0", of_task, point, labels=study.labels("M0") | {"model": "org/<i>bert</i>"})
    text = written(study, tmp_path / "out")
    assert 'class="first">org/&lt;i&gt;bert&lt;/i&gt;</th>' in text
    page = Outline(text)
    described = [page.described(each) for each in page.register["ids"]]
    assert {"org/<i>bert</i>"} <= {each.get("Pre-training") for each in described}
    assert r"| this study | org/\<i>bert\</i> |" in next((tmp_path / "out").glob("*/table5.md")).read_text()


def test_curves_are_shown_from_metrics_and_said_to_be_absent_without(study: Study, tmp_path: Path) -> None:
    study.write(["M0"])
    assert "No curves" in written(study, tmp_path / "a")
    study.pretrain("M1")
    for name in ("M0", "M1"):
        study.metrics(name)
    text = written(study, tmp_path / "b")
    assert "No curves" not in text and 'src="smoke-synthetic/curves.svg"' in text
    assert 'alt="Curves of child over parent"' in text


def test_a_curve_is_thinned_counts_steps_over_stages_and_leaves_out_a_torn_end(study: Study) -> None:
    study.pretrain("M9")
    study.metrics("M9", lines=250)
    first, last = study.runs("M9")
    path = Layout(study.root).pretraining(last.id) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 99, "lo')
    evidence = read_evidence(study.root)
    row = group_of(evidence, "smoke", "synthetic").last_rows["M9"]
    curves = Curves(study.root, evidence.runs)
    points = curves.training(row.runs.id.iloc[0])
    assert PIECES / 2 <= len(points) <= PIECES and not curves.problems
    places = [step for step, _ in points]
    assert places == sorted(places)
    assert first.recipe.stages[-1].steps < places[-1] < sum(stage.steps for stage in last.recipe.stages)


@pytest.mark.parametrize(
    "line",
    [
        *('{"step": 1, "loss": NaN, "real_tokens": 1}', '{"step": 1, "loss": -3, "real_tokens": 1}', '{"loss": 2}'),
        *("[]", '{"step": "x"}'),
    ],
)
def test_a_curve_with_a_line_that_is_none_is_named_and_left_out(
    study: Study, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("M0", "M1"):
        study.pretrain(name)
        study.metrics(name)
    (run,) = study.runs("M1")
    path = Layout(study.root).pretraining(run.id) / "metrics.jsonl"
    path.write_text(line + "\n" + path.read_text())
    text = written(study, tmp_path / "out")
    assert "No curves" in text and "the curve of" in text and "1 finding " in text
    assert "the curve of" in capsys.readouterr().err


def test_large_counts_are_printed_for_people() -> None:
    counts = (math.nan, 12, 1_500, 2_560_000, 2.1e12)
    assert list(map(shorten, counts)) == ["—", "12", "1.5 k", "2.56 M", "2.1 T"]
    assert [print_powers(value) for value in (math.nan, 0.0, 6.02e12)] == ["—", "0", "6.0 × 10¹²"]


def test_trials_of_own_tasks_are_not_called_glue(study: Study, tmp_path: Path) -> None:
    """On the page, in the costs, in descriptions of records and in the results."""
    task = Task(name="stars", kind="regression", columns=("text",), metrics=("r2",))
    study.pretrain("M0")
    page = tmp_path / "page.md"
    for own, name in (({}, "GLUE trials"), ({"stars": task}, "fine-tuning trials")):
        page.write_text("<!-- results of smoke-synthetic -->\n<!-- end of results -->\n")
        with ladders.using(replace(ladders.current(), tasks={**ladders.current().tasks, **own})):
            text = written(study, tmp_path / "out", "--results", str(page))
        assert name in text and capitalized(name) in text and f" {name} (" in page.read_text()
        assert ("GLUE trials" in text) == (not own)
