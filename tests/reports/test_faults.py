"""Whatever lies in a folder of runs or is asked of --out: one sentence, a documented exit code, never a traceback."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations.loading import papers
from neobert.files import checksummed
from neobert.runs.collected import RunFiles
from neobert.runs.layout import Layout
from neobert.runs.records import sealed
from reports import make_figures
from reports.frames import read_frames
from tests.reports.made_up_study import MadeUpStudy, change_record, contents, copy, figures
from tests.reports.measurements import answer, ask, embed, perplexity, throughput

COMMANDS = {"make_figures": figures, "collect": copy}


@pytest.fixture
def study(tmp_path: Path) -> MadeUpStudy:
    made_up = MadeUpStudy(tmp_path / "runs")
    for name in ("M0", "M9"):
        made_up.pretrain(name)
        made_up.metrics(name)
    return made_up


def record_of(study: MadeUpStudy, name: str, stage: int = -1) -> Path:
    return Layout(study.root).pretraining(study.runs(name)[stage].id) / "done.json"


def test_a_package_that_only_reports_need_is_named(
    study: MadeUpStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(make_figures, "find_spec", lambda name: None if name == "matplotlib" else name)
    assert figures(study.root, tmp_path / "out") == 3
    said = "make_figures.py: reports need matplotlib, which is not installed: pip install -e '.[reports]'\n"
    assert capsys.readouterr().err == said and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_out_that_is_no_folder_is_refused_before_anything_is_read(
    study: MadeUpStudy, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "README.md"
    file.write_text("precious")
    refused = {out: f"--out {out}: {file} is a file; name a folder" for out in (file, file / "below")}
    for out, sentence in refused.items():
        assert COMMANDS[name](study.root, out) == 2
        said = capsys.readouterr().err
        assert sentence in said and said.count("\n") == 1
    assert file.read_text() == "precious"


@pytest.mark.parametrize("name", COMMANDS)
def test_missing_and_empty_folders_exit_3_with_one_sentence(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, nowhere = tmp_path / "empty", tmp_path / "nowhere"
    empty.mkdir()
    for root, reason in ((empty, "holds no finished record"), (nowhere, f"there is no folder of runs at {nowhere}")):
        assert COMMANDS[name](root, tmp_path / "out") == 3
        (sentence,) = capsys.readouterr().err.splitlines()
        assert reason in sentence and "run python ablations/run.py first" in sentence
    assert not (tmp_path / "out").exists()


NO_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {"folder": (Path.mkdir, "")}
NO_RECORDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "torn": (lambda path: path.write_text('{"schema": 1, '), ""),
    "changed": (
        lambda path: path.write_bytes(sealed({"seed": 10}).replace(b"10", b"11")),
        "was changed after it was written",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("plant", NO_FILES | NO_RECORDS)
def test_what_cannot_be_read_is_named_and_the_rest_is_counted_or_copied(
    study: MadeUpStudy, tmp_path: Path, name: str, plant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, sentence = (NO_FILES | NO_RECORDS)[plant]
    others = ("ladders/x.py", "pretraining/x/metrics.jsonl") if plant == "folder" else ()
    places = ("glue/cola/x.json", "readouts/perplexity/x.json", *others)
    before = {path for path in contents(study.root) if path.endswith((".json", ".jsonl"))}
    for place in (*places, "glue/cola/studies/x/run.json", "models/x/model.json"):
        (study.root / place).parent.mkdir(parents=True, exist_ok=True)
        spoil(study.root / place)
    assert COMMANDS[name](study.root, tmp_path / "out") == 0
    told = capsys.readouterr().err.splitlines()
    for place in places if name == "collect" else places[:2]:
        assert any(place in line and sentence in line for line in told), place
    if name == "collect":
        assert set(contents(RunFiles(tmp_path / "out").root)) == before


def test_a_run_that_continues_itself_is_left_out_and_circles_end(study: MadeUpStudy, tmp_path: Path) -> None:
    own = study.runs("M9")[-1].id
    change_record(record_of(study, "M9"), lambda record: record["inputs"].update(previous=own))
    evidence = read_frames(papers(), study.root)
    assert len(evidence.runs) == 2 and any("it continues itself" in problem for problem in evidence.problems)
    first, last = study.runs("M9")
    study.pretrain("M9", seed=1)
    record_of(study, "M9").unlink()
    study.pretrain("M9")
    change_record(record_of(study, "M9", 0), lambda record: record["inputs"].update(previous=last.id))
    curves = read_frames(papers(), study.root).curves
    assert [stage.id for stage in curves.stages_up_to(last.id)] == [first.id, last.id]
    assert figures(study.root, tmp_path / "out") == 0


@pytest.mark.parametrize("loss", [-3.0, float("nan"), float("inf"), "low"])
def test_a_loss_that_is_no_cross_entropy_is_refused_and_never_averaged(study: MadeUpStudy, loss: float | str) -> None:
    change_record(record_of(study, "M0"), lambda record: record["scores"].update(heldout_loss={"wikibook": loss}))
    evidence = read_frames(papers(), study.root)
    assert sorted(evidence.runs.stage) == [0, 1] and len(evidence.problems) == 1


@pytest.mark.parametrize(
    "lines",
    [
        [{"step": 0, "loss": 9.0}],
        [{"step": 0, "heldout_loss": 9.0}],
        [{"step": 5, "loss": 2.0}, {"step": 5, "loss": 2.0}],
    ],
)
def test_a_curve_of_one_place_is_drawn(study: MadeUpStudy, tmp_path: Path, lines: list[dict[str, float]]) -> None:
    path = record_of(study, "M0").with_name("metrics.jsonl")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert figures(study.root, tmp_path / "out") == 0


STRANGE: tuple[Any, ...] = (None, -1, 0, 1e308, float("nan"), "", "x", [], {}, [[]], {"a": None}, True, "=1", "\0")


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each leaf and branch of a JSON value."""
    yield path
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places_in(each, (*path, key))


def spoiled(content: Any, choice: random.Random) -> Any:
    """A JSON value with something strange in one place."""
    way = choice.choice(list(places_in(content)))
    if not way:
        return choice.choice(STRANGE)
    inner = content
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = choice.choice(STRANGE)
    return content


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with records of every kind. Nobody changes it."""
    study = MadeUpStudy(tmp_path_factory.mktemp("kinds") / "runs", common_context=64, measured=("web", "wikibook"))
    study.write(["M0", "M1"])
    study.metrics("M0")
    ask(study, "M0", 0, "blimp", answer(np.ones(5)))
    embed(study, "M0", "BIOSSES", "sts", 0.5)
    perplexity(study, "M0", (8.0, 7.0))
    throughput(study, "NeoBERT", 512, 1000.0)
    return study.root


@pytest.mark.parametrize(
    ("seeds", "numbers"), [((0, 1), (15,)), pytest.param(range(100, 200), (1, 5, 20), marks=pytest.mark.drill)]
)
def test_no_record_makes_a_traceback(
    every_kind: Path, tmp_path: Path, seeds: Sequence[int], numbers: Sequence[int]
) -> None:
    """Some files spoiled in one place each, and sealed again, so that what reads them meets the value and not the
    checksum: both commands report the others, or that there are none."""
    for seed in seeds:
        choice, root = random.Random(seed), tmp_path / "runs"
        shutil.copytree(every_kind, root)
        for path in choice.sample(sorted(root.rglob("*.json")), choice.choice(numbers)):
            content = spoiled(json.loads(path.read_text()), choice)
            path.write_text(json.dumps(checksummed(content) if isinstance(content, dict) else content))
        for name, command in COMMANDS.items():
            assert command(root, tmp_path / name) in (0, 3), (name, seed)
        for left in ("runs", *COMMANDS):
            shutil.rmtree(tmp_path / left, ignore_errors=True)
