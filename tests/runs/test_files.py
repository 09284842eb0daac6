"""Files are whole or absent, and published once, whatever the file system can do."""

import errno
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert import files
from neobert.command_line import guarded
from neobert.runs.claims import ClaimLost, acquire
from neobert.runs.records import is_published, publish_record, read_record, sealed
from neobert.tensors import save_tensors


def test_published_files_never_change(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert files.publish_once(path, b"first")
    assert not files.publish_once(path, b"second")
    assert path.read_bytes() == b"first"
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_every_file_follows_the_umask_whichever_library_wrote_it(tmp_path: Path, umask: int) -> None:
    """All who share a folder of runs append to its lists of starts and submissions, and read its weights."""

    def write_as_some_libraries(path: Path) -> None:
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        os.close(descriptor)
        Path(name).rename(path)

    before = os.umask(umask)
    try:
        files.append_line(tmp_path / "starts.jsonl", {"part": "a"})
        files.replace_file(tmp_path / "record.json", b"{}")
        files.publish_once(tmp_path / "run.json", b"{}")
        save_tensors({"weight": torch.ones(2)}, tmp_path / "model.safetensors")
        write_as_some_libraries(tmp_path / "one")
        files.sync_file(tmp_path / "one")
        (tmp_path / "temporary" / "below").mkdir(parents=True)
        for name in ("two", "below/three"):
            write_as_some_libraries(tmp_path / "temporary" / name)
        files.publish_folder(tmp_path / "temporary", tmp_path / "final")
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert len(modes) == 9
    assert {modes.pop("final"), modes.pop("final/below")} == {0o777 & ~umask}
    assert set(modes.values()) == {0o666 & ~umask}


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without hard links."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(source), None, str(target))

    monkeypatch.setattr(files.os, "link", refuse)


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_one_of_many_writers_publishes(tmp_path: Path) -> None:
    contents = [b"%d" % number * 10_000 for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        published = list(pool.map(lambda content: files.publish_once(tmp_path / "record", content), contents))
    assert published.count(True) == 1
    assert (tmp_path / "record").read_bytes() == contents[published.index(True)]
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_a_writer_that_was_killed_leaves_no_record(tmp_path: Path) -> None:
    """Nor one that is only paused: it goes on with the file that was set aside."""
    path, record = tmp_path / "0123456789ab.json", {"kind": "glue", "id": "0123456789ab", "state": "done"}
    slow = path.open("xb")
    slow.write(sealed(record)[:40])
    slow.flush()
    assert not is_published(path, read_record) and not files.publish_once(path, b"another")
    assert publish_record(path, {**record, "claim": 2})
    slow.write(sealed(record)[40:])
    slow.close()
    assert read_record(path)["claim"] == 2
    assert not publish_record(path, {**record, "claim": 3}) and read_record(path)["claim"] == 2


@pytest.mark.usefixtures("no_links")
def test_without_hard_links_one_process_takes_a_part(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(filter(None, pool.map(lambda _: acquire(tmp_path / "claims" / "part"), range(32))))
    owners = [claim for claim in taken if claim.number == max(each.number for each in taken)]
    for claim in taken:
        if claim not in owners:
            with pytest.raises(ClaimLost):
                claim.check()
    assert len(owners) == 1
    owners[0].check()


def test_an_error_names_the_file_and_not_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(source), None, str(target))

    monkeypatch.setattr(files.os, "link", refuse)
    path = tmp_path / "run.json"
    assert guarded("run.py", lambda: int(files.publish_once(path, b"{}")), tmp_path) == 1
    assert capsys.readouterr().err == f"run.py: {path}: Disk quota exceeded; nothing finished is lost\n"


@pytest.mark.parametrize("function", [files.publish_once, files.replace_file])
def test_a_full_disk_leaves_the_old_content_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: object
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        function(path, b"new")  # type: ignore[operator]
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


TEXTS = st.text('ab"\\\n\u2028é', max_size=5)


@given(st.lists(st.dictionaries(TEXTS, st.integers() | TEXTS)), st.integers(min_value=0))
@settings(max_examples=30)
def test_appended_lines_come_back_and_a_torn_last_one_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, object]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    for value in values:
        files.append_line(path, value)
    assert list(files.read_lines(path)) == values
    if values:
        content = path.read_bytes()
        last = content.rstrip(b"\n").rfind(b"\n") + 1
        path.write_bytes(content[: last + cut % (len(content) - last)])
        assert list(files.read_lines(path)) == values[:-1]


def test_a_short_write_is_completed_and_behind_a_torn_line_a_new_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "metrics.jsonl", os.write
    monkeypatch.setattr(files.os, "write", lambda descriptor, content: write(descriptor, content[:7]))
    files.append_line(path, {"step": 1, "loss": 0.5})
    assert list(files.read_lines(path)) == [{"step": 1, "loss": 0.5}]

    def full(descriptor: int, content: bytes) -> int:
        if len(content) < 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content[:9])

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        files.append_line(path, {"step": 2, "loss": 0.4})
    assert list(files.read_lines(path)) == [{"step": 1, "loss": 0.5}]
    monkeypatch.setattr(files.os, "write", write)
    files.append_line(path, {"step": 3, "loss": 0.3})
    assert list(files.read_lines(path)) == [{"step": 1, "loss": 0.5}, {"step": 3, "loss": 0.3}]


def test_lines_of_earlier_versions_count(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    deep = '{"step": ' + "[" * 200_000
    path.write_text(f'{{"step": 1, "crc32": "00000000"}}\n{{"loss": 2}}\n{deep}\n')
    assert list(files.read_lines(path, "step")) == [{"step": 1}]


def test_what_is_set_aside_keeps_its_bytes_under_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trial.npz"
    for number in (1, 2):
        path.write_bytes(b"%d" % number)
        assert files.set_aside(path, "torn").name == f"trial.npz.damaged-{number}"
    assert not path.exists()
    assert [(tmp_path / f"trial.npz.damaged-{number}").read_bytes() for number in (1, 2)] == [b"1", b"2"]
