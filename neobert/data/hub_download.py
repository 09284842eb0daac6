"""The hub's file service: what a repository holds at a commit, and one file of it; reading goes through here alone.

Addresses and tokens are the library's own: HF_ENDPOINT, HF_TOKEN or the stored login. Torch-free.
"""

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

from neobert.data.manifest import Entry, Manifest, Repository, has_size, missing_files, read_manifest, write_manifest
from neobert.data.mteb_tasks import MTEB_REPOSITORIES
from neobert.data.pairs import DECLARED_SETS
from neobert.data.reading import require_columns
from neobert.data.sources import (
    CORPORA,
    CORPUS_REPOSITORIES,
    GLUE,
    TASK_SPLITS,
    TOKENIZER_REPOSITORIES,
    TOKENIZERS,
    DirectorySource,
    known,
)
from neobert.data.tokenizers import FOLDERS
from neobert.errors import DamagedFile, MissingData, RunFailed
from neobert.files import inside, is_local, sha256_of, sync_file, sync_folder, temporary_sibling
from neobert.runs.claims import acquire


class HubUnreachable(MissingData):
    """No repository of the hub can be asked from here."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository; the checksum is "sha256:…" for large files and "git:…" for small ones."""

    name: str
    bytes: int
    checksum: str


@dataclass(frozen=True)
class Listing:
    """All files of a repository at one commit."""

    revision: str
    files: tuple[HubFile, ...]

    def matching(self, pattern: str) -> list[HubFile]:
        """The files whose name fits the pattern, in the order of their names."""
        return [file for file in self.files if fnmatchcase(file.name, pattern)]


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
    return Listing(info.sha, tuple(sorted(files, key=lambda file: file.name)))


def download(repository: Repository, revision: str, file: str, folder: Path) -> Path:
    """Fetch one file into a folder of its own, which the library also uses for notes.

    Raises:
        MissingData: the hub does not answer, or does not give the file away.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    with _hub_errors(repository):
        path = hf_hub_download(
            repository.name, file, repo_type=repository.kind, revision=revision, local_dir=folder, etag_timeout=30
        )
    return Path(path)


def matches(path: Path, checksum: str) -> bool:
    """Whether a file has the checksum that the hub states."""
    kind, _, digest = checksum.partition(":")
    with path.open("rb") as file:
        if kind == "sha256":
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
        blob = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while block := file.read(1 << 20):
            blob.update(block)
    return blob.hexdigest() == digest


@contextmanager
def _hub_errors(repository: Repository) -> Iterator[None]:
    """Whatever keeps the hub from answering, as one sentence; errors of the local disk stay what they are."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        XetDownloadError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise MissingData(f"{repository.name} is gated: {_how_to_log_in(repository)}") from error
    except RepositoryNotFoundError as error:
        raise MissingData(
            f"the hub has no {repository.kind} {repository.name}, or none for you; if it is private or gated, "
            f"{_how_to_log_in(repository)}"
        ) from error
    except OfflineModeIsEnabled as error:
        raise HubUnreachable("hub access is switched off (HF_HUB_OFFLINE is set): unset it to prefetch") from error
    except (HTTPError, XetDownloadError, ConnectionError, TimeoutError, LocalEntryNotFoundError) as error:
        raise _unanswered(repository, error) from error
    except (RuntimeError, json.JSONDecodeError) as error:  # of hf_xet; of a portal that answers in the hub's place
        raise _unanswered(repository, error) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _unanswered(repository, error) from error


def _unanswered(repository: Repository, error: Exception) -> MissingData:
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
    reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    if isinstance(cause, HfHubHTTPError):
        return MissingData(f"{repository.name} cannot be read from the hub ({reason}): run the same command again")
    return HubUnreachable(
        f"the hub at {constants.ENDPOINT} does not answer ({reason}): run this where there is a network"
    )


def _how_to_log_in(repository: Repository) -> str:
    from huggingface_hub import constants

    prefix = "datasets/" if repository.kind == "dataset" else ""
    return (
        f"accept its licence at {constants.ENDPOINT}/{prefix}{repository.name}, set HF_TOKEN to a token of that "
        f"account, and run the same command again"
    )


MODELS = "models"
"""The folder of models from elsewhere."""


@dataclass(frozen=True)
class ModelParts:
    """The repositories of a model from elsewhere and of its tokenizer, and files of others that are to lie beside."""

    repository: str
    tokenizer: str
    beside: tuple[Repository, ...] = ()

    def parts(self) -> Iterator["Part"]:
        """What is read of a model: safetensors or, where there are none, the pickle; code only where it is named."""
        own = Repository(self.repository, "config.json", kind="model")
        yield Part(own)
        yield Part(replace(own, files="model*.safetensors"), otherwise="pytorch_model.bin")
        yield Part(Repository(self.tokenizer, "tokenizer*", kind="model"))
        yield Part(replace(own, files="model.safetensors.index.json"), is_optional=True)
        for name in ("special_tokens_map.json", "added_tokens.json"):
            yield Part(Repository(self.tokenizer, name, kind="model"), is_optional=True)
        yield from map(Part, self.beside)


@dataclass(frozen=True)
class Needs:
    """What the units of a plan read, by the recipes' words; a tokenizer with the rows that an embedding has for it, a
    model from elsewhere with what is read of it."""

    corpora: tuple[str, ...] = ()
    tokenizers: Mapping[str, int] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    embedding_tasks: tuple[str, ...] = ()
    pair_sets: tuple[str, ...] = ()
    models: Mapping[str, ModelParts] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Files of one repository. `file` is the name that a single file gets; None keeps the hub's names. Where there are
    none, the files of the pattern `otherwise` are taken; a part that `is_optional` may be empty."""

    repository: Repository
    file: str | None = None
    with_repository: bool = False
    otherwise: str | None = None
    is_optional: bool = False

    def place(self, name: str) -> str:
        """Where a file of the repository goes, below the item's folder."""
        if self.file is not None:
            return self.file
        if self.with_repository:
            return f"{self.repository.name.replace('/', '--')}--{PurePosixPath(name).name}"
        return name


@dataclass(frozen=True)
class Item:
    """A thing to bring: the recipes' word for it, its folder, and where its files come from.

    `embedding_rows` is what a tokenizer's vocabulary must fit into.
    """

    kind: Literal["corpus", "tokenizer", "GLUE task", "MTEB task", "data set of pairs", "model"]
    word: str
    folder: str
    parts: tuple[Part, ...]
    embedding_rows: int | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.kind} {self.word}"

    @property
    def repositories(self) -> str:
        """The repositories it comes from, for people."""
        return " and ".join(dict.fromkeys(part.repository.name for part in self.parts))


def items_of(needs: Needs) -> Iterator[Item]:
    """The items behind a plan's needs, small ones first, so that a missing token is told before the terabytes."""
    for word, rows in needs.tokenizers.items():
        repository = TOKENIZER_REPOSITORIES[known(word, TOKENIZERS, "tokenizer")]
        yield Item("tokenizer", word, f"tokenizers/{FOLDERS[word]}", (Part(repository),), rows)
    for word in needs.tasks:
        yield Item("GLUE task", word, f"glue/{word}", tuple(_splits(known(word, tuple(TASK_SPLITS), "task"))))
    for word in needs.embedding_tasks:
        name, commit = MTEB_REPOSITORIES[known(word, tuple(MTEB_REPOSITORIES), "MTEB task")]
        yield Item("MTEB task", word, f"mteb/{word}", (Part(Repository(name, "*", branch=commit)),))
    for word in needs.pair_sets:
        declared = DECLARED_SETS[known(word, tuple(DECLARED_SETS), "data set of pairs")]
        yield Item("data set of pairs", word, f"pairs/{word}", tuple(map(Part, declared.repositories)))
    for word, model in needs.models.items():
        yield Item("model", word, f"{MODELS}/{word}", tuple(model.parts()))
    for word in needs.corpora:
        repositories = CORPUS_REPOSITORIES[known(word, CORPORA, "corpus")]
        parts = tuple(Part(repository, with_repository=True) for repository in repositories)
        yield Item("corpus", word, f"corpora/{word}", parts)


def _splits(task: str) -> Iterator[Part]:
    for split in TASK_SPLITS[task]:
        yield Part(replace(GLUE, files=GLUE.files.format(task=task, split=split)), f"{split}.parquet")


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


WORK_FOLDER = ".prefetch"
FAILURES_PER_REPOSITORY = 3
"""So many files of a repository may fail before its others are left for the next call."""

_WRITE_SECONDS = 10.0
_REPORT_SECONDS = 10.0
_RESERVE_BYTES = 1 << 28


@dataclass(frozen=True)
class Arrived:
    """A file in its place: the SHA-256 of its bytes and the time of the file that was hashed."""

    name: str
    sha256: str
    modified_ns: int
    fetched: bool


@dataclass
class Progress:
    """Counts what arrived, keeps the manifest on the disk near to it, and says so now and then."""

    folder: Path
    manifest: Manifest
    files: int
    report: Callable[[str], None]
    arrived: int = 0
    fetched_bytes: int = 0
    written: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)

    def add(self, file: Arrived) -> None:
        """Note a file."""
        self.manifest = self.manifest.with_file(file.name, file.sha256, file.modified_ns)
        self.arrived += 1
        self.fetched_bytes += self.manifest.files[file.name].bytes if file.fetched else 0
        if time.monotonic() - self.written > _WRITE_SECONDS:
            self.write()
        if time.monotonic() - self.reported > _REPORT_SECONDS:
            self.reported = time.monotonic()
            self.report(f"{self.arrived} of {self.files} files, {self.fetched_bytes / 1e9:.2f} GB fetched")

    def write(self) -> None:
        """Write the manifest."""
        write_manifest(self.folder, self.manifest)
        self.written = time.monotonic()


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


def bring(folder: Path, selection: Selection, *, workers: int, report: Callable[[str], None]) -> list[Exception]:
    """Make the folder hold what the selection lists; what could not be brought, and why. Call it as the sole one.

    Raises:
        OSError: the disk refuses.
    """
    staging = inside(folder, f"{WORK_FOLDER}/staging")
    shutil.rmtree(staging, ignore_errors=True)
    write_manifest(folder, selection.manifest)
    try:
        return _bring_all(folder, selection, staging, workers, report)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _bring_all(
    folder: Path, selection: Selection, staging: Path, workers: int, report: Callable[[str], None]
) -> list[Exception]:
    wanted = [
        (name, entry)
        for row in selection.rows
        if row.problem is None
        for name, entry in selection.manifest.below(row.item.folder).items()
        if not _is_known(folder / name, entry)
    ]
    progress = Progress(folder, selection.manifest, len(wanted), report)
    failures: Counter[str] = Counter()
    problems: list[Exception] = []
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_bring_one, folder, name, entry, staging, failures) for name, entry in wanted]
        try:
            for future in as_completed(futures):
                _collect(future, progress, problems)
        finally:
            pool.shutdown(cancel_futures=True)
            progress.write()
    return list({str(problem): problem for problem in problems}.values())


def _collect(future: "Future[Arrived | None]", progress: Progress, problems: list[Exception]) -> None:
    try:
        file = future.result()
    except (MissingData, DamagedFile) as error:
        problems.append(error)
    else:
        if file is not None:
            progress.add(file)


def _is_known(path: Path, entry: Entry) -> bool:
    """Whether the file's hash was taken and the file is the one it was taken from."""
    return entry.sha256 is not None and has_size(path, entry) and path.stat().st_mtime_ns == entry.modified_ns


def _bring_one(folder: Path, name: str, entry: Entry, staging: Path, failures: Counter[str]) -> Arrived | None:
    """Bring one file, or find that it is there; None where its repository failed too often."""
    path = inside(folder, name)
    if has_size(path, entry) and _holds(path, entry):
        return Arrived(name, entry.sha256 or sha256_of(path), path.stat().st_mtime_ns, fetched=False)
    if failures[entry.repository] >= FAILURES_PER_REPOSITORY:
        return None
    place = temporary_sibling(staging / "file")
    try:
        fetched = download(repository_of(entry), entry.revision, entry.file, place)
        if not (has_size(fetched, entry) and _holds(fetched, entry)):
            raise DamagedFile(f"{entry.repository} sent {entry.file} with other bytes than the hub states: run again")
        return _publish(fetched, path, name)
    except (MissingData, DamagedFile):
        failures[entry.repository] += 1
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _holds(path: Path, entry: Entry) -> bool:
    return matches(path, entry.checksum) if entry.checksum else sha256_of(path) == entry.sha256


def _publish(fetched: Path, path: Path, name: str) -> Arrived:
    sha256 = sha256_of(fetched)
    sync_file(fetched)
    path.parent.mkdir(parents=True, exist_ok=True)
    fetched.replace(path)
    sync_folder(path.parent)
    return Arrived(name, sha256, path.stat().st_mtime_ns, fetched=True)
