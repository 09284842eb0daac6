"""Records: one JSON file a finished unit of work, written once and last; plain files are the truth."""

import os
import platform
import subprocess
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from neobert.errors import DamagedFile
from neobert.files import json_bytes, publish_once, read_json

SCHEMA = 1
SNAPSHOT_FILE = "snapshot.json"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "scipy", "mteb")
RECORD_STATES = ("done", "pruned", "failed")


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).resolve().parent
    command = ["git", *arguments]
    try:
        answer = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


@cache
def code_state() -> dict[str, Any]:
    """The commit of the code and whether the tree differs from it, {commit, dirty}; None where nobody knows.

    A snapshot of the code brings both in a file, since it is no repository itself.
    """
    snapshot = Path(__file__).resolve().parent.parent / SNAPSHOT_FILE
    if snapshot.is_file():
        known = read_json(snapshot)
        return {"commit": known["commit"], "dirty": known["dirty"], "snapshot": known["id"]}
    status = _git("status", "--porcelain")
    return {"commit": _git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def _machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def provenance() -> dict[str, Any]:
    """Which code, packages and machine made a record."""
    return {
        **code_state(),
        "packages": {package: _version(package) for package in PACKAGES},
        "machine": _machine(),
    }


def publish_record(path: Path, record: dict[str, Any]) -> bool:
    """Publish a record once; False where one is there already."""
    assert record["state"] in RECORD_STATES, record["state"]
    return publish_once(path, json_bytes({"schema": SCHEMA, **record}))


def read_record(path: Path) -> dict[str, Any]:
    """One record.

    Raises:
        DamagedFile: torn, no record, or of another schema version.
    """
    record = read_json(path)
    if not isinstance(record, dict) or "kind" not in record or "id" not in record:
        raise DamagedFile(f"{path} is no record: it lacks kind and id")
    if record.get("schema") != SCHEMA:
        raise DamagedFile(f"{path} has record schema {record.get('schema')}, this version reads {SCHEMA}")
    return record


def record_paths(root: Path) -> Iterator[Path]:
    """Every record file below a folder of runs, in a stable order."""
    yield from sorted(root.glob("pretraining/*/done.json"))
    for pattern in ("contrastive/*/done.json", "glue/*/*.json", "mteb/*/*.json"):
        yield from sorted(root.glob(pattern))
    for pattern in ("pseudo_perplexity/*.json", "throughput/*.json"):
        yield from sorted(root.glob(pattern))


def read_records(root: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """All readable records and, apart from them, one sentence for each file that could not be read."""
    records, problems = [], []
    for path in record_paths(root):
        try:
            records.append(read_record(path))
        except DamagedFile as error:
            problems.append(str(error))
    return records, problems
