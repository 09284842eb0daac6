"""A field that goes leaves run files and records readable under their ids: a sample of what commit d02b01fd wrote."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from neobert.errors import DamagedFile
from neobert.evaluation.scores import HeldoutScore
from neobert.files import json_bytes
from neobert.identity import NUMERICS
from neobert.kinds.glue import GlueStudy
from neobert.kinds.mteb import EmbeddingConfig, EmbeddingScores
from neobert.kinds.readouts import ReadoutConfig, ReadoutScore, RetiredReadout
from neobert.runs.kinds import KINDS
from neobert.runs.records import read_record
from neobert.runs.run_file import read_run_file

SAMPLE = Path(__file__).with_name("written_by_d02b01fd.jsonl")
LAST = "this version no longer has"
NOT_SAMPLED = {"corpus", "rates"}
"""Kinds without run files or records of their own, or that are younger than the sample."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with the sample."""
    root = tmp_path_factory.mktemp("written")
    for line in SAMPLE.read_text(encoding="utf-8").splitlines():
        file = json.loads(line)
        (root / file["path"]).parent.mkdir(parents=True, exist_ok=True)
        (root / file["path"]).write_bytes(json_bytes(file["content"]))
    return root


def test_every_run_file_is_read_and_has_the_id_that_it_names(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or is refused for what it used."""
    kinds, used = [], []
    for path in sorted(written.rglob("run.json")):
        folder, content = path.parent, json.loads(path.read_bytes())
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
    "07763cb80563": "final_rate 0.3",
    "0c20b66c65c7": 'objective "causal"',
    "4927cafd7c7c": 'mixed_origins {"novels": "directory:36ec3940bbef"}',
    "5ab9e3506fcf": "the optimizer muon",
    "93f14dc9aa49": "drawn_up_to 0.65",
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
