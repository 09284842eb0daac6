"""Cleanup: the checkpoints of finished training that lie between its milestones.

Checkpoints at the milestones (step 0, quarters and the end) are results and stay. So does everything else in a folder
of runs: a corpus, for example, is tokenised again if its folder is removed.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from neobert.console import logs, output, quantity, table
from neobert.data.manifest import MANIFEST
from neobert.errors import DamagedFile, MissingData
from neobert.files import ABSENT, children, is_file, matching, read_json, temporary_sibling
from neobert.runs.claims import acquire, is_claimed
from neobert.runs.kinds import KINDS, is_done
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from neobert.training.schedule import milestones


@dataclass(frozen=True)
class Superseded:
    """A checkpoint that can go, and the id of its run, which is the name of the run's claim."""

    path: Path
    bytes: int
    run: str
    reason: str


def clean(layout: Layout, *, delete: bool, as_json: bool) -> None:
    """Print which checkpoints can go or, with `delete`, remove them and print which were removed.

    Raises MissingData if the folder of runs does not exist.
    """
    if not layout.root.is_dir():
        raise MissingData(f"there is no folder {layout.root}: name the folder of runs with --runs")
    problems: list[str] = []
    found = list(superseded(layout, problems))
    removed = {each for each in found if delete and remove(layout, each)}
    for problem in problems:
        logs().print(f"left out: {problem}", markup=False)
    named = [(str(each.path.relative_to(layout.root)), each) for each in found]
    if as_json:
        entries = [
            {"path": path, "bytes": each.bytes, "reason": each.reason, "removed": each in removed}
            for path, each in named
        ]
        print(json.dumps(entries, indent=1))
        return
    if found:
        cells = [(path, _size([each]), each.reason) for path, each in named]
        output().print(table(f"Checkpoints in {layout.root} that can go", ("path", "size", "reason"), cells))
    said = f"{len(found)} could go, {_size(found)}" + ("; --gc --delete removes them" if found else "")
    if delete:
        kept = f"; {len(found) - len(removed)} stay: somebody took their run up" if len(removed) < len(found) else ""
        said = f"{len(removed)} removed, {_size(removed)}{kept}"
    output().print(said, markup=False)


def _size(checkpoints: Iterable[Superseded]) -> str:
    return f"{quantity(sum(each.bytes for each in checkpoints))}B"


def superseded(layout: Layout, problems: list[str]) -> Iterator[Superseded]:
    """Yield the checkpoints that can go, of runs that nobody works on. `problems` gets a sentence for each run that
    cannot be read."""
    for pattern in (kind.folders() for kind in KINDS.values() if kind.counted == "steps"):
        for path in matching(layout.root, f"{pattern}/run.json"):
            try:
                if not is_claimed(layout.claims(path.parent.name)):
                    yield from _between_milestones(layout, path.parent)
            except (DamagedFile, OSError) as error:
                problems.append(str(error))


def _between_milestones(layout: Layout, folder: Path) -> list[Superseded]:
    run = read_run_file(folder).run
    if not is_done(layout, folder.relative_to(layout.root).as_posix()):
        return []
    numbered = [path for path in children(folder / "checkpoints", "step-*") if path.name[5:].isdecimal()]
    steps = {int(path.name[5:]): path for path in numbered if not path.is_symlink()}
    assert run.total is not None
    if run.total not in steps or not _is_whole(steps[run.total]):
        return []  # training can be finished again from the checkpoint before
    reason = f"checkpoint between the milestones of {run.title}"
    going = [steps[step] for step in sorted(steps.keys() - milestones(run.total))]
    return [
        Superseded(path, sum(file.stat().st_size for file in children(path)), folder.name, reason) for path in going
    ]


def _is_whole(checkpoint: Path) -> bool:
    """Return whether every file in the manifest exists. Checksums are verified by whoever reads the files."""
    try:
        return all(is_file(checkpoint / name) for name in read_json(checkpoint / MANIFEST)["sha256"])
    except (DamagedFile, *ABSENT, KeyError, TypeError):
        return False


def remove(layout: Layout, checkpoint: Superseded) -> bool:
    """Remove a checkpoint while holding the claim of its run. Returns False if somebody took the run up meanwhile."""
    claim = acquire(layout.claims(checkpoint.run))
    if claim is None:
        return False
    with claim:
        if checkpoint not in _between_milestones(layout, checkpoint.path.parent.parent):
            return False
        shutil.rmtree(checkpoint.path.rename(temporary_sibling(checkpoint.path)))  # no reader sees a part of it
    return True
