"""The sweep command: on a finished variant, with what its tasks depend on, and nothing twice."""

import json
import shutil
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ablations import run
from ablations.launch.execute import retry_failed
from neobert.runs.layout import Layout
from neobert.search.storages import storage_address, storage_at
from sweeps import glue_grid
from tests.support.tiny_runs import starts


def sweep(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The command in this process: exit code, points, and what it said."""
    code = glue_grid.main([*arguments, "--workers", "1", "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


@dataclass(frozen=True)
class Swept:
    """A folder of runs with M2 and its sweep of RTE, and the points that the command printed."""

    root: Path
    points: list[dict[str, Any]]


@pytest.fixture(scope="module")
def swept_once(toy_scale_of_module: None, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    root = tmp_path_factory.mktemp("swept")
    assert run.main(["--variant", "M2", "--stages", "pretrain", "--runs", str(root), "--workers", "1"]) == 0
    with redirect_stdout(StringIO()) as said:
        assert glue_grid.main(["--task", "rte", "--runs", str(root), "--workers", "1", "--json"]) == 0
    return Swept(root, json.loads(said.getvalue()))


@pytest.fixture
def swept(swept_once: Swept, tmp_path: Path) -> Swept:
    """A copy of the folder, for one test alone."""
    shutil.copytree(swept_once.root, tmp_path, dirs_exist_ok=True)
    return Swept(tmp_path, swept_once.points)


def test_a_transferred_task_brings_its_mnli_study_and_repeats_nothing(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {entry["task"] for entry in swept.points} == {"mnli", "rte"}
    assert all(entry["score"] is not None for entry in swept.points)
    arguments = ["--task", "mnli", "cola", "--variant", "M2", "--grid", "extended", "--runs", str(swept.root)]
    assert glue_grid.main([*arguments, "--workers", "2", "--json"]) == 0
    extended = json.loads(capsys.readouterr().out)
    of_mnli = {entry["trial"] for entry in swept.points if entry["task"] == "mnli"}
    assert of_mnli < {entry["trial"] for entry in extended}
    assert len(starts(swept.root)) == len(set(starts(swept.root)))


def test_damaged_results_are_set_aside_and_made_again_by_the_same_command(
    swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torn predictions of MNLI keep neither MNLI nor what starts from it from being closed; all comes out as before."""
    arguments, points = ["--task", "rte", "--runs", str(tmp_path)], swept.points
    mnli, rte = (sorted(tmp_path.glob(f"glue/{task}/*.json")) for task in ("mnli", "rte"))
    (choice,) = tmp_path.glob("glue/mnli/studies/*/selection.json")
    whole = choice.read_bytes()
    best = tmp_path / "glue" / "mnli" / json.loads(whole)["trial"]
    best.with_suffix(".safetensors").write_bytes(b"torn")
    other = next(path for path in mnli if path.stem != best.name)
    other.with_suffix(".npz").write_bytes(b"torn")
    for path in (choice, *tmp_path.glob("glue/rte/studies/*/selection.json"), rte[0]):
        path.unlink()
    code, again, said = sweep(capsys, *arguments)
    assert code == 1 and f"{best.stem}.safetensors was damaged" in " ".join(said.split())
    assert other.with_suffix(".npz.damaged-1").exists() and best.with_suffix(".safetensors.damaged-1").exists()
    code, again, _ = sweep(capsys, *arguments, "--retry-failed")
    assert code == 0 and again == points
    assert json.loads(choice.read_bytes())["trial"] == json.loads(whole)["trial"]


def test_a_dry_run_changes_nothing_and_lost_predictions_cost_the_nested_score_alone(
    swept: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, _ = sorted(tmp_path.glob("glue/rte/*.npz"))
    damaged.write_bytes(b"torn")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    arguments = ["--task", "rte", "--variant", "M2", "--runs", str(tmp_path)]
    code, planned, said = sweep(capsys, *arguments, "--dry-run")
    assert code == 0 and f"{damaged.name} " in said and {entry["state"] for entry in planned} == {"done"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    damaged.unlink()
    code, points, said = sweep(capsys, *arguments)
    whole, left = ([entry["best"] for entry in each if entry["task"] == "rte"] for each in (swept.points, points))
    assert code == 0 and "rte has no nested score" in said
    assert left == [best and best | {"nested": None} for best in whole] and any(left)


@pytest.mark.usefixtures("swept")
def test_seeds_storages_and_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three seeds on one model, the best by their mean; a failed point stays failed until it is asked for again;
    Optuna shows it all, and again after its journal was lost."""
    arguments = ["--task", "cola", "--grid", "limited", "--seed", "0", "1", "2", "--runs", str(tmp_path)]
    arguments += ["--storage", "journal"]
    capsys.readouterr()
    code, planned, _ = sweep(capsys, *arguments, "--dry-run")
    assert code == 0 and {entry["state"] for entry in planned} == {"missing"}
    assert {entry["seed"] for entry in planned} == {0, 1, 2}
    error = tmp_path / "glue" / "cola" / "errors" / f"{planned[0]['trial']}.json"
    error.parent.mkdir(parents=True)
    failure = {"name": "a point", "error": "RunFailed: step 3: the loss is nan", "exit_code": 1, "claim": 1}
    error.write_text(json.dumps(failure))

    code, points, said = sweep(capsys, *arguments)
    assert code == 1 and "a point: RunFailed: step 3: the loss is nan" in said and "--retry-failed" in said
    assert [entry["state"] for entry in points] == ["failed"] + ["done"] * (len(points) - 1)
    assert points[0]["score"] is None and points[0]["error"] == failure["error"]

    code, points, _ = sweep(capsys, *arguments, "--retry-failed")
    assert code == 0 and {entry["state"] for entry in points} == {"done"}
    assert not error.exists() and json.loads(error.with_suffix(".1.json").read_text()) == failure
    assert len(starts(tmp_path)) == len(set(starts(tmp_path)))

    _assert_best_has_highest_mean(points)
    for _ in range(2):
        _assert_optuna_shows(tmp_path, points)
        (tmp_path / "optuna.journal").unlink()
        assert sweep(capsys, *arguments)[0] == 0


def _assert_best_has_highest_mean(points: list[dict[str, Any]]) -> None:
    scores: dict[tuple[float, ...], list[float]] = {}
    for entry in points:
        scores.setdefault((entry["learning_rate"], entry["weight_decay"]), []).append(entry["score"])
    (best, *_) = (entry["best"] for entry in points if entry["best"])
    highest = max(sum(values) / 3 for values in scores.values())
    assert best["mean"] == pytest.approx(highest, abs=1e-4) and best["seeds"] == [0, 1, 2]
    own = scores[best["learning_rate"], best["weight_decay"]]
    assert best["mean"] == pytest.approx(sum(own) / 3, abs=1e-4)
    assert best["sd"] is not None and best["nested"] is not None


def _assert_optuna_shows(root: Path, points: list[dict[str, Any]]) -> None:
    storage = storage_at(storage_address("journal", root)).open()
    shown = {
        trial.user_attrs["trial"]: (trial.state.name, round(trial.value, 4), trial.params["learning_rate"])
        for study in storage.get_all_studies()
        if " cola " in study.study_name
        for trial in storage.get_all_trials(study._study_id)
        if trial.state.name == "COMPLETE"
    }
    assert shown == {entry["trial"]: ("COMPLETE", entry["score"], entry["learning_rate"]) for entry in points}


def test_a_point_that_two_commands_retry_is_retried_once(tmp_path: Path) -> None:
    """The second finds the error gone by the time that it renames it."""
    part = SimpleNamespace(error=tmp_path / "point.error.json", is_done=False)
    part.error.write_text("{}")
    twice: Any = SimpleNamespace(parts=lambda layout: (part, part))
    retry_failed(Layout(tmp_path), [twice], retry=True)
    assert [path.name for path in tmp_path.iterdir()] == ["point.error.1.json"]
