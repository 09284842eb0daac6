"""Collected folders: what is written is read again, what was changed is named and not read, a kill loses nothing."""

import gc
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.files import json_bytes, replace_file, sha256_of
from neobert.runs import collected
from neobert.runs.collected import DIGESTS, TABLES, Collected, RunFiles
from reports.evidence import read_evidence
from reports.forecasts.sealed import Forecast, read_forecasts, write_forecast
from tests.reports.collecting import contents, copy, figures
from tests.reports.made_up_study import Study
from tests.reports.predictions import with_predictions

ID = "0123456789ab"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with files for each table. Nobody changes it."""
    study = Study(tmp_path_factory.mktemp("study") / "runs")
    with_predictions(study, ["M0"], ("cola",))
    for seed in (0, 1):
        study.metrics("M0", seed)
    study.search("M0", study.study("M0", "rte"))
    (study.root / "ladders").mkdir()
    (study.root / "ladders" / f"own-{ID}.py").write_text("TITLE = 'x'\n")
    return study.root


@pytest.fixture(scope="module")
def whole(runs: Path) -> Path:
    """What is collected of it. Nobody changes it."""
    out = runs.with_name("collected")
    assert copy(runs, out) == 0
    return out


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copied"))


def test_a_collected_folder_has_five_files_which_list_everything_and_read_without_a_finding(whole: Path) -> None:
    assert set(contents(whole)) == {*TABLES, DIGESTS}
    root = RunFiles(whole).root
    assert json.loads((whole / DIGESTS).read_text())["files"] == {
        name: sha256_of(root / name) for name in contents(root)
    }
    for table in TABLES:
        paths = [json.loads(line)["path"] for line in (whole / table).read_text().splitlines()]
        assert paths == sorted(paths) and paths
    assert not read_evidence(whole).problems


def test_links_of_records_name_their_lines(whole: Path) -> None:
    for record, link in read_evidence(whole).files.items():
        table, number = link.split("#L")
        assert json.loads((whole / table).read_text().splitlines()[int(number) - 1])["content"]["id"] == record


def lines_of(values: list[Any]) -> bytes:
    return b"".join(json.dumps(value, sort_keys=True).encode() + b"\n" for value in values)


NAMES = st.text("abcdef0123456789-ü", min_size=1, max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FILES = st.one_of(
    st.tuples(NAMES.map("pretraining/{}/done.json".format), VALUES.map(json_bytes)),
    st.tuples(NAMES.map("glue/cola/studies/{}/selection.json".format), VALUES.map(json_bytes)),
    st.tuples(NAMES.map("pretraining/{}/metrics.jsonl".format), st.lists(VALUES, max_size=3).map(lines_of)),
    st.tuples(NAMES.map("ladders/{}.py".format), st.binary(max_size=50)),
)


@given(st.lists(FILES, max_size=4), st.lists(FILES, max_size=4))
def test_what_is_written_is_read_again_and_what_was_there_stays(
    tmp_path_factory: pytest.TempPathFactory, first: list[tuple[str, bytes]], second: list[tuple[str, bytes]]
) -> None:
    root = tmp_path_factory.mktemp("any")
    for files in (first, second, second):
        Collected(root).write(dict(files))
    found = Collected(root)
    assert found.files == {**dict(first), **dict(second)} and not found.problems


def test_unpacked_files_are_those_of_the_tables_and_go_with_their_reader(whole: Path) -> None:
    reader = RunFiles(whole)
    root = reader.root
    assert contents(root) == Collected(whole).files
    del reader
    collected._unpack.cache_clear()
    gc.collect()
    assert not root.exists()


def test_a_folder_is_unpacked_once_and_again_when_it_changes(copied: Path, runs: Path) -> None:
    assert RunFiles(runs).root == runs
    first = RunFiles(copied)
    assert RunFiles(copied).root == first.root and list(first.root.rglob("metrics.jsonl"))
    (copied / "curves.jsonl").unlink()
    assert not list(RunFiles(copied).root.rglob("metrics.jsonl"))


# What was changed since it was collected


def spoil(line: bytes, other: bytes, choice: random.Random) -> bytes:
    """One line that was changed: a bit of it, its end, all of it, or its content replaced by that of another."""
    kind, changed = choice.choice(["flip", "cut", "empty", "other"]), bytearray(line)
    if kind == "other":
        return json.dumps({**json.loads(line), "content": json.loads(other)["content"]}).encode() + b"\n"
    if kind == "flip":
        changed[choice.randrange(len(line) - 1)] ^= 1 << choice.randrange(8)
    return bytes(changed[: {"cut": len(line) // 2, "empty": 0}.get(kind, len(line))]).rstrip(b"\n") + b"\n"


@pytest.mark.parametrize("seed", range(8))
def test_what_was_changed_is_named_and_left_out_and_the_rest_is_read(copied: Path, tmp_path: Path, seed: int) -> None:
    choice, before, table = random.Random(seed), Collected(copied), sorted(TABLES)[seed % len(TABLES)]
    lines = (copied / table).read_bytes().splitlines(keepends=True)
    changed = choice.sample(range(len(lines)), min(3, len(lines)))
    spoiled = [spoil(line, lines[place - 1], choice) if place in changed else line for place, line in enumerate(lines)]
    (copied / table).write_bytes(b"".join(spoiled))
    after = Collected(copied)
    assert after.files.items() < before.files.items()
    assert all(problem.startswith((table, "line")) or "sha256.json" in problem for problem in after.problems)
    assert set(after.problems) <= set(read_evidence(copied).problems)
    assert copy(copied, tmp_path / "again") == 0
    assert set(Collected(tmp_path / "again").files) <= set(after.files)


def change_line(path: Path, number: int, change: Callable[[dict[str, Any]], Any]) -> str:
    """Change one line of a table; return the path that it had."""
    lines = path.read_bytes().splitlines(keepends=True)
    entry = json.loads(lines[number])
    named = str(entry["path"])
    change(entry)
    lines[number] = json.dumps(entry).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    return named


def test_a_line_that_is_not_listed_or_not_there_is_named(copied: Path) -> None:
    named = change_line(copied / "records.jsonl", 0, lambda entry: entry.update(path="glue/cola/other.json"))
    assert Collected(copied).problems == [
        f"glue/cola/other.json is not listed in {DIGESTS} (remove that if the file belongs to the folder): left out",
        f"1 file(s) listed in {DIGESTS} are not there: {named}",
    ]
    (copied / DIGESTS).unlink()
    (problem,) = read_evidence(copied).problems
    assert "glue/cola/other.json is the record of" in problem and "not of other: it was copied or changed" in problem


def test_a_changed_score_is_named_with_and_without_the_list(copied: Path) -> None:
    def improve(entry: dict[str, Any]) -> None:
        entry["content"]["scores"]["score"] = 1.0

    named = change_line(copied / "records.jsonl", 0, improve)
    said = f"{named} is not the file that was collected (its SHA-256 is not that in {DIGESTS}): left out"
    assert said in read_evidence(copied).problems
    (copied / DIGESTS).unlink()
    (problem,) = read_evidence(copied).problems
    assert f"{named} was changed after it was written (its checksum differs)" in problem


HOSTILE = (
    "../../hook.json",
    "/tmp/hook.json",
    "pretraining/../../hook/done.json",
    "pretraining/x/model.safetensors",
    "pretraining/x/metrics.jsonl",
    f"glue/cola/{'x' * 300}.json",
    "glue/cola/\ud800.json",
    "glue//x.json",
    "",
)


def test_a_line_that_leads_elsewhere_is_named_and_written_nowhere(copied: Path, tmp_path: Path) -> None:
    (copied / DIGESTS).unlink()
    count = len(Collected(copied).files)
    added = {"records.jsonl": [*HOSTILE, "mteb/evaluations/x.json", "glue/cola/x.json", "glue/cola/x.json"]}
    for table, paths in (added | {"runs.jsonl": ["mteb/evaluations/x.json/run.json"]}).items():
        with (copied / table).open("ab") as file:
            file.writelines(json.dumps({"path": path, "content": {}}).encode() + b"\n" for path in paths)
    found = RunFiles(copied)
    assert len(found.problems) == len(HOSTILE) + 2
    assert len(contents(found.root)) == count + 2
    assert all(path.is_relative_to(tmp_path / "copied") for path in tmp_path.rglob("*") if path.is_file())


def test_a_line_that_is_larger_than_any_record_is_not_read(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(Collected(copied).files)
    monkeypatch.setattr(collected, "MOST_LINE_BYTES", 4000)
    found = Collected(copied)
    assert set(found.files) < before and any("is damaged: left out" in problem for problem in found.problems)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "flip": lambda content: content.replace(b"metrics", b"matrics", 1),
    "torn": lambda content: content[:50],
    "list": lambda content: b"[]",
    "no checksum": lambda content: json_bytes({"files": {}}),
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("command", [copy, figures])
def test_a_changed_list_of_digests_is_refused(
    copied: Path, tmp_path: Path, change: str, command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied / DIGESTS
    content = CHANGES[change](path.read_bytes())
    assert content != path.read_bytes()
    path.write_bytes(content)
    assert command(copied, tmp_path / "out") == 3
    said = capsys.readouterr().err
    assert f"restore {path}, or remove it" in said and said.count("\n") == 1 and not (tmp_path / "out").exists()


# Writing


def test_a_folder_without_its_list_is_listed_again_when_it_is_collected_into(copied: Path, runs: Path) -> None:
    before = contents(copied)
    (copied / DIGESTS).unlink()
    assert copy(runs, copied) == 0 and contents(copied) == before


@pytest.mark.parametrize("writes", range(4))
def test_a_kill_after_any_write_loses_nothing_and_collecting_again_completes_it(
    copied: Path, runs: Path, tmp_path: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Study(tmp_path / "elsewhere")
    with_predictions(other, ["M1"], ("cola",))
    other.metrics("M1")
    before = Collected(copied).files
    shutil.copytree(copied, tmp_path / "expected")
    assert copy(other.root, tmp_path / "expected") == 0
    written: list[Path] = []

    def killed(path: Path, content: bytes) -> None:
        if len(written) == writes:
            raise OSError(5, "killed")
        written.append(path)
        replace_file(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(collected, "replace_file", killed)
        assert copy(other.root, copied) == 1
    found = Collected(copied)
    assert found.files == before and all("is not listed in" in problem for problem in found.problems)
    assert copy(other.root, copied) == 0
    assert contents(copied) == contents(tmp_path / "expected")


@pytest.mark.parametrize("name", [*TABLES, DIGESTS])
def test_a_link_in_out_is_not_written_through(
    runs: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").write_bytes(b"")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "precious")
    assert copy(runs, tmp_path / "out") == (3 if name == DIGESTS else 1)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and ("leads out of" in said or "is a link out of the folder" in said)
    assert not (tmp_path / "precious").read_bytes()


def test_a_table_that_is_a_link_out_of_the_folder_is_named_and_not_read(copied: Path, tmp_path: Path) -> None:
    (copied / "curves.jsonl").rename(tmp_path / "private.jsonl")
    (copied / "curves.jsonl").symlink_to(tmp_path / "private.jsonl")
    assert "curves.jsonl is a link out of the folder: left out" in read_evidence(copied).problems


def test_a_forecast_made_in_a_collected_folder_is_in_its_table_and_listed(copied: Path) -> None:
    facts = {"scale": "smoke", "data": "synthetic", "budgets": ("a", "b"), "seeds": 3, "predictions": ()}
    none: dict[str, Any] = {"left_out": (), "records": (), "present": (), "commit": None, "dirty": None}
    forecast = Forecast.model_validate({"id": ID, **facts, **none})
    assert write_forecast(copied, forecast) == (copied / "runs.jsonl", True)
    assert write_forecast(copied, forecast) == (copied / "runs.jsonl", False)
    folder, problems = RunFiles(copied), []
    assert list(read_forecasts(folder, problems)) == [forecast] and not problems + folder.problems
