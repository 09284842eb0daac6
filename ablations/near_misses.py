"""Why a planned unit has another name than a run that is there already: the leaves in which they differ. Torch-free."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.errors import DamagedFile, MissingData
from neobert.files import read_json
from neobert.identity import canonical, leaves, plain
from neobert.runs.index import state_of
from neobert.runs.layout import Layout
from neobert.runs.specifications import (
    ContrastiveRun,
    EmbeddingEvaluation,
    GlueStudy,
    PretrainingRun,
    Run,
    read_run_file,
    run_folder,
)

MOST_LEAVES = 5
NUMERICS = "numerics version"
PARTS: Mapping[str, type[Run]] = {
    "pretraining": PretrainingRun,
    "study": GlueStudy,
    "contrastive": ContrastiveRun,
    "mteb": EmbeddingEvaluation,
}
"""The keys of run.json under which a specification may lie, and what it is."""

Items = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class NearMiss:
    """A run on disk that is nearly the planned one. `differs`: {path: (there, planned)}, empty where only the numerics
    version of a mechanism differs; `newer_numerics`: whether it does, or nobody can say."""

    kind: str
    planned: str
    existing: str
    state: str
    differs: Mapping[str, tuple[Any, Any]]
    newer_numerics: bool

    def summary(self) -> dict[str, Any]:
        """The entry of `--dry-run --json`."""
        return {**vars(self), "differs": {path: list(change) for path, change in self.differs.items()}}

    def sentence(self) -> str:
        """For people."""
        changes = [f"{path.removeprefix('recipe.')}: {old} → {new}" for path, (old, new) in self.differs.items()]
        if self.newer_numerics:
            changes.append(NUMERICS)
        return f"{self.planned} differs from {self.existing} ({self.state}) in {'; '.join(changes)}"


@dataclass(frozen=True)
class _Existing:
    folder: Path
    specification: Mapping[str, Any]
    items: Items


class NearMisses:
    """The runs that are there, read once when somebody first asks."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._read: dict[str, list[_Existing]] = {}

    def nearest(self, kind: str, run: Run, planned: Iterable[str]) -> NearMiss | None:
        """The run with the fewest differing leaves, at most `MOST_LEAVES`; those of the plan itself are left out.

        Studies and evaluations are compared on the same weights: that these differ is told of the pre-training.
        """
        wanted, left_out = _items(plain(run)), set(planned) | {run.id}
        best: tuple[int, _Existing] | None = None
        for existing in self._existing(run):
            if existing.folder.name in left_out:
                continue
            if _weights(existing.specification) != _weights(plain(run)):
                continue
            count = len({path for path, _ in wanted ^ existing.items})
            if count <= MOST_LEAVES and (best is None or count < best[0]):
                best = count, existing
        return None if best is None else self._described(kind, run, best[1])

    def _existing(self, run: Run) -> Sequence[_Existing]:
        pattern = str(run_folder(Layout(Path()), run).with_name("*") / "run.json")
        if pattern not in self._read:
            self._read[pattern] = list(_read(sorted(self.layout.root.glob(pattern))))
        return self._read[pattern]

    def _described(self, kind: str, run: Run, existing: _Existing) -> NearMiss:
        there, planned = _leaves(existing.specification), _leaves(plain(run))
        paths = sorted(path for path in there.keys() | planned.keys() if there.get(path) != planned.get(path))
        differs = {path: (there.get(path), planned.get(path)) for path in paths}
        state, same_numerics = self._state(existing.folder)
        return NearMiss(kind, run.id, existing.folder.name, state, differs, not same_numerics or not differs)

    def _state(self, folder: Path) -> tuple[str, bool]:
        """The state of a run, and whether its name is what this version would give it."""
        try:
            file = read_run_file(folder)
        except (DamagedFile, MissingData):
            return "of another version", False
        run = file.run
        return ("done" if _closed(folder) else state_of(self.layout, run)), run.id == folder.name


def _closed(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("done.json", "selection.json"))


def _read(paths: Iterable[Path]) -> Iterable[_Existing]:
    for path in paths:
        try:
            content = read_json(path)
        except DamagedFile:
            continue
        part = next((part for part in PARTS if content.get(part)), None)
        if part is not None:
            specification = _specification(content[part], PARTS[part])
            yield _Existing(path.parent, specification, _items(specification))


def _specification(content: Mapping[str, Any], part: type[Run]) -> Mapping[str, Any]:
    """A specification with the fields that this version knows; as it stands where this version cannot read it."""
    try:
        known: Mapping[str, Any] = plain(part.read(content))
    except ValueError:
        return content
    return known


def _weights(specification: Mapping[str, Any]) -> str | None:
    """The weights that a run starts from; None for pre-training."""
    return specification.get("weights") or specification.get("encoder", {}).get("weights")


def _leaves(specification: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a specification; the points of a grid are one, so that another grid is one difference."""
    points = specification.get("points")
    whole = {} if points is None else {"points": f"{len(points)} points {_axes(points)}"}
    return leaves({key: value for key, value in specification.items() if key != "points"}) | whole


def _axes(points: Sequence[Mapping[str, Any]]) -> str:
    """The values on each axis of a grid."""
    axes = {name: sorted({point[name] for point in points}) for name in (points[0] if points else ())}
    return ", ".join(f"{name} {'/'.join(f'{value:g}' for value in values)}" for name, values in axes.items())


def _items(specification: Mapping[str, Any]) -> Items:
    return frozenset((path, canonical(leaf)) for path, leaf in _leaves(specification).items())
