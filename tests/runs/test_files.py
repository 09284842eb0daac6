"""Files are whole or absent, and published once."""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert import files
from neobert.errors import DamagedFile


def test_published_files_never_change(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert files.publish_once(path, b"first")
    assert not files.publish_once(path, b"second")
    assert path.read_bytes() == b"first"
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_a_group_may_write_what_its_umask_lets_it(tmp_path: Path) -> None:
    """All who share a folder of runs append to its lists of starts and submissions."""
    before = os.umask(0o002)
    try:
        files.append_line(tmp_path / "starts.jsonl", {"part": "a"})
        files.replace_file(tmp_path / "record.json", b"{}")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o664}


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


KEYS = st.text().filter(lambda key: key != files.CHECKSUM)


@given(st.lists(st.dictionaries(KEYS, st.integers() | st.text() | st.none())), st.integers(min_value=0))
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


lines_of_numbers = st.lists(st.dictionaries(KEYS, st.integers() | st.floats(allow_nan=False)), min_size=1)


@given(lines_of_numbers, st.data())
@settings(max_examples=60)
def test_a_flipped_bit_in_a_line_is_told_or_changes_no_value(
    tmp_path_factory: pytest.TempPathFactory, values: list[dict[str, float]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    for value in values:
        files.append_line(path, value)
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    told = files.damaged_lines(path)
    whole = [_without_strange_keys(value, values) for value in files.read_lines(path)]
    torn_last = bit // 8 == len(content) - 1
    assert whole == values or (len(whole) < len(values) and (told or torn_last))
    assert all(value in values for value in whole)
    if told:
        files.mend_lines(path)
        assert files.damaged_lines(path) == []
        assert path.with_name("metrics.jsonl.damaged-1").read_bytes() == content


def _without_strange_keys(value: dict[str, float], values: list[dict[str, float]]) -> dict[str, float]:
    """A flip in the name of the checksum leaves a key that no line has."""
    known = {key for each in values for key in each}
    return {key: number for key, number in value.items() if key in known}


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
    assert list(files.read_lines(path)) == [{"step": 1, "loss": 0.5}] and files.damaged_lines(path) == []
    monkeypatch.setattr(files.os, "write", write)
    files.append_line(path, {"step": 3, "loss": 0.3})
    assert list(files.read_lines(path)) == [{"step": 1, "loss": 0.5}, {"step": 3, "loss": 0.3}]
    assert files.damaged_lines(path) == [2]


def test_lines_of_earlier_versions_have_no_checksum_and_count(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    deep = '{"step": ' + "[" * 200_000
    path.write_text(f'{{"step": 1}}\n{{"loss": 2}}\n{deep}\n')
    assert list(files.read_lines(path, "step")) == [{"step": 1}] and files.damaged_lines(path, "step") == [2, 3]


@pytest.mark.parametrize("name", ["loop", "deep", "folder", "torn"])
def test_what_is_no_json_file_at_all_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "loop":
        path.symlink_to(path)
    elif name == "folder":
        path.mkdir()
    else:
        path.write_text("[" * 200_000 if name == "deep" else '{"kind": ')
    with pytest.raises(DamagedFile, match=name):
        files.read_json(path)


def test_a_file_server_that_is_away_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({}))

    def gone(_: Path) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "read_bytes", gone)
    with pytest.raises(OSError, match="Stale"):
        files.read_json(path)


def test_what_is_set_aside_keeps_its_bytes_under_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trial.npz"
    for number in (1, 2):
        path.write_bytes(b"%d" % number)
        assert files.set_aside(path, "torn").name == f"trial.npz.damaged-{number}"
    assert not path.exists()
    assert [(tmp_path / f"trial.npz.damaged-{number}").read_bytes() for number in (1, 2)] == [b"1", b"2"]


def test_what_is_remembered_at_once_is_remembered_together(tmp_path: Path) -> None:
    names = [f"file {number}" for number in range(64)]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: files.remember(tmp_path, {name: "digits"}), names))
    assert files.read_json(tmp_path / files.VERIFIED).keys() == set(names)
