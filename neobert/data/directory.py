"""A folder as source of text: corpora/<name>/*.parquet, glue/<task>/<split>.parquet, tokenizers/<name>/. Torch-free.

Prefetch writes this layout and a manifest.json that says which file came from which revision of the hub, so that
prefetched data keeps the hub's identity.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

from neobert.data.corpora import CORPORA, TASK_SPLITS, TOKENIZERS, known, known_split
from neobert.data.embedding_folder import FolderTasks
from neobert.data.embedding_tables import PublishedTask, TaskTables
from neobert.data.hub import hub_origin
from neobert.data.manifest import MANIFEST, Manifest, has_size, read_manifest, require_brought
from neobert.data.pair_repositories import DECLARED_SETS
from neobert.data.pairs import Pair, own_instructions, own_pairs
from neobert.data.parquet import require_columns, text_size, texts_of
from neobert.data.text_tokenizers import trained_origin, trained_tokenizer
from neobert.data.tokenizers import FOLDERS, TOKENIZER_FILE, TextTokenizer, load_tokenizer
from neobert.data.unseen import UnseenTexts
from neobert.embeddings.tasks import EmbeddingTask
from neobert.errors import MissingData, did_you_mean
from neobert.files import sha256_of

TEXT_COLUMN = "text"
ORIGIN_DIGITS = 12

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
    """Corpora, tasks and tokenizers below `folder`; pairs that share a text with `unseen` are left out."""

    folder: Path
    unseen: UnseenTexts | None = None

    @property
    def trains_tokenizers(self) -> bool:
        """Tokenizers are trained on the corpora of a folder that has none and is to get none."""
        return not (self.folder / "tokenizers").is_dir() and not self.manifest.below("tokenizers")

    @property
    def label(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def manifest(self) -> Manifest:
        """What prefetch brought or is to bring; empty where it never wrote here."""
        return read_manifest(self.folder)

    @cached_property
    def _corpus_origins(self) -> dict[str, str]:
        """Origins found so far: a plan asks for each many times, and a corpus may be thousands of files."""
        return {}

    def corpus_origin(self, corpus: str) -> str:
        if corpus not in self._corpus_origins:
            self._corpus_origins[corpus] = self._origin(self.corpus_files(corpus))
        return self._corpus_origins[corpus]

    def documents(self, corpus: str) -> Iterator[str]:
        """The texts of a corpus file after file, empty ones included.

        Raises:
            MissingData: the folder has no such corpus, or not all of it.
            ValueError: a file has no column "text" (a prefetched one: the hub's column).
        """
        columns = {path: self.text_column(path) for path in self.corpus_files(corpus)}
        for path, column in columns.items():
            require_columns(path, (column,))
        return texts_of(columns)

    def text_size(self, corpus: str) -> tuple[float, float]:
        """About how many bytes of text before compression, and documents, a corpus has: some files' footers are read
        and stand for the others by their sizes."""
        files = self.corpus_files(corpus)
        sample = files[:: -(-len(files) // _FOOTERS_READ)]
        sizes = [text_size(path, self.text_column(path)) for path in sample]
        share = sum(path.stat().st_size for path in files) / sum(path.stat().st_size for path in sample)
        return share * sum(size for size, _ in sizes), share * sum(documents for _, documents in sizes)

    def text_column(self, path: Path) -> str:
        """The column of a corpus file that holds its texts."""
        entry = self.manifest.files.get(path.relative_to(self.folder).as_posix())
        return (entry.column if entry else None) or TEXT_COLUMN

    def corpus_files(self, corpus: str) -> list[Path]:
        """The files of a corpus in the order in which they are read.

        Raises:
            MissingData: there is none, or prefetch has not brought all of them.
        """
        folder = self.folder / "corpora" / known(corpus, CORPORA, "corpus")
        files = sorted(folder.glob("*.parquet"))
        wanted = self.manifest.below(f"corpora/{corpus}")
        missing = [name for name in wanted if not (self.folder / name).is_file()]
        if missing:
            raise MissingData(
                f"corpus {corpus} lacks {len(missing)} of the {len(wanted)} files that {self.folder / MANIFEST} lists "
                f"(first: {missing[0]}): run ablations/prefetch.py again"
            )
        if not files:
            raise MissingData(
                f"there is no corpus {corpus} in {self.folder}: put parquet files with a column {TEXT_COLUMN!r} into "
                f"{folder}"
            )
        return files

    def tokenizer_origin(self, tokenizer: str, vocabulary_size: int) -> str:
        if self.trains_tokenizers:
            return trained_origin(self, known(tokenizer, TOKENIZERS, "tokenizer"), vocabulary_size)
        return self._origin([self.tokenizer_folder(tokenizer) / TOKENIZER_FILE])

    def tokenizer(self, tokenizer: str, vocabulary_size: int, cache: Path) -> TextTokenizer:
        if self.trains_tokenizers:
            return trained_tokenizer(self, tokenizer, vocabulary_size, cache)
        loaded = load_tokenizer(self.tokenizer_folder(tokenizer))
        loaded.require_rows(vocabulary_size)
        return loaded

    def tokenizer_folder(self, tokenizer: str) -> Path:
        """The folder of a tokenizer.

        Raises:
            MissingData: it holds none.
        """
        folder = self.folder / "tokenizers" / FOLDERS[known(tokenizer, TOKENIZERS, "tokenizer")]
        if not (folder / TOKENIZER_FILE).is_file():
            raise MissingData(f"there is no tokenizer {tokenizer} in {self.folder}: put {TOKENIZER_FILE} into {folder}")
        return folder

    def tasks(self) -> dict[str, str | None]:
        return {task: self._why_not(task) for task in TASK_SPLITS}

    def _why_not(self, task: str) -> str | None:
        missing = [split for split in TASK_SPLITS[task] if not self.split_path(task, split).is_file()]
        if not missing:
            return None
        return f"{task} has no {', '.join(missing)} split in glue/{task}"  # part of ids, so no word of where it lies

    def task_origin(self, task: str) -> str:
        known(task, tuple(TASK_SPLITS), "task")
        paths = [self.split_path(task, split) for split in TASK_SPLITS[task]]
        present = [path for path in paths if path.is_file()]
        if not present:
            raise MissingData(f"{self._why_not(task)} of {self.folder}: put its parquet files there")
        return self._origin(present)

    def task_examples(self, task: str, split: str) -> dict[str, list[str | int | float]]:
        """The columns of one split.

        Raises:
            MissingData: the split is not there.
            ValueError: no such task or split, or a column is missing.
        """
        from pyarrow import parquet

        known_split(task, split)
        path = self.split_path(task, split)
        if not path.is_file():
            present = sorted(file.stem for file in path.parent.glob("*.parquet"))
            hint = did_you_mean(split, present) if present else "the folder has no parquet file"
            raise MissingData(f"{task} has no {split} split, {path} is missing ({hint})")
        require_columns(path, ("label",))
        columns: dict[str, list[str | int | float]] = parquet.read_table(path).to_pydict()
        if not columns["label"]:
            raise ValueError(f"{path} has no rows: put the examples of {task} there")
        return columns

    def split_path(self, task: str, split: str) -> Path:
        """Where a split of a task lies."""
        return self.folder / "glue" / task / f"{split}.parquet"

    def pair_sets(self) -> tuple[str, ...]:
        own = {path.stem for path in (self.folder / "pairs").glob("*.parquet")}
        return tuple(sorted(own | {name for name in DECLARED_SETS if self._published_pairs(name)}))

    def pair_origin(self, name: str) -> str:
        origin = self._origin(self.pair_files(name))
        return origin if self.unseen is None else f"{origin} without {self.unseen.origin}"

    def pair_instruction(self, name: str) -> str | None:
        instructions = own_instructions(self.folder / "pairs")
        return instructions.get(name, DECLARED_SETS[name].instruction if name in DECLARED_SETS else None)

    def pairs(self, name: str) -> Iterator[Pair]:
        """The pairs of a data set.

        Raises:
            MissingData: it is not here.
            DamagedFile, ValueError: a file is not what it should be.
        """
        files = self.pair_files(name)
        return own_pairs(files[0]) if files[0].parent.name == "pairs" else DECLARED_SETS[name].read(files)

    def leaves_out(self, pair: Pair) -> bool:
        return self.unseen is not None and self.unseen.shares(pair)

    def pair_files(self, name: str) -> list[Path]:
        """The files of a data set of pairs: a person's own one, or those that prefetch brought.

        Raises:
            MissingData: there is none.
        """
        own = self.folder / "pairs" / f"{name}.parquet"
        files = [own] if own.is_file() else self._published_pairs(name)
        if not files:
            hint = did_you_mean(name, [*self.pair_sets(), *DECLARED_SETS])
            raise MissingData(f"there is no data set of pairs {name} in {self.folder / 'pairs'} ({hint})")
        return files

    def _published_pairs(self, name: str) -> list[Path]:
        return sorted((self.folder / "pairs" / name).rglob("*.parquet")) if name in DECLARED_SETS else []

    @cached_property
    def _embedding(self) -> FolderTasks:
        return FolderTasks(self.folder, self.manifest, self._origin)

    def embedding_tasks(self) -> tuple[EmbeddingTask, ...]:
        return tuple(found.task for found in self._embedding.tasks.values())

    def embedding_task_origin(self, name: str) -> str:
        return self._embedding.origin(name)

    def embedding_task_data(self, name: str) -> TaskTables | PublishedTask:
        return self._embedding.data(name)

    def _origin(self, files: Sequence[Path]) -> str:
        """The hub's identity where the manifest knows every file, else a hash of names and contents.

        Part of what the hub publishes is not the whole: then the identity names the part.
        """
        names = sorted(path.relative_to(self.folder).as_posix() for path in files)
        prefetched = self.manifest.files
        if not all(self._is_prefetched(name) for name in names):
            return f"directory:{_digest(f'{name} {content_sha256(self.folder / name)}' for name in names)}"
        require_brought(self.folder, {name: prefetched[name] for name in names})
        origin = hub_origin((prefetched[name].repository, prefetched[name].revision) for name in names)
        published = self.manifest.published.get(PurePosixPath(names[0]).parent.as_posix(), len(names))
        if len(names) == published:
            return origin
        part = _digest(f"{prefetched[name].repository} {prefetched[name].file}" for name in names)
        return f"{origin}#{len(names)}of{published}:{part}"

    def _is_prefetched(self, name: str) -> bool:
        """Whether prefetch brought a file; one that it was to bring may be somebody's own with the same name."""
        entry = self.manifest.files.get(name)
        return entry is not None and (entry.sha256 is not None or has_size(self.folder / name, entry))


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:ORIGIN_DIGITS]
