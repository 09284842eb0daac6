"""What a study declared against its records: every deviation is found, and none where there is none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ablations.declarations import Declaration, keep, kept_declarations, read_declaration
from tests.ablations.test_declarations import CONTENT, REPOSITORY, write

from neobert.runs.records import read_sealed
from reports import forecast, make_figures
from reports.declared import declaration_of, declared_section, list_arms, list_seeds
from reports.deviations import NONE, find_deviations
from reports.forecasts.sealed import Forecast
from tests.reports.committed_study import DECLARATION, FOLDER, committed_study
from tests.reports.made_up_study import Study

pytestmark = pytest.mark.usefixtures("undrawn", "papers_ladder")

SMALL: dict[str, Any] = {
    "own_rates": [],
    "pilot_seeds": [],
    "budgets": [],
    "budget_seeds": [],
    "commands": ["python ablations/run.py --variant M0 M1 --seed 0 1 2 3 4 5 --stages pretrain"],
}


def train(study: Study, declaration: Declaration | None, names: tuple[str, ...], seeds: range, **facts: Any) -> None:
    """Pre-train variants as runs of a declaration."""
    for name in names:
        labels = study.labels(name) | (declaration.labels if declaration else {})
        for seed in seeds:
            study.pretrain(name, seed, labels=labels, **facts)


def found(study: Study, declaration: Declaration, *others: Declaration) -> dict[str, list[str]]:
    """What is found by subject."""
    findings = study.findings()
    by_subject: dict[str, list[str]] = {}
    for each in find_deviations(declaration, findings.group, findings.evidence, others):
        by_subject.setdefault(each.subject, []).append(each.found)
    return by_subject


def test_a_study_that_was_run_as_declared_has_no_deviation(study: Study, tmp_path: Path) -> None:
    declaration = read_declaration(write(tmp_path, **SMALL))
    train(study, declaration, ("M0", "M1"), range(6))
    assert found(study, declaration) == {}


def test_arms_seeds_and_looks_are_compared(study: Study, tmp_path: Path) -> None:
    arms = {"arms": ["M0", "M1", "M2", "M4"], "seeds": list(range(8)), "commands": []}
    declaration = read_declaration(write(tmp_path, **SMALL | arms))
    train(study, declaration, ("M0", "M1"), range(7))
    train(study, declaration, ("M2",), range(6))
    train(study, declaration, ("M0",), range(9, 10))
    train(study, declaration, ("M5",), range(1))
    assert found(study, declaration) == {
        "arms": ["M4 not trained", "M5 trained and not declared"],
        "seeds": ["M0, M1: without seed 7; M2: without seeds 6, 7", "M0: seed 9 too"],
        "looks": ["M0, M1: 7 seeds, of which the first 6 count"],
    }


def test_records_of_another_declaration_or_none_are_counted(study: Study, tmp_path: Path) -> None:
    declaration = read_declaration(write(tmp_path, **SMALL))
    other = read_declaration(write(tmp_path, **SMALL | {"question": "Another?"}))
    train(study, declaration, ("M0",), range(6))
    train(study, other, ("M1",), range(4))
    train(study, None, ("M1",), range(4, 6))
    counted = [f"4 of 12 name declaration {other.id}", "2 of 12 name no declaration"]
    assert sorted(found(study, declaration)["records"], reverse=True) == counted
    changed = found(study, declaration, other)
    assert changed[f"question (changed since {other.id})"] == ["Does M1 help?"]
    more = read_declaration(write(tmp_path, **SMALL | {"commands": ["python first.py", *SMALL["commands"]]}))
    assert found(study, more, declaration)[f"commands (changed since {declaration.id})"] == ["python first.py"]


@pytest.mark.parametrize(("begun", "is_late"), [("2026-01-01T00:00:00", False), ("2026-03-01T00:00:00", True)])
def test_rates_are_compared_and_when_they_were_swept(study: Study, tmp_path: Path, begun: str, is_late: bool) -> None:
    own = {"own_rates": ["M0", "M1"], "pilot_seeds": [1000, 1001]}
    declaration = read_declaration(write(tmp_path, **SMALL | own))
    times = {"started_at": "2026-02-01T00:00:00", "finished_at": "2026-02-01T01:00:00"}
    train(study, declaration, ("M0", "M1"), range(6), **times)
    for step, rate in enumerate(("1e-3", "2e-3", "4e-3")):
        name = "M1" if rate == "2e-3" else f"M1@rate{rate}"
        loss = {"wikibook": 3.0 + (step - 1.5) ** 2}
        scores = {"heldout_loss": loss, "training_loss": 3.0}
        labels = study.labels(name) | declaration.labels
        study.pretrain(name, 1000, labels=labels, scores=scores, started_at=begun, finished_at=begun)
    rates = found(study, declaration)["rates"]
    assert rates[:3] == ["no sweep of M0", "M1: without pilot seed 1001", "not trained at their own best rate: M1"]
    late = [text for text in rates if "had ended" in text]
    assert late == (["M1: pilot runs begun after its runs of the first look had ended (2026-02-01T01:00:00)"] * is_late)
    train(study, declaration, ("M1",), range(1001, 1002), **times)
    assert not [text for text in found(study, declaration)["rates"] if "without pilot" in text], "at one rate is enough"


@pytest.mark.parametrize(("of_m0", "is_late"), [("2026-01-01", False), ("2026-05-01", True)])
def test_the_rate_of_an_arm_is_found_before_its_own_runs(
    study: Study, tmp_path: Path, of_m0: str, is_late: bool
) -> None:
    """M1 was swept in March. It is late only after the runs of M1 itself, whenever those of M0 ended."""
    own = {"own_rates": ["M0", "M1"], "pilot_seeds": [1000]}
    declaration = read_declaration(write(tmp_path, **SMALL | own))
    ends = {"M0": of_m0, "M1": "2026-02-01" if is_late else "2026-04-01"}
    for name, end in ends.items():
        train(study, declaration, (name,), range(6), started_at=end, finished_at=end)
    for rate in ("1e-3", "2e-3", "4e-3"):
        name = "M1" if rate == "2e-3" else f"M1@rate{rate}"
        train(study, declaration, (name,), range(1000, 1001), started_at="2026-03-01", finished_at="2026-03-01")
    late = [text for text in found(study, declaration)["rates"] if "had ended" in text]
    assert late == (["M1: pilot runs begun after its runs of the first look had ended (2026-02-01)"] * is_late)


def test_arms_at_their_own_rates_need_an_optimum_and_the_declared_seeds(study: Study, tmp_path: Path) -> None:
    """M1's best rate lies between two others, M0's at the edge of its sweep."""
    own = {"own_rates": ["M0", "M1"], "pilot_seeds": [1000]}
    declaration = read_declaration(write(tmp_path, **SMALL | own))
    train(study, declaration, ("M0", "M1"), range(6))
    for step, rate in enumerate(("1e-3", "2e-3", "4e-3", "8e-3")):
        for arm, loss in (("M0", 5.0 - step), ("M1", 3.0 + (step - 2) ** 2)):
            name = arm if rate == "2e-3" else f"{arm}@rate{rate}"
            scores = {"heldout_loss": {"wikibook": loss}, "training_loss": 3.0}
            study.pretrain(name, 1000, labels=study.labels(name) | declaration.labels, scores=scores)
    train(study, declaration, ("M1@rate4e-3",), range(4))
    told = found(study, declaration)
    assert told["rates"] == ["no optimum in the sweep of M0"]
    assert told["seeds"] == ["M1@rate4e-3: without seeds 4, 5"]
    assert told["looks"] == ["M1@rate4e-3: 4 seeds"]


def test_pilot_seeds_that_are_not_declared_are_named(study: Study, tmp_path: Path) -> None:
    """With them the test of differences may be another one."""
    declaration = read_declaration(write(tmp_path, **SMALL | {"own_rates": ["M1"], "pilot_seeds": [1000]}))
    train(study, declaration, ("M0", "M1"), range(6))
    train(study, declaration, ("M0", "M1", "M1@rate1e-3", "M1@rate4e-3"), range(1000, 1004))
    assert found(study, declaration)["pilot seeds"] == ["seeds 1001 to 1003 too"]


def test_what_no_command_trains_is_named_and_what_one_does_is_not(study: Study, tmp_path: Path) -> None:
    run = "python ablations/run.py --stages pretrain"
    commands = [
        f"{run} --variant M0 M1 --seed 0 1 2 3 4 5",
        f"{run} --variant M1@beta2-0.95 --seed 1000",
        f"{run} --variant M1@beta2-0.99",
        f"{run} --design add-one --factors positions",
    ]
    own = {"own_rates": ["M1"], "pilot_seeds": [1000], "budgets": [0.5], "budget_seeds": [0]}
    declaration = read_declaration(write(tmp_path, **SMALL | own | {"commands": commands}))
    train(study, declaration, ("M0", "M1"), range(6))
    for rate, loss in (("1e-3", 4.0), ("4e-3", 3.0), ("8e-3", 3.8)):
        scores = {"heldout_loss": {"wikibook": loss}, "training_loss": loss}
        train(study, declaration, (f"M1@rate{rate}",), range(1000, 1001), scores=scores)
    best = study.group().sweeps["M1"].best
    assert best.startswith("M1@rate")
    study.levels |= {"M0+positions": 52.0, "M0+norm": 52.0}
    declared = ("M0@steps0.5", "M1@steps0.5", "M1@beta2-0.99", "M0+positions", best)
    train(study, declaration, declared, range(1))
    train(study, declaration, ("M1@beta2-0.95",), range(1000, 1001))
    told = found(study, declaration)
    assert "arms" not in told and not any(subject.startswith("command") for subject in told), told
    train(study, declaration, ("M1@rate8e-3", "M1@steps0.25", "M0+norm", "M0@beta2-0.99"), range(1))
    (added,) = found(study, declaration)["arms"]
    assert added == "M0+norm, M1@steps0.25, M0@beta2-0.99, M1@rate8e-3 trained and in no command"


def test_stages_and_compilation_of_commands_are_compared(study: Study, tmp_path: Path) -> None:
    run = "python ablations/run.py --variant M0 M1 --seed 0 1 2 3 4 5 --stages pretrain readouts --compile off"
    commands = {"commands": ["python reports/collect.py", run, "python ablations/run.py --variant M8"]}
    declaration = read_declaration(write(tmp_path, **SMALL | commands))
    train(study, declaration, ("M0",), range(6), compiled=True)
    train(study, declaration, ("M1",), range(6), compiled=False)
    assert found(study, declaration) == {
        "command 2": ["12 of 12 runs lack it", "6 runs compiled"],
        "command 3": ["nothing of it is recorded"],
    }


def test_runs_that_were_not_measured_on_all_corpora_are_counted_where_a_command_asks_for_it(
    study: Study, tmp_path: Path
) -> None:
    own = {"commands": [f"{SMALL['commands'][0]} --heldout {which}" for which in ("own", "all")]}
    declaration = read_declaration(write(tmp_path, **SMALL | own))
    train(study, declaration, ("M0",), range(6))
    study.measured = ("web", "wikibook")
    train(study, declaration, ("M1",), range(6))
    assert found(study, declaration) == {"command 2": ["6 of 12 runs were not measured on all of web, wikibook"]}


def test_a_forecast_is_sealed_with_the_declaration_and_its_budgets_are_compared(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declaration = read_declaration(
        path := write(tmp_path, **SMALL | {"budgets": [0.25, 0.5], "budget_seeds": [0, 1, 2]})
    )
    for share in ("@steps0.25", "@steps0.5"):
        train(study, declaration, (f"M0{share}", f"M1{share}"), range(2))
    train(study, declaration, ("M0@steps0.25",), range(2, 3))
    flags = ["--runs", str(study.root), "--declaration", str(path)]
    assert forecast.main([*flags, "--scale", "study"]) == 2
    assert "--scale says study" in capsys.readouterr().err
    assert forecast.main(flags) == 0
    (file,) = study.root.glob("forecasts/*.json")
    made = Forecast.read(read_sealed(file))
    assert (made.declaration, made.scale, made.seeds) == (declaration.id, "smoke", 6)
    assert made.budgets == ("smoke@steps0.25", "smoke@steps0.5")
    assert {at.deviation is None for each in made.predictions for at in each.budgets} == {False}
    train(study, declaration, ("M0", "M1"), range(6))
    assert found(study, declaration) == {
        "0.25 of the steps": ["M1: without seed 2"],
        "0.5 of the steps": ["M0, M1: without seed 2"],
        "forecast": [f"{made.id} was made from 2 seeds at a budget"],
    }
    file.unlink()
    assert found(study, declaration)["forecast"] == ["none"]
    assert forecast.main(["--runs", str(study.root), "--declaration", str(write(tmp_path, **SMALL))]) == 2
    assert "declares no budgets" in capsys.readouterr().err


def test_reports_find_the_stored_declaration_and_tell_deviations_everywhere(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table, the remarks, the page of results and once on stdout; without it nothing is said."""
    declaration = read_declaration(path := write(tmp_path, **SMALL | {"commands": []}))
    train(study, declaration, ("M0",), range(6))
    markers = ("<!-- declaration of smoke-synthetic -->", "<!-- end of declaration -->")
    page = tmp_path / "page.md"
    results = "<!-- results of smoke-synthetic -->\n<!-- end of results -->\n"
    page.write_text(f"{markers[0]}\n{markers[1]}\n{results}")
    out = tmp_path / "out"
    flags = ["--runs", str(study.root), "--out", str(out), "--results", str(page)]
    assert make_figures.main(flags) == 0
    assert "declaration" not in capsys.readouterr().out and declaration.id not in page.read_text()

    assert make_figures.main([*flags, "--declaration", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.count("declaration small") == 1 and "arms: declared M0, M1; found M1 not trained" in said
    keep(declaration, study.root)
    assert make_figures.main(flags) == 0
    assert capsys.readouterr().out == said
    folder = out / "smoke-synthetic"
    assert "| arms | M0, M1 | M1 not trained |" in (folder / "deviations.md").read_text()
    assert "Deviation from the declaration, arms: declared M0, M1" in (folder / "remarks.md").read_text()
    text = page.read_text()
    assert f"{markers[0]}\n{declared_section(declaration)}{markers[1]}" in text
    assert "### Deviations from the declaration" in text and "| arms | M0, M1 | M1 not trained |" in text
    assert "Deviations from the declaration small" in (out / "index.html").read_text()
    assert make_figures.main([*flags, "--json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["deviations"] == ["arms: declared M0, M1; found M1 not trained."]

    train(study, declaration, ("M1",), range(6))
    assert make_figures.main(flags) == 0 and NONE in page.read_text()
    assert "no deviation" in capsys.readouterr().out


def test_a_declaration_of_other_records_and_two_of_one_study_are_refused(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declaration = read_declaration(write(tmp_path, **SMALL))
    train(study, declaration, ("M0",), range(1))
    flags = ["--runs", str(study.root), "--out", str(tmp_path / "out")]
    path = write(tmp_path, **SMALL | {"scale": "study"})
    assert make_figures.main([*flags, "--declaration", str(path)]) == 3
    assert "has scale study with data synthetic" in capsys.readouterr().err
    for question in ("One?", "Two?"):
        keep(read_declaration(write(tmp_path, **SMALL | {"question": question})), study.root)
    assert make_figures.main(flags) == 2 and "say which with --declaration" in capsys.readouterr().err
    problems: list[str] = []
    assert (
        declaration_of(
            kept_declarations(sorted((study.root).glob("declarations/*.json")), problems), "study", "synthetic"
        )
        is None
    )


def test_seeds_and_arms_are_listed_in_short() -> None:
    assert list_seeds([5, 0, 1, 2]) == "seeds 0 to 2, 5" and list_seeds([3]) == "seed 3"
    assert list_arms(["M1", "M0", "M2", "M5", "M9-norm"]) == "M0 to M2, M5, M9-norm"


def test_the_declared_section_of_the_studys_page_is_that_of_the_file() -> None:
    with committed_study() as found:
        declaration = read_declaration(DECLARATION)
        assert found.evidence.declarations[-1] == declaration
        page = (REPOSITORY / "docs" / "study.md").read_text(encoding="utf-8")
        section = f"<!-- declaration of {FOLDER.name} -->\n{declared_section(declaration)}<!-- end of declaration -->"
        assert section in page and declaration.budget_seeds == (0, 1, 2)


def test_the_protocol_of_reports_is_the_declared_one(study: Study, tmp_path: Path) -> None:
    looks = CONTENT["protocol"] | {"looks": {"6": 0.04}}
    declaration = read_declaration(write(tmp_path, **SMALL | {"protocol": looks}))
    train(study, declaration, ("M0",), range(1))
    usual = study.findings()
    declared = replace(usual, declaration=declaration)
    assert declared.protocol.looks == {6: 0.04} != usual.protocol.looks
    assert "6 seeds with p ≤ 0.04." in declared.delta_table.markdown, "the table says what was declared"
