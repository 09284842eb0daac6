"""Does a folder hold all that a plan needs? Read from files alone; no network, torch-free."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from neobert.data.corpora import TASK_SPLITS
from neobert.data.directory import DirectorySource
from neobert.data.hub_files import matches
from neobert.data.hub_items import Item, Needs, items_of
from neobert.data.manifest import Entry, has_size
from neobert.data.parquet import require_columns
from neobert.errors import DamagedFile, MissingData
from neobert.files import sha256_of


@dataclass(frozen=True)
class Gap:
    """An item that a plan needs and that the folder does not hold as it should."""

    item: Item
    reason: str


def gaps(folder: Path, needs: Needs, *, contents: bool) -> list[Gap]:
    """Everything that keeps a plan from closing over `folder`, by name.

    First what is absent, which is quick; only where all is there what cannot be read; and only where all can be read
    and `contents` is asked for, which files have another SHA-256 than the manifest says.
    """
    source = DirectorySource(folder)
    items = list(items_of(needs))
    checks = [_absent, _unreadable, _altered] if contents else [_absent, _unreadable]
    for check in checks:
        found = [Gap(item, reason) for item in items for reason in _reasons(check, source, item)]
        if found:
            return found
    return []


def _reasons(check: Callable[[DirectorySource, Item], Iterator[str]], source: DirectorySource, item: Item) -> list[str]:
    try:
        return list(check(source, item))
    except (MissingData, DamagedFile, ValueError) as error:
        return [str(error)]


def _absent(source: DirectorySource, item: Item) -> Iterator[str]:
    if item.kind == "corpus":
        source.corpus_files(item.word)
    elif item.kind == "tokenizer":
        source.tokenizer_folder(item.word)
    elif item.kind == "GLUE task" and (reason := source.tasks()[item.word]):
        yield reason
        return
    entries = source.manifest.below(item.folder)
    if not entries and not any(path.is_file() for path in (source.folder / item.folder).rglob("*")):
        yield f"{source.folder / item.folder} is not there"
    for name, entry in entries.items():
        if not has_size(source.folder / name, entry) and not _is_own(source.folder / name, entry):
            yield f"{source.folder / name} is not there with its {entry.bytes} bytes"


def _is_own(path: Path, entry: Entry) -> bool:
    """Whether somebody put a file of their own where prefetch was to bring one."""
    return entry.sha256 is None and path.is_file()


def _unreadable(source: DirectorySource, item: Item) -> Iterator[str]:
    if item.kind == "corpus":
        for path in source.corpus_files(item.word):
            require_columns(path, (source.text_column(path),))
    elif item.embedding_rows is not None:
        source.tokenizer(item.word, item.embedding_rows, source.folder)
    elif item.kind == "GLUE task":
        for split in TASK_SPLITS[item.word]:
            require_columns(source.split_path(item.word, split), ("label",))
    yield from ()


def _altered(source: DirectorySource, item: Item) -> Iterator[str]:
    for name, entry in source.manifest.below(item.folder).items():
        path = source.folder / name
        if has_size(path, entry) and not _has_content(path, entry):
            yield f"{path} has other bytes than {entry.repository} at {entry.revision}: remove it"


def _has_content(path: Path, entry: Entry) -> bool:
    if entry.sha256 is not None:
        return sha256_of(path) == entry.sha256
    return entry.checksum is None or matches(path, entry.checksum)
