"""Data requirements of a plan, and whether a folder fulfils them. The network is not used."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from neobert.data.catalog import CORPORA, GLUE, TASK_SPLITS, TOKENIZERS, Repository, require_known
from neobert.data.manifest import Entry, has_content, has_size, is_downloaded
from neobert.data.mteb_tasks import MTEB_REPOSITORIES
from neobert.data.pairs import DECLARED_SETS
from neobert.data.reading import require_columns
from neobert.data.sources import DirectorySource
from neobert.data.tokenizers import TOKENIZER_FOLDERS
from neobert.errors import DamagedFile, MissingData

MODELS = "models"
"""Folder of external models."""


@dataclass(frozen=True)
class Needs:
    """Data requirements of a plan, by the recipes' names. Tokenizers map to the rows of the embedding, external models
    to the repository files that are read."""

    corpora: tuple[str, ...] = ()
    tokenizers: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    embedding_tasks: tuple[str, ...] = ()
    pair_sets: tuple[str, ...] = ()
    models: Mapping[str, tuple[Repository, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """An item to download: its name in the recipes (`word`), its folder, and its repository files.

    `embedding_rows` is the upper limit of a tokenizer's vocabulary.
    """

    kind: Literal["corpus", "tokenizer", "GLUE task", "MTEB task", "data set of pairs", "model"]
    word: str
    folder: str
    parts: tuple[Repository, ...]
    embedding_rows: int | None = None

    @property
    def name(self) -> str:
        """The display name."""
        return f"{self.kind} {self.word}"

    @property
    def repositories(self) -> str:
        """The names of its repositories, for display."""
        return " and ".join(dict.fromkeys(part.name for part in self.parts))

    def path_of(self, entry: Entry) -> str:
        """Return the path of a repository file below the data folder."""
        name = PurePosixPath(entry.file).name
        if self.kind == "corpus":
            return f"{self.folder}/{entry.repository.replace('/', '--')}--{name}"
        if self.kind == "GLUE task":  # validation-00000-of-00001.parquet
            return f"{self.folder}/{name.partition('-')[0]}.parquet"
        return f"{self.folder}/{entry.file}"


def items_of(needs: Needs) -> Iterator[Item]:
    """Yield the items of a plan, small ones first, so that a missing access token is found before large downloads."""
    for word, rows in needs.tokenizers.items():
        repository = TOKENIZERS[require_known(word, TOKENIZERS, "tokenizer")]
        yield Item("tokenizer", word, f"tokenizers/{TOKENIZER_FOLDERS[word]}", (repository,), rows)
    for word in needs.tasks:
        splits = TASK_SPLITS[require_known(word, TASK_SPLITS, "task")]
        parts = tuple(replace(GLUE, files=GLUE.files.format(task=word, split=split)) for split in splits)
        yield Item("GLUE task", word, f"glue/{word}", parts)
    for word in needs.embedding_tasks:
        name, commit = MTEB_REPOSITORIES[require_known(word, MTEB_REPOSITORIES, "MTEB task")]
        yield Item("MTEB task", word, f"mteb/{word}", (Repository(name, "*", branch=commit),))
    for word in needs.pair_sets:
        declared = DECLARED_SETS[require_known(word, DECLARED_SETS, "data set of pairs")]
        yield Item("data set of pairs", word, f"pairs/{word}", declared.repositories)
    for word, parts in needs.models.items():
        yield Item("model", word, f"{MODELS}/{word}", parts)
    for word in needs.corpora:
        yield Item("corpus", word, f"corpora/{word}", CORPORA[require_known(word, CORPORA, "corpus")].repositories)


class Gap(NamedTuple):
    """An item that a plan needs and that is missing or invalid in the folder."""

    item: Item
    reason: str


def verify_prefetch(folder: Path, needs: Needs, *, contents: bool) -> list[Gap]:
    """Return every item that a plan needs and that is missing or invalid in the folder.

    Three checks run in order, each only if the previous one found nothing: absent files (quick), unreadable files and,
    with `contents`, files whose SHA-256 differs from the manifest.
    """
    source = DirectorySource(folder)
    items = list(items_of(needs))
    for check in [_absent, _unreadable, _altered] if contents else [_absent, _unreadable]:
        if found := [Gap(item, reason) for item in items for reason in _reasons(check, source, item)]:
            return found
    return []


def _reasons(check: Callable[[DirectorySource, Item], Iterator[str]], source: DirectorySource, item: Item) -> list[str]:
    try:
        return list(check(source, item))
    except (MissingData, DamagedFile, ValueError) as error:
        return [str(error)]


def _absent(source: DirectorySource, item: Item) -> Iterator[str]:
    if item.kind == "corpus":
        source.corpus_folder(item.word).files()
    elif item.kind == "tokenizer":
        source.tokenizer_folder(item.word)
    elif item.kind == "GLUE task" and (reason := source.tasks()[item.word]):
        yield reason
        return
    entries = source.manifest.below(item.folder)
    if not entries and not any(path.is_file() for path in (source.folder / item.folder).rglob("*")):
        yield f"{source.folder / item.folder} is not there"
    for name, entry in entries.items():
        path = source.folder / name
        if not path.is_file() or (is_downloaded(path, entry) and not has_size(path, entry)):
            yield f"{path} is not there with its {entry.bytes} bytes"


def _unreadable(source: DirectorySource, item: Item) -> Iterator[str]:
    if item.kind == "corpus":
        corpus = source.corpus_folder(item.word)
        for path in corpus.files():
            require_columns(path, (corpus.text_column(path),))
    elif item.embedding_rows is not None:
        source.tokenizer(item.word, item.embedding_rows, source.folder)
    elif item.kind == "GLUE task":
        for split in TASK_SPLITS[item.word]:
            require_columns(source.split_path(item.word, split), ("label",))
    yield from ()


def _altered(source: DirectorySource, item: Item) -> Iterator[str]:
    for name, entry in source.manifest.below(item.folder).items():
        path = source.folder / name
        if has_size(path, entry) and not has_content(path, entry):
            yield f"{path} has other bytes than {entry.repository} at {entry.revision}: remove it"
