"""Mutants: faults put into a copy of the repository, one at a time, that the test named for each must notice."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tests.support.tree_copy import REPOSITORY, shell


@dataclass(frozen=True)
class Mutant:
    """A fault in a module: the `sound` text, which stands there once, is replaced by the `faulty` one. `test` is the
    one that notices it, as pytest names it without parameters."""

    module: str
    sound: str
    faulty: str
    test: str

    def text(self) -> str:
        """Return the module's text with the fault, which still compiles."""
        text = (REPOSITORY / self.module).read_text(encoding="utf-8")
        assert text.count(self.sound) == 1, f"{self.sound!r} does not stand once in {self.module}"
        changed = text.replace(self.sound, self.faulty)
        compile(changed, self.module, "exec")
        return changed

    def test_exists(self) -> bool:
        """Return whether the file of the test defines it."""
        path, _, name = self.test.partition("::")
        return f"\ndef {name}(" in (REPOSITORY / path).read_text(encoding="utf-8")


def require_passed(tree: Path, tests: Collection[str]) -> None:
    """Run tests in a copy of the repository and require that all pass."""
    done = shell(tree, f".venv/bin/python -m pytest -q {' '.join(sorted(tests))}")
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"


def require_noticed(tree: Path, mutant: Mutant) -> None:
    """Run the test of a mutant in a copy of the repository and require that it fails. The copy is restored."""
    (tree / mutant.module).write_text(mutant.text(), encoding="utf-8")
    try:
        done = shell(tree, f".venv/bin/python -m pytest -q -x {mutant.test}")
    finally:
        (tree / mutant.module).write_bytes((REPOSITORY / mutant.module).read_bytes())
    assert done.returncode == 1 and "FAILED" in done.stdout, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
