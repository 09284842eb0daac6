"""Mutants: faults put into a copy of the repository, one at a time, that the tests of a module must notice.

A drill has a table of mutants by name and the tests of each module. `test_every_fault_has_its_place` in the same file
keeps the table true without running anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.tree_copy import REPOSITORY, shell


@dataclass(frozen=True)
class Mutant:
    """A fault in a module: the `sound` text, which stands there once, is replaced by the `faulty` one."""

    module: str
    sound: str
    faulty: str

    def text(self) -> str:
        """Return the module's text with the fault, which still compiles."""
        text = (REPOSITORY / self.module).read_text(encoding="utf-8")
        assert text.count(self.sound) == 1, f"{self.sound!r} does not stand once in {self.module}"
        changed = text.replace(self.sound, self.faulty)
        compile(changed, self.module, "exec")
        return changed


def require_noticed(tree: Path, mutant: Mutant | None, tests: Mapping[str, str]) -> None:
    """Run the tests (by module) of a mutant in a copy of the repository, and require that one fails; without a mutant,
    run the tests of all modules and require that all pass. The copy is restored."""
    wanted = sorted(set(tests.values())) if mutant is None else [tests[mutant.module]]
    if mutant is not None:
        (tree / mutant.module).write_text(mutant.text(), encoding="utf-8")
    try:
        done = shell(tree, f".venv/bin/python -m pytest -q -x {' '.join(wanted)}")
    finally:
        if mutant is not None:
            (tree / mutant.module).write_bytes((REPOSITORY / mutant.module).read_bytes())
    assert done.returncode == (1 if mutant else 0), f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert not mutant or " failed" in done.stdout or "FAILED" in done.stdout, done.stdout[-2000:]
