"""What programs read: errors and results as JSON."""

import json
from pathlib import Path

import pytest

from ablations import run
from neobert.command_line import ERROR_KINDS


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--variant", "M77"], 2, "there is no variant 'M77': did you mean 'M7'"),
        (["--variant", "M7", "--data", "nowhere"], 3, "nowhere"),
        (["--varaint", "M7"], 2, "did you mean '--variant'"),
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
