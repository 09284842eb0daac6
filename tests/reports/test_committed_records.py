"""The committed records hold the numbers that were recorded, in one archive."""

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from neobert.runs.collected import ARCHIVE, RunFiles
from tests.support.golden_files import GoldenFiles

RECORDS = Path(__file__).resolve().parents[2] / "reports" / "pipeline_check"
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
    golden.compare_entries("committed_records.json", {"pipeline_check": digests_of(RunFiles(RECORDS).root)})


def test_committed_records_are_an_archive_and_a_page() -> None:
    assert {path.name for path in RECORDS.iterdir()} == {ARCHIVE, "README.md"}
