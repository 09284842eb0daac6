"""What run.py --gc prints and does: all that may go, and with --delete its removal."""

import json
from collections.abc import Sequence

from ablations.garbage import Garbage
from ablations.retention import collect, collectable, obstacles
from neobert.console import logs, output, quantity, table
from neobert.layout import Layout


def clean(layout: Layout, *, delete: bool, as_json: bool) -> None:
    """Print what may go; `delete` removes it first and prints what went.

    Raises:
        MissingData: there is no such folder.
    """
    garbage = collectable(layout)
    removed = set(collect(layout, garbage)) if delete else set()
    for obstacle in obstacles(layout):
        logs().print(f"what this may refer to stays: {obstacle}", markup=False)
    if as_json:
        print(json.dumps([_entry(layout, one, one in removed) for one in garbage], indent=1))
        return
    cells = [(one.path.relative_to(layout.root), _size([one]), one.reason) for one in garbage]
    if cells:
        output().print(table(f"Garbage in {layout.root}", ("path", "size", "reason"), cells))
    output().print(_summary(garbage, removed, delete=delete), markup=False)


def _entry(layout: Layout, garbage: Garbage, is_removed: bool) -> dict[str, object]:
    path = str(garbage.path.relative_to(layout.root))
    return {"path": path, "bytes": garbage.bytes, "reason": garbage.reason, "removed": is_removed}


def _summary(garbage: Sequence[Garbage], removed: set[Garbage], *, delete: bool) -> str:
    if not delete:
        return f"{len(garbage)} could go, {_size(garbage)}" + ("; --gc --delete removes them" if garbage else "")
    kept = len(garbage) - len(removed)
    told = f"; {kept} stay: somebody took them up meanwhile" if kept else ""
    return f"{len(removed)} removed, {_size(list(removed))}{told}"


def _size(garbage: Sequence[Garbage]) -> str:
    return f"{quantity(sum(one.bytes for one in garbage))}B"
