"""A field that goes leaves run files and records readable under their ids: made-up values, a sample of what commit
d02b01fd wrote, and a copy of the tree through the real commands."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.errors import DamagedFile
from neobert.evaluation.scores import HeldoutScore
from neobert.files import json_bytes
from neobert.identity import NUMERICS, Neutral, identity, plain
from neobert.kinds.glue import GlueStudy
from neobert.kinds.mteb import EmbeddingConfig, EmbeddingScores
from neobert.kinds.readouts import ReadoutConfig, ReadoutScore, RetiredReadout
from neobert.recipe import ANY, Value
from neobert.runs.kinds import KINDS
from neobert.runs.records import read_record
from neobert.runs.run_file import read_run_file
from tests.runs.test_new_knob import CODE, WRITE_RUN_FILE, ids_of, planned, run
from tests.support.tree_copy import REPOSITORY, apply_blocks, edit

SAMPLE = Path(__file__).with_name("written_by_d02b01fd.jsonl")
LAST = "commit d02b01fd was the last to have"
NOT_SAMPLED = {"corpus", "rates"}
"""Kinds without run files or records of their own, or that are younger than the sample."""


class Before(Value):
    width: int
    window: Annotated[int | None, Neutral(None)]
    place: str


class After(Value):
    """`Before` without two fields; no result depends on the second."""

    retired: ClassVar = {"window": None, "place": ANY}
    width: int


class Outer(Value):
    inner: tuple[After, ...]


@given(st.integers(), st.sampled_from(["here", "there"]))
def test_a_retired_field_is_dropped_at_its_neutral_value(width: int, place: str) -> None:
    before, after = Before(width=width, window=None, place=place), After(width=width)
    assert Outer.read({"inner": [plain(before)]}) == Outer(inner=(after,))
    assert identity(after) == identity({"width": width})


@given(st.integers())
def test_another_value_of_a_retired_field_is_refused_in_one_sentence(window: int) -> None:
    with pytest.raises(ValueError, match=f"this run used window {window}, which {LAST}"):
        Outer.read({"inner": [{"width": 1, "window": window}]})


def test_a_new_value_cannot_have_a_retired_field() -> None:
    with pytest.raises(ValueError, match="window"):
        After(width=1, window=None)  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with the sample."""
    root = tmp_path_factory.mktemp("written")
    for line in SAMPLE.read_text(encoding="utf-8").splitlines():
        file = json.loads(line)
        (root / file["path"]).parent.mkdir(parents=True, exist_ok=True)
        (root / file["path"]).write_bytes(json_bytes(file["content"]))
    return root


def folders(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder of every run of the sample, and its run.json as JSON."""
    for path in sorted(root.rglob("run.json")):
        yield path.parent, json.loads(path.read_bytes())


def test_every_run_file_is_read_and_has_the_id_that_it_names(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or is refused for what it used."""
    kinds, used = [], []
    for folder, content in folders(written):
        for mechanism, version in content["numerics"].items():
            monkeypatch.setitem(NUMERICS, mechanism, version)
        if retired := GONE.get(folder.name):
            with pytest.raises(DamagedFile, match=re.escape(f"this run used {retired}, which {LAST}")):
                read_run_file(folder)
            used.append(retired)
            continue
        run_file = read_run_file(folder)
        assert run_file.run.id == run_file.id == folder.name, folder
        kinds.append(run_file.run.kind)
        if isinstance(run_file.run, GlueStudy):
            trials = {run_file.run.trial_id(point) for point in run_file.run.points}
            task = written / "glue" / run_file.run.task
            assert trials >= {path.stem for path in task.glob("*.json")} != set()
    assert set(kinds) == KINDS.keys() - NOT_SAMPLED and len(kinds) + len(used) >= 15 and set(used) == set(GONE.values())


GONE = {
    "0c20b66c65c7": 'objective "causal"',
    "4927cafd7c7c": 'mixed_origins {"novels": "directory:36ec3940bbef"}',
    "5ab9e3506fcf": "the optimizer muon",
}
"""Runs of the sample that used what is no more, and what that is."""


def test_every_record_is_read(written: Path) -> None:
    kinds, retired = [], set[str]()
    for path in sorted(written.rglob("*.json")):
        content = json.loads(path.read_bytes())
        if content.get("kind") not in KINDS or path.parent.name in GONE:
            continue
        record = read_record(path)
        if (readout := record["config"].get("readout")) in get_args(RetiredReadout):
            with pytest.raises(ValueError, match=f"this run used the readout {readout}, which {LAST}"):
                ReadoutConfig.read(record["config"])
            retired.add(readout)
            continue
        config, scores = record["config"], record["scores"]
        if record["kind"] == "mteb":
            assert EmbeddingConfig.read(config) and EmbeddingScores.read(scores)
        if record["kind"] == "readouts":
            assert ReadoutConfig.read(config) and all(map(ReadoutScore.read, scores.values()))
        if record["kind"] == "pretraining":
            assert all(map(HeldoutScore.read, scores["heldout"]))
        kinds.append(record["kind"])
    assert set(kinds) == KINDS.keys() - NOT_SAMPLED and len(kinds) >= 15
    assert retired == set(get_args(RetiredReadout))


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A copy of the tree in which `Data` has a field more, and one that has retired it."""
    having, without = (tmp_path_factory.mktemp(name) for name in ("having", "without"))
    for root in (having, without):
        for name in CODE:
            ignored = shutil.ignore_patterns("__pycache__", "out", "study*", "UD_*", "*.jsonl")
            shutil.copytree(REPOSITORY / name, root / name, ignore=ignored)
    apply_blocks(having, "a field")
    field = "    corpus: str\n    tokenizer: Literal"
    edit(without / "neobert" / "recipe.py", field, f'    retired: ClassVar = {{"deduplicated": False}}\n{field}')
    return having, without


def test_runs_from_before_a_field_went_are_those_of_the_plan(trees: tuple[Path, Path], tmp_path: Path) -> None:
    """The run that used the field stays where it is, and the plan is not stopped by it."""
    having, without = trees
    runs = {}
    for name in ("M8", "M8@deduplicated"):
        runs[name] = Path(run(having, "-c", WRITE_RUN_FILE, str(tmp_path / "runs"), name).strip())
    flags = ("--variant", "M8", "--stages", "pretrain")
    plan = planned(without, tmp_path / "runs", *flags)
    assert ids_of(plan) == ids_of(planned(REPOSITORY, tmp_path / "none", *flags)) and runs["M8"].name in plan
    assert run(without, "-c", READ, str(runs["M8"])).strip() == runs["M8"].name
    refused = run(without, "-c", READ, str(runs["M8@deduplicated"]))
    assert f"recipe.data: this run used deduplicated true, which {LAST}" in refused


READ = """
import sys
from pathlib import Path
from neobert.errors import DamagedFile
from neobert.runs.run_file import read_run_file

try:
    print(read_run_file(Path(sys.argv[1])).run.id)
except DamagedFile as error:
    print(error)
"""
