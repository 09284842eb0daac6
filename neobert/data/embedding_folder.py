"""Tasks of embeddings in a folder: mteb/<Category>/<Task>/*.parquet, or repositories that prefetch brought. Torch-free.

A task of the first form counts as one of MTEB(eng, v1) where it has the name of one and the numbers of its examples;
with other data its name says how many rows it has, so that it is never taken for it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from neobert.data.embedding_official import GOLD_DIGITS, OFFICIAL_GOLD, OFFICIAL_ROWS
from neobert.data.embedding_tables import COLUMNS, PublishedTask, Table, TaskTables, checked_tables
from neobert.data.hub import hub_origin
from neobert.data.manifest import MANIFEST, Manifest, missing_files, require_brought
from neobert.data.parquet import require_columns
from neobert.embeddings.tasks import (
    INSTRUCTIONS,
    METRICS,
    MTEB_ENGLISH_V1,
    OFFICIAL_TASKS,
    EmbeddingTask,
    member_names,
)
from neobert.errors import DamagedFile, MissingData, did_you_mean
from neobert.result_records import Category

FOLDER_SUITE = "tasks of a folder"
FOLDERS: Mapping[str, Category] = {
    "Classification": "classification",
    "Clustering": "clustering",
    "PairClassification": "pair_classification",
    "Reranking": "reranking",
    "Retrieval": "retrieval",
    "STS": "sts",
    "Summarization": "summarization",
}
"""The folders of categories, by mteb's names for them."""


@dataclass(frozen=True)
class FolderTask:
    """A task and its data: a file for each table, or what prefetch brought, a folder for each of mteb's own tasks."""

    task: EmbeddingTask
    files: Mapping[str, Path] = field(default_factory=dict)
    published: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class FolderTasks:
    """The tasks below `folder`/mteb; `origin_of` identifies files by their contents."""

    folder: Path
    manifest: Manifest
    origin_of: Callable[[Sequence[Path]], str]

    @cached_property
    def tasks(self) -> dict[str, FolderTask]:
        """The tasks by name, those that were prefetched first.

        Raises:
            ValueError: a folder there is no category, or two tasks have one name.
        """
        found = {task.task.name: task for task in _prefetched(self.folder, self.manifest)}
        for task in _laid_out(self.folder / "mteb", self.manifest):
            earlier = found.get(task.task.name)
            if earlier is not None and not earlier.published:
                raise ValueError(
                    f"{self.folder / 'mteb'} has two tasks named {task.task.name}: rename the folder of one"
                )
            found.setdefault(task.task.name, task)
        return found

    @cached_property
    def _origins(self) -> dict[str, str]:
        """Origins found so far: to check a task's data takes time."""
        return {}

    def origin(self, name: str) -> str:
        """What identifies a task's data, which are checked.

        Raises:
            MissingData: the task or a file of it is not here.
            DamagedFile, ValueError: a file is not what it should be.
        """
        if name not in self._origins:
            self._origins[name] = self._checked_origin(self._task(name))
        return self._origins[name]

    def data(self, name: str) -> TaskTables | PublishedTask:
        """A task's data, checked.

        Raises:
            MissingData, DamagedFile, ValueError: as `origin`.
        """
        return _data(self._task(name))

    def _task(self, name: str) -> FolderTask:
        if name not in self.tasks:
            hint = did_you_mean(name, [*self.tasks, *OFFICIAL_TASKS])
            raise MissingData(f"there is no task {name} in {self.folder / 'mteb'} ({hint})")
        return self.tasks[name]

    def _checked_origin(self, found: FolderTask) -> str:
        if found.published:
            return self._published_origin(found)
        _data(found)
        return self.origin_of(list(found.files.values()))

    def _published_origin(self, found: FolderTask) -> str:
        """The hub's identity of what prefetch brought."""
        manifest = self.manifest
        entries = {
            name: entry for member in found.published for name, entry in manifest.below(f"mteb/{member}").items()
        }
        missing = missing_files(self.folder, entries)
        if missing:
            raise MissingData(
                f"task {found.task.name} lacks {len(missing)} of the {len(entries)} files that "
                f"{self.folder / MANIFEST} lists (first: {missing[0]}): run ablations/prefetch.py again"
            )
        require_brought(self.folder, entries)
        return hub_origin((entry.repository, entry.revision) for entry in entries.values())


def _prefetched(folder: Path, manifest: Manifest) -> Iterator[FolderTask]:
    for task in MTEB_ENGLISH_V1:
        members = member_names(task)
        if all(manifest.below(f"mteb/{member}") for member in members):
            yield FolderTask(task, published={member: folder / "mteb" / member for member in members})


def _laid_out(folder: Path, manifest: Manifest) -> Iterator[FolderTask]:
    present = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    for path in present:
        if path.name in FOLDERS:
            tasks = sorted(task for task in path.iterdir() if task.is_dir())
            yield from (_own_task(task, FOLDERS[path.name]) for task in tasks)
        elif not manifest.below(f"mteb/{path.name}"):
            raise ValueError(f"{path} is no category of tasks: {did_you_mean(path.name, FOLDERS)}")


def _own_task(folder: Path, category: Category) -> FolderTask:
    files = {table: _file_of(folder, table) for table in COLUMNS[category]}
    return FolderTask(_described(folder.name, category, files), files)


def _file_of(folder: Path, table: str) -> Path:
    """test.parquet, or the one file test_….parquet."""
    exact = folder / f"{table}.parquet"
    others = sorted(folder.glob(f"{table}_*.parquet"))
    return others[0] if len(others) == 1 and not exact.is_file() else exact


def _described(name: str, category: Category, files: Mapping[str, Path]) -> EmbeddingTask:
    official = OFFICIAL_TASKS.get(name)
    if official is not None and official.category == category:
        rows = _rows(files)
        if rows == OFFICIAL_ROWS.get(name) and _gold(category, files["test"]) == OFFICIAL_GOLD[name]:
            return official
    if official is not None:
        name = f"{name}-{_rows(files)[list(files)[-1]]}rows"
    return EmbeddingTask(name, category, FOLDER_SUITE, METRICS[category], "test", instruction=INSTRUCTIONS[category])


def _rows(files: Mapping[str, Path]) -> dict[str, int]:
    """Rows of each file, 0 where it cannot be read: what reads it says why."""
    from pyarrow import ArrowInvalid, parquet

    rows = dict.fromkeys(files, 0)
    for table, path in files.items():
        try:
            rows[table] = parquet.read_metadata(path).num_rows
        except (OSError, ArrowInvalid):
            continue
    return rows


def _gold(category: Category, path: Path) -> float | None:
    """What `OFFICIAL_GOLD` says of a file; None where it has no such column."""
    column = COLUMNS[category]["test"][-1]
    try:
        values = _read(path, (column,))[column]
    except (DamagedFile, ValueError):
        return None
    if category == "classification":
        return len(set(values))
    numbers = [value for value in values if isinstance(value, int | float)]
    return round(sum(numbers) / len(numbers), GOLD_DIGITS) if len(numbers) == len(values) else None


def _data(found: FolderTask) -> TaskTables | PublishedTask:
    if found.published:
        return PublishedTask(found.published)
    where = str(next(iter(found.files.values())).parent)
    for table, path in found.files.items():
        if not path.is_file():
            raise MissingData(f"task {found.task.name} lacks {path}: put its table {table} there")
    category = found.task.category
    tables = {table: _read(path, COLUMNS[category][table]) for table, path in found.files.items()}
    return checked_tables(category, tables, where)


def _read(path: Path, needed: tuple[str, ...]) -> Table:
    from pyarrow import parquet

    require_columns(path, needed)
    table: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    return table
