"""The files of labelled tasks in a folder of data.

A task has a table for each split, or a CoNLL file: a word on a line with its annotations in columns, and an empty line
after each sentence. BLiMP, the Benchmark of Linguistic Minimal Pairs for English, has a file for each of its 67
paradigms: 1,000 pairs of an acceptable and an unacceptable sentence. These are data/*.jsonl of
github.com/alexwarstadt/blimp (CC BY 4.0; here as of commit 3e56b06). Seven pairs have two equal sentences: passive_1
324 and 810, principle_A_case_2 105, 287, 372, 816 and 967. blimp.csv has the field and the phenomenon of each paradigm.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from neobert.data.reading import data_files, read_table, require_file, split_name, table_file
from neobert.errors import DamagedFile, MissingData, did_you_mean, name_first
from neobert.text_files import text_lines

CONLLU: tuple[str, ...] = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""Columns of CoNLL-U, the format of Universal Dependencies."""
SUFFIXES = (".conllu", ".conll", ".iob2", ".bio")
"""In all but CoNLL-U, columns are named by their numbers, from "1", and separated by tabs or spaces."""
_DOCUMENT = "-DOCSTART-"
_KEY_AND_VALUE = re.compile(r"# \S+ = ")


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


def conll_file(folder: Path, split: str) -> Path | None:
    """Return the file of a split, which is <split>.<suffix> or, as treebanks name it, *-<split>.<suffix>; None if there
    is none. Raises ValueError if there are several."""
    files = sorted(folder.glob("[!.]*")) if folder.is_dir() else []
    found = [
        path for path in files if path.suffix in SUFFIXES and (path.stem == split or path.stem.endswith(f"-{split}"))
    ]
    if len(found) > 1:
        raise ValueError(f"{folder} holds {split} as {' and as '.join(path.name for path in found)}: keep one of them")
    return found[0] if found else None


def read_conll(path: Path, needed: tuple[str, ...]) -> dict[str, list[list[str]]]:
    """Return the columns of a file by name, each with a list for every sentence.

    Of CoNLL-U comments, the surface line of a multiword token and empty nodes are left out, so that words are the
    syntactic ones. Elsewhere lines of -DOCSTART- are, and comments that cannot be words: lines that begin with # and
    have no tab where words have some, or a tab where words have none, or that say "# key = value".

    Raises:
        DamagedFile: the file cannot be read, or a line has another number of columns than the first.
        ValueError: it has none of the columns `needed`.
    """
    sentences = [sentence for sentence in _read_sentences(path) if sentence]
    if path.suffix == ".conllu":
        names = CONLLU
    else:
        names = tuple(str(number + 1) for number in range(len(sentences[0][0]) if sentences else 0))
    if missing := [name for name in needed if name not in names]:
        raise ValueError(f"{path} has no column {missing[0]!r}: {did_you_mean(missing[0], names)}")
    return {name: [[cells[column] for cells in each] for each in sentences] for column, name in enumerate(names)}


def _read_sentences(path: Path) -> list[list[list[str]]]:
    """Return the columns of each word of each sentence; empty lines in a row make empty sentences."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{path} cannot be read as text: {error}") from error
    columns_of = _conllu_columns if path.suffix == ".conllu" else partial(_columns, is_tabbed=_is_tabbed(lines))
    sentences: list[list[list[str]]] = [[]]
    width = len(CONLLU) if path.suffix == ".conllu" else 0
    for number, line in enumerate(lines, start=1):
        if not line.strip(" \t"):
            sentences.append([])
        elif cells := columns_of(line):
            width = width or len(cells)
            if len(cells) != width:
                raise DamagedFile(f"{path}, line {number}: {len(cells)} columns, and not {width}: mend the line")
            sentences[-1].append(cells)
    return sentences


def _conllu_columns(line: str) -> list[str]:
    """Return the columns of a word; nothing for comments, multiword tokens (1-2) and empty nodes (1.1)."""
    cells = line.split("\t")
    is_word = not line.startswith("#") and not {"-", "."} & set(cells[0])
    return cells if is_word else []


def _is_tabbed(lines: Sequence[str]) -> bool:
    """Return whether words have tabs between their columns, by the first line that is a word for certain."""
    words = (line for line in lines if line.strip(" \t") and not line.startswith(("#", _DOCUMENT)))
    return "\t" in next(words, lines[0])


def _columns(line: str, *, is_tabbed: bool) -> list[str]:
    """Return the columns of a word; nothing for comments and for a line between documents."""
    is_odd = ("\t" in line) != is_tabbed
    if line.startswith("#") and (is_odd or (not is_tabbed and _KEY_AND_VALUE.match(line))):
        return []
    cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
    return [] if cells[0] == _DOCUMENT else cells


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
    lines = _blimp_lines(path, count)
    if len(lines) < count:
        raise DamagedFile(f"{path} has {len(lines)} pairs, and the first {count} are asked: copy the whole file")
    return [MinimalPair(line.sentence_good, line.sentence_bad, path.stem) for line in lines]


def _blimp_lines(path: Path, count: int) -> list[_Line]:
    lines = islice(text_lines(path), count)
    try:
        return [_Line.model_validate_json(line) for line in lines]
    except ValidationError as error:
        raise DamagedFile(f"{path} is no file of BLiMP: {error}") from error
