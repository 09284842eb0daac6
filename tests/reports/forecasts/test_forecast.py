"""From records of small budgets through a sealed file to its scores beside records of larger runs, by the commands."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neobert.files import json_bytes, replace_file
from neobert.runs.collected import Collected
from neobert.runs.records import read_sealed, sealed
from reports import collect, forecast, make_figures
from reports.evidence import read_evidence
from reports.forecasts.sealed import Forecast
from tests.reports.made_up_study import Study
from tests.reports.measurements import answer, ask

pytestmark = pytest.mark.usefixtures("undrawn")

LEVELS = {"M0": 5.0, "M1": 4.6, "M2": 4.3, "M4": 4.2, "M5": 4.25}  # nats per token with half of the steps
PARENTS = {"M1": "M0", "M2": "M1", "M4": "M2", "M5": "M4"}
SHARES = {"@steps0.25": 0.3, "@steps0.5": 0.0, "": -0.3}  # what other steps add to the loss


def loss(name: str, seed: int, share: str) -> float:
    """Noise of the seed, and of the run; M5's difference changes its sign on the way."""
    noise = 0.01 * ((seed * 7 + len(name) + sum(map(ord, name + share)) * 3) % 5 - 2)
    turned = 0.1 * (share == "@steps0.25") if name == "M5" else 0.0
    return LEVELS[name] + SHARES[share] + noise - turned


def train(study: Study, share: str, seeds: range, names: Mapping[str, float] = LEVELS) -> None:
    for name in names:
        for seed in seeds:
            value = loss(name, seed, share)
            study.pretrain(f"{name}{share}", seed, scores={"heldout_loss": {"web": value}, "training_loss": value})


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Two shares of the steps with three seeds of five variants."""
    made_up = Study(tmp_path / "runs", levels=dict.fromkeys(LEVELS, 50.0))
    for share in ("@steps0.25", "@steps0.5"):
        train(made_up, share, range(3))
    return made_up


def make(study: Study, *flags: str) -> int:
    return forecast.main(["--runs", str(study.root), "--scale", "smoke", *flags])


def read_lines(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def report(study: Study, out: Path) -> list[dict[str, str]]:
    """The lines of the table of forecasts; none where there is no such table."""
    assert make_figures.main(["--runs", str(study.root), "--out", str(out)]) == 0
    path = out / "smoke-synthetic" / "forecasts.csv"
    return read_lines(path) if path.exists() else []


def only_file(study: Study) -> Path:
    (path,) = study.root.glob("forecasts/*.json")
    return path


def test_a_forecast_is_made_sealed_and_scored_once_the_larger_runs_are_there(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(study) == 0
    said = capsys.readouterr().out
    assert "from smoke@steps0.25, smoke@steps0.5" in said and "commit it before the runs" in said
    content = read_sealed(only_file(study))
    found = Forecast.model_validate(content)
    assert found.id == only_file(study).stem and content["kind"] == "forecast"
    assert {each.place for each in found.predictions} == {(v, b, "loss", "web") for v, b in PARENTS.items()}
    assert set(found.records) == set(read_evidence(study.root).runs.id) and found.present == ()
    assert all(each.interval is not None and each.mean is not None for each in found.predictions)
    assert [at.octaves for at in found.predictions[0].budgets] == pytest.approx([-2, -1], abs=0.01)

    before = report(study, tmp_path / "before")
    assert {line["reason"] for line in before} == {"not measured yet"} and not any(line["measured"] for line in before)

    train(study, "", range(6))
    lines = {line["variant"]: line for line in report(study, tmp_path / "after")}
    assert set(lines) == set(PARENTS) and all(line["reason"] == "" for line in lines.values())
    for name, line in lines.items():
        measured = sum(loss(name, seed, "") - loss(PARENTS[name], seed, "") for seed in range(6)) / 6
        assert float(line["measured"]) == pytest.approx(measured, abs=1e-6)
        inside = float(line["low"]) <= measured <= float(line["high"])
        assert line["covered"] == str(inside).lower()
        assert float(line["brier"]) == pytest.approx(
            (float(line["probability_higher"]) - (measured > 0)) ** 2, abs=1e-5
        )
    naive = {name: float(line["naive_brier"]) for name, line in lines.items()}
    assert naive == {"M1": 0, "M2": 0, "M4": 0, "M5": 1}, "M5 was lower at a quarter of the steps alone"
    page = (tmp_path / "after" / "smoke-synthetic" / "forecasts.md").read_text()
    covered = sum(line["covered"] == "true" for line in lines.values())
    assert f"{covered} of 4 intervals of 80 % hold what was measured" in page
    assert "of the smallest budget's sign 0.250" in page and "30 records behind its outcomes are younger" in page
    assert "A forecast is no result" in page and found.id in (tmp_path / "after" / "index.html").read_text()


def test_readouts_are_forecast_where_two_budgets_have_them(study: Study) -> None:
    """Those of larger runs that are there are named, and nothing of them is forecast."""
    for share in ("@steps0.25", "@steps0.5"):
        for name in ("M0", "M1"):
            for seed in range(3):
                right = (np.arange(50) < 25 + 10 * (name == "M1") + seed).astype(float)
                ask(study, f"{name}{share}", seed, "cloze", answer(right))
    assert make(study) == 0
    found = Forecast.model_validate(read_sealed(only_file(study)))
    (cloze,) = [each for each in found.predictions if each.quantity == "cloze"]
    assert cloze.place == ("M1", "M0", "cloze", "web") and [at.mean for at in cloze.budgets] == pytest.approx([20, 20])
    assert cloze.probability_higher > 0.9 and set(read_evidence(study.root).readouts.id) <= set(found.records)


def test_shorter_runs_are_in_no_delta_of_the_ladder(study: Study, tmp_path: Path) -> None:
    train(study, "", range(3))
    assert report(study, tmp_path / "out") == []
    deltas = read_lines(tmp_path / "out" / "smoke-synthetic" / "deltas.csv")
    assert {(line["variant"], line["against"]) for line in deltas if line["difference"]} == set(PARENTS.items())
    assert read_evidence(study.root).problems == ()


def test_what_is_recorded_is_not_forecast(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    train(study, "", range(1), {name: LEVELS[name] for name in ("M0", "M1")})
    assert make(study, "--json") == 0
    found = Forecast.model_validate(json.loads(capsys.readouterr().out))
    assert {each.variant for each in found.predictions} == {"M2", "M4", "M5"}
    assert found.left_out == ("M1 against M0 (loss on web) is recorded at smoke already",)
    assert len(found.present) == 2
    train(study, "", range(1))
    assert make(study) == 2
    assert "nothing is left to forecast at smoke: M1 against M0" in capsys.readouterr().err


def test_a_forecast_that_had_the_outcome_is_not_scored(study: Study, tmp_path: Path) -> None:
    """Whoever puts records of the larger runs among those it was made from gets no score for it; so for what was
    there."""
    assert make(study) == 0
    train(study, "", range(6))
    path, larger = only_file(study), set(study.group().last_rows["M2"].runs.id)
    content = read_sealed(path)
    for field in ("records", "present"):
        replace_file(path, sealed(content | {field: sorted({*content[field], *larger})}))
        reasons = {line["variant"]: line["reason"] for line in report(study, tmp_path / field)}
        assert "was there when the forecast was made" in reasons["M2"] and reasons["M2"] == reasons["M4"]
        assert reasons["M2"].startswith("not scored") and reasons["M1"] == reasons["M5"] == ""


def test_fewer_seeds_than_forecast_are_not_scored_yet(study: Study, tmp_path: Path) -> None:
    assert make(study) == 0
    train(study, "", range(4))
    assert {line["reason"] for line in report(study, tmp_path / "out")} == {"4 of 6 seeds"}


@pytest.mark.parametrize("change", [{"seeds": 3}, {"commit": "f" * 40}, {"predictions": []}])
def test_a_changed_file_is_noticed(
    study: Study, change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(study) == 0
    path = only_file(study)
    replace_file(path, json_bytes(json.loads(path.read_text()) | change))
    assert report(study, tmp_path / "out") == []
    assert f"forecasts/{path.name} was changed after it was written" in capsys.readouterr().err


def test_the_same_forecast_is_one_file_and_another_replaces_none(study: Study) -> None:
    assert make(study) == 0 and make(study) == 0
    first = only_file(study).read_bytes()
    assert make(study, "--seeds", "8") == 0
    assert len(list(study.root.glob("forecasts/*.json"))) == 2 and first in [
        path.read_bytes() for path in study.root.glob("forecasts/*.json")
    ]


def test_of_another_scale_signs_alone_are_told_and_never_as_results(study: Study, tmp_path: Path) -> None:
    """At the paper's scale, beside the records that they were made from."""
    train(study, "", range(3))
    flags = ["--from", "smoke@steps0.5", "smoke"]
    assert forecast.main(["--runs", str(study.root), "--scale", "paper", *flags]) == 0
    found = Forecast.model_validate(read_sealed(only_file(study)))
    assert found.is_of_signs and found.scale == "paper" and all(each.interval is None for each in found.predictions)
    octaves = [at.octaves for at in found.predictions[0].budgets]
    assert octaves[0] == pytest.approx(octaves[1] - 1, abs=0.01) and octaves[1] < -20
    sure = [abs(each.probability_higher - 0.5) for each in found.predictions]
    assert sure == sorted(sure, reverse=True) and sure[-1] < 0.4, "so far the smallest differences are hardly told"
    lines = report(study, tmp_path / "out")
    assert {(line["scale"], line["expected"], line["reason"]) for line in lines} == {
        ("paper", "", "scored beside the records of scale paper")
    }


def test_signs_that_the_scale_has_told_on_other_data_are_not_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for scale, share, data in (("smoke", "", "texts"), ("study", "@steps0.5", "texts"), ("study", "", "others")):
        made_up = Study(tmp_path / "runs", scale=scale, data=data, levels=dict.fromkeys(LEVELS, 50.0))
        train(made_up, share, range(2), {name: LEVELS[name] for name in ("M0", "M1")})
    flags = ["--runs", str(made_up.root), "--scale", "study", "--data", "texts", "--from", "smoke", "study@steps0.5"]
    assert forecast.main(flags) == 2
    assert "nothing is left to forecast at study: M1 against M0 (loss on web)" in capsys.readouterr().err


def test_a_collected_folder_keeps_forecasts(study: Study, tmp_path: Path) -> None:
    assert make(study) == 0
    assert collect.main(["--runs", str(study.root), "--out", str(tmp_path / "copy")]) == 0
    copied = Collected(tmp_path / "copy").files[f"forecasts/{only_file(study).name}"]
    assert json.loads(copied) == json.loads(only_file(study).read_bytes())


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (["--from", "smoke@steps0.5"], 3, "a forecast of smoke needs two smaller budgets, not smoke@steps0.5"),
        (["--from", "smoke@steps0.5", "smoke"], 2, "smoke is no smaller budget than smoke"),
        (["--from", "smoke@steps2", "smoke"], 2, "names no share of the steps"),
        (["--from", "smok", "smoke"], 2, "'smok' is no scale: did you mean 'smoke'?"),
        (
            ["--from", "smoke@steps0.1", "smoke@steps0.2"],
            3,
            "no step of the ladder is recorded at two budgets below smoke",
        ),
        (["--scale", "large"], 2, "'large' is no scale"),
        (["--scale", "proxy"], 3, "a forecast of proxy needs two smaller budgets, not none"),
        (["--data", "elsewhere"], 3, "no record has data elsewhere; there are records with data synthetic"),
        (["--runs", "nowhere"], 3, "there is no folder of runs at nowhere"),
    ],
)
def test_what_cannot_be_forecast_is_told_in_a_sentence(
    study: Study, flags: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(study, *flags) == code
    said = capsys.readouterr().err
    assert sentence in said and len(said.splitlines()) == 1 and not list(study.root.glob("forecasts/*"))


def fine_tune(study: Study, share: str, tasks: tuple[str, ...], seeds: int) -> None:
    for name in ("M0", "M1"):
        for seed in range(seeds):
            for each in study.studies(f"{name}{share}", seed):
                if each.task in tasks:
                    study.search(f"{name}{share}", each)


def test_glue_is_forecast_over_the_tasks_of_the_budgets_and_scored_on_no_others(study: Study, tmp_path: Path) -> None:
    for share in ("@steps0.25", "@steps0.5"):
        fine_tune(study, share, ("sst2", "cola"), 3)
    assert make(study) == 0
    found = Forecast.read(read_sealed(only_file(study)))
    assert {each.place[:3]: each.tasks for each in found.predictions if each.tasks} == {
        ("M1", "M0", "GLUE"): "sst2 cola"
    }
    train(study, "", range(6))
    fine_tune(study, "", ("qqp", "sst2", "cola"), 6)
    (reason,) = [line["reason"] for line in report(study, tmp_path / "out") if line["quantity"] == "GLUE"]
    assert reason == "not scored: the forecast is of the mean of sst2 cola, not of qqp sst2 cola"


def test_glue_without_common_tasks_is_left_out_with_its_reason(study: Study) -> None:
    fine_tune(study, "@steps0.25", ("sst2",), 3)
    fine_tune(study, "@steps0.5", ("cola",), 3)
    assert make(study) == 0
    sentence, *_ = Forecast.read(read_sealed(only_file(study))).left_out
    assert sentence.startswith("M1 against M0 (GLUE): M1@steps0.25 has no score on MNLI")


def test_what_has_one_seed_is_left_out_and_the_rest_is_forecast(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = Study(tmp_path / "alone", levels=study.levels)
    for share in ("@steps0.25", "@steps0.5"):
        train(alone, share, range(1))
        for name in ("M0", "M1"):
            ask(study, f"{name}{share}", 0, "cloze", answer((np.arange(50) < 25 + 10 * (name == "M1")).astype(float)))
    assert make(study) == 0
    left_out = Forecast.read(read_sealed(only_file(study))).left_out
    assert left_out == ("M1 against M0 (cloze on web) has one seed at every budget, so its noise is unknown",)
    assert make(alone) == 2 and "a forecast needs a budget with two seeds at least" in capsys.readouterr().err
