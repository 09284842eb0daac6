"""What programs read: schemas that hold what commands print and records contain, errors as JSON, completed words."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from ablations import run, status
from neobert.command_line import ERROR_KINDS
from neobert.runs.collected import RunFiles
from neobert.runs.kinds import read_records
from reports import schemas
from sweeps import glue_grid

ROOT = Path(__file__).parent.parent
PARTS = ROOT / "declarations" / "parts.py"
SMOKE_RECORDS = ROOT / "reports" / "pipeline_check"


def test_the_schemas_are_current() -> None:
    """`make schemas` writes them."""
    assert schemas.main(["--check"]) == 0


@pytest.mark.parametrize("folder", ["pipeline_check", "study"])
def test_committed_records_are_what_the_schemas_say(folder: str) -> None:
    files = RunFiles(ROOT / "reports" / folder)
    records, problems = read_records(files.root)
    models = {kind: schemas.record_of(kind) for kind in schemas.RECORD_TYPES}
    for record in records[::5]:
        models[record["kind"]].read(record)
    assert len(records) > 50 and not problems


@pytest.mark.parametrize(
    ("schema", "main", "words"),
    [
        ("ladder", run.main, ["--list", "--json"]),
        ("plan", run.main, ["--variant", "M0", "M9", "--dry-run", "--json"]),
        ("status", status.main, ["--json"]),
    ],
)
def test_what_commands_print_is_what_the_schemas_say(
    schema: str, main: Any, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = SMOKE_RECORDS if schema == "status" else tmp_path
    assert main([*words, "--runs", str(runs)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(TypeAdapter(schemas.SCHEMAS[schema]).validate_python(printed)) >= 2


@pytest.mark.parametrize(
    ("main", "words", "code", "message"),
    [
        (run.main, ["--variant", "M77"], 2, "there is no variant 'M77': did you mean 'M7'"),
        (run.main, ["--variant", "M7", "--data", "nowhere"], 3, "nowhere"),
        (run.main, ["--varaint", "M7"], 2, "did you mean '--variant'"),
        (
            run.main,
            ["--ladder", str(PARTS), "--variant", "M7", "--declaration", str(PARTS.with_suffix(".json"))],
            2,
            "declares data",
        ),
        (glue_grid.main, ["--task", "cola", "--variant", "M5"], 3, "M5 is not pre-trained"),
    ],
)
def test_errors_under_json_are_one_line_of_it(
    main: Any, words: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended = main([*words, "--runs", str(tmp_path), "--json"])
    except SystemExit as exited:
        ended = exited.code
    said = capsys.readouterr()
    error = schemas.Error.model_validate_json(said.err).error
    assert (ended, error.code, error.kind, said.out) == (code, code, ERROR_KINDS[code], "")
    assert message in error.message


@pytest.mark.parametrize(
    "name",
    [
        *(f"ablations.{name}" for name in ("run", "status", "prefetch", "real_text")),
        *(f"sweeps.{name}" for name in ("glue_grid", "learning_rates", "mteb_suite")),
        *(f"reports.{name}" for name in ("make_figures", "collect", "forecast", "referee")),
        "neobert.export.__main__",
        "neobert.runs.worker",
    ],
)
def test_every_command_that_prints_takes_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the worker, which jobs run."""
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main(["--help"])
    assert ended.value.code == 0 and ("--json" in capsys.readouterr().out) == (name != "neobert.runs.worker")


def test_words_are_completed(tmp_path: Path) -> None:
    """As argcomplete asks: by variables, with the answer in a file."""
    pytest.importorskip("argcomplete")
    line, answer = "run.py --zero", tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run([sys.executable, ROOT / "ablations" / "run.py"], env=os.environ | asked, check=False)
    assert answer.read_text().split() == ["--zero-shot"]


def test_commands_say_that_they_can_be_completed() -> None:
    scripts = [path for room in ("ablations", "sweeps", "reports") for path in (ROOT / room).glob("*.py")]
    commands = [path for path in scripts if re.search(r"sys\.path(\[0\] =|\.insert)", path.read_text())]
    assert len(commands) == 11
    assert not [path.name for path in commands if "PYTHON_ARGCOMPLETE_OK" not in path.read_text()[:1024]]
