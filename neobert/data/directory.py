"""A folder as source of text: corpora/<name>/*.parquet, glue/<task>/<split>.parquet, tokenizers/<name>/. Torch-free.

Prefetch writes this layout and a manifest.json that says which file came from which revision of the hub, so that
prefetched data keeps the hub's identity.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from neobert.data.corpora import CORPORA, TASK_SPLITS, TOKENIZERS, known, known_split
from neobert.data.hub import hub_origin
from neobert.data.tokenizers import FOLDERS, TOKENIZER_FILE, TextTokenizer, load_tokenizer
from neobert.errors import DamagedFile, MissingData, did_you_mean
from neobert.files import read_json, sha256_of

MANIFEST = "manifest.json"
TEXT_COLUMN = "text"
ORIGIN_DIGITS = 12

_ROWS_PER_BATCH = 1024
_FOOTERS_READ = 8


@cache
def _content(path: Path, size: int, modified_ns: int) -> str:
    """A file's SHA-256, read once as long as size and time stay."""
    del size, modified_ns
    return sha256_of(path)


def content_sha256(path: Path) -> str:
    """A file's SHA-256, remembered within the process."""
    status = path.stat()
    return _content(path.resolve(), status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class DirectorySource:
    """Corpora, tasks and tokenizers below `folder`."""

    folder: Path

    trains_tokenizers = False

    @property
    def label(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def _prefetched(self) -> Mapping[str, Mapping[str, Any]]:
        """What the manifest says about each file, by its name below the folder; empty without a manifest."""
        path = self.folder / MANIFEST
        return dict(read_json(path)["files"]) if path.is_file() else {}

    def corpus_origin(self, corpus: str) -> str:
        return self._origin(self._corpus_files(corpus))

    def documents(self, corpus: str) -> Iterator[str]:
        """The texts of a corpus file after file, empty ones included.

        Raises:
            MissingData: the folder has no such corpus.
            ValueError: a file has no column "text".
        """
        files = self._corpus_files(corpus)
        for path in files:
            _require_columns(path, (TEXT_COLUMN,))
        return _texts(files)

    def text_size(self, corpus: str) -> tuple[float, float]:
        """About how many bytes of text before compression, and documents, a corpus has: some files' footers are read
        and stand for the others by their sizes."""
        files = self._corpus_files(corpus)
        sample = files[:: -(-len(files) // _FOOTERS_READ)]
        sizes = [_text_size(path) for path in sample]
        share = sum(path.stat().st_size for path in files) / sum(path.stat().st_size for path in sample)
        return share * sum(size for size, _ in sizes), share * sum(documents for _, documents in sizes)

    def _corpus_files(self, corpus: str) -> list[Path]:
        folder = self.folder / "corpora" / known(corpus, CORPORA, "corpus")
        files = sorted(folder.glob("*.parquet"))
        if not files:
            raise MissingData(
                f"there is no corpus {corpus} in {self.folder}: put parquet files with a column {TEXT_COLUMN!r} into "
                f"{folder}"
            )
        return files

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        return self._origin([self._tokenizer_folder(tokenizer) / TOKENIZER_FILE])

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        loaded = load_tokenizer(self._tokenizer_folder(tokenizer))
        loaded.require_rows(vocabulary_size)
        return loaded

    def _tokenizer_folder(self, tokenizer: str) -> Path:
        folder = self.folder / "tokenizers" / FOLDERS[known(tokenizer, TOKENIZERS, "tokenizer")]
        if not (folder / TOKENIZER_FILE).is_file():
            raise MissingData(f"there is no tokenizer {tokenizer} in {self.folder}: put {TOKENIZER_FILE} into {folder}")
        return folder

    def tasks(self) -> dict[str, str | None]:
        return {task: self._why_not(task) for task in TASK_SPLITS}

    def _why_not(self, task: str) -> str | None:
        missing = [split for split in TASK_SPLITS[task] if not self._split_path(task, split).is_file()]
        if not missing:
            return None
        return f"{task} has no {', '.join(missing)} split in {self.folder / 'glue' / task}"

    def task_origin(self, task: str) -> str:
        known(task, tuple(TASK_SPLITS), "task")
        paths = [self._split_path(task, split) for split in TASK_SPLITS[task]]
        present = [path for path in paths if path.is_file()]
        if not present:
            raise MissingData(f"{self._why_not(task)}: put its parquet files there")
        return self._origin(present)

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        """The columns of one split.

        Raises:
            MissingData: the split is not there.
            ValueError: no such task or split, or a column is missing.
        """
        from pyarrow import parquet

        known_split(task, split)
        path = self._split_path(task, split)
        if not path.is_file():
            present = sorted(file.stem for file in path.parent.glob("*.parquet"))
            hint = did_you_mean(split, present) if present else "the folder has no parquet file"
            raise MissingData(f"{task} has no {split} split, {path} is missing ({hint})")
        _require_columns(path, ("label",))
        columns: dict[str, list[str | int | float]] = parquet.read_table(path).to_pydict()
        if not columns["label"]:
            raise ValueError(f"{path} has no rows: put the examples of {task} there")
        return columns

    def _split_path(self, task: str, split: str) -> Path:
        return self.folder / "glue" / task / f"{split}.parquet"

    def _origin(self, files: Sequence[Path]) -> str:
        """The hub's identity where the manifest knows every file, else a hash of names and contents."""
        names = sorted(path.relative_to(self.folder).as_posix() for path in files)
        if all(name in self._prefetched for name in names):
            return hub_origin(self._revision(name) for name in names)
        lines = "\n".join(f"{name} {content_sha256(self.folder / name)}" for name in names)
        return f"directory:{hashlib.sha256(lines.encode()).hexdigest()[:ORIGIN_DIGITS]}"

    def _revision(self, name: str) -> tuple[str, str]:
        entry = self._prefetched[name]
        if (self.folder / name).stat().st_size != entry["bytes"]:
            raise DamagedFile(f"{self.folder / name} is not {entry['bytes']} bytes long: prefetch it again")
        return entry["repository"], entry["revision"]


def _require_columns(path: Path, names: Sequence[str]) -> None:
    from pyarrow import ArrowInvalid, parquet

    try:
        present = parquet.read_schema(path).names
    except ArrowInvalid as error:
        raise DamagedFile(f"{path} is not readable as parquet ({error}): fetch it again") from error
    for name in names:
        if name not in present:
            hint = did_you_mean(name, present)
            raise ValueError(f"{path} has no column {name!r} ({hint}): rename the column that holds it")


def _text_size(path: Path) -> tuple[int, int]:
    from pyarrow import parquet

    _require_columns(path, (TEXT_COLUMN,))
    footer = parquet.read_metadata(path)
    column = footer.schema.to_arrow_schema().names.index(TEXT_COLUMN)
    groups = (footer.row_group(number).column(column) for number in range(footer.num_row_groups))
    return sum(group.total_uncompressed_size for group in groups), footer.num_rows


def _texts(files: Sequence[Path]) -> Iterator[str]:
    from pyarrow import parquet

    for path in files:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=[TEXT_COLUMN]):
                yield from (text or "" for text in batch.column(0).to_pylist())
