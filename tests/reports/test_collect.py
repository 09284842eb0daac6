"""A collected folder is one archive: it gives the figures of the whole folder, and names no folder of the machine."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations.loading import papers
from neobert.files import json_bytes, line_bytes, sha256_of
from neobert.kinds.glue import GlueStudy
from neobert.recipe import Point
from neobert.runs.collected import ARCHIVE, RunFiles
from neobert.runs.kinds import record_paths
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification, read_run_file, write_run_file
from reports import collect
from reports.frames import read_frames
from tests.reports.made_up_study import (
    EXECUTION,
    SAMPLED,
    MadeUpStudy,
    change_record,
    contents,
    copy,
    figures,
    search_by,
)
from tests.reports.measurements import answer, ask

MACHINE = "/scratch/somebody/texts"
POINT = Point(batch_size=16, learning_rate=1e-4, weight_decay=0.01)


class StudyOnAFolder(MadeUpStudy):
    """A study whose run files and labels name the folder of the texts, as real ones do."""

    def labels(self, name: str) -> dict[str, Any]:
        return super().labels(name) | {"unavailable_tasks": {"mnli": f"mnli has no train split in {MACHINE}/glue/mnli"}}

    def begin(self, name: str, study: GlueStudy) -> None:
        source = SourceSpecification(name=MACHINE, synthetic_documents=1)
        write_run_file(Layout(self.root), study, source, EXECUTION, self.labels(name))

    def fill(self, *names: str) -> None:
        """Pre-train variants with three seeds and curves, fine-tune them on two tasks."""
        for name in names:
            for seed in (0, 1, 2):
                self.pretrain(name, seed)
                self.metrics(name, seed, lines=20)
                for task in ("cola", "rte"):
                    self.search(name, self.study(name, task, seed))
                    self.select(self.study(name, task, seed), nested=0.5)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> MadeUpStudy:
    """Nobody changes it."""
    made_up = StudyOnAFolder(tmp_path_factory.mktemp("study") / "runs", data="texts")
    made_up.fill("M0", "M1")
    (made_up.root / "ladders").mkdir()
    (made_up.root / "ladders" / "own-4c1ded2d8b84.py").write_text("TITLE = 'x'\n")
    return made_up


@pytest.fixture(scope="module")
def copied(study: MadeUpStudy) -> Path:
    """What is collected of the study. Nobody changes it."""
    folder = study.root.with_name("copy")
    assert copy(study.root, folder) == 0
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    return contents(RunFiles(folder).root)


def test_a_collected_folder_gives_the_same_tables_and_files(study: MadeUpStudy, copied: Path, tmp_path: Path) -> None:
    assert figures(study.root, tmp_path / "out") == figures(copied, tmp_path / "out-of-copy") == 0
    whole, same = contents(tmp_path / "out"), contents(tmp_path / "out-of-copy")
    # The reasons of the remarks and the page name folders by their names.
    told = {name for name, content in whole.items() if MACHINE.encode() in content}
    assert set(whole) == set(same) and {name for name in whole if whole[name] != same[name]} == told
    assert "M1 − M0" in same["smoke-texts/differences.md"].decode() and not read_frames(papers(), copied).problems


def test_what_is_restored_is_done_and_collected_as_it_was(
    study: MadeUpStudy, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    assert f"holds no {ARCHIVE}: give a folder that --out wrote" in capsys.readouterr().err


def test_a_search_is_collected_with_what_it_asked_for_and_how_that_ended(tmp_path: Path) -> None:
    """Its points and trials are there without a storage, also after they are restored."""
    made_up = StudyOnAFolder(tmp_path / "runs", data="texts")
    made_up.pretrain("M1")
    search = made_up.sampled("M1", "cola", search_by("tpe", "median"), SAMPLED, pruned=SAMPLED[:2])
    failed = search.search_trial(Layout(made_up.root), POINT)
    failed.error.parent.mkdir()
    failed.error.write_text('{"error": "diverged", "claim": 1}')
    assert copy(made_up.root, tmp_path / "copy") == 0
    assert collect.main(["--restore", str(tmp_path / "copy"), "--runs", str(tmp_path / "back")]) == 0
    for root in (RunFiles(tmp_path / "copy").root, tmp_path / "back"):
        layout = Layout(root)
        read = read_run_file(layout.study("cola", search.id)).specification(GlueStudy)
        assert read == search and list(read.asked(layout).values()) == list(SAMPLED)
        assert [each.state for each in read.search_trials(layout)] == ["pruned"] * 2 + ["done"] * (len(SAMPLED) - 2)
        assert read.search_trial(layout, POINT).error.is_file()


def test_curves_and_ladders_are_copied_as_they_are_without_paths_weights_and_claims(
    study: MadeUpStudy, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(study.root, tmp_path / "runs"))
    for place in ("claims/1", "glue/cola/x.npz", "glue/cola/x.safetensors", "data/tokens.bin"):
        (root / place).parent.mkdir(exist_ok=True)
        (root / place).write_text("{}")
    assert copy(root, tmp_path / "copy") == 0
    found = files_of(tmp_path / "copy")
    assert {Path(name).suffix for name in found} == {".json", ".jsonl", ".py"}
    assert not [name for name in found if name.startswith(("claims", "data"))]
    same = {name: content for name, content in contents(root).items() if name.endswith((".jsonl", ".py"))}
    assert len(same) == 7 and same.items() <= found.items()
    assert any(MACHINE.encode() in content for content in contents(root).values())
    assert not [name for name, content in found.items() if b"/scratch" in content]
    assert any(b"mnli has no train split in mnli" in content for content in found.values())


def test_collecting_again_or_from_a_copy_changes_no_byte_and_counts_what_it_wrote(
    study: MadeUpStudy, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = contents(copied)
    assert copy(study.root, copied) == 0 and contents(copied) == first
    capsys.readouterr()
    assert copy(copied, tmp_path / "third", "--json") == 0 and contents(tmp_path / "third") == first
    expected = {"files": len(files_of(copied)), "bytes": len(first[ARCHIVE]), "left_out": 0}
    assert json.loads(capsys.readouterr().out) == expected


def test_an_archive_gets_a_folder_of_its_own(
    study: MadeUpStudy, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in (".", "below", ".."):
        assert copy(study.root, study.root / out) == 2
        assert "lie in each other: choose a folder of its own" in capsys.readouterr().err
    assert copy(copied, study.root) == 2
    assert "is a folder of runs, which an archive would hide" in capsys.readouterr().err
    assert not (study.root / ARCHIVE).exists()


def test_no_path_of_the_machine_is_in_errors_and_models(
    study: MadeUpStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, home = Path(shutil.copytree(study.root, tmp_path / "runs")), tmp_path / "somebody"
    monkeypatch.setenv("HOME", str(home))
    model = str(home / "models" / "bert")
    (runs / "models" / "m").mkdir(parents=True)
    (runs / "models" / "m" / "model.json").write_bytes(
        json_bytes({"folder": model, "name": "org/bert", "at": str(home / "my x")})
    )
    errors = (
        f"OSError: no space left: {runs}/data/x, {runs.resolve()}/y and {model}",
        "DamagedFile: /scratch/alice/study/runs/pretraining/x is torn, see https://h.org/a/b or 1/2",
        f"cannot write {home}/tmp/file, 'sqlite:///{home}/db/file'",
    )
    for number, text in enumerate(errors):
        path = runs / "pretraining" / f"{number:012x}" / "error.json"
        path.parent.mkdir()
        path.write_bytes(json_bytes({"error": text, "traceback": model}))
    numbers = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    packed = ask(MadeUpStudy(runs, data="texts"), "M0", 0, "blimp", answer(numbers))
    assert "+/" in packed.read_text()
    assert copy(runs, tmp_path / "out") == 0
    copied = files_of(tmp_path / "out")
    for word in ("somebody", "alice", "scratch", str(tmp_path)):
        assert not [name for name, content in copied.items() if word.encode() in content], word
    said = [json.loads(copied[f"pretraining/{number:012x}/error.json"])["error"] for number in range(3)]
    assert said == [
        "OSError: no space left: x, y and bert",
        "DamagedFile: x is torn, see https://h.org/a/b or 1/2",
        "cannot write file, 'sqlite:///file'",
    ]
    assert json.loads(copied["models/m/model.json"]) == {"folder": "bert", "name": "org/bert", "at": "my x"}
    ours, theirs = (
        json.loads(each)["scores"] for each in (packed.read_bytes(), copied[f"readouts/blimp/{packed.name}"])
    )
    assert ours == theirs, "packed numbers may look like a path"


@pytest.mark.parametrize("damage", ["other", "gone"])
def test_the_curve_of_a_finished_run_is_the_one_that_its_record_names(tmp_path: Path, damage: str) -> None:
    study = MadeUpStudy(tmp_path / "runs")
    study.pretrain("M0")
    study.metrics("M0")
    (run,) = study.runs("M0")
    path = Layout(study.root).pretraining(run.id) / "metrics.jsonl"
    digest = {"sha256": {"metrics": sha256_of(path)}}
    change_record(path.with_name("done.json"), lambda record: record.update(digest))
    assert read_frames(papers(), study.root).curves.training(run.id)
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes() + line_bytes({"step": 1, "loss": 9.0}))
    reason = "is not there" if damage == "gone" else "does not match the checksum in its record"
    name = f"pretraining/{run.id}/metrics.jsonl"
    assert copy(study.root, tmp_path / "copy") == 0
    for root in (study.root, tmp_path / "copy"):
        curves = read_frames(papers(), root).curves
        assert not curves.training(run.id)
        assert curves.problems == [f"the curve of {name} is left out: {name} {reason}"]


# The archive


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_archive_is_refused_in_one_sentence(
    copied: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray((copied / ARCHIVE).read_bytes())
    content[len(content) // 2] ^= 1
    spoiled = {"cut": content[: len(content) // 2], "flip": content, "empty": b""}[damage]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ARCHIVE).write_bytes(spoiled)
    for command in (copy, figures):
        assert command(tmp_path / "runs", tmp_path / "out") == 3
        said = capsys.readouterr().err
        assert "is damaged (" in said and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_hostile_archive_is_refused_and_writes_nothing(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hostile").mkdir()
    with tarfile.open(tmp_path / "hostile" / ARCHIVE, "w:gz") as archive:
        archive.add(copied / ARCHIVE, "../../hook.json")
    there = set(tmp_path.rglob("*"))
    assert collect.main(["--restore", str(tmp_path / "hostile"), "--runs", str(tmp_path / "back")]) == 3
    assert "would be extracted to" in capsys.readouterr().err and set(tmp_path.rglob("*")) == there
