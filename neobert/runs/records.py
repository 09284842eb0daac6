"""Records: one JSON file for each finished part of a run, written once, after all its other files.

Records and run files are sealed: they contain the version of their schema and of each mechanism, and the SHA-256 of
their content. A file of an older schema is upgraded when it is read.
"""

import base64
import errno
import json
import math
import os
import platform
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from neobert.errors import DamagedFile, NewerFile
from neobert.files import checksum_of, json_bytes, publish_once, read_json, set_aside
from neobert.identity import NUMERICS, Neutral
from neobert.processes import REPOSITORY
from neobert.recipe import Value

SCHEMA = 3
NUMERICS_BEFORE_SCHEMA_2 = {"batching": 2} | dict.fromkeys(
    ("tokenization", "masking", "model", "initialization", "optimization", "finetuning", "contrastive", "metrics"), 1
)
"""Numerics versions of the last code that wrote schema 1. Files of that schema do not contain them."""
SNAPSHOT_FILE = "snapshot.json"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "scipy", "mteb")
RECORD_STATES = ("done", "pruned", "failed")
RECORDS = (
    "pretraining/*/done.json",
    "contrastive/*/done.json",
    "glue/*/*.json",
    "mteb/*/*.json",
    "readouts/*/*.json",
    "throughput/*.json",
)


def git(*arguments: str) -> bytes | None:
    """Return what git prints in the repository; None without one."""
    command = ["git", *arguments]
    try:
        return subprocess.run(command, check=True, cwd=REPOSITORY, capture_output=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None


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
    status = git("status", "--porcelain", "--", ":/", ":(top,exclude)benchmarks/results")
    commit = git("rev-parse", "HEAD")
    return {"commit": commit and commit.decode().strip(), "dirty": None if status is None else bool(status)}


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def utc_now() -> str:
    """Return the time in UTC, to the second, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


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


def _upgraded_from_2(content: dict[str, Any]) -> dict[str, Any]:
    """Rename the scale `laptop` to `laptop1`, since schema 3 changed the rules of `laptop`."""
    labels = content.get("labels")
    if not isinstance(labels, dict) or labels.get("scale") != "laptop":
        return content
    return {**content, "labels": {**labels, "scale": "laptop1"}}


UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: lambda content: {**content, "numerics": NUMERICS_BEFORE_SCHEMA_2},
    2: _upgraded_from_2,
}
"""By schema: the function that upgrades the content of a file to the next schema."""


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file for `read_sealed`: `content` with schema, numerics versions and checksum."""
    whole = json.loads(json_bytes({"schema": SCHEMA, "numerics": NUMERICS, **content}))
    return json_bytes({**whole, "checksum": checksum_of(whole)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a sealed file, check its checksum, and upgrade it to the current schema.

    Raises:
        DamagedFile: the file is torn, or was changed after it was written.
        NewerFile: the file has a newer schema.
    """
    content = read_json(path)
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise DamagedFile(f"{path} has no schema version, so no version of this project wrote it: move it away")
    if schema > SCHEMA:
        raise NewerFile(
            f"{path} has schema {schema}, and this version reads up to {SCHEMA}: update the code that reads it"
        )
    checksum = content.pop("checksum", None)
    if (schema > 1 or checksum is not None) and checksum != checksum_of(content):
        raise DamagedFile(f"{path} was changed after it was written (its checksum differs): move it away")
    for version in range(schema, SCHEMA):
        content = UPGRADES[version](content)
    return {**content, "schema": SCHEMA}


def is_published(path: Path, read: Callable[[Path], Any] = read_sealed) -> bool:
    """Return whether a file exists and `read` finds it intact. If it is damaged, its part has to be done again."""
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    return _is_whole(read, path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(maxsize=1 << 17)
def _is_whole(read: Callable[[Path], Any], path: Path, size: int, modified_ns: int, inode: int) -> bool:
    """Read a file once as long as it does not change."""
    del size, modified_ns, inode
    try:
        read(path)
    except NewerFile:
        return True
    except DamagedFile:
        return False
    return True


def publish_sealed(path: Path, content: Mapping[str, Any]) -> bool:
    """Publish a sealed file once. Returns False if an intact one exists; a damaged one is set aside."""
    if os.path.lexists(path) and not is_published(path):
        set_aside(path, f"{path} is damaged")
    return publish_once(path, sealed(content))


def publish_record(path: Path, record: dict[str, Any]) -> bool:
    """Publish a record once. Returns False if one exists already."""
    assert record["state"] in RECORD_STATES, record["state"]
    return publish_sealed(path, record)


def read_record(path: Path) -> dict[str, Any]:
    """Read a record. Raises DamagedFile if it is torn, changed, not a record, or of a newer schema version."""
    record = read_sealed(path)
    if "kind" not in record or "id" not in record:
        raise DamagedFile(f"{path} is no record: it lacks kind and id")
    return record


def read_selection(path: Path) -> dict[str, Any]:
    """Read the file that closes a study, as `read_sealed` does. Early versions did not seal it."""
    content = read_json(path)
    if not isinstance(content, dict) or "trial" not in content or {"schema", "checksum"} & content.keys():
        return read_sealed(path)
    return content


def record_paths(root: Path) -> Iterator[Path]:
    """Yield every record file below a folder of runs, in a stable order."""
    for pattern in RECORDS:
        yield from sorted(root.glob(pattern))


def read_records(root: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return all readable records, and one sentence for each file that could not be read."""
    records, problems = [], []
    for path in record_paths(root):
        try:
            records.append(read_record(path))
        except (DamagedFile, OSError) as error:
            problems.append(str(error))
    return records, problems


ENGLISH_SUITE = "MTEB(eng, v1)"
ENGLISH_SUITE_V2 = "MTEB(eng, v2)"
Category = Literal[
    "classification", "clustering", "pair_classification", "reranking", "retrieval", "sts", "summarization"
]
Protocol = Literal["contrastive", "zero_shot"]
TASKS_IN_SUITE: Mapping[Category, int] = {  # paper, Table 4; CQADupstack's forums count as one task
    "classification": 12,
    "clustering": 11,
    "pair_classification": 3,
    "reranking": 4,
    "retrieval": 15,
    "sts": 10,
    "summarization": 1,
}


class EmbeddingConfig(Value):
    """One task on one encoder: after contrastive fine-tuning (Table 4) or as pre-trained (zero-shot, Figure 4).

    `suite` is MTEB(eng, v1) for its tasks, also if they are in v2; MTEB(eng, v2) for tasks that are only in v2; or a
    descriptive name for tasks of neither. `metric` is the task's main score.
    """

    task: str
    category: Category
    suite: str
    protocol: Protocol
    metric: str
    split: str
    revision: str | None


class EmbeddingScores(Value):
    """Main score, −1..1 as mteb returns it, and all metrics."""

    score: float = Field(ge=-1, le=1)
    metrics: dict[str, float]


class HeldoutScore(Value):
    """Loss on the held-out documents of a corpus under fixed masks, in one context (tokens).

    Part of the record of pre-training. `texts` identifies the set of documents; only losses on the same set are
    compared. `tokens` and `text_bytes` measure what is shown of them. `loss` is in nats per predicted token;
    `neobert.evaluation.heldout` explains `bits_per_byte` and what it can compare. `frequency_loss` is the loss of token
    frequencies alone on the same documents; None in records from before it was measured.

    `numerators` (nats, float32) and `denominators` (predicted tokens, int32) have one number per unit, packed as in
    `ReadoutScore`. A unit is a document, or a run of documents if there are more than 2,048, in the order of their
    hashes: those of records with the same `texts` are the same. None in the metrics and in older records.
    """

    corpus: str
    context: PositiveInt
    texts: str
    documents: PositiveInt
    tokens: PositiveInt
    text_bytes: PositiveInt
    predicted_tokens: PositiveInt
    loss: NonNegativeFloat
    bits_per_byte: NonNegativeFloat
    frequency_loss: Annotated[NonNegativeFloat | None, Neutral(None)]
    units: Annotated[PositiveInt | None, Neutral(None)]
    numerators: Annotated[str | None, Neutral(None)]
    denominators: Annotated[str | None, Neutral(None)]

    @model_validator(mode="after")
    def _has_the_loss_of_its_units(self) -> Self:
        if self.units is None and self.numerators is None and self.denominators is None:
            return self
        if self.units is None or self.numerators is None or self.denominators is None:
            raise ValueError("units, numerators and denominators are given together")
        nats = unpack_numbers(self.numerators, "<f4", self.units)
        tokens = unpack_numbers(self.denominators, "<i4", self.units)
        if tokens.min() < 0 or tokens.sum() != self.predicted_tokens:
            raise ValueError("denominators that do not add up to the predicted tokens")
        if not math.isclose(float(nats.sum(dtype="f8")) / self.predicted_tokens, self.loss, rel_tol=1e-5):
            raise ValueError("numerators that do not add up to the loss")
        return self

    @property
    def summary(self) -> Self:
        """The score without the numbers of its units."""
        return self.model_copy(update={"units": None, "numerators": None, "denominators": None})


class CurvePoint(Value):
    """Held-out loss on the small text after a step of a stage, in nats, and the real tokens of the stage until then."""

    step: PositiveInt
    tokens: PositiveInt
    loss: NonNegativeFloat


class Transition(Value):
    """When the held-out loss of a stage was `margin` nats below that of token frequencies for the first time.

    `tokens` are the stage's real tokens until then, and `step` its steps; both are interpolated between measurements in
    log tokens, and None for the `reason`. `steepest_step` is the step at which the loss falls fastest per log token,
    below the loss of frequencies; None if it never does. `curve` are the measurements. All losses are on one small
    text, the same for all runs with the same corpus, tokenizer and context (`neobert.training.transitions`).
    """

    margin: PositiveFloat
    frequency_loss: NonNegativeFloat
    tokens: PositiveFloat | None
    step: PositiveFloat | None
    steepest_step: PositiveFloat | None
    reason: str | None
    curve: tuple[CurvePoint, ...]

    @model_validator(mode="after")
    def _has_tokens_or_a_reason(self) -> Self:
        if (self.tokens is None) != (self.step is None) or (self.tokens is None) == (self.reason is None):
            raise ValueError("a transition has tokens and a step, or else a reason")
        return self


ReadoutName = Literal["loss", "loss_80_10_10", "words", "cloze", "pairs", "perplexity"]


class ReadoutConfig(Value):
    """Setting of a readout: the checkpoint after a stage (from 0), and the context in tokens.

    `items` identifies the texts and items: only records with the same ones are compared.
    """

    readout: ReadoutName
    stage: NonNegativeInt
    context: PositiveInt
    items: str


MOST_UNITS = 10_000_000
"""A record with more units is refused: a few MB of text could claim many GB of numbers."""


class ReadoutScore(Value):
    """Readout on the held-out text of one corpus: `value` is the sum of numerators over the sum of denominators.

    `numerators` (float32) and `denominators` (int32, or None if all are 1) have one number per unit (a stretch of text,
    or an item), in the order of the items: little-endian, compressed by zlib, in base64. For losses these are nats and
    predicted tokens; for words, bits and bytes of the masked words; for cloze items and pairs, 1 for a right answer.
    `groups` are values on some of the units: accuracy by grammatical rule, or the loss by length in tokens. Units of
    perplexity are the same documents at each of these lengths, in ascending order.
    """

    value: float
    units: Annotated[PositiveInt, Field(le=MOST_UNITS)]
    numerators: str
    denominators: str | None
    groups: dict[str, float]

    @model_validator(mode="after")
    def _has_a_number_for_each_unit(self) -> Self:
        above = unpack_numbers(self.numerators, "<f4", self.units)
        below = None if self.denominators is None else unpack_numbers(self.denominators, "<i4", self.units)
        if not math.isfinite(above.sum()) or (below is not None and (below.min() < 0 or below.sum() == 0)):
            raise ValueError("numerators that are no numbers, or denominators that add up to nothing")
        return self


def pack_numbers(numbers: Any, dtype: str) -> str:
    """Return an array as base64 of its compressed bytes in `dtype`."""
    import numpy as np

    return base64.b64encode(zlib.compress(np.asarray(numbers).astype(dtype).tobytes(), 9)).decode("ascii")


def unpack_numbers(text: str, dtype: str, count: int) -> Any:
    """Return the array that `pack_numbers` packed, (count,). Raises ValueError if the text or its length is wrong.

    No more than one byte above the expected length is unpacked, so that a short text cannot fill the memory.
    """
    import numpy as np

    expected, unpacker = count * np.dtype(dtype).itemsize, zlib.decompressobj()
    try:
        content = unpacker.decompress(base64.b64decode(text, validate=True), expected + 1)
    except zlib.error as error:
        raise ValueError(f"no packed numbers: {error}") from error
    if len(content) != expected or not unpacker.eof:
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
    """Real tokens a second: the median over steps after warm-up, and their standard deviation."""

    tokens_per_second: PositiveFloat
    spread: NonNegativeFloat
