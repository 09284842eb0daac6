"""What a plan needs of the Hugging Face hub: whether a folder has it, and its download.

The files are looked up once and listed in the folder's manifest. huggingface_hub's snapshot_download brings them
straight to their places, where they are compared with the hub's checksums; only then the manifest has their SHA-256,
and sources read them as the hub's. After a kill, the same call resumes. Address and token are the library's:
HF_ENDPOINT, HF_TOKEN or the stored login.
"""

import glob
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

from neobert.data.catalog import CORPORA, GLUE, TASK_SPLITS, TOKENIZERS, Repository, require_known
from neobert.data.manifest import Entry, Manifest, has_content, has_size, read_manifest, write_manifest
from neobert.data.mteb_tasks import MTEB_REPOSITORIES
from neobert.data.pairs import DECLARED_SETS
from neobert.data.reading import files_below
from neobert.data.sources import DirectorySource
from neobert.data.tokenizers import TOKENIZER_FOLDERS
from neobert.errors import DamagedFile, MissingData, RunFailed, name_first
from neobert.files import differing, inside, is_local, remember, sha256_of, sync_file, sync_folder

CLAIMS = ".prefetch/claims"
_RESERVE_BYTES = 1 << 28

MODELS = "models"
"""Folder of external models."""


@dataclass(frozen=True)
class Needs:
    """Data requirements of a plan, by the recipes' names. External models map to the repository files that are
    read."""

    corpora: tuple[str, ...] = ()
    tokenizers: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    embedding_tasks: tuple[str, ...] = ()
    pair_sets: tuple[str, ...] = ()
    models: Mapping[str, tuple[Repository, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """An item to download: its name in the recipes (`word`), its folder, and its repository files."""

    kind: Literal["corpus", "tokenizer", "GLUE task", "MTEB task", "data set of pairs", "model"]
    word: str
    folder: str
    parts: tuple[Repository, ...]

    @property
    def name(self) -> str:
        """The display name."""
        return f"{self.kind} {self.word}"

    @property
    def repositories(self) -> str:
        """The names of its repositories, for display."""
        return " and ".join(dict.fromkeys(part.name for part in self.parts))

    def place_of(self, repository: str) -> str:
        """Return the folder that the files of a repository go to, with the paths that they have there."""
        if self.kind == "corpus":
            return f"{self.folder}/{repository.replace('/', '--')}"
        return self.folder.rpartition("/")[0] if self.kind == "GLUE task" else self.folder


def items_of(needs: Needs) -> Iterator[Item]:
    """Yield the items of a plan, small ones first, so that a missing access token is found before large downloads."""
    for word in needs.tokenizers:
        repository = TOKENIZERS[require_known(word, TOKENIZERS, "tokenizer")]
        yield Item("tokenizer", word, f"tokenizers/{TOKENIZER_FOLDERS[word]}", (repository,))
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


def verify_prefetch(folder: Path, needs: Needs) -> list[Gap]:
    """Return every item that a plan needs and that is missing or invalid in the folder: files that are absent or of
    another size or, if there are none, files whose SHA-256 differs from the manifest."""
    source = DirectorySource(folder)
    items = list(items_of(needs))
    absent = [Gap(item, reason) for item in items for reason in _absent(source, item)]
    return absent or [
        Gap(item, f"{folder / name} has other bytes than {entry.repository} at {entry.revision}: remove it")
        for item in items
        for name, entry in source.manifest.below(item.folder).items()
        if has_size(folder / name, entry) and not has_content(folder / name, entry)
    ]


def _absent(source: DirectorySource, item: Item) -> Iterator[str]:
    try:
        entries = source.manifest.below(item.folder)
        if item.kind == "corpus":
            source.corpus_folder(item.word).files()
        elif item.kind == "tokenizer":
            source.tokenizer_folder(item.word)
        elif item.kind == "GLUE task" and (reason := source.tasks()[item.word]):
            raise MissingData(reason)
    except (MissingData, DamagedFile, ValueError) as error:
        yield str(error)
        return
    if not entries and not files_below(source.folder / item.folder):
        yield f"{source.folder / item.folder} is not there"
    for name, entry in entries.items():
        path = source.folder / name
        if not path.is_file() or entry.is_downloaded != has_size(path, entry):
            yield f"{path} is not there with its {entry.bytes} bytes, or was not checked after its download"


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

    with _one_sentence(repository.name, repository.kind):
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
def _one_sentence(name: str, kind: str) -> Iterator[None]:
    """Turn errors of the hub into one sentence; errors of the local disk pass through."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, RepositoryNotFoundError, XetDownloadError

    try:
        yield
    except (HTTPError, XetDownloadError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        if not isinstance(error, HfHubHTTPError):
            raise HubUnreachable(
                f"the hub at {constants.ENDPOINT} does not answer ({reason}): run this where there is a network"
            ) from error
        page = f"{constants.ENDPOINT}/{'datasets/' * (kind == 'dataset')}{name}"
        is_hidden = isinstance(error, RepositoryNotFoundError)  # or gated
        advice = f"if it is gated, accept its licence at {page} and set HF_TOKEN" if is_hidden else "run it again"
        raise MissingData(f"{kind} {name} cannot be read from the hub ({reason}): {advice}") from error


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
class DownloadPlan:
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


def select(folder: Path, items: Sequence[Item], *, most_bytes: int | None = None) -> DownloadPlan:
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
        entries = manifest.below(item.folder)
        is_own = any(entry.is_downloaded or has_size(folder / name, entry) for name, entry in entries.items())
        if not is_own and files_below(folder / item.folder):
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
    return DownloadPlan(manifest, tuple(rows))


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
    found = [listings.matching(part) for part in item.parts]
    chosen = [file for files in found for file in files]
    published = len(chosen)
    if item.kind == "corpus" and most_bytes is not None:
        chosen = _cap(found, most_bytes, item)
    present = {name: entry for name, entry in manifest.below(item.folder).items() if (folder / name).is_file()}
    names = {entry.source: name for name, entry in present.items()}  # a file that is here keeps its place
    entries = {names.get(file.source, f"{item.place_of(file.repository)}/{file.file}"): file for file in chosen}
    if item.kind == "corpus":  # a smaller cap than before removes no files
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


def download(folder: Path, selection: DownloadPlan, *, workers: int) -> list[Exception]:
    """Download the files of the selection that are not in the folder; return the errors of those that failed. One
    process at a time may do so.

    Raises:
        OSError: a local disk error.
    """
    write_manifest(folder, selection.manifest)
    files = dict(selection.manifest.files)
    manifest = replace(selection.manifest, files=files)
    wanted: dict[tuple[str, str, str, str], dict[str, Entry]] = defaultdict(dict)
    for row in selection.rows:
        entries = {} if row.problem is not None else manifest.below(row.item.folder)
        files |= (whole := _whole(folder, entries))
        for name in entries.keys() - whole.keys():
            entry = entries[name]
            place = name.removesuffix(f"/{entry.file}")
            wanted[place, entry.repository, entry.repository_type, entry.revision][name] = entry
    errors: list[Exception] = []
    for (place, *_), entries in wanted.items():
        try:
            _fetch(folder / place, list(entries.values()), workers)
        except MissingData as error:
            errors.append(error)
            continue
        files |= (whole := _whole(folder, entries))
        errors += [
            DamagedFile(f"{entry.repository} sent {entry.file} with other bytes than the hub states: run again")
            for name, entry in entries.items()
            if name not in whole
        ]
        write_manifest(folder, manifest)
    write_manifest(folder, manifest)
    return errors


def _whole(folder: Path, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries, with SHA-256, of the files that are in the folder with the right content; remove changed
    files."""
    present = {name: entry for name, entry in entries.items() if inside(folder, name).is_file()}
    sized = {name: entry for name, entry in present.items() if has_size(folder / name, entry)}
    wrong = differing(folder, {name: entry.sha256 for name, entry in sized.items() if entry.sha256})
    whole = {name: entry for name, entry in sized.items() if entry.sha256 and name not in wrong}
    new = {name: entry for name, entry in sized.items() if entry.sha256 is None and has_content(folder / name, entry)}
    whole |= _flushed(folder, new)
    for name in present.keys() - whole.keys():
        (folder / name).unlink()
    return whole


def _flushed(folder: Path, new: Mapping[str, Entry]) -> dict[str, Entry]:
    """Flush new files to the disk; return their entries with the SHA-256 that the hub states, or that they have."""
    for name in new:
        sync_file(folder / name)
    for parent in {(folder / name).parent for name in new}:
        sync_folder(parent)
    stated = {name: (entry.checksum or "").partition("sha256:")[2] for name, entry in new.items()}
    digests = {name: sha256 or sha256_of(folder / name) for name, sha256 in stated.items()}
    remember(folder, digests)
    return {name: replace(entry, sha256=digests[name]) for name, entry in new.items()}


def _fetch(place: Path, entries: Sequence[Entry], workers: int) -> None:
    """Fetch files of one repository at one commit to their paths below `place`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    first = entries[0]
    with _one_sentence(first.repository, first.repository_type):
        snapshot_download(
            first.repository,
            repo_type=first.repository_type,
            revision=first.revision,
            local_dir=place,
            allow_patterns=[glob.escape(entry.file) for entry in entries],
            max_workers=workers,
            etag_timeout=30,
        )
