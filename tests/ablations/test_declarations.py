"""A declaration is a file that is checked when it is read, hashed into what is planned for it, and kept beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from ablations import ladders, run
from ablations.declarations import MARGINS, PROTOCOL, keep, kept_declarations, read_declaration, run_options
from neobert.errors import EXIT_DONE, EXIT_MISSING, EXIT_REFUSED, MissingData
from neobert.runs.collected import RunFiles
from neobert.runs.records import read_record
from neobert.runs.run_file import read_run_file
from reports import collect
from reports.analysis.quantities import QUANTITIES
from tests.ablations.test_own_ladder import OWN

REPOSITORY = Path(__file__).resolve().parents[2]
CONTENT: dict[str, Any] = {
    "name": "small",
    "question": "Does M1 help?",
    "ladder": "",
    "scale": "smoke",
    "data": "synthetic",
    "arms": ["M0", "M1"],
    "seeds": [0, 1, 2, 3, 4, 5],
    "pilot_seeds": [1000],
    "own_rates": ["M1"],
    "budgets": [0.25, 0.5],
    "budget_seeds": [0, 1],
    "protocol": {
        "looks": {"6": 0.032},
        "margins": {"loss": 0.05},
        "primary": [{"quantity": "loss"}],
        "sequence": [{"quantity": "loss", "corpus": "other"}],
    },
    "commands": ["python ablations/run.py --variant M0 M1 --seed 0 1"],
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "small.json"
    path.write_text(json.dumps(CONTENT | changes))
    return path


def protocol(**changes: Any) -> dict[str, Any]:
    return {"protocol": CONTENT["protocol"] | changes}


def test_everything_declared_is_hashed(tmp_path: Path) -> None:
    declaration = read_declaration(write(tmp_path))
    assert declaration.labels == {"declaration": "small", "declaration_id": declaration.id}
    for changes in ({"seeds": list(range(7))}, {"question": "?"}, protocol(looks={"6": 0.04}), {"commands": []}):
        assert read_declaration(write(tmp_path, **changes)).id != declaration.id, changes


def test_quantities_are_those_of_the_reports() -> None:
    assert {name: quantity.margin for name, quantity in QUANTITIES.items()} == dict(MARGINS) == dict(PROTOCOL.margins)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arms": ["M0", "M12"]}, "'M12'"),
        ({"scale": "smok"}, "'smok' is no scale: did you mean 'smoke'?"),
        ({"own_rates": ["M2"]}, "own_rates names 'M2', which is no arm: did you mean"),
        ({"seeds": [0, 0, 1, 2, 3, 4, 5]}, "seeds names 0 twice"),
        ({"seeds": [1000, 0, 1, 2, 3, 4, 5]}, "seed 1000 is a pilot seed"),
        ({"pilot_seeds": [7]}, "pilot seeds are 1000 to 1099, not 7"),
        ({"pilot_seeds": []}, "pilot_seeds is empty"),
        ({"budgets": [1.5]}, "1.5 is no share of the steps"),
        ({"budget_seeds": []}, "budgets and budget_seeds go together"),
        ({"seeds": [0, 1]}, "there is a look at 6 seeds, and 2 are declared"),
        ({"name": "A study"}, "cannot be the name of a study"),
        ({"sedes": [0]}, "sedes is no field of a declaration: did you mean 'seeds'"),
        ({"commands": ["python ablations/run.py --help"]}, "it prints its help and runs nothing"),
        (protocol(looks={f"1{'0' * 400}": 0.03}), "there is a look at 1000"),
        ({"commands": ["python ablations/run.py --vairant M0"]}, "did you mean '--variant'"),
        ({"commands": ["python ablations/run.py --seed x"]}, "'x' is no whole number from 0"),
        ({"commands": ["python ablations/run.py --variant M0@steps0.5..M8@steps0.5"]}, "names no share of the steps"),
        (protocol(primary=[{"quantity": "los"}]), "'los' is no quantity: did you mean 'loss'"),
        (protocol(primary=[{"quantity": "cloze"}]), "'cloze' is tested and has no margin"),
        (protocol(primary=[]), "at least 1 item"),
        (protocol(sequence=[{"quantity": "loss"}]), "names loss on the child's own corpus twice"),
        (protocol(looks={"3": 0.05}), "the smallest p that sign flips of 3 seeds reach is 0.25"),
        (protocol(looks={}), "there is no look"),
        (protocol(looks={"0": 0.05}), "protocol.looks.0"),
        ({"ladder": "own.py"}, "give --ladder with the file own.py"),
    ],
)
def test_what_cannot_be_declared_is_refused_in_one_sentence(
    changes: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, **changes)
    flags = ["--declaration", str(path), "--variant", "M0", "--dry-run", "--runs", str(tmp_path / "runs")]
    assert run.main(flags) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert words in said and str(path) in said and said.count("\n") == 1 and "Traceback" not in said


def test_no_file_and_no_json_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--variant", "M0", "--dry-run", "--runs", str(tmp_path / "runs"), "--declaration"]
    assert run.main([*flags, str(tmp_path / "none.json")]) == EXIT_MISSING
    assert "there is no such declaration" in capsys.readouterr().err
    (tmp_path / "none.json").write_text("[" * 100_000)
    assert run.main([*flags, str(tmp_path / "none.json")]) == EXIT_REFUSED
    assert "is no JSON" in capsys.readouterr().err
    (tmp_path / "none.json").write_text("{")
    assert run.main([*flags, str(tmp_path / "none.json")]) == EXIT_REFUSED
    assert "is no JSON" in capsys.readouterr().err
    with pytest.raises(MissingData, match="cannot be read"):
        read_declaration(tmp_path)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--scale", "study"], "declares scale smoke"),
        (["--data", "elsewhere/books"], "--data elsewhere/books: "),
    ],
)
def test_a_command_of_another_scale_or_other_data_is_refused(
    flags: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, runs = write(tmp_path), tmp_path / "runs"
    assert run.main(["--declaration", str(path), "--variant", "M0", "--runs", str(runs), *flags]) == EXIT_REFUSED
    assert words in capsys.readouterr().err and not runs.exists()


@pytest.mark.usefixtures("toy_scale")
def test_runs_carry_its_name_and_hash_and_a_copy_stays_beside_them(tmp_path: Path) -> None:
    path, runs = write(tmp_path), tmp_path / "runs"
    common = ["--stages", "pretrain", "--cluster", "here", "--runs", str(runs)]
    assert run.main(["--variant", "M0", *common]) == EXIT_DONE
    assert run.main(["--declaration", str(path), "--variant", "M0", "M1", *common]) == EXIT_DONE
    declaration = read_declaration(path)
    labels = {
        (folder.name, own["variants"][0]): {key: own.get(key) for key in declaration.labels}
        for folder in (runs / "pretraining").iterdir()
        for own in (read_run_file(folder).labels, read_record(folder / "done.json")["labels"])
    }
    by_arm = {arm: own for (_, arm), own in labels.items()}
    assert len(labels) == 2 and by_arm["M1"] == declaration.labels
    assert set(by_arm["M0"].values()) == {None}, "what was planned before names no declaration"
    problems: list[str] = []
    assert kept_declarations(sorted((runs).glob("declarations/*.json")), problems) == [declaration] and not problems
    assert collect.main(["--runs", str(runs), "--out", str(tmp_path / "copy")]) == EXIT_DONE
    copied = RunFiles(tmp_path / "copy").root
    assert kept_declarations(sorted(copied.glob("declarations/*.json")), problems) == [declaration]


def test_a_stored_declaration_that_was_changed_is_left_out(tmp_path: Path) -> None:
    declaration = read_declaration(write(tmp_path))
    keep(declaration, tmp_path)
    (path,) = tmp_path.glob("declarations/*.json")
    path.write_text(path.read_text().replace("0.032", "0.05"))
    path.with_name("other.json").write_text("[]")
    problems: list[str] = []
    assert kept_declarations(sorted((tmp_path).glob("declarations/*.json")), problems) == []
    assert len(problems) == 2 and "it holds small-" in problems[1] and "Input should be" in problems[0] + problems[1]


def test_a_declaration_of_another_ladder_names_its_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "steps.py").write_text(OWN)
    path = write(tmp_path, ladder="steps.py", scale="tiny", arms=["M0", "A1"], own_rates=[], commands=[])
    flags = ["--declaration", str(path), "--variant", "A1", "--dry-run", "--cluster", "here", "--runs", str(tmp_path)]
    assert run.main([*flags, "--ladder", str(tmp_path / "steps.py")]) == EXIT_DONE
    assert "A1" in capsys.readouterr().out
    assert run.main(flags) == EXIT_REFUSED and "--ladder with the file steps.py" in capsys.readouterr().err


def test_only_commands_of_runs_are_parsed() -> None:
    assert run_options("python reports/forecast.py --scale study") is None
    options = run_options("python ablations/run.py --variant M0..M7 --seed 0 1")
    assert options is not None and options.seed == [0, 1]


def test_the_committed_declarations_are_valid() -> None:
    paths = sorted((REPOSITORY / "declarations").glob("*.json"))
    assert paths
    for path in paths:
        own = json.loads(path.read_text())["ladder"]
        with ladders.using(ladders.load(str(path.with_name(own))) if own else None):
            assert read_declaration(path).name == path.stem
