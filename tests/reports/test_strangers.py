"""A folder of runs from somebody else: no changed file is published, and no path of the machine."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations.loading import papers
from neobert.files import json_bytes, line_bytes, sha256_of
from neobert.runs.collected import RunFiles
from neobert.runs.layout import Layout
from reports.frames import read_frames
from tests.reports.made_up_study import MadeUpStudy, change_record, contents, copy
from tests.reports.measurements import answer, ask

ID = "0123456789ab"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with every kind of file that is collected. Nobody changes it."""
    study = MadeUpStudy(tmp_path_factory.mktemp("study") / "runs")
    study.pretrain("M0")
    study.metrics("M0")
    for task in ("cola", "rte"):
        study.search("M0", study.study("M0", task))
    root = study.root
    (root / "ladders").mkdir()
    (root / "ladders" / f"own-{ID}.py").write_text("TITLE = 'x'\n")
    (root / "models" / "m").mkdir(parents=True)
    (root / "models" / "m" / "model.json").write_bytes(json_bytes({"name": "bert"}))
    return root


@pytest.fixture
def runs(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "runs"))


# Writing


@pytest.mark.parametrize("name", ["../../../hook/x", "/tmp/hook", "..", "", "f" * 12, 5, None, ["x"]])
def test_a_record_that_is_named_otherwise_than_its_file_is_left_out(runs: Path, tmp_path: Path, name: Any) -> None:
    path = min(runs.glob("glue/cola/*.json"))
    change_record(path, lambda record: record.update(id=name))
    out = tmp_path / "out" / "below" / "copy"
    there = {*tmp_path.rglob("*"), *out.parents}
    assert copy(runs, out) == 0
    assert all(path.is_relative_to(out) for path in set(tmp_path.rglob("*")) - there)
    evidence = read_frames(papers(), runs)
    assert len(evidence.trials) == len(list(runs.glob("glue/*/*.json"))) - 1
    (problem,) = evidence.problems
    assert f"glue/cola/{path.name} is the record of {name} and not of {path.stem}: it was copied or changed" in problem


# Curves


@pytest.fixture
def bound(tmp_path: Path) -> MadeUpStudy:
    """Two runs whose records name their curves."""
    study = MadeUpStudy(tmp_path / "bound")
    for name in ("M0", "M1"):
        study.pretrain(name)
        study.metrics(name)
        path = curve_of(study, name)
        digest = {"sha256": {"metrics": sha256_of(path)}}
        change_record(path.with_name("done.json"), lambda record, digest=digest: record.update(digest))  # type: ignore[misc]
    return study


def curve_of(study: MadeUpStudy, name: str) -> Path:
    return Layout(study.root).pretraining(study.runs(name)[0].id) / "metrics.jsonl"


@pytest.mark.parametrize("damage", ["other", "empty", "gone", "line"])
def test_the_curve_of_a_finished_run_is_the_one_that_its_record_names(
    bound: MadeUpStudy, tmp_path: Path, damage: str
) -> None:
    path, run = curve_of(bound, "M0"), bound.runs("M0")[0].id
    whole = read_frames(papers(), bound.root).curves
    assert whole.training(run) and not whole.problems
    if damage == "other":
        path.write_bytes(curve_of(bound, "M1").read_bytes())
    elif damage == "line":
        path.write_bytes(path.read_bytes() + line_bytes({"step": 1, "loss": 9.0, "real_tokens": 5}))
    else:
        path.unlink() if damage == "gone" else path.write_bytes(b"")
    curves = read_frames(papers(), bound.root).curves
    reason = "is not there" if damage == "gone" else "does not match the checksum in its record"
    name = f"pretraining/{run}/metrics.jsonl"
    assert not curves.training(run) and curves.problems == [f"the curve of {name} is left out: {name} {reason}"]
    assert copy(bound.root, tmp_path / "copy") == 0
    copied = read_frames(papers(), tmp_path / "copy").curves
    assert not copied.training(run) and copied.problems == curves.problems


# Privacy


def test_no_path_of_the_machine_is_in_errors_and_models(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "somebody"
    monkeypatch.setenv("HOME", str(home))
    model = str(home / "models" / "bert")
    (runs / "models" / "m" / "model.json").write_bytes(
        json_bytes({"folder": model, "name": "org/bert", "at": str(home / "my x")})
    )
    errors = {
        "known": f"OSError: no space left: {runs}/data/x, {runs.resolve()}/y and {model}",
        "other machine": "DamagedFile: /scratch/alice/study/runs/pretraining/x is torn, see https://h.org/a/b or 1/2",
        "home": f"cannot write {home}/tmp/file, 'sqlite:///{home}/db/file'",
    }
    for number, text in enumerate(errors.values()):
        path = runs / "pretraining" / f"{number:012x}" / "error.json"
        path.parent.mkdir()
        path.write_bytes(json_bytes({"error": text, "traceback": model}))
    (runs / "glue" / "cola" / "errors").mkdir(exist_ok=True)
    (runs / "glue" / "cola" / "errors" / f"{ID}.json").write_bytes(json_bytes({"error": errors["known"]}))
    assert copy(runs, tmp_path / "out") == 0
    copied = contents(RunFiles(tmp_path / "out").root)
    for word in ("somebody", "alice", "scratch", str(tmp_path)):
        assert not [name for name, content in copied.items() if word.encode() in content], word
    said = [json.loads(copied[f"pretraining/{number:012x}/error.json"])["error"] for number in range(3)]
    assert said == [
        "OSError: no space left: x, y and bert",
        "DamagedFile: x is torn, see https://h.org/a/b or 1/2",
        "cannot write file, 'sqlite:///file'",
    ]
    assert json.loads(copied["models/m/model.json"]) == {"folder": "bert", "name": "org/bert", "at": "my x"}


def test_packed_numbers_that_look_like_a_path_are_copied(tmp_path: Path) -> None:
    study = MadeUpStudy(tmp_path / "runs")
    study.pretrain("M0")
    numbers = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    ask(study, "M0", 0, "blimp", answer(numbers))
    (path,) = study.root.glob("readouts/blimp/*.json")
    assert "+/" in path.read_text()
    assert copy(study.root, tmp_path / "out") == 0
    assert not read_frames(papers(), tmp_path / "out").problems
    ours, theirs = (read_frames(papers(), root).readouts.answers[0]["blimp"] for root in (study.root, tmp_path / "out"))
    assert ours.numerators == theirs.numerators
