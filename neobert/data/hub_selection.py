"""Which files of the hub a folder is to hold: looked up once, written into its manifest, fetched by `prefetching`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from neobert.data.hub_files import HubFile, HubUnreachable, Listing, list_repository
from neobert.data.hub_items import Item, Part
from neobert.data.manifest import Entry, Manifest, has_size, missing_files, read_manifest
from neobert.data.repositories import Repository
from neobert.errors import MissingData, RunFailed

State = Literal["here", "to bring", "not brought by prefetch, left as it is", "unavailable"]

_NAMES_SHOWN = 12


@dataclass(frozen=True)
class Row:
    """An item of a plan: how many files and bytes are wanted, and how many of them are still to come."""

    item: Item
    state: State
    revisions: tuple[str, ...] = ()
    files: int = 0
    published_files: int = 0
    bytes: int = 0
    missing_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Selection:
    """The manifest that the folder is to have, and the rows of the plan."""

    manifest: Manifest
    rows: tuple[Row, ...]

    @property
    def missing_bytes(self) -> int:
        """What is still to be fetched."""
        return sum(row.missing_bytes for row in self.rows)

    @property
    def problems(self) -> list[str]:
        """Why items are unavailable, each reason once and with the items that it keeps away."""
        items: dict[str, list[str]] = {}
        for row in self.rows:
            if row.problem is not None:
                items.setdefault(row.problem, []).append(row.item.name)
        return [f"{_enumeration(names)}: {problem}" for problem, names in items.items()]


def _enumeration(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


@dataclass
class Listings:
    """What repositories hold, each asked once: at the commit that the manifest has, else at the branch's newest."""

    manifest: Manifest
    answers: dict[tuple[str, str], Listing | MissingData] = field(default_factory=dict)
    unreachable: HubUnreachable | None = None

    def of(self, repository: Repository) -> Listing:
        """The files of a repository.

        Raises:
            MissingData: the hub does not tell.
        """
        if self.unreachable:
            raise self.unreachable
        key = (repository.name, repository.branch)
        if key not in self.answers:
            self.answers[key] = self._ask(repository)
        answer = self.answers[key]
        if isinstance(answer, MissingData):
            raise answer
        return answer

    def _ask(self, repository: Repository) -> Listing | MissingData:
        known = self.manifest.revision_of(repository.name, repository.branch)
        try:
            return list_repository(repository, known or repository.branch)
        except HubUnreachable as error:
            self.unreachable = error
            return error
        except MissingData as error:
            return error


def select(folder: Path, items: Sequence[Item], *, most_bytes: int | None = None) -> Selection:
    """Look up what the items consist of. Writes nothing.

    A repository that the folder's manifest knows stays at the commit it has there. `most_bytes` caps each corpus to
    whole files, every one of its repositories in the same proportion; files that are there already are kept.

    Raises:
        ValueError: `most_bytes` is less than the first file of a corpus.
    """
    manifest = read_manifest(folder)
    listings = Listings(manifest)
    rows = []
    for item in items:
        if _is_foreign(folder, item, manifest):
            manifest = manifest.without(item.folder)
            rows.append(Row(item, "not brought by prefetch, left as it is"))
            continue
        try:
            manifest = _with_item(folder, manifest, item, listings, most_bytes)
            rows.append(_row(folder, manifest, item))
        except MissingData as error:
            rows.append(_row(folder, manifest, item, str(error)))
    return Selection(manifest, tuple(rows))


def _is_foreign(folder: Path, item: Item, manifest: Manifest) -> bool:
    """Whether somebody else put files there: none of them is one that prefetch brought."""
    entries = manifest.below(item.folder)
    brought = any(entry.sha256 or has_size(folder / name, entry) for name, entry in entries.items())
    return not brought and any(path.is_file() for path in (folder / item.folder).rglob("*"))


def _row(folder: Path, manifest: Manifest, item: Item, problem: str | None = None) -> Row:
    entries = manifest.below(item.folder)
    missing = missing_files(folder, entries)
    whole = Row(
        item,
        "to bring" if missing else "here",
        tuple(sorted({entry.revision for entry in entries.values()})),
        len(entries),
        manifest.published.get(item.folder, len(entries)),
        sum(entry.bytes for entry in entries.values()),
        sum(entries[name].bytes for name in missing),
    )
    if problem is None or (entries and not missing):
        return whole
    return replace(whole, state="unavailable", missing_bytes=0, problem=problem)


def _with_item(folder: Path, manifest: Manifest, item: Item, listings: Listings, most_bytes: int | None) -> Manifest:
    found = {part: _matching(part, listings.of(part.repository)) for part in item.parts}
    published = sum(len(files) for files in found.values())
    chosen = [(part, file) for part, files in found.items() for file in files]
    if item.kind == "corpus" and most_bytes is not None:
        chosen = _within(chosen, found, most_bytes, item)
    entries: dict[str, Entry] = {}
    for part, file in chosen:
        name = f"{item.folder}/{part.place(file.name)}"
        if name in entries:
            raise RunFailed(f"{part.repository.name} has two files where {name} is one: the hub's layout has changed")
        entries[name] = _entry(part.repository, listings.of(part.repository).revision, file)
    if item.kind == "corpus":  # a smaller cap than before takes nothing away
        present = {name: entry for name, entry in manifest.below(item.folder).items() if (folder / name).is_file()}
        entries = present | entries
    return manifest.with_folder(item.folder, entries, published)


def _matching(part: Part, listing: Listing) -> list[HubFile]:
    files = listing.matching(part.repository.files)
    if not files and part.otherwise is not None:
        files = listing.matching(part.otherwise)
    if not files and not part.is_optional:
        raise MissingData(
            f"{part.repository.name} has no file {part.repository.files} at {listing.revision}: its layout has changed"
        )
    return files


def _within(
    chosen: list[tuple[Part, HubFile]], found: dict[Part, list[HubFile]], most_bytes: int, item: Item
) -> list[tuple[Part, HubFile]]:
    """The first files, all repositories in proportion, that together have at most so many bytes."""
    share = {id(file): (index + 1) / len(files) for files in found.values() for index, file in enumerate(files)}
    within, total = [], 0
    for part, file in sorted(chosen, key=lambda pair: share[id(pair[1])]):
        total += file.bytes
        if total > most_bytes:
            break
        within.append((part, file))
    if not within:
        raise ValueError(f"--most-bytes {most_bytes} is less than the first file of {item.name} ({total} bytes)")
    return within


def _entry(repository: Repository, revision: str, file: HubFile) -> Entry:
    return Entry(
        repository=repository.name,
        repository_type=repository.kind,
        branch=repository.branch,
        revision=revision,
        file=file.name,
        bytes=file.bytes,
        checksum=file.checksum,
        column=repository.column,
    )


def repository_of(entry: Entry) -> Repository:
    """The repository that an entry names."""
    return Repository(entry.repository, entry.file, branch=entry.branch, kind=entry.repository_type)
