"""The files of a task: a folder with a file for each split."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.data.conll import SUFFIXES, conll_file, read_conll
from neobert.data.reading import data_files, read_table, split_name, table_file
from neobert.errors import MissingData, did_you_mean


@dataclass(frozen=True)
class SplitFiles:
    """The files of task `name` in `place`, a folder below `root`: for each split a table of `neobert.data.reading` or,
    without one, a CoNLL file."""

    name: str
    root: Path
    place: str
    splits: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.root / self.place

    def path(self, split: str) -> Path:
        """Return the file of a split, or the parquet path that it would have if absent."""
        table = table_file(self.folder, split)
        return table if table.is_file() else conll_file(self.folder, split) or table

    def why_missing(self) -> str | None:
        """Return why the task cannot be fine-tuned; None if all splits are there."""
        missing = [split for split in self.splits if not self.path(split).is_file()]
        if not missing:
            return None
        return f"{self.name} has no {', '.join(missing)} split in {self.place}"  # part of ids, so without the path

    def present(self) -> list[Path]:
        """Return the files that are there. Raises MissingData if there is none."""
        present = [path for path in map(self.path, self.splits) if path.is_file()]
        if not present:
            raise MissingData(f"{self.why_missing()} of {self.root}: put its files there")
        return present

    def read(self, split: str, needed: Sequence[str]) -> dict[str, list[Any]]:
        """Return the columns of one split; those `needed` are required.

        Raises:
            MissingData: there is no such file.
            DamagedFile, ValueError: it cannot be read, has no rows, or lacks a column.
        """
        path = self.path(split)
        if not path.is_file():
            present = sorted(split_name(file)[0] for file in data_files(path.parent))
            hint = did_you_mean(split, present) if present else "the folder has no file that is read"
            raise MissingData(f"{self.name} has no {split} split, {path} is missing ({hint})")
        columns = read_conll(path, tuple(needed)) if path.suffix in SUFFIXES else read_table(path, needed)
        if not columns[needed[0]]:
            raise ValueError(f"{path} has no rows: put the examples of {self.name} there")
        return columns
