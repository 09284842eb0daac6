"""`neobert-ablations`: every command under one name, from one table."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ablations import commands
from ablations.commands import COMMANDS
from neobert.errors import EXIT_DONE, EXIT_REFUSED

ROOT = Path(__file__).parent.parent


def test_the_script_is_the_dispatcher() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"neobert-ablations": f"{commands.__name__}:{commands.main.__name__}"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        commands.main([name, "--help"])
    assert ended.value.code == EXIT_DONE and "usage:" in capsys.readouterr().out


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main([]) == EXIT_REFUSED and commands.main(["--help"]) == EXIT_DONE
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed and summary in listed for name, (_, summary) in COMMANDS.items())


def test_an_unknown_command_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["rum", "--variant", "M7"]) == EXIT_REFUSED
    assert "'rum' is no command: did you mean 'run'" in capsys.readouterr().err


def test_arguments_and_exit_codes_are_those_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert commands.main(["run", "--variant", "M77", "--runs", str(tmp_path)]) == EXIT_REFUSED
    assert "there is no variant 'M77': did you mean 'M7'" in capsys.readouterr().err


def test_listing_imports_no_command() -> None:
    modules = [module for module, _ in COMMANDS.values()]
    code = f"import sys; from ablations.commands import main; main(['-h']); print(set({modules!r}) & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "set()"
