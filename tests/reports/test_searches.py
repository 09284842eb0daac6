"""Searches in reports: the best trial of whatever sampler, and a sentence in every table and figure that has one."""

import statistics
from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot as plt
from matplotlib.text import Text

from ablations import loading
from neobert.kinds.glue import GlueStudy
from neobert.recipe import Point
from neobert.runs.layout import Layout
from neobert.runs.records import read_record, read_sealed
from neobert.search.space import Search
from reports import rows
from reports.figures import searches
from reports.figures.figure1 import find_bars
from reports.figures.glue_tables import table3, table5
from reports.frames import read_frames
from reports.remarks import searches_noted
from reports.scores import Cell
from tests.reports.extents import require_texts_fit
from tests.reports.made_up_study import SAMPLED, SPACE, MadeUpStudy, by_place, copy, facts_of, figures, search_by
from tests.reports.test_figures import drawn

pytestmark = pytest.mark.usefixtures("papers_ladder")
TPE = "CoLA: 8 points chosen by tpe, 2 ended early by median; not the whole grid"


def cell_of(study: MadeUpStudy, name: str = "M1") -> Cell:
    return study.read().last_rows[name].cells["cola"]


def score_at_best(study: MadeUpStudy, search: GlueStudy) -> float:
    """The highest mean over seeds among the trials' records, in points."""
    layout = Layout(study.root)
    done = [each.trials for each in search.search_trials(layout) if each.state == "done"]
    return 100 * max(
        statistics.fmean(read_record(trial.record)["scores"]["score"] for trial in trials) for trials in done
    )


def test_a_searched_task_has_its_best_point_and_every_table_says_so(study: MadeUpStudy) -> None:
    for name in ("M0", "M1"):
        study.pretrain(name)
    study.search("M0", study.study("M0", "cola"))
    search = study.sampled("M1", "cola", search_by("tpe", "median"), SAMPLED, pruned=SAMPLED[:2])
    group = study.read()
    cell = group.last_rows["M1"].cells["cola"]
    assert cell.score is not None and cell.score.mean == pytest.approx(score_at_best(study, search))
    assert cell.point in SAMPLED[2:] and group.problems == ()
    for table in (table3(group), table5(group)):
        assert table is not None
        assert f"§ {TPE} (M1)." in table.notes
        shown = {row[1]: row for row in table.rows}
        assert "§" in "".join(shown["M1"]) and "§" not in "".join(shown["M0"])
    (fact,) = [line for line in facts_of(study.tables()["table5"]) if line["model"] == "M1"]
    assert fact["whole_grid"] == "no" and fact["points"] == "6" and fact["batch_size"] == str(cell.point.batch_size)


def test_figure_1_says_which_bars_are_of_searches_and_changes_none_against_a_grid(study: MadeUpStudy) -> None:
    for name in ("M0", "M1"):
        study.pretrain(name)
    study.search("M0", study.study("M0", "cola"))
    study.sampled("M1", "cola", search_by("tpe", "median"), SAMPLED, pruned=SAMPLED[:2])
    found = study.read()
    assert f"{TPE} (M1)." in drawn(found) and not find_bars(found).incomplete
    assert {line["variant"]: line["delta_percent"] for line in facts_of(study.tables()["figure1"])}["M1"] == ""


def test_the_whole_grid_is_used_where_there_is_one_and_a_part_of_it_is_not(study: MadeUpStudy) -> None:
    study.pretrain("M1")
    study.sampled("M1", "cola", search_by("tpe"), SAMPLED)
    grid = study.study("M1", "cola")
    study.begin("M1", grid)
    for point in grid.points[:-1]:
        study.trial("M1", grid, point)
    assert cell_of(study).tried is not None and cell_of(study).point in SAMPLED
    study.trial("M1", grid, grid.points[-1])
    row = study.read().last_rows["M1"]
    assert row.cells["cola"].is_best_of_whole_grid and row.cells["cola"].point in grid.points
    assert searches_noted([row]) == []


def test_a_search_with_seeds_has_the_mean_over_them_and_the_larger_one_counts(study: MadeUpStudy) -> None:
    study.pretrain("M1")
    small = study.sampled("M1", "cola", search_by("random", seeds=(0, 1, 2)), SAMPLED)
    row = study.read().last_rows["M1"]
    score = row.cells["cola"].score
    assert score is not None and [each.finetuning for each in score.by_seeds] == [0, 1, 2]
    assert score.mean == pytest.approx(score_at_best(study, small))
    more = search_by("qmc").model_copy(update={"trials": 9})
    larger = study.sampled("M1", "cola", more, SAMPLED)
    row = study.read().last_rows["M1"]
    assert row.cells["cola"].tried is not None and row.cells["cola"].tried.study == larger
    assert searches_noted([row]) == ["§ CoLA: 8 of 9 points chosen by qmc; not the whole grid (M1)."]


def test_a_grid_whose_bad_points_a_pruner_ended_is_no_whole_grid(study: MadeUpStudy) -> None:
    study.pretrain("M1")
    points = study.study("M1", "cola").points
    search = search_by("grid", "median").model_copy(update={"trials": len(points)})
    study.sampled("M1", "cola", search, points, pruned=points[:1])
    said = f"§ CoLA: {len(points)} points of the grid, 1 ended early by median; not the whole grid (M1)."
    assert searches_noted([study.read().last_rows["M1"]]) == [said] and cell_of(study).point in points[1:]


def test_a_search_whose_trials_were_all_ended_early_has_no_score_and_no_picture(study: MadeUpStudy) -> None:
    study.pretrain("M1")
    study.sampled("M1", "cola", search_by("tpe", "median"), SAMPLED, pruned=SAMPLED)
    assert cell_of(study).score is None and searches_noted([study.read().last_rows["M1"]]) == []
    assert study.read().searches == {}


@pytest.mark.parametrize("theirs", [search_by("tpe"), search_by("random"), None])
def test_scores_of_equal_searches_are_subtracted_and_of_another_search_or_a_grid_not(
    study: MadeUpStudy, theirs: Search | None
) -> None:
    for name, search in (("M0", theirs), ("M1", search_by("tpe"))):
        study.pretrain(name)
        if search is None:
            study.search(name, study.study(name, "cola"))
        else:
            study.sampled(name, "cola", search, SAMPLED)
    reason = "" if theirs == search_by("tpe") else "CoLA of M1 and M0 is not of the same grid or kind of search"
    assert by_place(study.read())["ladder", "M1 − M0", "CoLA"].reason == reason


def test_a_search_under_another_protocol_is_of_no_variant(study: MadeUpStudy) -> None:
    study.pretrain("M1")
    grid = study.study("M1", "cola")
    protocol = grid.protocol.model_copy(update={"epochs": grid.protocol.epochs + 1})
    other = grid.model_copy(update={"search": search_by("tpe"), "points": (), "protocol": protocol})
    study.sample("M1", other, SAMPLED)
    assert cell_of(study).score is None
    assert any("match no variant's protocol, grid and study" in problem for problem in study.read().problems)


def with_picture(study: MadeUpStudy, search: Search, points: tuple[Point, ...] = SAMPLED) -> rows.Study:
    study.pretrain("M1")
    study.sampled("M1", "cola", search, points)
    return study.read()


def test_a_search_has_a_picture_of_its_own_and_no_other_figure_another_style(study: MadeUpStudy) -> None:
    findings = with_picture(study, search_by("tpe", seeds=(0, 1)))
    before = dict(matplotlib.rcParams)
    ((name, tried),) = findings.searches.items()
    figure = searches.draw(tried, findings).figure
    assert dict(matplotlib.rcParams) == before and not plt.get_fignums()
    require_texts_fit(figure)
    words = {text.get_text() for text in figure.findobj(Text)}
    assert {"Search of CoLA on M1", "batch size", "learning rate", "weight decay", "importance"} <= words
    dots = figure.axes[1].collections[0].get_offsets().tolist()
    trials = tried.study.search_trials(Layout(study.root))
    means = {(each.point.learning_rate, 100 * read_sealed(each.record)["scores"]["score"]) for each in trials}
    assert {tuple(dot) for dot in dots} == means
    assert name == f"search-cola-{tried.study.id}"


def test_the_same_records_give_the_same_picture_on_the_page_and_from_a_collected_folder(
    study: MadeUpStudy, tmp_path: Path
) -> None:
    findings = with_picture(study, search_by("tpe"))
    assert copy(study.root, tmp_path / "copy") == 0
    evidence = read_frames(loading.papers(), tmp_path / "copy")
    ((_, tried),) = findings.searches.items()
    (collected,) = evidence.searches.tried
    assert figures(study.root, tmp_path / "out") == 0
    page, (name,) = (tmp_path / "out" / "index.html").read_text(), findings.searches
    assert 'alt="Search of CoLA on M1"' in page and f"{name}.svg" in page and f"{name}.pdf" in page
    assert {path.suffix for path in tmp_path.glob(f"out/*/{name}.*")} == {".png", ".svg", ".pdf"}
    first, again, of_copy = (searches.draw(each, findings).files("x") for each in (tried, tried, collected))
    assert first == again == of_copy


@pytest.mark.parametrize("points", [SAMPLED[:1], SAMPLED[:2], (*SAMPLED[:3], SAMPLED[0])])
def test_few_points_and_one_value_of_a_field_have_a_picture_too(study: MadeUpStudy, points: tuple[Point, ...]) -> None:
    space = SPACE.model_copy(update={"batch_size": (8,)})
    search = search_by("tpe").model_copy(update={"space": space})
    findings = with_picture(study, search, points)
    (tried,) = findings.searches.values()
    require_texts_fit(searches.draw(tried, findings).figure)
