"""Download the data of a plan from the Hugging Face hub into a folder.

The files are looked up once and listed in the folder's manifest. huggingface_hub's snapshot_download fetches some of
them at a time into a staging folder. They are compared with the hub's checksums, flushed and renamed to their final
paths, so that files there are always complete. After a kill, the same call resumes. Address and token are the
library's: HF_ENDPOINT, HF_TOKEN or the stored login.
"""

import glob
import json
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from neobert.data.catalog import Repository
from neobert.data.manifest import Entry, Manifest, has_content, has_size, is_downloaded, read_manifest, write_manifest
from neobert.data.requirements import Item
from neobert.errors import DamagedFile, MissingData, RunFailed, name_first
from neobert.files import differing, inside, is_local, remember, sha256_of, sync_file, sync_folder, temporary_sibling

WORK_FOLDER = ".prefetch"
FILES_AT_A_TIME = 64
"""Number of files of a repository that are fetched before they are checked and moved into place."""

_NOTE_SECONDS = 10.0
_RESERVE_BYTES = 1 << 28


class HubUnreachable(MissingData):
    """Raised if the hub does not answer for any repository."""


@dataclass
class Listings:
    """File lists of repositories, each requested once: at the manifest's commit, else at the newest of the branch."""

    manifest: Manifest
    answers: dict[tuple[str, str], list[Entry]] = field(default_factory=dict)

    def matching(self, repository: Repository) -> list[Entry]:
        """Return the files of a repository that match its patterns, sorted by name. Raises MissingData if there are
        none, or the hub does not list them."""
        key = (repository.name, repository.branch)
        if key not in self.answers:
            self.answers[key] = list_repository(repository, self.manifest.revision_of(*key) or repository.branch)
        files = self.answers[key]
        for pattern in filter(None, (repository.files, repository.otherwise)):
            if found := [replace(file, column=repository.column) for file in files if fnmatchcase(file.file, pattern)]:
                return found
        if repository.is_optional:
            return []
        revision = files[0].revision if files else repository.branch
        raise MissingData(f"{repository.name} has no file {repository.files} at {revision}: its layout has changed")


def list_repository(repository: Repository, revision: str) -> list[Entry]:
    """Return all files of a repository; `revision` is a commit, or a branch, which stands for its newest commit. Raises
    MissingData if the hub does not answer, or refuses access to the repository."""
    from huggingface_hub import HfApi

    with _hub_errors(repository.name, repository.kind):
        ask = HfApi().dataset_info if repository.kind == "dataset" else HfApi().model_info
        info = ask(repository.name, revision=revision, files_metadata=True)
    assert info.sha is not None
    files = []
    for sibling in info.siblings or ():
        if sibling.rfilename == ".gitattributes":
            continue
        if sibling.size is None or sibling.blob_id is None or not is_local(sibling.rfilename):
            raise RunFailed(f"the hub's list of {repository.name} has no size or a strange name: {sibling.rfilename}")
        file = Entry(
            repository=repository.name,
            revision=info.sha,
            bytes=sibling.size,
            repository_type=repository.kind,
            branch=repository.branch,
            file=sibling.rfilename,
            checksum=f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"git:{sibling.blob_id}",
        )
        files.append(file)
    return sorted(files, key=lambda file: file.file)


@contextmanager
def _hub_errors(name: str, kind: str) -> Iterator[None]:
    """Turn errors of the hub into one-sentence errors of this package; local disk errors pass through."""
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

    prefix = "datasets/" if kind == "dataset" else ""
    how_to_log_in = (
        f"accept its licence at {constants.ENDPOINT}/{prefix}{name}, set HF_TOKEN to a token of that account, and run "
        "the same command again"
    )
    try:
        yield
    except GatedRepoError as error:
        raise MissingData(f"{name} is gated: {how_to_log_in}") from error
    except RepositoryNotFoundError as error:
        raise MissingData(
            f"the hub has no {kind} {name}, or none for you; if it is private or gated, {how_to_log_in}"
        ) from error
    except OfflineModeIsEnabled as error:
        raise HubUnreachable("hub access is switched off (HF_HUB_OFFLINE is set): unset it to prefetch") from error
    except (HTTPError, XetDownloadError, OSError, RuntimeError, json.JSONDecodeError) as error:
        # RuntimeError comes from hf_xet, JSONDecodeError from a captive portal that answers instead of the hub
        network = (HTTPError, ConnectionError, TimeoutError, LocalEntryNotFoundError)
        if isinstance(error, OSError) and not isinstance(error, network) and error.errno is not None:
            raise
        cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        if isinstance(cause, HfHubHTTPError):
            raise MissingData(f"{name} cannot be read from the hub ({reason}): run the same command again") from error
        raise HubUnreachable(
            f"the hub at {constants.ENDPOINT} does not answer ({reason}): run this where there is a network"
        ) from error


@dataclass(frozen=True)
class PlannedItem:
    """An item of a prefetch, with its number of files and bytes, and the bytes that are still missing."""

    item: Item
    state: Literal["here", "to download", "not downloaded by prefetch, left as it is", "unavailable"]
    revisions: tuple[str, ...] = ()
    files: int = 0
    published_files: int = 0
    bytes: int = 0
    missing_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Selection:
    """The manifest to write to the folder, and the items of the plan."""

    manifest: Manifest
    rows: tuple[PlannedItem, ...]

    @property
    def missing_bytes(self) -> int:
        """Number of bytes still to be downloaded."""
        return sum(row.missing_bytes for row in self.rows)

    @property
    def problems(self) -> list[str]:
        """Reasons why items are unavailable, each once, with the names of its items."""
        items: dict[str, list[str]] = {}
        for row in self.rows:
            if row.problem is not None:
                items.setdefault(row.problem, []).append(row.item.name)
        return [f"{name_first(names, most=12)}: {problem}" for problem, names in items.items()]


def select(folder: Path, items: Sequence[Item], *, most_bytes: int | None = None) -> Selection:
    """Look up the files of the items. Nothing is written.

    Repositories in the folder's manifest keep their commit. `most_bytes` caps each corpus to whole files, in the same
    proportion for each of its repositories; files that are already present are kept.

    Raises:
        HubUnreachable: the hub does not answer.
        ValueError: `most_bytes` is less than the first file of a corpus.
    """
    manifest = read_manifest(folder)
    listings = Listings(manifest)
    rows = []
    for item in items:
        if _is_foreign(folder, item, manifest):
            manifest = manifest.without(item.folder)
            rows.append(PlannedItem(item, "not downloaded by prefetch, left as it is"))
            continue
        try:
            manifest = _with_item(folder, manifest, item, listings, most_bytes)
            rows.append(_planned(folder, manifest, item))
        except HubUnreachable:
            raise
        except MissingData as error:
            rows.append(_planned(folder, manifest, item, str(error)))
    return Selection(manifest, tuple(rows))


def _is_foreign(folder: Path, item: Item, manifest: Manifest) -> bool:
    """Return whether the item's folder contains files, none of which was downloaded by prefetch."""
    entries = manifest.below(item.folder)
    downloaded = any(is_downloaded(folder / name, entry) for name, entry in entries.items())
    return not downloaded and any(path.is_file() for path in (folder / item.folder).rglob("*"))


def _planned(folder: Path, manifest: Manifest, item: Item, problem: str | None = None) -> PlannedItem:
    entries = manifest.below(item.folder)
    missing = [name for name, entry in entries.items() if not has_size(folder / name, entry)]
    whole = PlannedItem(
        item,
        "to download" if missing else "here",
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
    found = [listings.matching(part) for part in item.parts]
    chosen = [file for files in found for file in files]
    published = len(chosen)
    if item.kind == "corpus" and most_bytes is not None:
        chosen = _cap(found, most_bytes, item)
    entries: dict[str, Entry] = {}
    for file in chosen:
        name = item.path_of(file)
        if name in entries:
            raise RunFailed(f"{file.repository} has two files where {name} is one: the hub's layout has changed")
        entries[name] = file
    if item.kind == "corpus":  # a smaller cap than before removes no files
        present = {name: entry for name, entry in manifest.below(item.folder).items() if (folder / name).is_file()}
        entries = present | entries
    return manifest.with_folder(item.folder, entries, published)


def _cap(found: Sequence[Sequence[Entry]], most_bytes: int, item: Item) -> list[Entry]:
    """Return the first files, in proportion from all repositories, with at most `most_bytes` in total."""
    by_share = [((number + 1) / len(files), file) for files in found for number, file in enumerate(files)]
    within, total = [], 0
    for _, file in sorted(by_share, key=lambda each: each[0]):
        total += file.bytes
        if total > most_bytes:
            break
        within.append(file)
    if not within:
        raise ValueError(f"--most-bytes {most_bytes} is less than the first file of {item.name} ({total} bytes)")
    return within


def require_room(folder: Path, missing_bytes: int) -> None:
    """Raise ValueError if the disk has no room for `missing_bytes`."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if missing_bytes + _RESERVE_BYTES > free:
        raise ValueError(
            f"{missing_bytes / 1e9:.1f} GB are to come but the disk of {folder} has {free / 1e9:.1f} GB free: choose "
            f"another --data-dir, or cap each corpus with --most-bytes"
        )


def download(folder: Path, selection: Selection, *, workers: int, report: Callable[[str], None]) -> list[Exception]:
    """Download the files of the selection that are not in the folder; return the errors of those that failed. One
    process at a time may do so.

    Raises:
        OSError: a local disk error.
    """
    write_manifest(folder, selection.manifest)
    files = dict(selection.manifest.files)
    manifest = replace(selection.manifest, files=files)
    wanted: dict[tuple[str, str, str], dict[str, Entry]] = defaultdict(dict)
    for row in selection.rows:
        entries = {} if row.problem is not None else manifest.below(row.item.folder)
        files |= (here := _already_here(folder, entries))
        for name in entries.keys() - here.keys():
            entry = entries[name]
            wanted[entry.repository, entry.repository_type, entry.revision][name] = entry
    errors: list[Exception] = []
    noted = time.monotonic()
    for (repository, kind, revision), entries in wanted.items():
        staging = inside(folder, f"{WORK_FOLDER}/staging/{kind}--{repository.replace('/', '--')}--{revision}")
        names = sorted(entries)
        for start in range(0, len(names), FILES_AT_A_TIME):
            part = {name: entries[name] for name in names[start : start + FILES_AT_A_TIME]}
            try:
                _fetch(staging, list(part.values()), workers)
            except MissingData as error:
                errors.append(error)
                break
            moved, damaged = _move_into_place(folder, staging, part)
            errors += damaged
            files |= moved
            write_manifest(folder, manifest)
            if time.monotonic() - noted > _NOTE_SECONDS:
                report(f"{repository}: {start + len(part)} of {len(names)} files")
                noted = time.monotonic()
    write_manifest(folder, manifest)
    if not errors:
        shutil.rmtree(folder / WORK_FOLDER / "staging", ignore_errors=True)
    return errors


def _already_here(folder: Path, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of the files that are in the folder with the right content."""
    present = {name: entry for name, entry in entries.items() if has_size(inside(folder, name), entry)}
    hashed = {name: entry.sha256 for name, entry in present.items() if entry.sha256 is not None}
    changed = differing(folder, hashed)
    unhashed = {name: entry for name, entry in present.items() if entry.sha256 is None}
    here = {name: present[name] for name in hashed.keys() - set(changed)}
    return here | {
        name: _with_digest(folder / name, entry)
        for name, entry in unhashed.items()
        if has_content(folder / name, entry)
    }


def _with_digest(path: Path, entry: Entry) -> Entry:
    """Return the entry of a file that `has_content` with its SHA-256, which most checksums of the hub are."""
    kind, _, digits = (entry.checksum or "").partition(":")
    known = entry.sha256 or (digits if kind == "sha256" else None)
    return replace(entry, sha256=known or sha256_of(path))


def _fetch(staging: Path, entries: Sequence[Entry], workers: int) -> None:
    """Fetch files of one repository at one commit; those that an earlier call has fetched stay."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    first = entries[0]
    with _hub_errors(first.repository, first.repository_type):
        snapshot_download(
            first.repository,
            repo_type=first.repository_type,
            revision=first.revision,
            local_dir=staging,
            allow_patterns=[glob.escape(entry.file) for entry in entries],
            max_workers=workers,
            etag_timeout=30,
        )


def _move_into_place(
    folder: Path, staging: Path, entries: Mapping[str, Entry]
) -> tuple[dict[str, Entry], list[DamagedFile]]:
    """Check fetched files and rename them to their paths below the folder; return the entries of whole ones, and the
    errors of the others."""
    moved: dict[str, Entry] = {}
    damaged = []
    uses = Counter(entry.file for entry in entries.values())
    for name, entry in entries.items():
        fetched, path = staging / entry.file, inside(folder, name)
        if not (has_size(fetched, entry) and has_content(fetched, entry)):
            fetched.unlink(missing_ok=True)
            sentence = f"{entry.repository} sent {entry.file} with other bytes than the hub states: run again"
            damaged.append(DamagedFile(sentence))
            continue
        moved[name] = _with_digest(fetched, entry)
        uses[entry.file] -= 1
        if uses[entry.file]:  # another item has the same file
            fetched = Path(shutil.copyfile(fetched, temporary_sibling(fetched)))
        sync_file(fetched)
        path.parent.mkdir(parents=True, exist_ok=True)
        fetched.replace(path)
        sync_folder(path.parent)
    remember(folder, {name: str(entry.sha256) for name, entry in moved.items()})
    return moved, damaged
