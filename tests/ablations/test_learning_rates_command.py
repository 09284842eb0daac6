"""The sweep over peak rates end to end: trained once, extended, interrupted and continued, with failures as points."""

import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest

from ablations import rates, run
from ablations.launch import execute
from ablations.rates import RateCurve
from neobert.rates import rate_text
from neobert.runs import worker
from neobert.runs.kinds import read_records
from neobert.runs.layout import Layout
from neobert.runs.submissions import read_submissions
from neobert.search.storages import storage_address, storage_at
from sweeps import learning_rates
from tests.ablations.fake_slurm import FakeSlurm
from tests.support.tiny_runs import starts
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("toy_scale_of_module")
SMALL = ["--variant", "M2", "--pilot-seed", "1000", "--width", "1", "--most", "2"]
SMALL += ["--cluster", "here", "--workers", "1"]


def sweep(capsys: pytest.CaptureFixture[str], runs: Path, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The command in this process: exit code, an entry a variant, and what it said."""
    capsys.readouterr()
    code = learning_rates.main([*SMALL, "--runs", str(runs), "--json", *arguments])
    said = capsys.readouterr()
    return code, json.loads(said.out or "[]"), said.err


@pytest.fixture(scope="module")
def swept_once(toy_scale_of_module: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("swept")
    assert learning_rates.main([*SMALL, "--runs", str(root)]) == 0
    return root


@pytest.fixture
def swept(swept_once: Path, tmp_path: Path) -> Path:
    """The folder of a finished sweep, for one test alone."""
    shutil.copytree(swept_once, tmp_path / "swept")
    return tmp_path / "swept"


def test_a_sweep_ends_with_a_loss_at_every_rate_and_says_the_best(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six steps train better the higher the rate: the grid is extended upwards to its limit, where no optimum is."""
    before = starts(swept)
    code, (entry,), _ = sweep(capsys, swept)
    assert code == 0 and starts(swept) == before and len(before) == len(set(before)), "nothing runs twice"
    points = {point["rate"]: point for point in entry["points"]}
    assert list(points) == [1e-3, 2e-3, 4e-3, 8e-3] and entry["shared_rate"] == 2e-3
    assert [point["variant"] for point in points.values()] == ["M2@rate1e-3", "M2", "M2@rate4e-3", "M2@rate8e-3"]
    losses = [point["loss"] for point in points.values()]
    assert losses == sorted(losses, reverse=True) and entry["shared_loss"] == points[2e-3]["loss"]
    assert entry["optimum"] is None and entry["reason"] == "the best rate, 8e-3, is the last that --most 2 allows"
    found, problems = read_records(swept)
    assert not problems and {record["kind"] for record in found} == {"pretraining"}
    by_id = {record["id"]: record for record in found}
    for point in points.values():
        record = by_id[point["run"]]
        assert record["config"]["recipe"]["optimization"]["peak_learning_rate"] == point["rate"]
        assert record["seed"] == point["seed"] == 1000 and point["variant"] in record["labels"]["variants"]
        assert record["scores"]["heldout_loss"]["web"] == point["loss"]


def test_a_wider_grid_with_another_seed_shares_points_and_finds_an_optimum(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same numbers as the function on losses alone gives."""
    arguments = ("--pilot-seed", "1001", "--factor", "5", "--most", "4")
    code, (entry,), _ = sweep(capsys, swept, *arguments)
    assert code == 0 and len(starts(swept)) == len(set(starts(swept)))
    points, best = entry["points"], entry["optimum"]
    assert {point["seed"] for point in points} == {1000, 1001}
    losses: dict[float, dict[int, float]] = {}
    for point in points:
        losses.setdefault(point["rate"], {})[point["seed"]] = point["loss"]
    again = RateCurve(losses, {}).optimum()
    assert again is not None and again.fitted and [again.exact, again.loss] == [best["exact"], best["loss"]]
    assert best["train_as"] == f"M2@rate{rate_text(best['rate'])}"
    assert learning_rates.main([*SMALL, *arguments, "--runs", str(swept)]) == 0
    assert best["train_as"] in capsys.readouterr().out


def test_an_interrupted_sweep_goes_on_where_it_was(
    swept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "interrupted"
    runs.mkdir()
    shutil.copytree(swept / "data", runs / "data")

    def interrupt() -> None:
        until(lambda: len(list(runs.glob("pretraining/*/done.json"))) >= 1, 120, pause_seconds=0.002)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code, entries, said = sweep(capsys, runs)
    thread.join()
    assert code == 130 and not entries and "the same command goes on" in said
    done = {path.parent.name for path in runs.glob("pretraining/*/done.json")}
    begun = len(starts(runs))
    code, entries, _ = sweep(capsys, runs)
    assert code == 0 and not done & set(starts(runs)[begun:]) and done
    assert entries == sweep(capsys, swept)[1]


def test_a_rate_at_which_training_diverges_is_a_point_without_a_loss(
    swept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named, nothing beyond it is tried, it stays failed until it is asked for again, and the sweep ends."""
    usual = rates.grid_rate
    monkeypatch.setattr(rates, "grid_rate", lambda *place: 9e20 if place[-1] == 2 else usual(*place))
    code, (entry,), said = sweep(capsys, swept, "--most", "4")
    diverged = entry["points"][-1]
    assert code == 1 and diverged["state"] == "failed" and diverged["rate"] == 9e20 and diverged["loss"] is None
    assert diverged["error"].startswith("RunFailed: ") and "training diverged" in diverged["error"]
    assert diverged["error"] in said and len(entry["points"]) == 4
    assert entry["optimum"]["rate"] == 4e-3 and entry["reason"] == "the next rate, 9e20, failed"
    before = starts(swept)
    code, again, said = sweep(capsys, swept, "--most", "4")
    assert code == 1 and again == [entry] and starts(swept) == before and "--retry-failed" in said
    assert sweep(capsys, swept, "--most", "4", "--retry-failed")[0] == 1
    assert starts(swept) == [*before, diverged["run"]]
    assert len(list((swept / "pretraining" / diverged["run"]).glob("error*.json"))) == 2


def test_on_slurm_one_submission_does_the_whole_sweep(
    slurm: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    arguments = [*SMALL[:-4], "--runs", str(runs), "--cluster", "slurm"]
    assert learning_rates.main(arguments) == 0 == learning_rates.main(arguments)
    first = [each for each in read_submissions(Layout(runs)) if each.kind == "pretrain"]
    assert [(each.elements, len(each.references)) for each in first] == [(3, 1)], "a worker for each rate of the grid"
    assert "the same command reads their records" in " ".join(capsys.readouterr().err.split())
    for each in read_submissions(Layout(runs)):
        assert worker.main(["--runs", str(runs), *each.references]) == 0
        slurm.end(each.job)
    assert len(starts(runs)) == 1 + 4, "the corpus, the grid and the next rate"
    assert learning_rates.main([*arguments, "--json"]) == 0 and len(starts(runs)) == 1 + 4
    (entry,) = json.loads(capsys.readouterr().out)
    assert [point["rate"] for point in entry["points"]] == [1e-3, 2e-3, 4e-3, 8e-3]


def test_a_search_of_two_numbers_tries_ordinary_variants_and_shows_them_to_optuna(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first point is the variant itself, which has been trained."""
    before = starts(swept)
    fields = ("--field", "weight_decay", "0", "0.3", "--field", "peak_learning_rate", "1e-3", "8e-3")
    code, (entry,), said = sweep(capsys, swept, "--sampler", "tpe", "--trials", "3", *fields)
    assert code == 0 and len(starts(swept)) == len(before) + 2 and "optuna-dashboard" in said
    points = {point["variant"]: point for point in entry["points"]}
    assert len(points) == 3 and next(iter(points)) == "M2"
    best = min(points, key=lambda name: points[name]["loss"])
    assert entry["optimum"]["train_as"] == best and entry["optimum"]["loss"] == points[best]["loss"]
    by_id = {record["id"]: record for record in read_records(swept)[0]}
    assert (
        run.main(["--variant", *points, "--seed", "1000", "--stages", "pretrain", "--runs", str(swept), "--json"]) == 0
    )
    shared = json.loads(capsys.readouterr().out)
    assert {each["variant"]: each["pretraining"] for each in shared} == {
        name: point["run"] for name, point in points.items()
    }
    assert len(starts(swept)) == len(before) + 2
    storage = storage_at(storage_address("journal", swept)).open()
    (summary,) = [each for each in optuna.get_all_study_summaries(storage) if " tpe " in each.study_name]
    trials = optuna.load_study(study_name=summary.study_name, storage=storage).trials
    assert [each.state.name for each in trials] == ["COMPLETE"] * 3
    for each in trials:
        optimization = by_id[each.user_attrs["trial"]]["config"]["recipe"]["optimization"]
        assert each.params.items() <= optimization.items() and each.user_attrs["seed"] == 1000
    assert {each.value for each in trials} == {point["loss"] for point in points.values()}


def test_a_trial_of_a_variant_with_stages_trains_them_one_after_the_other(
    swept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(starts(swept))
    code, entries, _ = sweep(capsys, swept, "--variant", "M9", "--sampler", "random", "--trials", "1")
    (point,) = entries[1]["points"]
    assert code == 0 and point["variant"] == "M9" and point["state"] == "done"
    by_id = {record["id"]: record for record in read_records(swept)[0]}
    last = by_id[point["run"]]
    assert last["config"]["stage"] == 1 and last["scores"]["heldout_loss"]["web"] == point["loss"]
    assert by_id[last["inputs"]["previous"]]["seed"] == 1000 and point["run"] in starts(swept)[before:]


def test_a_controller_that_is_too_busy_after_a_submission_makes_it_no_failure(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "print_submissions", lambda *_, **__: (slurm.state / "down").touch())
    assert learning_rates.main([*SMALL[:-4], "--runs", str(tmp_path / "runs"), "--hours", "1"]) == 0
    assert slurm.submitted()


def test_a_dry_run_writes_nothing_and_shows_the_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, entries, _ = sweep(capsys, tmp_path / "runs", "--variant", "M0..M2", "--dry-run")
    assert code == 0 and [entry["variant"] for entry in entries] == ["M0", "M1", "M2"]
    assert {point["state"] for entry in entries for point in entry["points"]} == {"missing"}
    assert all(entry["reason"] == "not all points are done" for entry in entries) and not (tmp_path / "runs").exists()
