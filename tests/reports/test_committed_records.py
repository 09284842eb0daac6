"""The committed records hold the numbers that were recorded, in few files, whatever form they are stored in."""

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from neobert.runs.collected import DIGESTS, TABLES, RunFiles
from tests.support.golden_files import GoldenFiles

REPORTS = Path(__file__).resolve().parents[2] / "reports"
FOLDERS = ("bf16_residual", "objectives", "pipeline_check", "study", "study_avx2")
OF_THE_FORM = ("schema", "checksum")


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


def test_the_committed_records_say_what_was_recorded(golden: GoldenFiles) -> None:
    golden.compare_entries(
        "committed_records.json", {name: digests_of(RunFiles(REPORTS / name).root) for name in FOLDERS}
    )


@pytest.mark.parametrize("name", FOLDERS)
def test_a_study_is_at_most_five_files_and_a_page(name: str) -> None:
    assert {path.name for path in (REPORTS / name).iterdir()} <= {*TABLES, DIGESTS, "README.md"}
