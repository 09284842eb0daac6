"""manifest.json of a prefetched folder: the repository, commit and checksum of each file.

It is written before anything is downloaded, so it also lists the files still to come: these have no sha256 yet, or are
not on the disk.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import NonNegativeInt, TypeAdapter

from neobert.data.catalog import hub_origin
from neobert.errors import DamagedFile, MissingData
from neobert.files import (
    as_written,
    checksummed,
    differing,
    is_local,
    json_bytes,
    read_checksummed,
    replace_file,
    sha256_of,
    sha256_once,
)

MANIFEST = "manifest.json"
"""File of a prefetched folder, or of a tokenised corpus, that is written last."""

PARTIAL = ".partial"
"""Suffix of the name of an unfinished tokenised corpus."""

SCHEMA = 1
ORIGIN_DIGITS = 12
LOCAL_ORIGIN = "directory:"
"""Beginning of the origin of files that prefetch did not download."""


@dataclass(frozen=True)
class Entry:
    """Source and expected content of one file.

    `checksum` is stated by the hub, "sha256:…" or "git:…" (a blob's SHA-1); `sha256` is that of the downloaded bytes,
    None before; `column` is the text column of a corpus.
    """

    repository: str
    revision: str
    bytes: NonNegativeInt
    sha256: str | None = None
    repository_type: str = "dataset"
    branch: str = "main"
    file: str = ""
    checksum: str | None = None
    column: str | None = None

    @property
    def is_downloaded(self) -> bool:
        """Whether prefetch downloaded and checked the file. One still to come may be a user's file of the same name."""
        return self.sha256 is not None

    @property
    def source(self) -> tuple[str, str, str, str | None]:
        """The fields that determine the content."""
        return self.repository, self.revision, self.file, self.checksum


@dataclass(frozen=True)
class Manifest:
    """Content of manifest.json: `files` by path below the folder, and `published`, the number of files that the hub has
    for each subfolder."""

    files: Mapping[str, Entry]
    published: Mapping[str, int] = field(default_factory=dict)

    def below(self, folder: str) -> dict[str, Entry]:
        """Return the entries below a subfolder, sorted by name."""
        return {name: entry for name, entry in sorted(self.files.items()) if name.startswith(f"{folder}/")}

    def revision_of(self, repository: str, branch: str) -> str | None:
        """Return the commit of the repository's earlier files, or None."""
        entries = (entry for entry in self.files.values() if (entry.repository, entry.branch) == (repository, branch))
        return next((entry.revision for entry in entries), None)

    def with_folder(self, folder: str, entries: Mapping[str, Entry], published: int) -> "Manifest":
        """Return a copy with other entries below `folder`; the old entries of unchanged files are kept."""
        others = self.without(folder)
        known = {name: self.files[name] for name in entries.keys() & self.files.keys()}
        unchanged = {name: entry for name, entry in known.items() if entry.source == entries[name].source}
        return Manifest({**others.files, **entries, **unchanged}, {**others.published, folder: published})

    def without(self, folder: str) -> "Manifest":
        """Return a copy without the entries below `folder`."""
        files = {name: entry for name, entry in self.files.items() if not name.startswith(f"{folder}/")}
        return Manifest(files, {name: count for name, count in self.published.items() if name != folder})


_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def has_size(path: Path, entry: Entry) -> bool:
    """Return whether the file exists and has the expected size."""
    return path.is_file() and path.stat().st_size == entry.bytes


def has_content(path: Path, entry: Entry) -> bool:
    """Return whether a file matches its `sha256` or, before the download, the hub's `checksum`."""
    checksum = entry.checksum if entry.sha256 is None else f"sha256:{entry.sha256}"
    if checksum is None:
        return True
    kind, _, digest = checksum.partition(":")
    if kind == "sha256":
        return sha256_of(path) == digest
    blob = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            blob.update(block)
    return blob.hexdigest() == digest


def require_complete(what: str, folder: Path, entries: Mapping[str, Entry]) -> None:
    """Raise MissingData if prefetch has not downloaded all files of `what`."""
    missing = [name for name, entry in entries.items() if not entry.is_downloaded or not (folder / name).is_file()]
    if missing:
        raise MissingData(
            f"{what} lacks {len(missing)} of the {len(entries)} files that {folder / MANIFEST} lists "
            f"(first: {missing[0]}): run ablations/prefetch.py again"
        )


def require_unchanged(folder: Path, entries: Mapping[str, Entry]) -> None:
    """Check files since the download. Raises MissingData if one has other bytes or was not checked, DamagedFile if its
    length differs."""
    for name, entry in entries.items():
        if not entry.is_downloaded:
            raise MissingData(f"{folder / name} was not checked after its download: run ablations/prefetch.py again")
        if not has_size(folder / name, entry):
            raise DamagedFile(f"{folder / name} is not {entry.bytes} bytes long: prefetch it again")
    for name in differing(folder, {name: str(entry.sha256) for name, entry in entries.items()}):
        raise MissingData(f"{folder / name} does not match its checksum: run ablations/prefetch.py again")


def files_origin(folder: Path, manifest: Manifest, files: Sequence[Path]) -> str:
    """Return the hub's origin if prefetch downloaded every file, else a hash of names and contents.

    If only part of the published files are present, the origin identifies that part. Raises as `require_unchanged`.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in files)
    noted = {name: manifest.files[name] for name in names if name in manifest.files}
    entries = {name: entry for name, entry in noted.items() if entry.is_downloaded or has_size(folder / name, entry)}
    if len(entries) < len(names):
        return f"{LOCAL_ORIGIN}{_digest(f'{name} {sha256_once(folder / name)}' for name in names)}"
    require_unchanged(folder, entries)
    origin = hub_origin([(entry.repository, entry.revision) for entry in entries.values()])
    published = next(
        (count for item, count in manifest.published.items() if names[0].startswith(f"{item}/")), len(names)
    )
    if len(names) == published:
        return origin
    part = _digest(f"{entry.repository} {entry.file}" for entry in entries.values())
    return f"{origin}#{len(names)}of{published}:{part}"


def _digest(lines: Iterable[str]) -> str:
    content = "\n".join(lines).encode(errors="surrogateescape")  # names of files that are not UTF-8 as their bytes
    return hashlib.sha256(content).hexdigest()[:ORIGIN_DIGITS]


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder; return an empty one if there is none.

    Raises:
        DamagedFile: it is not readable, or names a file outside the folder.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return Manifest({})
    content = read_checksummed(path)
    found = as_written(_MANIFEST, content, path, "remove it and prefetch again")
    for name, entry in found.files.items():
        if not all(map(is_local, (name, entry.file or name))):
            raise DamagedFile(f"{path} names {name!r} ({entry.file!r}), no file of this folder: do not trust it")
    return found


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder, replacing the previous one."""
    replace_file(folder / MANIFEST, json_bytes(checksummed({"schema": SCHEMA, **asdict(manifest)})))
