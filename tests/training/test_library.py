"""docs/library.md is true: its program trains and fine-tunes without a folder of runs."""

import re
from pathlib import Path

import pytest

from neobert.files import read_lines
from neobert.processes import REPOSITORY
from neobert.training import checkpoints

PAGE = (REPOSITORY / "docs" / "library.md").read_text(encoding="utf-8")


def test_the_program_of_the_page_packs_trains_and_fine_tunes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"^<!-- library -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    loss, metrics = capsys.readouterr().out.splitlines()
    lines = list(read_lines(tmp_path / "library-run" / "metrics.jsonl"))
    assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, 21))
    (heldout,) = (line for line in lines if line["event"] == "heldout" and line["step"] == 20)
    assert float(loss) == heldout["heldout_loss"] and metrics.startswith("{'matthews': ")
    assert checkpoints.steps_on_disk(tmp_path / "library-run" / "checkpoints")[-1] == 20
    assert not list(tmp_path.rglob("run.json")) and not list(tmp_path.rglob("claims"))
