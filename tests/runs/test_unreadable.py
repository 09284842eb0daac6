"""A file that cannot be read is neither absent nor damaged: nothing is renamed, deleted or made again because of it."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neobert import files
from neobert.errors import EXIT_RUN_FAILED
from neobert.executors import selection
from neobert.executors.training import last_checkpoint
from neobert.runs.claims import acquire, last_owner
from neobert.runs.index import Index
from neobert.runs.kinds import is_done, read_records, record_paths
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record, read_record
from neobert.runs.run_file import read_run_file, write_run_file
from neobert.training import checkpoints
from tests.ablations.status_worlds import EXECUTION, declare, record_trial, study_of
from tests.support.hidden import hidden, tree
from tests.support.tiny_runs import SOURCE, tiny_run, work

CHECKPOINT_FILES = (checkpoints.WEIGHTS, checkpoints.OPTIMIZER, checkpoints.STATE, checkpoints.MANIFEST)
LAST = "checkpoints/step-00000024"


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "runs"))


@pytest.fixture
def unfinished(root: Path) -> Path:
    """The same, of which the last checkpoint and the record are gone, so that it goes on in the middle."""
    folder = root / tiny_run().reference
    (folder / "done.json").unlink()
    shutil.rmtree(folder / LAST)
    return root


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
def test_a_checkpoint_that_cannot_be_read_is_neither_passed_over_nor_set_aside(root: Path, name: str) -> None:
    layout, run = Layout(root), tiny_run()
    folder = root / run.reference
    with hidden(folder / LAST / name):
        before = tree(root)
        with pytest.raises(OSError, match=name):
            checkpoints.newest(folder / "checkpoints")
        with pytest.raises(OSError, match=name):
            checkpoints.save(folder / "checkpoints", 24, {}, {}, {}, None)  # type: ignore[arg-type]
        with pytest.raises(OSError, match=name):
            last_checkpoint(layout, run.id)
        assert tree(root) == before
    assert last_checkpoint(layout, run.id).step == 24


def test_a_worker_that_cannot_read_goes_on_once_it_can(unfinished: Path) -> None:
    """It fails with one sentence, and trains nothing again from the start."""
    run = tiny_run()
    folder = unfinished / run.reference
    before = tree(folder)
    newest = checkpoints.folder_of(folder / "checkpoints", checkpoints.steps_on_disk(folder / "checkpoints")[-1])
    with hidden(newest / checkpoints.WEIGHTS):
        assert work(unfinished, run.reference) == EXIT_RUN_FAILED
    failure = files.read_json(folder / "error.json")
    assert str(newest / checkpoints.WEIGHTS) in failure["error"]
    assert {name: at for name, at in tree(folder).items() if name in before} == before
    assert work(unfinished, run.reference) == 0
    attempt = max((folder / "attempts").iterdir())
    assert min(line["step"] for line in files.read_lines(attempt / "metrics.jsonl")) > 1
    assert not (folder / "error.json").exists()


def test_a_record_that_cannot_be_read_is_not_published_again(root: Path) -> None:
    layout, run = Layout(root), tiny_run()
    path = root / run.reference / "done.json"
    content = read_record(path)
    with hidden(path):
        before, of_run = tree(root), tree(root / run.reference)
        for look in (is_done, lambda layout, name: Index(layout).progress(run)):
            with pytest.raises(OSError, match=r"done\.json"):
                look(layout, run.reference)
        with pytest.raises(OSError, match=r"done\.json"):
            publish_record(path, content)
        records, problems = read_records(root)
        assert records == [] and "done.json" in problems[0]
        row = Index(layout).row(run.reference)
        assert row.state == "unreadable" and "done.json" in row.note
        assert tree(root) == before
        with pytest.raises(OSError, match=r"done\.json"):
            work(root, run.reference)
        assert tree(root / run.reference) == of_run


@pytest.mark.parametrize("name", ["run.json", "execution.json"])
def test_a_run_file_that_cannot_be_read_is_not_written_again(root: Path, name: str) -> None:
    layout, run = Layout(root), tiny_run()
    changed = EXECUTION.model_copy(update={"micro_batch_tokens": 64})
    write_run_file(layout, run, SOURCE, changed, {})
    with hidden(root / run.reference / name):
        before = tree(root)
        with pytest.raises(OSError, match=name):
            write_run_file(layout, run, SOURCE, EXECUTION, {})
        with pytest.raises(OSError, match=name):
            read_run_file(root / run.reference)
        assert tree(root) == before


def test_weights_stay_while_a_study_that_may_need_them_cannot_be_read(tmp_path: Path) -> None:
    """Two grids share trials, and in the hidden one the beaten trial is the best."""
    layout, run = Layout(tmp_path), tiny_run()
    study = study_of(run, points=2)
    other = study.model_copy(update={"points": study.points[:1]})
    for each in (other, study):
        declare(layout, each)
    weights = [record_trial(layout, study, number, score) for number, score in enumerate((0.1, 0.9))]
    with hidden(layout.study("cola", other.id)):
        selection.drop_beaten_weights(layout, study)
        assert selection.may_become_best(layout, study.trials(layout)[0], {"score": 0.0, "metrics": {}})
    assert all(path.exists() for path in weights)
    shutil.rmtree(layout.study("cola", other.id))
    selection.drop_beaten_weights(layout, study)
    assert [path.exists() for path in weights] == [False, True]


def test_a_claim_that_cannot_be_read_is_held(tmp_path: Path) -> None:
    folder = tmp_path / "claims" / "part"
    assert acquire(folder) is not None
    for path in (folder, folder / "1"):
        with hidden(path):
            with pytest.raises(PermissionError):
                last_owner(folder)
            with pytest.raises(PermissionError):
                acquire(folder)
    assert not (folder / "2").exists()


def test_reports_name_a_folder_that_they_cannot_list(root: Path) -> None:
    from neobert.runs.collected import RunFiles

    with hidden(root / "pretraining"):
        folder = RunFiles(root)
        assert list(folder.files("pretraining/*/done.json")) == []
        assert "pretraining" in folder.problems[0] and "Permission denied" in folder.problems[0]
        with pytest.raises(PermissionError):
            list(record_paths(root))


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO, errno.EMFILE, errno.ELOOP, errno.ETIMEDOUT])
def test_only_what_is_not_there_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file.json").write_text("{}")
    looks: list[Callable[[Path], Any]] = [files.is_there, files.is_file, files.is_folder, files.children]

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "stat", fail)
    monkeypatch.setattr(files.os, "listdir", fail)
    for look in looks:
        with pytest.raises(OSError, match=os.strerror(number)):
            look(tmp_path / "folder")
    with pytest.raises(OSError, match=os.strerror(number)):
        list(files.matching(tmp_path, "*/file.json"))
    monkeypatch.undo()
    for path in (tmp_path / "nothing", tmp_path / "folder" / "file.json" / "below"):
        assert not any(look(path) for look in looks)
    assert list(files.matching(tmp_path, "*/file.json")) == [tmp_path / "folder" / "file.json"]
    assert list(files.matching(tmp_path, "folder/*")) == [tmp_path / "folder" / "file.json"]
