"""Tasks that a ladder declares go the way of GLUE's: plan, trials, selection, status, tables, with the ladder gone."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from ablations import loading, run, status
from ablations.loading import papers
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_REFUSED
from neobert.kinds.glue import GlueStudy
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from neobert.runs.worker import main as work
from reports import make_figures
from sweeps import glue_grid
from tests.support.made_up_topics import TOPICS_LADDER, topics

REVIEWS = """
TASKS.append(Task(name="reviews", kind="classification", folder="reviews", columns=("text",), label_column="verdict",
                  classes=("bad", "good"), metrics=("accuracy",), starts_from="topics"))
"""


def reviews(folder: Path) -> None:
    folder.mkdir()
    rows = [("a good cat", "good"), ("a bad cat", "bad")] * 12
    for split in ("train", "validation"):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "verdict"), *rows])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ladder, its files and another task, after M0 was trained and fine-tuned on both."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "mine.py").write_text(TOPICS_LADDER + REVIEWS)
    topics(folder / "topics")
    reviews(folder / "reviews")
    flags = ["--ladder", str(folder / "mine.py"), "--variant", "M0", "--workers", "1", "--cluster", "here"]
    assert run.main([*flags, "--runs", str(folder / "runs")]) == EXIT_DONE
    return folder


def records(study: Path, task: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(study.glob(f"runs/glue/{task}/*.json"))]


def studies(study: Path, task: str) -> list[GlueStudy]:
    folders = sorted(study.glob(f"runs/glue/{task}/studies/*"))
    return [read_run_file(folder).specification(GlueStudy) for folder in folders]


def test_its_tasks_alone_are_fine_tuned_and_one_starts_from_the_other(study: Path) -> None:
    assert {path.name for path in (study / "runs/glue").iterdir()} == {"topics", "reviews"}
    (first,), (own,) = studies(study, "topics"), studies(study, "reviews")
    for record in records(study, "topics"):
        assert record["scores"]["metrics"].keys() == {"accuracy", "f1_macro"} and record["scores"]["score"] > 0
        assert record["config"]["own_task"]["label_column"] == "topic" and "folder" not in record["config"]["own_task"]
        assert record["inputs"]["task"].startswith("directory:")
    assert (own.starts_from.task, own.starts_from.study) == ("topics", first.id)
    assert {record["config"]["starts_from"] for record in records(study, "reviews")} == {"topics"}


def test_workers_need_the_files_and_not_the_ladder(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study, tmp_path, dirs_exist_ok=True)
    (tmp_path / "mine.py").unlink()
    (first,), layout = studies(tmp_path, "topics"), Layout(tmp_path / "runs")
    first.encoded_task(layout).unlink()
    trial = first.trials(layout)[0]
    before = json.loads(trial.record.read_text())["scores"]
    for path in (trial.record, first.closing(layout).record):
        path.unlink()
    assert work(["--runs", str(layout.root), first.reference]) == EXIT_DONE
    assert json.loads(trial.record.read_text())["scores"] == before
    again = json.loads(first.closing(layout).record.read_text())
    assert again["nested"]["score"] is not None


def test_status_tables_and_page_show_them(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--runs", str(study / "runs")]
    assert status.main(flags) == EXIT_DONE
    said = capsys.readouterr().out
    assert "glue topics" in said and "glue reviews" in said
    assert make_figures.main(["--ladder", str(study / "mine.py"), *flags, "--out", str(tmp_path)]) == EXIT_DONE
    assert not [*tmp_path.glob("*/figure1.*"), *tmp_path.glob("*/table5.*")], "the ladder has no task of GLUE"
    (scores,) = scores_in(tmp_path)
    best = max(record["scores"]["score"] for record in records(study, "topics"))
    assert float(scores["topics"]) == pytest.approx(100 * best) and scores["reviews"]
    changed = study / "mine-2.py"
    changed.write_text((study / "mine.py").read_text().replace('"accuracy", "f1_macro"', '"accuracy",'))
    flags += ["--ladder", str(changed), "--out", str(tmp_path / "again")]
    assert make_figures.main(flags) == EXIT_DONE
    assert not scores_in(tmp_path / "again"), "with another metric it is another task, and so is what starts from it"


def scores_in(out: Path) -> list[dict[str, str]]:
    """The rows of Table 3 that have scores."""
    (table,) = out.glob("*/table3.csv")
    with table.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["topics"] or row["reviews"]]


def test_the_grid_command_takes_one_of_them(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--ladder", str(study / "mine.py"), "--runs", str(study / "runs"), "--variant", "M0", "--workers", "1"]
    capsys.readouterr()
    assert glue_grid.main([*flags, "--task", "reviews", "--json"]) == EXIT_DONE
    entries = json.loads(capsys.readouterr().out)
    assert {entry["task"] for entry in entries} == {"topics", "reviews"}
    assert any(entry["best"] and entry["best"]["nested"] is not None for entry in entries if entry["task"] == "topics")
    assert glue_grid.main([*flags, "--task", "topicss"]) == EXIT_REFUSED
    assert "'topicss' is no task of this study: did you mean 'topics'" in " ".join(capsys.readouterr().err.split())
    assert glue_grid.main([*flags, "--task", "cola"]) == EXIT_REFUSED


def test_files_that_are_not_there_or_change_are_said_in_a_sentence(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(study, tmp_path, dirs_exist_ok=True)
    flags = ["--ladder", str(tmp_path / "mine.py"), "--runs", str(tmp_path / "runs"), "--variant", "M0"]
    (before,) = studies(tmp_path, "topics")
    train = tmp_path / "topics" / "train.jsonl"
    train.write_text(train.read_text().replace("wind", "rain"))
    assert glue_grid.main([*flags, "--task", "topics", "--dry-run", "--json"]) == EXIT_DONE
    planned = {entry["trial"] for entry in json.loads(capsys.readouterr().out)}
    assert planned.isdisjoint(before.trial_ids), "other data are another study"
    train.unlink()
    for command in ((run.main, "--dry-run"), (glue_grid.main, "--task", "reviews", "--dry-run")):
        assert command[0]([*flags, *command[1:]]) == EXIT_MISSING
        said = " ".join(capsys.readouterr().err.split())
        assert "put the files there, or take the task out of TASKS" in said and "topics of" in said
    assert run.main([*flags, "--stages", "pretrain", "--dry-run"]) == EXIT_DONE, "which needs no task"
    capsys.readouterr()
    assert glue_grid.main([*flags, "--task", "topics"]) == EXIT_MISSING
    assert "topics has no train split in topics" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("TASKS = ['mnlii']", "TASKS has 'mnlii': did you mean 'mnli'"),
        ("TASKS = 'mnli'", "TASKS: 'str' instances are not allowed as a Sequence value, got 'mnli'"),
        ("TASKS.append(TASKS[0])", "TASKS has 'topics' twice"),
        ("TASKS[0] = TASKS[0].model_copy(update={'name': 'cola'})", "TASKS declares 'cola', which is one of GLUE"),
        (
            "TASKS[0] = TASKS[0].model_copy(update={'folder': ''})",
            "task topics has no folder: name the one with its files",
        ),
        (
            "TASKS[0] = TASKS[0].model_copy(update={'starts_from': 'mnli'})",
            "task topics starts from 'mnli', which is not in TASKS: known: topics",
        ),
        ("TASKS[0] = TASKS[0].model_copy(update={'starts_from': 'topics'})", "task topics starts from itself"),
        ("Task(name='x', kind='tagging', columns=('a',), metrics=('f1',))", "line 16: kind: Input should be"),
    ],
)
def test_what_is_no_task_is_refused_in_a_sentence(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "own.py").write_text(f"{TOPICS_LADDER}{code}\n")
    with pytest.raises(ValueError, match=r"^--ladder ") as refused:
        loading.load(str(tmp_path / "own.py"))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_ladder_may_name_some_of_glue(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{TOPICS_LADDER}TASKS = ['rte', 'mnli', *TASKS]\n")
    own = loading.load(str(tmp_path / "own.py"))
    assert list(own.tasks) == ["rte", "mnli", "topics"] and own.tasks["rte"].starts_from == "mnli"
    assert own.own_tasks["topics"].folder == str(tmp_path / "topics")
    assert list(papers().tasks) == ["mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb"]
