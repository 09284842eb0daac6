"""A corpus as files in a folder, wherever that is: below the folder of `--data`, or where a ladder says."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from neobert.data.catalog import CHARACTERS_PER_TOKEN
from neobert.data.manifest import Entry, Manifest, files_origin, require_complete
from neobert.data.reading import FORMATS, files_below, read_texts, require_columns, split_name, text_size
from neobert.errors import MissingData, did_you_mean, name_first
from neobert.text_files import COMPRESSIONS

TEXT_COLUMN = "text"

TEXTS_OF_A_FILE = 2000
CHARACTERS_OF_A_TEXT = 2000
"""Limits of the text a tokenizer is trained on: first texts per file, and first characters per text. They keep any one
file from outweighing the others."""

_SIZED_FILES = 8

_SHARD = re.compile(r"(.*?)[-.]?(\d{5})(-of-\d{5})")
_NOTES = ("", ".md", ".rst", ".html", ".pdf", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".py", ".sh", ".log", ".bib")
_CHECKSUMS = (".crc", ".md5", ".sha1", ".sha256")
"""Suffixes of files that may lie beside the texts of a corpus."""

logger = logging.getLogger(__name__)


class NoCorpus(MissingData):
    """The source has no file of a corpus, or of BLiMP, and expects none."""


@dataclass(frozen=True)
class CorpusFolder:
    """A corpus in the files below `folder`, at any depth: all in one format of `reading`, compressed or not.

    Names of files are relative to `base`, which `manifest` describes. `column` is the text column.
    """

    name: str
    folder: Path
    base: Path
    column: str = TEXT_COLUMN
    manifest: Manifest = field(default_factory=lambda: Manifest({}))

    def files(self) -> list[Path]:
        """Return the files in reading order.

        Raises:
            MissingData: there are none, a file's content is elsewhere, or prefetch has not downloaded all of them.
            ValueError: they are in several formats, or others than notes are in no format that is read.
        """
        if self.folder == self.base and not self.folder.is_dir():
            beside = [path.name for path in sorted(self.folder.parent.glob("*/"))]
            hint = did_you_mean(self.folder.name, beside) if beside else "name the folder of its files"
            raise MissingData(f"CORPORA has {self.name!r} in {self.folder}, which is no folder: {hint}")
        found = files_below(self.folder)
        files = [path for path in found if split_name(path)[1]]
        prefetched = self.manifest.below(self.folder.relative_to(self.base).as_posix())
        require_complete(f"corpus {self.name}", self.base, prefetched)
        if not files:
            raise NoCorpus(
                f"there is no corpus {self.name} in {self.base}: put files (parquet, jsonl, csv, txt, arrow) with a "
                f"column {self.column!r} into {self.folder}"
            )
        formats = sorted({split_name(path)[1] for path in files})
        if len(formats) > 1:
            raise ValueError(f"{self.folder} holds files of several formats ({', '.join(formats)}): keep those of one")
        unread = [path.name for path in found if not split_name(path)[1] and not _is_note(path)]
        if unread:
            raise ValueError(
                f"{self.folder} holds {name_first(unread)}, which would not be read: unpack or convert it to one of "
                f"{', '.join(FORMATS)} (text also with {', '.join(COMPRESSIONS)}), or move it away"
            )
        return files

    def text_column(self, path: Path) -> str:
        """Return the name of the text column of a file; for .txt files it is "text"."""
        entry = self._entry(path)
        if entry and entry.column:
            return entry.column
        return TEXT_COLUMN if split_name(path)[1] == ".txt" else self.column

    def _entry(self, path: Path) -> Entry | None:
        return self.manifest.files.get(path.relative_to(self.base).as_posix())

    def origin(self) -> str:
        """Return what identifies the texts: the content and names of the files, and the column if it is another."""
        files = self.files()
        for part in _incomplete(path for path in files if self._entry(path) is None):
            logger.warning(f"corpus {self.name}: {self.folder} has {part}; only these are read")
        origin = files_origin(self.base, self.manifest, files)
        is_own = self.column != TEXT_COLUMN and any(self.text_column(path) == self.column for path in files)
        return f"{origin}:column={self.column}" if is_own else origin

    def documents(self) -> Iterator[str]:
        """Yield the texts in a fixed order, including empty ones."""
        files = self.files()
        for path in files if split_name(files[0])[1] == ".parquet" else files[:1]:
            require_columns(path, (self.text_column(path),))
        return chain.from_iterable(read_texts(path, self.text_column(path)) for path in files)

    def beginnings(self) -> Iterator[str]:
        """Yield the beginnings of the first texts of each file, which tokenizers are trained on."""
        for path in self.files():
            first = islice(read_texts(path, self.text_column(path)), TEXTS_OF_A_FILE)
            yield from (text[:CHARACTERS_OF_A_TEXT] for text in first)

    def size(self) -> tuple[float, float]:
        """Return the numbers of tokens and documents, estimated from a sample of the files, scaled by file size."""
        files = self.files()
        sample = files[:: -(-len(files) // _SIZED_FILES)]
        sizes = [text_size(path, self.text_column(path)) for path in sample]
        share = sum(path.stat().st_size for path in files) / max(1, sum(path.stat().st_size for path in sample))
        characters, documents = (share * sum(column) for column in zip(*sizes, strict=True))
        return characters / CHARACTERS_PER_TOKEN, documents


def _is_note(path: Path) -> bool:
    """Return whether a file is a description, a marker such as _SUCCESS, or a checksum, by its suffix."""
    return path.suffix.lower() in (*_NOTES, *_CHECKSUMS)


def _incomplete(files: Iterable[Path]) -> Iterator[str]:
    """Describe each set of files named like train-00000-of-00005 that is not whole."""
    matched = [(path, found) for path in files if (found := _SHARD.match(path.name))]
    sets = Counter((path.parent, found[1], found[3]) for path, found in matched)
    for (_, name, of), count in sets.items():
        if count < (total := int(of.removeprefix("-of-"))):
            yield f"{count} of the {total} files {name}-*{of}"
