"""Records and run files over versions: a new field orphans nothing, a changed file is told, a newer one is refused."""

import json
import shutil
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.errors import DamagedFile, RunFailed
from neobert.identity import NUMERICS, Neutral, decisive, identity, plain
from neobert.recipe import Value
from neobert.runs.index import Index
from neobert.runs.kinds import is_done
from neobert.runs.layout import Layout
from neobert.runs.records import is_published, publish_record, read_record, read_sealed, sealed
from neobert.runs.run_file import read_checked_run_file, read_run_file, write_run_file
from tests.ablations.status_worlds import EXECUTION, SOURCE, declare, finish_pretraining, finish_study, study_of
from tests.support.tiny_runs import (
    beside,
    tiny_run,
    work,
    write_tiny_run,
)

RECORD = {"kind": "glue", "id": "a", "state": "done", "scores": {"score": 0.25, "curve": [[1, 0.5], [2, 1e-7]]}}


class Before(Value):
    width: int


class After(Value):
    """`Before` with a field that was added later."""

    width: int
    window: Annotated[int | None, Neutral(None)]
    norm: Annotated[Literal["pre", "post"], Neutral("pre")]


class Outer(Value):
    inner: tuple[After, ...]
    other: Annotated[After | None, Neutral(None)]


@given(st.integers())
def test_a_new_field_at_its_neutral_value_changes_no_id(width: int) -> None:
    new = After(width=width, window=None, norm="pre")
    assert identity(new) == identity(Before(width=width))
    assert identity({"run": [new]}) == identity({"run": [Before(width=width)]})
    assert (
        len({identity(new), identity(new.model_copy(update={"window": 4})), identity({"width": width, "norm": 0})}) == 3
    )
    assert identity(Outer(inner=(new,), other=None)) == identity({"inner": [{"width": width}]})


def test_a_new_field_is_filled_in_when_an_older_file_is_read_and_never_when_a_value_is_made() -> None:
    assert Outer.read({"inner": [{"width": 3}]}) == Outer(inner=(After(width=3, window=None, norm="pre"),), other=None)
    assert After.read({"width": 3, "norm": "post"}).norm == "post"
    with pytest.raises(ValueError, match="window"):
        After(width=3, norm="pre")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="width"):
        After.read({"norm": "post"})
    with pytest.raises(ValueError, match="windw"):
        After.read({"width": 3, "windw": 1})


def test_what_is_recorded_names_every_field() -> None:
    new = After(width=1, window=None, norm="pre")
    assert plain(new) == {"width": 1, "window": None, "norm": "pre"} and decisive(new) == {"width": 1}


@given(st.data())
def test_no_changed_byte_of_a_record_goes_unseen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("record") / "a.json"
    assert publish_record(path, RECORD)
    content, known = path.read_bytes(), read_record(path)
    assert known["numerics"] == NUMERICS
    place = data.draw(st.integers(0, len(content) - 1))
    flipped = content[place] ^ (1 << data.draw(st.integers(0, 7)))
    path.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
    try:
        assert read_record(path) == known  # white space
    except DamagedFile as error:
        assert str(path) in str(error)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"schema": 99, "kind": "glue", "id": "a"}', "schema 99, and this version reads up to"),
        (b'{"schema": true}', "no schema version"),
        (b'{"kind": "glue"}', "no schema version"),
        (b"[]", "no schema version"),
        (b'{"schema": 2, "kind": "glue", "id": "a"}', "no schema version"),
        (b'{"schema": 3, "kind": "glue", "id": "a"}', "checksum"),
        (sealed({"id": "a"}), "lacks kind"),
    ],
)
def test_what_is_no_record_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(RunFailed, match=said):
        read_record(path)


def test_sealing_again_keeps_schema_and_numerics_of_the_first_writer(tmp_path: Path) -> None:
    """What is collected from an older folder says of it what the older folder said."""
    path = tmp_path / "a.json"
    path.write_bytes(sealed({**RECORD, "numerics": {"model": 7}}))
    path.write_bytes(sealed(read_sealed(path)))
    assert read_sealed(path)["numerics"] == {"model": 7}


def test_work_begins_only_on_a_run_file_that_has_its_folders_name(tmp_path: Path) -> None:
    layout, run = Layout(tmp_path), tiny_run()
    folder = write_run_file(layout, run, SOURCE, EXECUTION, {})
    assert read_checked_run_file(folder).run == run
    content = read_sealed(folder / "run.json")
    content["run"]["recipe"]["seed"] = 3
    (folder / "run.json").write_bytes(sealed(content))
    assert read_run_file(folder).run == run.model_copy(update={"recipe": run.recipe.model_copy(update={"seed": 3})})
    with pytest.raises(DamagedFile, match=f"and not {run.id}: it was changed or moved"):
        read_checked_run_file(folder)
    moved = Path(shutil.copytree(declare(layout, study_of(run)), tmp_path / "glue/cola/studies/0123456789ab"))
    with pytest.raises(DamagedFile, match="and not 0123456789ab: it was changed or moved"):
        read_checked_run_file(moved)


def test_work_of_other_numerics_is_told_and_not_published_under_the_old_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run_file(Layout(tmp_path), tiny_run(), SOURCE, EXECUTION, {})
    monkeypatch.setitem(NUMERICS, "masking", NUMERICS["masking"] + 1)
    assert read_run_file(folder).id == folder.name
    with pytest.raises(DamagedFile, match=r"other numerics \(masking changed since\)"):
        read_checked_run_file(folder)


def copied(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(source, target))


def test_the_record_of_another_unit_is_damage_and_its_place_is_worked_on(tmp_path: Path, finished: Path) -> None:
    beside(tmp_path, finished)
    layout, other, run = Layout(tmp_path), tiny_run(seed=1), tiny_run()
    finish_pretraining(layout, other)
    write_tiny_run(tmp_path, run)
    path = copied(tmp_path / other.reference / "done.json", tmp_path / run.reference / "done.json")
    assert is_done(layout, other.reference) and not is_done(layout, run.reference)
    row = Index(layout).row(run.reference)
    assert row.state == "unreadable" and other.id in row.note and run.id in row.note
    assert work(tmp_path, run.reference) == 0
    assert read_record(path)["id"] == run.id
    assert json.loads(path.with_name("done.json.damaged-1").read_bytes())["id"] == other.id


def test_neither_trial_nor_selection_nor_readout_of_another_unit_counts(tmp_path: Path) -> None:
    layout, run = Layout(tmp_path), tiny_run()
    study, other = study_of(run), study_of(tiny_run(seed=1))
    for each in (study, other):
        finish_study(layout, each)
    first, second = study.trials(layout)
    assert first.is_done and second.is_done and is_done(layout, study.reference)
    copied(first.record, second.record)
    assert first.is_done and not second.is_done
    with pytest.raises(DamagedFile, match=f"{first.id} and not of {second.id}"):
        read_record(second.record)
    copied(other.closing(layout).record, study.closing(layout).record)
    assert not is_done(layout, study.reference) and not study.closing(layout).is_done
    assert is_done(layout, other.reference)
    with pytest.raises(DamagedFile, match=other.id):
        study.read_closing(study.closing(layout).record)
    readout = layout.readout("cloze", "0123456789ab")
    publish_record(readout, {**RECORD, "kind": "readouts", "id": readout.stem})
    moved = copied(readout, layout.readout("cloze", "ba9876543210"))
    assert is_published(readout, read_record) and not is_published(moved, read_record)
    assert publish_record(moved, {**RECORD, "kind": "readouts", "id": moved.stem})
