"""The files of a task: a folder with a table for each split, or a CoNLL file: a word on a line with its annotations in
columns, and an empty line after each sentence."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from neobert.data.reading import data_files, read_table, split_name, table_file
from neobert.errors import DamagedFile, MissingData, did_you_mean

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
