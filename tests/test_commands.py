"""`neobert-ablations`: every command under one name, from one table."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ablations import loading
from neobert import __main__ as commands
from neobert.__main__ import COMMANDS
from neobert.errors import EXIT_DONE, EXIT_REFUSED

ROOT = Path(__file__).parent.parent
DEMO = "examples/demo.py"
FIRST_OF_PACKAGES = {module.partition(".")[0]: name for name, (module, _) in reversed(COMMANDS.items())}
"""A command of each package."""


def test_the_script_is_the_dispatcher() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"neobert-ablations": f"{commands.__name__}:{commands.main.__name__}"}


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
    code = f"import sys; from neobert.__main__ import main; main(['-h']); print(set({modules!r}) & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "set()"


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A folder whose owner has packages, folders and modules with the names of ours."""
    for name in ("ablations", "reports"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(f'{__name__} is somebody else')")
    (tmp_path / "sweeps.py").write_text("raise SystemExit(f'{__name__} is somebody else')")
    return tmp_path


@pytest.mark.parametrize("name", FIRST_OF_PACKAGES.values())
def test_the_command_is_ours_where_the_working_folder_has_packages_of_the_same_names(crowded: Path, name: str) -> None:
    environment = os.environ | {"PYTHONPATH": f"{crowded}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "neobert", name, "--help"]
    ended = subprocess.run(command, cwd=crowded, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "usage:" in ended.stdout, ended.stderr


def test_commands_work_without_docstrings_and_asserts() -> None:
    """In one process, which compiles all that they import once."""
    given = [*([name, "--help"] for name in COMMANDS), ["run", "--list"], ["run", "--ladder", DEMO, "--list"]]
    code = f"""if True:
        from neobert.__main__ import main
        from neobert.runs import worker
        for command, words in [*((main, each) for each in {given!r}), (worker.main, ["--help"])]:
            try:
                code = command(words)
            except SystemExit as ended:
                code = ended.code
            print("ended", code, flush=True)"""
    environment = os.environ | {"PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    *said, last = ended.stdout.split("ended 0\n")
    assert len(said) == len(given) + 1 and all(map(str.strip, said)) and not last, ended.stdout + ended.stderr


def test_the_title_of_a_ladder_is_its_files_first_line_without_docstrings_too() -> None:
    path = ROOT / "examples" / "parts.py"
    code = f"from ablations import loading; print(loading.load({str(path)!r}).title)"
    said = subprocess.check_output([sys.executable, "-OO", "-c", code], cwd=ROOT, text=True)
    assert said.strip() == loading.load(str(path)).title
    assert path.read_text(encoding="utf-8").startswith(f'"""{said.strip()}')
