"""A corpus as files in a folder, wherever that is: below the folder of `--data`, or where a ladder says."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from neobert.data.catalog import CHARACTERS_PER_TOKEN
from neobert.data.manifest import Manifest, files_origin, require_complete
from neobert.data.reading import FORMATS, data_files, read_texts, require_columns, split_name, text_size
from neobert.errors import MissingData

TEXT_COLUMN = "text"

TEXTS_OF_A_FILE = 2000
CHARACTERS_OF_A_TEXT = 2000
"""Limits of the text a tokenizer is trained on: first texts per file, and first characters per text. They keep any one
file from outweighing the others."""

_SIZED_FILES = 8


class NoCorpus(MissingData):
    """The source has no file of a corpus, or of BLiMP, and expects none."""


@dataclass(frozen=True)
class CorpusFolder:
    """A corpus in the files below `folder`, at any depth: all in one format of `reading`; other files are left out.

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
            MissingData: there are none, or prefetch has not downloaded all of them.
            ValueError: they are in several formats.
        """
        files = data_files(self.folder)
        prefetched = self.manifest.below(self.folder.relative_to(self.base).as_posix())
        require_complete(f"corpus {self.name}", self.base, prefetched)
        if not files:
            raise NoCorpus(
                f"there is no corpus {self.name} in {self.base}: put files ({', '.join(FORMATS)}) with a "
                f"column {self.column!r} into {self.folder}"
            )
        formats = sorted({split_name(path)[1] for path in files})
        if len(formats) > 1:
            raise ValueError(f"{self.folder} holds files of several formats ({', '.join(formats)}): keep those of one")
        return files

    def text_column(self, path: Path) -> str:
        """Return the name of the text column of a file; for .txt files it is "text"."""
        entry = self.manifest.files.get(path.relative_to(self.base).as_posix())
        if entry and entry.column:
            return entry.column
        return TEXT_COLUMN if split_name(path)[1] == ".txt" else self.column

    def origin(self) -> str:
        """Return what identifies the texts: the content and names of the files, and the column if it is another."""
        files = self.files()
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
