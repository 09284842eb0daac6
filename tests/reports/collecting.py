"""A folder of runs is collected and reported, and two folders are compared."""

from pathlib import Path

from reports import collect, make_figures
from tests.reports.made_up_study import undrawn_figures


def copy(root: Path, out: Path) -> int:
    return collect.main(["--runs", str(root), "--out", str(out)])


def figures(root: Path, out: Path) -> int:
    with undrawn_figures():
        return make_figures.main(["--runs", str(root), "--out", str(out)])


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
