"""BLiMP, the Benchmark of Linguistic Minimal Pairs for English: 67 paradigms of 1,000 pairs of sentences each.

Of each pair one sentence is acceptable (Warstadt et al. 2020, TACL 8, doi 10.1162/tacl_a_00321). The data are
data/*.jsonl of github.com/alexwarstadt/blimp (CC BY 4.0; here as of commit 3e56b06), a file per paradigm. Seven pairs
have two equal sentences: passive_1 324 and 810, principle_A_case_2 105, 287, 372, 816 and 967.

blimp.csv has the field and the phenomenon of each paradigm. Phenomena are the twelve of the paper, which counts the
paradigms that the data call s-selection under argument structure.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from neobert.data.reading import require_file
from neobert.errors import DamagedFile, MissingData, name_first
from neobert.text_files import text_lines

FOLDER = "blimp/data"
"""Folder of the files below that of `--data`, as in a copy of the repository in DIR/blimp."""
PAIRS = 1000
"""Number of pairs of each paradigm."""


class Paradigm(NamedTuple):
    """The groups that a paradigm belongs to."""

    field: str
    phenomenon: str


def _read_paradigms() -> dict[str, Paradigm]:
    with Path(__file__).with_name("blimp.csv").open(newline="", encoding="utf-8") as file:
        return {row["paradigm"]: Paradigm(row["field"], row["phenomenon"]) for row in csv.DictReader(file)}


PARADIGMS: Mapping[str, Paradigm] = _read_paradigms()
"""The paradigms by name, those of one phenomenon together."""


@dataclass(frozen=True)
class MinimalPair:
    """An acceptable sentence and an unacceptable one."""

    good: str
    bad: str
    paradigm: str


class _Line(BaseModel):
    """What is read of a line of a file."""

    sentence_good: str
    sentence_bad: str


def paradigm_files(folder: Path) -> list[Path]:
    """Return the file of each paradigm. Raises MissingData if one is not there."""
    files = [folder / f"{name}.jsonl" for name in PARADIGMS]
    for path in files:
        if path.is_symlink() or path.is_file():
            require_file(path)
    if missing := [path.name for path in files if not path.is_file()]:
        raise MissingData(
            f"{folder} lacks {len(missing)} of the {len(files)} files of BLiMP ({name_first(missing)}): copy "
            "data/*.jsonl of github.com/alexwarstadt/blimp into it"
        )
    return files


def read_pairs(path: Path, count: int) -> list[MinimalPair]:
    """Return the first pairs of a paradigm in the order of its file. Raises DamagedFile if the file has fewer, or
    something else."""
    lines = _lines(path, count)
    if len(lines) < count:
        raise DamagedFile(f"{path} has {len(lines)} pairs, and the first {count} are asked: copy the whole file")
    return [MinimalPair(line.sentence_good, line.sentence_bad, path.stem) for line in lines]


def _lines(path: Path, count: int) -> list[_Line]:
    lines = islice(text_lines(path), count)
    try:
        return [_Line.model_validate_json(line) for line in lines]
    except ValidationError as error:
        raise DamagedFile(f"{path} is no file of BLiMP: {error}") from error
