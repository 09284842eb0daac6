"""Bring what a plan needs from the Hugging Face hub into a folder.

What is wanted is looked up once and written into the folder's manifest. A file is fetched into a staging folder,
compared with the hub's checksum, flushed and renamed to its place, so that a file in its place is always whole;
whatever is killed is completed by the same call. Addresses and tokens are the library's own: HF_ENDPOINT, HF_TOKEN or
the stored login.
"""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

from neobert.data.catalog import Repository
from neobert.data.manifest import (
    Entry,
    Manifest,
    has_content,
    has_size,
    missing_files,
    read_manifest,
    write_manifest,
)
from neobert.data.requirements import Item
from neobert.errors import DamagedFile, MissingData, RunFailed
from neobert.files import inside, is_local, sha256_of, sync_file, sync_folder, temporary_sibling
from neobert.runs.claims import acquire

WORK_FOLDER = ".prefetch"
FAILURES_PER_REPOSITORY = 3
"""So many files of a repository may fail before its others are left for the next call."""

_WRITE_SECONDS = 10.0
_REPORT_SECONDS = 10.0
_RESERVE_BYTES = 1 << 28
_NAMES_SHOWN = 12


class HubUnreachable(MissingData):
    """No repository of the hub can be asked from here."""


class HubFile(NamedTuple):
    """A file of a repository; the checksum is "sha256:…" for large files and "git:…" for small ones."""

    name: str
    bytes: int
    checksum: str


class Listing(NamedTuple):
    """All files of a repository at one commit, in the order of their names."""

    revision: str
    files: tuple[HubFile, ...]

    def matching(self, repository: Repository) -> list[HubFile]:
        """The files that are wanted of a repository.

        Raises:
            MissingData: there are none.
        """
        for pattern in filter(None, (repository.files, repository.otherwise)):
            if found := [file for file in self.files if fnmatchcase(file.name, pattern)]:
                return found
        if repository.is_optional:
            return []
        raise MissingData(
            f"{repository.name} has no file {repository.files} at {self.revision}: its layout has changed"
        )


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
            known = self.manifest.revision_of(*key)
            try:
                self.answers[key] = list_repository(repository, known or repository.branch)
            except MissingData as error:
                self.unreachable = error if isinstance(error, HubUnreachable) else None
                self.answers[key] = error
        answer = self.answers[key]
        if isinstance(answer, MissingData):
            raise answer
        return answer


def list_repository(repository: Repository, revision: str) -> Listing:
    """The files of a repository; `revision` is a branch, of which the newest commit is taken, or a commit.

    Raises:
        MissingData: the hub does not answer, or does not give the repository away.
    """
    from huggingface_hub import HfApi

    with _hub_errors(repository):
        ask = HfApi().dataset_info if repository.kind == "dataset" else HfApi().model_info
        info = ask(repository.name, revision=revision, files_metadata=True)
    assert info.sha is not None
    files = []
    for sibling in info.siblings or ():
        if sibling.rfilename == ".gitattributes":
            continue
        if sibling.size is None or sibling.blob_id is None or not is_local(sibling.rfilename):
            raise RunFailed(f"the hub's list of {repository.name} has no size or a strange name: {sibling.rfilename}")
        checksum = f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"git:{sibling.blob_id}"
        files.append(HubFile(sibling.rfilename, sibling.size, checksum))
    return Listing(info.sha, tuple(sorted(files)))


@contextmanager
def _hub_errors(repository: Repository) -> Iterator[None]:
    """Whatever keeps the hub from answering, as one sentence; errors of the local disk stay what they are."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        XetDownloadError,
    )

    prefix = "datasets/" if repository.kind == "dataset" else ""
    how_to_log_in = (
        f"accept its licence at {constants.ENDPOINT}/{prefix}{repository.name}, set HF_TOKEN to a token of that "
        f"account, and run the same command again"
    )
    try:
        yield
    except GatedRepoError as error:
        raise MissingData(f"{repository.name} is gated: {how_to_log_in}") from error
    except RepositoryNotFoundError as error:
        raise MissingData(
            f"the hub has no {repository.kind} {repository.name}, or none for you; if it is private or gated, "
            f"{how_to_log_in}"
        ) from error
    except OfflineModeIsEnabled as error:
        raise HubUnreachable("hub access is switched off (HF_HUB_OFFLINE is set): unset it to prefetch") from error
    except (HTTPError, XetDownloadError, OSError, RuntimeError, json.JSONDecodeError) as error:
        # RuntimeError is of hf_xet; JSONDecodeError of a portal that answers in the hub's place
        network = (HTTPError, ConnectionError, TimeoutError, LocalEntryNotFoundError)
        if isinstance(error, OSError) and not isinstance(error, network) and error.errno is not None:
            raise
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        if isinstance(cause, HfHubHTTPError):
            raise MissingData(
                f"{repository.name} cannot be read from the hub ({reason}): run the same command again"
            ) from error
        raise HubUnreachable(
            f"the hub at {constants.ENDPOINT} does not answer ({reason}): run this where there is a network"
        ) from error


@dataclass(frozen=True)
class PlannedItem:
    """An item of a prefetch: how many files and bytes are wanted, and how many of them are still to come."""

    item: Item
    state: Literal["here", "to bring", "not brought by prefetch, left as it is", "unavailable"]
    revisions: tuple[str, ...] = ()
    files: int = 0
    published_files: int = 0
    bytes: int = 0
    missing_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Selection:
    """The manifest that the folder is to have, and the items of the plan."""

    manifest: Manifest
    rows: tuple[PlannedItem, ...]

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
            rows.append(PlannedItem(item, "not brought by prefetch, left as it is"))
            continue
        try:
            manifest = _with_item(folder, manifest, item, listings, most_bytes)
            rows.append(_planned(folder, manifest, item))
        except MissingData as error:
            rows.append(_planned(folder, manifest, item, str(error)))
    return Selection(manifest, tuple(rows))


def _is_foreign(folder: Path, item: Item, manifest: Manifest) -> bool:
    """Whether somebody else put files there: none of them is one that prefetch brought."""
    entries = manifest.below(item.folder)
    brought = any(entry.sha256 or has_size(folder / name, entry) for name, entry in entries.items())
    return not brought and any(path.is_file() for path in (folder / item.folder).rglob("*"))


def _planned(folder: Path, manifest: Manifest, item: Item, problem: str | None = None) -> PlannedItem:
    entries = manifest.below(item.folder)
    missing = missing_files(folder, entries)
    whole = PlannedItem(
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
    if not item.parts:
        raise MissingData(f"{item.name} is in no repository: put its files into {folder / item.folder}")
    found = {part: listings.of(part).matching(part) for part in item.parts}
    chosen = [(part, file) for part, files in found.items() for file in files]
    published = len(chosen)
    if item.kind == "corpus" and most_bytes is not None:
        chosen = _cap(found, most_bytes, item)
    entries: dict[str, Entry] = {}
    for part, file in chosen:
        name = item.place(part, file.name)
        if name in entries:
            raise RunFailed(f"{part.name} has two files where {name} is one: the hub's layout has changed")
        entries[name] = Entry(
            repository=part.name,
            repository_type=part.kind,
            branch=part.branch,
            revision=listings.of(part).revision,
            file=file.name,
            bytes=file.bytes,
            checksum=file.checksum,
            column=part.column,
        )
    if item.kind == "corpus":  # a smaller cap than before takes nothing away
        present = {name: entry for name, entry in manifest.below(item.folder).items() if (folder / name).is_file()}
        entries = present | entries
    return manifest.with_folder(item.folder, entries, published)


def _cap(
    found: Mapping[Repository, Sequence[HubFile]], most_bytes: int, item: Item
) -> list[tuple[Repository, HubFile]]:
    """The first files, all repositories in proportion, that together have at most so many bytes."""
    by_share = [
        ((number + 1) / len(files), part, file) for part, files in found.items() for number, file in enumerate(files)
    ]
    within, total = [], 0
    for _, part, file in sorted(by_share, key=lambda each: each[0]):
        total += file.bytes
        if total > most_bytes:
            break
        within.append((part, file))
    if not within:
        raise ValueError(f"--most-bytes {most_bytes} is less than the first file of {item.name} ({total} bytes)")
    return within


def require_room(folder: Path, missing_bytes: int) -> None:
    """Check that the disk has room for so many bytes.

    Raises:
        ValueError: it has not.
    """
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if missing_bytes + _RESERVE_BYTES > free:
        raise ValueError(
            f"{missing_bytes / 1e9:.1f} GB are to come but the disk of {folder} has {free / 1e9:.1f} GB free: choose "
            f"another --data-dir, or cap each corpus with --most-bytes"
        )


@contextmanager
def sole_prefetch(folder: Path) -> Iterator[None]:
    """While it is open no other process selects for the folder or brings into it.

    Raises:
        RunFailed: another process is at it.
        DamagedFile: the folder's notes lie outside.
    """
    claim = acquire(inside(folder, f"{WORK_FOLDER}/claims"))
    if claim is None:
        raise RunFailed(f"another prefetch is at work on {folder}: wait for its end")
    with claim:
        yield


@dataclass
class _Progress:
    """What arrived, in the manifest on the disk and in a line now and then."""

    folder: Path
    manifest: Manifest
    files: int
    report: Callable[[str], None]
    arrived: int = 0
    fetched_bytes: int = 0
    written: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)

    def add(self, name: str, sha256: str, fetched: bool) -> None:
        """Note a file that is in its place."""
        self.manifest = self.manifest.with_file(name, sha256, (self.folder / name).stat().st_mtime_ns)
        self.arrived += 1
        self.fetched_bytes += self.manifest.files[name].bytes if fetched else 0
        now = time.monotonic()
        if now - self.written > _WRITE_SECONDS:
            write_manifest(self.folder, self.manifest)
            self.written = now
        if now - self.reported > _REPORT_SECONDS:
            self.report(f"{self.arrived} of {self.files} files, {self.fetched_bytes / 1e9:.2f} GB fetched")
            self.reported = now


def bring(folder: Path, selection: Selection, *, workers: int, report: Callable[[str], None]) -> list[Exception]:
    """Make the folder hold what the selection lists; what could not be brought, and why. Call it as the sole one.

    Raises:
        OSError: the disk refuses.
    """
    staging = inside(folder, f"{WORK_FOLDER}/staging")
    shutil.rmtree(staging, ignore_errors=True)
    write_manifest(folder, selection.manifest)
    wanted = {
        name: entry
        for row in selection.rows
        if row.problem is None
        for name, entry in selection.manifest.below(row.item.folder).items()
        if not _is_known(folder / name, entry)
    }
    progress = _Progress(folder, selection.manifest, len(wanted), report)
    failures: Counter[str] = Counter()
    problems: dict[str, Exception] = {}
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_bring_one, folder, name, entry, staging, failures) for name, entry in wanted.items()]
        try:
            for future in as_completed(futures):
                try:
                    arrived = future.result()
                except (MissingData, DamagedFile) as error:
                    problems.setdefault(str(error), error)
                else:
                    if arrived is not None:
                        progress.add(*arrived)
        finally:
            pool.shutdown(cancel_futures=True)
            write_manifest(folder, progress.manifest)
            shutil.rmtree(staging, ignore_errors=True)
    return list(problems.values())


def _is_known(path: Path, entry: Entry) -> bool:
    """Whether the file's hash was taken and the file is the one it was taken from."""
    return entry.sha256 is not None and has_size(path, entry) and path.stat().st_mtime_ns == entry.modified_ns


def _bring_one(
    folder: Path, name: str, entry: Entry, staging: Path, failures: Counter[str]
) -> tuple[str, str, bool] | None:
    """Bring one file, or find that it is there: (name, SHA-256, whether it was fetched); None where its repository
    failed too often."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    path = inside(folder, name)
    if has_size(path, entry) and has_content(path, entry):
        return name, entry.sha256 or sha256_of(path), False
    if failures[entry.repository] >= FAILURES_PER_REPOSITORY:
        return None
    disable_progress_bars()
    place = temporary_sibling(staging / "file")
    repository = Repository(entry.repository, entry.file, branch=entry.branch, kind=entry.repository_type)
    try:
        with _hub_errors(repository):
            fetched = Path(
                hf_hub_download(
                    entry.repository,
                    entry.file,
                    repo_type=entry.repository_type,
                    revision=entry.revision,
                    local_dir=place,
                    etag_timeout=30,
                )
            )
        if not (has_size(fetched, entry) and has_content(fetched, entry)):
            raise DamagedFile(f"{entry.repository} sent {entry.file} with other bytes than the hub states: run again")
        sha256 = sha256_of(fetched)
        sync_file(fetched)
        path.parent.mkdir(parents=True, exist_ok=True)
        fetched.replace(path)
        sync_folder(path.parent)
        return name, sha256, True
    except (MissingData, DamagedFile):
        failures[entry.repository] += 1
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)
