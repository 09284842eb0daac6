"""Files are whole or absent, and published once."""

import errno
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


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.none())), st.integers(min_value=0))
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


def test_unreadable_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "torn.json"
    path.write_text('{"kind": ')
    with pytest.raises(DamagedFile, match=r"torn\.json is not readable"):
        files.read_json(path)
