"""JSON schemas of what programs read: run files, records, plans, rows of status, reports and errors.

python -m reports.schemas               write docs/schemas/*.json anew
python -m reports.schemas --check       exit code 4 where a file there is not what this version writes
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, create_model

from neobert.command_line import guarded, parser_from
from neobert.errors import EXIT_DONE, ParityOff
from neobert.files import json_bytes, replace_file
from neobert.identity import neutral_values, plain
from neobert.recipe import Value
from neobert.runs import records
from neobert.runs.index import Row, State
from neobert.runs.kinds import KINDS
from neobert.runs.records import Open
from neobert.runs.run_file import RunFile
from reports.forecasts.sealed import Forecast
from reports.logs.judging import Report as RefereeReport

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Labels(Open):
    """What people call a run; decides nothing."""

    scale: str
    data: str
    variants: tuple[str, ...] = ()
    model: str | None = None


RECORD_TYPES: Mapping[str, tuple[Any, Any]] = {
    **{kind: (work.config, work.scores) for kind, work in KINDS.items() if work.record_place},
    "throughput": (records.ThroughputConfig, records.ThroughputScores),
}
"""(config, scores) of each kind of record."""


def record_of(kind: str) -> type[Value]:
    """Return the model of a kind of record."""
    config, scores = RECORD_TYPES[kind]
    common: dict[str, Any] = {
        "kind": (Literal[kind], ...),
        "schema_version": (int, Field(records.SCHEMA, alias="schema", ge=1, le=records.SCHEMA)),
        "id": (str, ...),
        "state": (Literal[records.RECORD_STATES], ...),
        "seed": (int, ...),
        "inputs": (dict[str, Any], {}),
        "labels": (Labels if kind != "throughput" else dict[str, Any], ... if kind != "throughput" else {}),
        "config": (config, ...),
        "scores": (scores, ...),
        "machine": (dict[str, Any], {}),
        "started_at": (datetime | None, None),
        "finished_at": (datetime | None, None),
    }
    return create_model(f"{kind}_record", __base__=Open, __doc__=f"A {kind} record (docs/records.md).", **common)


class PlannedPart(Value):
    """One run of a plan: its kind and stage in words, its id, and the folder of its result."""

    kind: str
    id: str
    state: State
    folder: str


class RegimeCheck(Value):
    """A regime check (ablations/regime.py); `number` is None where it is not known yet."""

    name: str
    number: float | None
    bound: float
    holds: bool
    words: str


class PlanRow(Value):
    """A variant and seed in `run.py --dry-run --json`. `delta` is {path: [before, after]} against the parent, and
    `unrepresented` the fields that the variant changes and the scale makes equal; costs are None where nothing tells
    them."""

    variant: str
    seed: int
    scale: str
    parameters: int
    tokens: int
    flops: float
    delta: dict[str, list[Any]]
    unrepresented: list[str]
    regime: list[RegimeCheck]
    stages: list[PlannedPart]
    skipped: dict[str, str]
    memory_gb_per_gpu: float | None
    gpu_hours: float | None
    gpu_hours_source: str | None
    gpu_hours_without: list[str]
    disk_gb: float | None
    near_misses: list[dict[str, Any]]


class LadderRow(Value):
    """A variant in `run.py --list --json`."""

    name: str
    parent: str | None
    kept: bool
    title: str
    source: str
    delta: dict[str, list[Any]]
    unrepresented: list[str]
    pretraining_id: str
    stages: int
    glue_grid: int
    state: State


class Outcome(Open):
    """A checkpoint of a variant in what `run.py --json` prints at the end; scores of GLUE are 0 to 1, by task."""

    variant: str
    seed: int
    context: int
    pretraining: str
    state: State
    heldout_loss: float | None
    glue: dict[str, float | None]


class Report(Open):
    """A study in `make_figures.py --json`: scores in points by variant, and the files that were written."""

    scale: str
    data: str
    quantity: str
    scores: dict[str, float | None]
    files: list[str]


class ErrorDetails(Value):
    """`code` is the exit code (docs/guide.md), `kind` the word for it, `message` one sentence for people."""

    code: int
    kind: Literal["run_failed", "refused", "missing", "off", "to_be_continued", "interrupted"]
    program: str
    message: str


class Error(Value):
    """What a command writes on stderr under --json before it ends with another code than 0."""

    error: ErrorDetails


SCHEMAS: dict[str, Any] = {
    "run_file": RunFile,
    **{f"record_{kind}": record_of(kind) for kind in RECORD_TYPES},
    "plan": list[PlanRow],
    "ladder": list[LadderRow],
    "outcome": list[Outcome],
    "status": list[Row],
    "report": list[Report],
    "forecast": Forecast,
    "referee": RefereeReport,
    "error": Error,
}
"""Described types by file name."""


def schema_of(described: Any) -> dict[str, Any]:
    """Return the JSON schema of a type. Fields that were added later are optional: in older files they are missing,
    which means the neutral value."""
    schema = TypeAdapter(described).json_schema()
    classes = {each.__name__: each for each in _subclasses(Value)}
    for name, definition in [(schema.get("title"), schema), *schema.get("$defs", {}).items()]:
        for field, value in neutral_values(classes[name]).items() if name in classes else ():
            definition["properties"][field]["default"] = plain(value)
            definition["required"] = [each for each in definition.get("required", ()) if each != field]
    return {"$schema": DIALECT, **schema}


def _subclasses(base: type[Value]) -> list[type[Value]]:
    return [each for direct in base.__subclasses__() for each in (direct, *_subclasses(direct))]


def schema_files() -> dict[str, bytes]:
    return {f"{name}.json": json_bytes(schema_of(described)) for name, described in SCHEMAS.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 4 a file is not current)."""
    parser = parser_from("python -m reports.schemas", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and say whether the files are current")
    options = parser.parse_args(arguments)
    return guarded("reports.schemas", lambda: _run(check=options.check), FOLDER)


def _run(*, check: bool) -> int:
    files = schema_files()
    if check:
        there = {path.name: path.read_bytes() for path in FOLDER.glob("*.json")}
        stale = [name for name in files | there if files.get(name) != there.get(name)]
        if stale:
            raise ParityOff(f"{', '.join(stale)} in docs/schemas are not current: run make schemas, and read the diff")
        return EXIT_DONE
    for name, content in files.items():
        replace_file(FOLDER / name, content)
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
