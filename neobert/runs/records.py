"""Records: one JSON file for each finished part of a run, written once, after all its other files.

Records and run files are sealed: they contain the version of their schema and of each mechanism, and the SHA-256 of
their content.
"""

import base64
import json
import os
import platform
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from neobert.errors import DamagedFile, RunFailed
from neobert.execution import utc_now
from neobert.files import checksum_of, is_there, json_bytes, publish_once, read_json, set_aside, stamp_of, status_of
from neobert.identity import NUMERICS
from neobert.processes import REPOSITORY
from neobert.recipe import Value

Read = TypeVar("Read")

SCHEMA = 3
SNAPSHOT_FILE = "snapshot.json"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "scipy", "mteb")
RECORD_STATES = ("done", "failed")
CLOSING_RECORD = "done.json"
"""The name of a record that has a folder of its own; others are named after what they record."""


def git(*arguments: str) -> bytes | None:
    """Return what git prints in the repository of the code; None if the code is not the root of one, or git fails.
    Variables such as GIT_DIR, which name another repository, do not count."""
    if not (REPOSITORY / ".git").exists():
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        answer = subprocess.run(
            ["git", *arguments], check=False, cwd=REPOSITORY, env=environment, capture_output=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return None if answer.returncode else answer.stdout


@cache
def code_state() -> dict[str, Any]:
    """Return the commit of the code and whether the tree differs from it, {commit, dirty}; None if unknown.

    A snapshot of the code has both in a file, since it is no repository itself.
    """
    snapshot = REPOSITORY / SNAPSHOT_FILE
    if snapshot.is_file():
        known = read_json(snapshot)
        return {"commit": known["commit"], "dirty": known["dirty"], "snapshot": known["id"]}
    # Results of benchmarks are written between runs, and are not code.
    status = git("status", "--porcelain", "--untracked-files=normal", "--", ":/", ":(top,exclude)benchmarks/results")
    commit = git("rev-parse", "HEAD")
    return {"commit": commit and commit.decode().strip(), "dirty": None if status is None else bool(status)}


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def cpu_model() -> str | None:
    """Return the name of the processor's model; None if the system does not tell it."""
    known = Path("/proc/cpuinfo")
    if not known.exists():
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in known.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else None


def cpu_capability() -> str | None:
    """Return the instruction set that torch's kernels use, such as AVX512; None if this process has not imported
    torch."""
    torch = sys.modules.get("torch")
    return None if torch is None else str(torch.backends.cpu.get_cpu_capability())


def timed_provenance(started_at: str | None) -> dict[str, Any]:
    """Return the provenance of a record that is published now. `started_at`: when its first attempt began, see
    `utc_now`; None if that is not known."""
    return {**provenance(), "started_at": started_at, "finished_at": utc_now()}


def provenance() -> dict[str, Any]:
    """Return the code state, package versions and machine, without anything that identifies the machine."""
    return {
        **code_state(),
        "packages": {package: _version(package) for package in PACKAGES},
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cpu": cpu_model(),
            "cpu_capability": cpu_capability(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
    }


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file for `read_sealed`: `content` with schema, numerics versions and checksum."""
    whole = json.loads(json_bytes({"schema": SCHEMA, "numerics": NUMERICS, **content}))
    return json_bytes({**whole, "checksum": checksum_of(whole)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a sealed file and check its checksum.

    Raises:
        DamagedFile: the file is torn, or was changed after it was written.
        RunFailed: the file has a newer schema.
    """
    content = read_json(path)
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < SCHEMA:
        raise DamagedFile(f"{path} has no schema version that was released: move it away")
    if schema > SCHEMA:
        raise RunFailed(
            f"{path} has schema {schema}, and this version reads up to {SCHEMA}: update the code that reads it"
        )
    if content.pop("checksum", None) != checksum_of(content):
        raise DamagedFile(f"{path} was changed after it was written (its checksum differs): move it away")
    return dict(content)


def is_published(path: Path, read: Callable[[Path], Any] = read_sealed) -> bool:
    """Return whether a file exists and `read` finds it intact. If it is damaged, its part has to be done again. Raises
    OSError if it cannot be read."""
    status = status_of(path)
    return status is not None and _is_whole(read, path, stamp_of(status))


def read_once(path: Path, read: Callable[[Path], Read]) -> Read | None:
    """Return what `read` returns for a file, which is read once as long as it does not change; None if it does not
    exist or is damaged. As all results stay in memory, they should be small. Raises RunFailed, and OSError if it
    cannot be read."""
    status = status_of(path)
    if status is None:
        return None
    stamp, known = stamp_of(status), _contents.get((read, path))
    if known is None or known[0] != stamp:
        known = _contents[read, path] = stamp, _read_intact(path, read)
    content: Read | None = known[1]
    return content


_contents: dict[tuple[Callable[[Path], Any], Path], tuple[tuple[int, ...], Any]] = {}
"""By reader and file: the file's stamp and what the reader returned, None if the file is damaged."""


def _read_intact(path: Path, read: Callable[[Path], Read]) -> Read | None:
    try:
        return read(path)
    except DamagedFile:
        return None


@lru_cache(maxsize=1 << 17)
def _is_whole(read: Callable[[Path], Any], path: Path, stamp: tuple[int, ...]) -> bool:
    """Read a file once as long as it does not change."""
    del stamp
    return _read_intact(path, read) is not None


def publish_sealed(path: Path, content: Mapping[str, Any], read: Callable[[Path], Any] = read_sealed) -> bool:
    """Publish a sealed file once. Returns False if an intact one exists; one that `read` finds damaged is set aside."""
    if is_there(path, follow=False) and not is_published(path, read):
        set_aside(path, f"{path} is damaged")
    return publish_once(path, sealed(content))


def publish_record(path: Path, record: dict[str, Any]) -> bool:
    """Publish a record once. Returns False if one exists already."""
    assert record["state"] in RECORD_STATES, record["state"]
    return publish_sealed(path, record, read_record)


def read_record(path: Path) -> dict[str, Any]:
    """Read a record. Raises DamagedFile if it is torn, changed, not a record, or of a newer schema version, or if it is
    that of another unit than its folder or file is named after."""
    record = read_sealed(path)
    if "kind" not in record or "id" not in record:
        raise DamagedFile(f"{path} is no record: it lacks kind and id")
    unit = path.parent.name if path.name == CLOSING_RECORD else path.stem
    if record["id"] != unit:
        raise DamagedFile(f"{path} is the record of {record['id']} and not of {unit}: it was copied or changed")
    return record


def pack_numbers(numbers: Any, dtype: str) -> str:
    """Return an array as base64 of its compressed bytes in `dtype`."""
    import numpy as np

    return base64.b64encode(zlib.compress(np.asarray(numbers).astype(dtype).tobytes(), 9)).decode("ascii")


def unpack_numbers(text: str, dtype: str, count: int) -> Any:
    """Return the array that `pack_numbers` packed, (count,). Raises ValueError if the text or its length is wrong."""
    import numpy as np

    try:
        content = zlib.decompress(base64.b64decode(text, validate=True))
    except zlib.error as error:
        raise ValueError(f"no packed numbers: {error}") from error
    if len(content) != count * np.dtype(dtype).itemsize:
        raise ValueError(f"the packed text does not hold {count} numbers")
    return np.frombuffer(content, dtype=dtype)


class ThroughputConfig(Value):
    """One model at one sequence length, at the best batch size that was found."""

    model: str
    parameters: PositiveInt
    sequence_tokens: PositiveInt
    batch_size: PositiveInt
    precision: str
    compiled: bool
    steps: PositiveInt


class ThroughputScores(Value):
    """Real tokens per second: the median over steps after warm-up, and their standard deviation."""

    tokens_per_second: PositiveFloat
    spread: NonNegativeFloat
