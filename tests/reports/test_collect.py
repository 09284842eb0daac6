"""A collected folder gives the figures of the whole one, is small, names no folder of the machine, and joins others."""

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from neobert.training.transitions import SMALL_TEXT_LOSS

from neobert.files import read_lines
from neobert.kinds.glue import GlueStudy
from neobert.runs.collected import TABLES, Collected
from neobert.runs.kinds import record_paths
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, write_run_file
from reports import collect, make_figures
from reports.collection import thin
from reports.curves import PIECES
from tests.reports.collecting import contents, copy
from tests.reports.made_up_study import EXECUTION, Study, undrawn_figures
from tests.reports.predictions import with_predictions

TASKS_WITH_PREDICTIONS = ("cola", "stsb")
MACHINE = "/scratch/somebody/texts"


class StudyOnAFolder(Study):
    """A study whose run files and labels name the folder of the texts, as real ones do."""

    def labels(self, name: str) -> dict[str, Any]:
        return super().labels(name) | {"unavailable_tasks": {"mnli": f"mnli has no train split in {MACHINE}/glue/mnli"}}

    def begin(self, name: str, study: GlueStudy) -> None:
        source = SourceSpecification(name=MACHINE, synthetic_documents=1)
        write_run_file(Layout(self.root), study, source, EXECUTION, self.labels(name))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Nobody changes it: a test that does takes `spoilable`."""
    made_up = StudyOnAFolder(tmp_path_factory.mktemp("study") / "runs", data="texts")
    with_predictions(made_up, ["M0", "M1"], TASKS_WITH_PREDICTIONS)
    made_up.metrics("M0", 0, lines=500)
    return made_up


@pytest.fixture(scope="module")
def copied(study: Study) -> Path:
    """What is collected of the study."""
    folder = study.root.with_name("copy")
    assert copy(study.root, folder) == 0
    return folder


@pytest.fixture
def spoilable(study: Study, tmp_path: Path) -> Path:
    """The study's folder of runs once more."""
    return Path(shutil.copytree(study.root, tmp_path / "runs"))


def figures(runs: Path, out: Path) -> dict[str, bytes]:
    with undrawn_figures():
        assert make_figures.main(["--runs", str(runs), "--out", str(out), "--compare"]) == 0
    return contents(out)


def test_a_collected_folder_gives_the_same_tables_and_files(study: Study, copied: Path, tmp_path: Path) -> None:
    whole, same = figures(study.root, tmp_path / "out"), figures(copied, tmp_path / "out-of-copy")
    # Of the remarks and the page the reasons name folders by their names, and curves are joined twice.
    told = {name for name, content in whole.items() if MACHINE.encode() in content} | {"index.html"}
    assert set(whole) == set(same) and {name for name in whole if whole[name] != same[name]} == told
    deltas = same["smoke-texts/deltas.md"].decode()
    assert "No interval over examples" not in deltas and "M1 | M0 | GLUE" in deltas


def test_what_is_restored_is_done_and_collected_as_it_was(
    study: Study, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    back, again = tmp_path / "runs", tmp_path / "again"
    assert collect.main(["--restore", str(copied), "--runs", str(back)]) == 0
    records = [path.relative_to(study.root) for path in record_paths(study.root)]
    assert records and all((back / path).is_file() for path in records)
    assert copy(back, again) == 0 and contents(again) == contents(copied)
    changed = next(back.glob("glue/*/studies/*/run.json"))
    changed.write_text("{}")
    capsys.readouterr()
    assert collect.main(["--restore", str(copied), "--runs", str(back)]) == 0
    assert changed.read_text() == "{}" and capsys.readouterr().out.startswith("0 of ")
    assert collect.main(["--restore", str(study.root), "--runs", str(back)]) == 3
    assert "holds no collected record: give a folder that --out wrote" in capsys.readouterr().err


def test_no_path_of_the_machine_is_in_the_copy(study: Study, copied: Path) -> None:
    assert any(MACHINE.encode() in content for content in contents(study.root).values())
    found = Collected(copied).files
    assert not [name for name, content in found.items() if b"/scratch" in content]
    assert any(b"mnli has no train split in texts/glue/mnli" in content for content in found.values())


def test_weights_predictions_labels_and_claims_stay(spoilable: Path, tmp_path: Path) -> None:
    (spoilable / "claims").mkdir()
    (spoilable / "claims" / "1").write_text("{}")
    next(spoilable.glob("glue/cola/*.npz")).with_suffix(".safetensors").write_bytes(b"weights")
    copy(spoilable, tmp_path / "copy")
    found = Collected(tmp_path / "copy").files
    assert {Path(name).suffix for name in found} == {".json", ".jsonl"}
    assert not [name for name in found if name.startswith(("claims", "data"))]
    trials = len(list(spoilable.glob("glue/*/*.npz")))
    assert len([name for name in found if "/resamples/" in name]) == trials > 0


def test_curves_are_joined_to_what_a_picture_shows(study: Study, copied: Path) -> None:
    (path,) = study.root.glob("pretraining/*/metrics.jsonl")
    thinned = Collected(copied).files[str(path.relative_to(study.root))]
    before, after = list(read_lines(path)), list(map(json.loads, thinned.splitlines()))
    steps = [line for line in after if "loss" in line]
    assert len(before) > len(steps) and PIECES / 2 < len(steps) <= PIECES
    assert [line for line in after if "heldout_loss" in line] == [line for line in before if "heldout_loss" in line]
    for total in ("real_tokens", "seconds"):
        assert sum(line[total] for line in steps) == pytest.approx(sum(line.get(total, 0) for line in before))


def test_a_held_out_loss_on_the_small_text_stays_in_the_curve() -> None:
    trained = [{"step": step, "loss": 5.0, "real_tokens": 9, "seconds": 1.0} for step in (1, 2)]
    measured = [{"step": 1, "heldout_loss": 6.0}, {"step": 2, SMALL_TEXT_LOSS: 6.1, "trained_tokens": 18}]
    assert list(thin([*trained, *measured, {"step": 2}])) == [*trained, *measured]


def test_collecting_again_or_from_a_copy_changes_no_byte(study: Study, copied: Path, tmp_path: Path) -> None:
    first = contents(copied)
    assert copy(study.root, copied) == 0 and contents(copied) == first
    assert copy(copied, tmp_path / "third") == 0 and contents(tmp_path / "third") == first


def test_two_folders_are_collected_into_one(study: Study, tmp_path: Path) -> None:
    other = StudyOnAFolder(tmp_path / "elsewhere", data="texts")
    with_predictions(other, ["M2"], TASKS_WITH_PREDICTIONS)
    copy(study.root, tmp_path / "copy")
    copy(other.root, tmp_path / "copy")
    text = figures(tmp_path / "copy", tmp_path / "out")["smoke-texts/deltas.md"].decode()
    assert "M1 | M0 | GLUE | 3" in text and "M2 | M1 | GLUE | 3" in text


def test_what_cannot_be_read_is_named_and_the_rest_is_copied(
    spoilable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = next(spoilable.glob("glue/cola/studies/*/run.json"))
    torn.write_text(torn.read_text()[:40])
    curve = next(spoilable.glob("pretraining/*/metrics.jsonl"))
    curve.write_text('{"loss": "x"}\n')
    assert copy(spoilable, tmp_path / "copy") == 0
    told = capsys.readouterr().err
    assert f"left out: {torn.relative_to(spoilable)}" in told
    assert f"left out: the curve of {curve.relative_to(spoilable)}" in told
    trials = [name for name in Collected(tmp_path / "copy").files if fnmatch(name, "glue/*/????????????.json")]
    assert len([name for name in trials if name.count("/") == 2]) == len(list(spoilable.glob("glue/*/*.json")))


@pytest.mark.parametrize("out", [".", "below", ".."])
def test_a_copy_within_the_original_is_refused(study: Study, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert copy(study.root, study.root / out) == 2
    assert "lie in each other: choose a folder of its own" in capsys.readouterr().err


def test_a_folder_without_records_is_missing_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert collect.main(["--runs", str(tmp_path / "empty"), "--out", str(tmp_path / "copy"), "--json"]) == 3
    assert "holds no finished record" in capsys.readouterr().err and not (tmp_path / "copy").exists()


def test_the_summary_counts_what_was_written(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert collect.main(["--runs", str(study.root), "--out", str(tmp_path / "copy"), "--json"]) == 0
    size = sum((tmp_path / "copy" / table).stat().st_size for table in TABLES)
    expected = {"files": len(Collected(tmp_path / "copy").files), "bytes": size, "left_out": 0}
    assert json.loads(capsys.readouterr().out) == expected


def test_a_folder_of_runs_may_lie_below_one_that_is_called_as_those_of_attempts(tmp_path: Path) -> None:
    made_up = Study(tmp_path / "attempts" / "runs")
    made_up.pretrain("M0")
    made_up.search("M0", made_up.study("M0", "cola"))
    assert copy(made_up.root, tmp_path / "copy") == 0
    assert len([name for name in Collected(tmp_path / "copy").files if name.endswith("run.json")]) == 1


def test_a_folder_of_runs_is_no_place_for_tables(
    study: Study, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert copy(copied, study.root) == 2
    assert "is a folder of runs, which tables would hide" in capsys.readouterr().err
    assert not (study.root / "records.jsonl").exists()
