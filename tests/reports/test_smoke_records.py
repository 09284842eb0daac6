"""The committed records hold the numbers that were recorded; the smoke figures of docs and their page are theirs."""

import hashlib
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablations import loading
from neobert.glue.tasks import TASKS
from neobert.runs.collected import ARCHIVE, RunFiles
from neobert.runs.kinds import record_paths
from neobert.runs.records import read_record
from reports.figures import figure1
from reports.figures.figure1 import Bars, find_bars
from reports.figures.glue_tables import table3
from reports.frames import read_frames
from reports.rows import Study, read_study
from reports.tables import number
from tests.support.golden_files import GoldenFiles

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDS, DOCS = REPOSITORY / "reports" / "pipeline_check", REPOSITORY / "docs"
PAGE = " ".join((DOCS / "pipeline-check.md").read_text(encoding="utf-8").split())
OF_THE_FORM = ("schema", "checksum")

pytestmark = pytest.mark.usefixtures("papers_ladder")


@pytest.fixture(scope="module")
def group(papers_ladder: None) -> Study:
    return read_study(read_frames(loading.papers(), RECORDS), "smoke", "synthetic")


@pytest.fixture(scope="module")
def bars(group: Study) -> Bars:
    return find_bars(group)


def test_the_page_has_the_averages_and_seeds_of_the_records(bars: Bars) -> None:
    """A failure shows the words that belong there."""
    words, repeated = [], 0
    for bar in bars.bars:
        assert bar.score is not None and bars.study.is_average_of_eight
        scores = list(bar.score.by_seeds.values())
        words.append(f"{bar.row.name} {number(bar.score.mean)}")
        if bar.score.spread is not None:
            repeated += 1
            words[-1] += f" ± {number(bar.score.spread)} (one standard deviation over {len(scores)} seeds)"
            assert f"({bar.row.name}: {', '.join(map(number, scores))})" in PAGE
            assert f"up to {number(max(scores) - min(scores))} points" in PAGE
    assert repeated and f"{', '.join(words)}." in PAGE


def test_the_page_names_the_commits_of_the_records() -> None:
    said = re.search(r"These records are of (?:commit|commits) ([^.]*)\.", PAGE)
    assert said is not None
    named = re.findall(r"`([0-9a-f]{7})`( with uncommitted changes)?", said[1])
    records = [read_record(path) for path in record_paths(RunFiles(RECORDS).root)]
    made = {(record["commit"][:7], record["dirty"]) for record in records}
    assert {(commit, bool(is_dirty)) for commit, is_dirty in named} == made


def test_table_3_of_the_docs_is_that_of_the_records(group: Study) -> None:
    assert (DOCS / "table3-smoke.md").read_text(encoding="utf-8") == table3(group).markdown


def test_figure_1_of_the_docs_is_that_of_the_records(group: Study, tmp_path: Path) -> None:
    """Pixel by pixel: the bytes also depend on the machine's compression library."""
    from matplotlib.image import imread

    picture = figure1.draw(group)
    assert picture is not None
    made = tmp_path / "figure1.png"
    made.write_bytes(picture.files("figure1")["figure1.png"])
    assert np.array_equal(imread(made), imread(DOCS / "figure1-smoke.png"))


def test_the_gains_of_pretraining_are_those_of_their_record() -> None:
    scores = json.loads((DOCS / "pipeline-check.json").read_text(encoding="utf-8"))["random_weights"]["tasks"]
    columns = [[statistics.fmean(scores[task][name]) for task in TASKS] for name in ("pretrained", "random_weights")]
    for task, trained, untrained in zip(TASKS, *columns, strict=True):
        row = f"| {TASKS[task].title} | {trained:.1f} | {untrained:.1f} | {trained - untrained:+.1f} |"
        assert row in PAGE
    seeds = [statistics.fmean(scores[task]["pretrained"][seed] for task in TASKS) for seed in range(3)]
    assert f"averages {', '.join(f'{seed:.1f}' for seed in seeds)}" in PAGE


def digests_of(root: Path) -> dict[str, str]:
    """How many files a folder of runs has by kind, and a hash of all that they say."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("*.json")):
        content: Any = json.loads(path.read_bytes())
        stem, (folder, *_) = path.stem, path.relative_to(root).parts
        kind = content.get("kind") or (stem if stem in ("run", "selection") else folder)
        found[kind].append(json.dumps({key: content[key] for key in sorted(content) if key not in OF_THE_FORM}))
    found["curve"] = [path.read_text() for path in sorted(root.rglob("*.jsonl"))]
    return {
        kind: f"{len(texts)}: {hashlib.sha256(json.dumps(sorted(texts)).encode()).hexdigest()}"
        for kind, texts in found.items()
    }


def test_the_committed_records_are_an_archive_that_says_what_was_recorded(golden: GoldenFiles) -> None:
    assert {path.name for path in RECORDS.iterdir()} == {ARCHIVE, "README.md"}
    golden.compare_entries("committed_records.json", {"pipeline_check": digests_of(RunFiles(RECORDS).root)})
