"""manifest.json of a prefetched folder: which file came from which repository, at which commit, with which bytes.

It is written before anything is fetched, so it also says what is still to come: such a file has no sha256 yet, or is
not on the disk.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from neobert.errors import DamagedFile, MissingData
from neobert.files import checksummed, is_local, json_bytes, read_checksummed, replace_file, sha256_of, verify

MANIFEST = "manifest.json"
SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """One file: where it comes from and what it must hold.

    `checksum` is the hub's own word, "sha256:…" or "git:…" (a blob's SHA-1); `sha256` is of the bytes that arrived and
    None before; `modified_ns` is the time of the file that was hashed, so that it need not be hashed again; `column`
    holds the text of a corpus.
    """

    repository: str
    revision: str
    bytes: int
    sha256: str | None = None
    repository_type: str = "dataset"
    branch: str = "main"
    file: str = ""
    checksum: str | None = None
    column: str | None = None
    modified_ns: int | None = None

    @property
    def source(self) -> tuple[str, str, str, str | None]:
        """The fields that decide the bytes."""
        return self.repository, self.revision, self.file, self.checksum


@dataclass(frozen=True)
class Manifest:
    """`files` by their path below the folder; `published` says how many files the hub has for a folder of them."""

    files: Mapping[str, Entry] = field(default_factory=dict)
    published: Mapping[str, int] = field(default_factory=dict)

    def below(self, folder: str) -> dict[str, Entry]:
        """The entries below one of the folders, in the order of their names."""
        return {name: entry for name, entry in sorted(self.files.items()) if _is_below(name, folder)}

    def revision_of(self, repository: str, branch: str) -> str | None:
        """The commit that earlier files of the repository came from."""
        entries = (entry for entry in self.files.values() if (entry.repository, entry.branch) == (repository, branch))
        return next((entry.revision for entry in entries), None)

    def with_folder(self, folder: str, entries: Mapping[str, Entry], published: int) -> "Manifest":
        """The same with other entries below `folder`; what is known of unchanged files is kept."""
        others = self.without(folder)
        known = {name: self._known(name, entry) for name, entry in entries.items()}
        return Manifest({**others.files, **known}, {**others.published, folder: published})

    def without(self, folder: str) -> "Manifest":
        """The same with nothing below `folder`."""
        files = {name: entry for name, entry in self.files.items() if not _is_below(name, folder)}
        return Manifest(files, {name: count for name, count in self.published.items() if name != folder})

    def _known(self, name: str, entry: Entry) -> Entry:
        before = self.files.get(name)
        return before if before is not None and before.source == entry.source else entry

    def with_file(self, name: str, sha256: str, modified_ns: int) -> "Manifest":
        """The same with what a file turned out to hold."""
        entry = replace(self.files[name], sha256=sha256, modified_ns=modified_ns)
        return Manifest({**self.files, name: entry}, self.published)


_FILES: TypeAdapter[dict[str, Entry]] = TypeAdapter(dict[str, Entry])
_PUBLISHED: TypeAdapter[dict[str, int]] = TypeAdapter(dict[str, int])


def _is_below(name: str, folder: str) -> bool:
    return name.startswith(f"{folder}/")


def has_size(path: Path, entry: Entry) -> bool:
    """Whether the file is there and as long as it must be."""
    return path.is_file() and path.stat().st_size == entry.bytes


def has_content(path: Path, entry: Entry) -> bool:
    """Whether a file has the bytes that arrived or, where none did, those that the hub states."""
    if entry.sha256 is not None:
        return sha256_of(path) == entry.sha256
    return entry.checksum is None or _matches(path, entry.checksum)


def _matches(path: Path, checksum: str) -> bool:
    """Whether a file has the checksum that the hub states."""
    kind, _, digest = checksum.partition(":")
    if kind == "sha256":
        return sha256_of(path) == digest
    blob = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            blob.update(block)
    return blob.hexdigest() == digest


def missing_files(folder: Path, entries: Mapping[str, Entry]) -> list[str]:
    """The files that are not there or have another length."""
    return [name for name, entry in entries.items() if not has_size(folder / name, entry)]


def require_brought(folder: Path, entries: Mapping[str, Entry]) -> None:
    """Check that files are still those that prefetch brought; those written since are hashed once, and remembered.

    Raises:
        MissingData: one has other bytes.
        DamagedFile: one is not there, or has another length.
    """
    for name, entry in entries.items():
        if not has_size(folder / name, entry):
            raise DamagedFile(f"{folder / name} is not {entry.bytes} bytes long: prefetch it again")
    written = {
        name: entry.sha256
        for name, entry in entries.items()
        if entry.sha256 is not None and (folder / name).stat().st_mtime_ns != entry.modified_ns
    }
    try:
        verify(folder, written, "run ablations/prefetch.py again, which brings it back")
    except DamagedFile as error:
        raise MissingData(str(error)) from error


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; an empty one where there is none.

    Raises:
        DamagedFile: it cannot be read, or names a file that does not lie in the folder.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return Manifest()
    content = read_checksummed(path)
    try:
        found = Manifest(
            _FILES.validate_python(content["files"]), _PUBLISHED.validate_python(content.get("published", {}))
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} is no manifest of this version ({error}): remove it and prefetch again") from error
    for name, entry in found.files.items():
        if not (is_local(name) and is_local(entry.file or name)):
            raise DamagedFile(f"{path} names {name} ({entry.file}), which is no file of this folder: do not trust it")
    return found


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a folder."""
    files: dict[str, Any] = {name: asdict(entry) for name, entry in manifest.files.items()}
    content = {"schema": SCHEMA, "files": files, "published": dict(manifest.published)}
    replace_file(folder / MANIFEST, json_bytes(checksummed(content)))
