"""What programs read: errors and results as JSON."""

import importlib
import json
from pathlib import Path

import pytest

from ablations import run
from neobert.command_line import ERROR_KINDS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--variant", "M77"], 2, "there is no variant 'M77': did you mean 'M7'"),
        (["--variant", "M7", "--data", "nowhere"], 3, "nowhere"),
        (["--varaint", "M7"], 2, "unrecognized arguments: --varaint M7"),
    ],
)
def test_errors_under_json_are_one_line_of_it(
    words: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended: object = run.main([*words, "--runs", str(tmp_path), "--json"])
    except SystemExit as exited:
        ended = exited.code
    said = capsys.readouterr()
    error = json.loads(said.err)["error"]
    assert (ended, error["code"], error["kind"], said.out) == (code, code, ERROR_KINDS[code], "")
    assert message in error["message"]


@pytest.mark.parametrize(
    "name",
    [
        *(f"ablations.{name}" for name in ("run", "status", "prefetch")),
        *(f"sweeps.{name}" for name in ("glue_grid", "learning_rates", "mteb_suite")),
        *(f"reports.{name}" for name in ("make_figures", "collect")),
        "neobert.export.__main__",
        "neobert.runs.worker",
    ],
)
def test_every_command_that_prints_takes_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the worker, which jobs run."""
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main(["--help"])
    assert ended.value.code == 0 and ("--json" in capsys.readouterr().out) == (name != "neobert.runs.worker")
