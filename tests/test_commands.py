"""Every command works without docstrings and asserts, and all that print take --json."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEMO = "examples/demo.py"
COMMANDS = (
    *(f"ablations.{name}" for name in ("run", "status", "prefetch")),
    *(f"sweeps.{name}" for name in ("glue_grid", "learning_rates", "mteb_suite")),
    *(f"reports.{name}" for name in ("make_figures", "collect")),
    *("neobert.export.__main__", "neobert.runs.worker"),
)


def test_commands_work_without_docstrings_and_asserts() -> None:
    """In one process, which compiles all that they import once."""
    given = [(name, ["--help"]) for name in COMMANDS]
    given += [("ablations.run", ["--list"]), ("ablations.run", ["--ladder", DEMO, "--list"])]
    code = f"""if True:
        from importlib import import_module
        for name, words in {given!r}:
            try:
                code = import_module(name).main(words)
            except SystemExit as ended:
                code = ended.code
            print("ended", code, flush=True)"""
    environment = os.environ | {"PYTHONOPTIMIZE": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    *said, last = ended.stdout.split("ended 0\n")
    assert len(said) == len(given) and all(map(str.strip, said)) and not last, ended.stdout + ended.stderr
    silent = [name for name, text in zip(COMMANDS, said, strict=False) if "--json" not in text]
    assert silent == ["neobert.runs.worker"], "which jobs run"
