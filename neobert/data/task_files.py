"""The files of labelled tasks in a folder of data.

A task has a table for each split. BLiMP, the Benchmark of Linguistic Minimal Pairs for English, has a file for each of
its 67 paradigms: 1,000 pairs of an acceptable and an unacceptable sentence. These are data/*.jsonl of
github.com/alexwarstadt/blimp (CC BY 4.0; here as of commit 3e56b06). Seven pairs have two equal sentences: passive_1
324 and 810, principle_A_case_2 105, 287, 372, 816 and 967. blimp.csv has the field and the phenomenon of each paradigm.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from neobert.data.reading import data_files, read_rows, read_table, split_name, table_file
from neobert.errors import DamagedFile, MissingData, did_you_mean, name_first


@dataclass(frozen=True)
class SplitFiles:
    """The files of task `name` in `place`, a folder below `root`: for each split a table of `neobert.data.reading`."""

    name: str
    root: Path
    place: str
    splits: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.root / self.place

    def path(self, split: str) -> Path:
        """Return the file of a split, or the parquet path that it would have if absent."""
        return table_file(self.folder, split)

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
        columns = read_table(path, needed)
        if not columns[needed[0]]:
            raise ValueError(f"{path} has no rows: put the examples of {self.name} there")
        return columns


# BLiMP

BLIMP_FOLDER = "blimp/data"
"""Folder of the files below that of `--data`, as in a copy of the repository in DIR/blimp."""
PAIRS_OF_A_PARADIGM = 1000
"""Number of pairs of each paradigm."""


class Paradigm(NamedTuple):
    """The groups that a paradigm belongs to."""

    field: str
    phenomenon: str


def _read_paradigms() -> dict[str, Paradigm]:
    with Path(__file__).with_name("blimp.csv").open(newline="", encoding="utf-8") as file:
        return {row["paradigm"]: Paradigm(row["field"], row["phenomenon"]) for row in csv.DictReader(file)}


PARADIGMS: Mapping[str, Paradigm] = _read_paradigms()
"""The paradigms by name, those of one phenomenon together.

Phenomena are the twelve of Warstadt et al. (2020, TACL 8, doi 10.1162/tacl_a_00321), which counts the paradigms that
the data call s-selection under argument structure.
"""


@dataclass(frozen=True)
class MinimalPair:
    """An acceptable sentence and an unacceptable one."""

    good: str
    bad: str
    paradigm: str


def paradigm_files(folder: Path) -> list[Path]:
    """Return the file of each paradigm. Raises MissingData if one is not there."""
    files = [folder / f"{name}.jsonl" for name in PARADIGMS]
    if missing := [path.name for path in files if not path.is_file()]:
        raise MissingData(
            f"{folder} lacks {len(missing)} of the {len(files)} files of BLiMP ({name_first(missing)}): copy "
            "data/*.jsonl of github.com/alexwarstadt/blimp into it"
        )
    return files


def read_pairs(path: Path, count: int) -> list[MinimalPair]:
    """Return the first pairs of a paradigm in the order of its file. Raises DamagedFile or ValueError if the file has
    fewer, or something else."""
    rows = list(islice(read_rows(path, ("sentence_good", "sentence_bad")), count))
    if len(rows) < count:
        raise DamagedFile(f"{path} has {len(rows)} pairs, and the first {count} are asked: copy the whole file")
    return [MinimalPair(row["sentence_good"], row["sentence_bad"], path.stem) for row in rows]
