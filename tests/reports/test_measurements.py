"""Embeddings, pseudo-perplexity and throughput: what is averaged, what is named, and nothing where no record is."""

import shutil
import statistics
from pathlib import Path

import pytest

from ablations.loading import papers
from neobert.data.mteb_tasks import BENCHMARKS
from neobert.runs.layout import Layout
from reports.figures.perplexity import find_lines
from reports.figures.throughput import table9, throughput_lines
from reports.frames import read_frames
from reports.tables import number
from tests.reports.made_up_study import MadeUpStudy, facts_of, figures
from tests.reports.measurements import embed, embed_all, perplexity, suite_tasks, throughput

IMAGES = ("pdf", "svg", "png", "csv")
TABLES = ("md", "tex", "csv")


def test_average_is_the_flat_mean_of_all_56_tasks_and_categories_are_means_of_theirs(study: MadeUpStudy) -> None:
    study.pretrain("M9")
    embed_all(study, "M9", 0.3)
    cells = study.tables()["table4"].rows[-1]
    first, average = 100 * (0.3 + 0.0055), 100 * statistics.fmean(0.3 + place / 1000 for place in range(56))
    assert (cells[3], cells[10], cells[11]) == (number(first), number(average), "56 of 56")
    assert "—" not in cells and not any("of 12" in cell for cell in cells)


def test_models_readings_of_the_protocol_and_protocols_have_rows_of_their_own(study: MadeUpStudy) -> None:
    study.pretrain("M9")
    labels = {"scale": study.scale, "data": study.data}
    embed(study, "M9", "a", "sts", 0.5)
    embed(study, "M9", "a", "sts", 0.6, protocol="zero_shot")
    embed(study, "M9", "a", "sts", 0.7, id="0123456789ab", labels=labels | {"variants": ["M9@mteb-prompts"]})
    embed(study, "M8", "a", "sts", 0.8, labels=labels | {"model": "org/bert"})
    found = study.read()
    assert {(row.label, row.protocol): row.scores["a"].mean for row in found.embeddings} == {
        ("M9, NeoBERT-192 (M10)", "contrastive"): pytest.approx(50),
        ("M9, NeoBERT-192 (M10)", "zero_shot"): pytest.approx(60),
        ("M9@mteb-prompts", "contrastive"): pytest.approx(70),
        ("org/bert", "contrastive"): pytest.approx(80),
    }
    assert not found.problems


def test_an_incomplete_row_has_no_average_and_says_how_many_tasks_it_has(study: MadeUpStudy) -> None:
    study.pretrain("M8")
    for task, category in list(suite_tasks())[:14]:
        embed(study, "M8", task, category, 0.5)
    cells = study.tables()["table4"].rows[-1]
    assert cells[3:6] == ("50.0", "50.0 (2 of 11)", "—") and cells[10:12] == ("—", "14 of 56")
    facts = facts_of(study.tables()["table4"])
    lines = [line for line in facts if line["source"] == "this study"]
    average = next(line for line in lines if line["level"] == "average")
    assert (average["score"], average["records"], average["tasks"], average["expected"]) == ("", "", "14", "56")
    assert all(line["records"] for line in lines if line["score"])


def test_v2_has_a_row_of_its_own_with_the_tasks_that_it_shares(study: MadeUpStudy) -> None:
    """The rows of v1 do not see the tasks of v2 alone; without them there is no row of v2."""
    v1, v2 = BENCHMARKS.values()
    scores = {}
    for name, tasks in (("M7", v1), ("M8", (*v1, *set(v2).difference(v1)))):
        study.pretrain(name)
        for place, task in enumerate(sorted(tasks, key=lambda task: task.name)):
            embed(study, name, task.name, task.category, place / 100, suite=task.suite)
            scores[task] = float(place)
    rows = study.tables()["table4"].rows[-3:]
    assert [(row[1], row[2], row[11]) for row in rows] == [
        ("M7", "MTEB(eng, v1)", "56 of 56"),
        ("M8", "MTEB(eng, v1)", "56 of 56"),
        ("M8", "MTEB(eng, v2)", "41 of 41"),
    ]
    assert rows[2][10] == number(statistics.fmean(scores[task] for task in v2)) and not study.read().problems


def test_rows_that_lack_tasks_are_compared_over_those_that_all_have(study: MadeUpStudy) -> None:
    for name, tasks in (("M7", ("a", "b", "c")), ("M8", ("b", "c", "d"))):
        study.pretrain(name)
        for place, task in enumerate(tasks):
            embed(study, name, task, "sts", 0.1 * place)
    table = study.tables()["table4"]
    assert any("the tasks that all rows of ours have (b, c)." in note for note in table.notes)
    assert table.header[-1] == "Mean of 2 shared"
    assert [row[-1] for row in table.rows[-2:]] == ["15.0", "5.0"]


def test_what_is_not_counted_is_named(study: MadeUpStudy) -> None:
    """A seed that is not as far as the others, a failed task, and a result on a run without record."""
    for seed in (0, 1, 2):
        study.pretrain("M8", seed)
        for task in ("a", "b") if seed < 2 else ("a",):
            embed(study, "M8", task, "sts", 0.5 + seed / 10, seed=seed)
    embed(study, "M8", "c", "sts", None)
    embed(study, "M7", "a", "sts", 0.5)
    found = study.read()
    (row,) = found.embeddings
    assert len(row.scores["a"].by_seeds) == 2 and row.scores["a"].mean == pytest.approx(55)
    for said in (
        "seed 2 has 1 of 2 tasks and is not counted yet",
        "c lacks a score at some seed and is left out",
        "1 embedding result(s) on",
    ):
        assert any(said in problem for problem in found.problems)


def test_perplexity_has_a_line_a_checkpoint_and_seed(study: MadeUpStudy) -> None:
    for seed in (0, 1):
        study.pretrain("M9", seed)
        perplexity(study, "M9", (8.0 + seed, 7.0), seed=seed)
    lines = find_lines(study.read())
    labels = [f"M9, NeoBERT-192 (M10), seed {seed}" for seed in (0, 0, 1, 1)]
    assert lines.model.tolist() == labels and lines.documents.tolist() == [40] * 4
    assert lines.tokens.tolist() == [64, 128] * 2 and lines.positions.tolist() == [640] * 4
    assert lines.pseudo_perplexity.tolist() == pytest.approx([8.0, 7.0, 9.0, 7.0])


def test_table_9_stands_beside_the_papers_and_only_the_newest_of_equals_counts(study: MadeUpStudy) -> None:
    study.pretrain("M0")
    throughput(study, "NeoBERT", 512, 30_000.0)
    throughput(study, "NeoBERT", 512, 40_000.0, date="2026-02-01")
    throughput(study, "BERT", 512, 50_000.0)
    lines = throughput_lines(read_frames(papers(), study.root).by_kind["throughput"])
    table = table9(papers(), lines)
    rows = {(row[0], row[1]): row for row in table.rows}
    assert rows["paper", "NeoBERT"][4:] == ("24.5 ± 1.4", "22.2 ± 1.7", "20.5 ± 1.6", "17.2 ± 1.2", "13.0 ± 0.2")
    assert rows["this study", "NeoBERT"][2:5] == ("Imaginary 9000", "bf16, compiled", "40.0 ± 0.8")
    assert rows["this study", "BERT"][5:] == ("—",) * 4


def test_everything_is_written_in_all_formats_and_named_on_the_page(study: MadeUpStudy, tmp_path: Path) -> None:
    study.pretrain("M8")
    embed_all(study, "M8", 0.3)
    embed_all(study, "M8", 0.2, protocol="zero_shot")
    perplexity(study, "M8", (8.0, 7.0))
    throughput(study, "NeoBERT", 512, 30_000.0)
    assert figures(study.root, tmp_path) == 0
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    own = {f"smoke-synthetic/figure{n}.{suffix}" for n in (2, 4) for suffix in IMAGES}
    own |= {f"smoke-synthetic/table4.{suffix}" for suffix in TABLES}
    own |= {f"throughput/figure3.{suffix}" for suffix in IMAGES if suffix != "csv"}
    own |= {f"throughput/table9.{suffix}" for suffix in TABLES}
    assert own <= files
    page = (tmp_path / "index.html").read_text()
    assert all(f'href="{name}"' in page for name in own)
    assert 'id="smoke-synthetic-embeddings"' in page and 'id="throughput"' in page


def test_only_what_has_records_is_drawn(study: MadeUpStudy, tmp_path: Path) -> None:
    throughput(study, "NeoBERT", 512, 30_000.0)
    assert figures(study.root, tmp_path / "fast") == 0
    assert (tmp_path / "fast" / "throughput" / "table9.md").is_file()
    assert figures(study.root, tmp_path / "fast", "--scale", "paper") == 3
    shutil.rmtree(study.root)
    study.write(["M0"])
    assert figures(study.root, tmp_path / "out") == 0
    stems = {path.stem for path in (tmp_path / "out").rglob("*")}
    assert not stems & {"figure2", "figure3", "figure4", "table4", "table9", "throughput"}
    page = (tmp_path / "out" / "index.html").read_text()
    assert "-embeddings" not in page and "Throughput" not in page


def test_a_run_that_is_not_finished_is_named(
    study: MadeUpStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.pretrain("M0")
    (run,) = study.runs("M1")
    path = Layout(study.root).pretraining(run.id) / "run.json"
    path.parent.mkdir()
    path.write_text("{}")
    assert figures(study.root, tmp_path / "out") == 0
    sentence = f"1 stage(s) of pre-training are not finished and not counted: {run.id}"
    assert sentence in capsys.readouterr().err
    assert sentence in (tmp_path / "out" / "index.html").read_text()
