"""Public originals of the study's text: git repositories at a commit and packages at a version.

A repository is read from a local clone or bare mirror that has the commit, or fetched at that commit alone; a package
is downloaded with pip. No file of 4 MB or more is read.
"""

import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neobert.errors import MissingData

LARGEST_FILE_BYTES = 4_000_000
FETCH_SECONDS = 3600


@dataclass(frozen=True)
class TextSource:
    """One source of a corpus and what is declared of its texts.

    `name` is "owner/repository" of GitHub, or a package; `version` its commit or version. Files whose whole path
    matches the regular expression `files` are converted by the rule `conversion` of `ablations.plain_text`. `held_out`
    is "" for training text, "source" if all files are one held-out group, "files" if each file is one. Texts under
    `least_characters` are left out; if there are more than `most_characters`, those with the largest hashes are.
    """

    name: str
    version: str
    corpus: str
    held_out: str
    conversion: str
    files: str
    least_characters: int
    most_characters: int
    licence: str
    authors: str
    documents: int
    characters: int
    sha256: str

    @property
    def is_repository(self) -> bool:
        return "/" in self.name

    @property
    def origin(self) -> str:
        """Where the source is from, for people."""
        return (
            f"https://github.com/{self.name} at {self.version}" if self.is_repository else f"{self.name} {self.version}"
        )

    def read(self, repositories: Path | None, cache: Path) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of each file of the source, sorted by path. Raises MissingData if it cannot be
        fetched."""
        if not self.is_repository:
            return _read_wheel(download_wheel(self.name, self.version, cache), re.compile(self.files))
        return _read_repository(
            find_repository(self.name, self.version, repositories, cache), self.version, re.compile(self.files)
        )


def find_repository(name: str, commit: str, repositories: Path | None, cache: Path) -> Path:
    """Return a git folder with a commit: below `repositories`, as owner/name or owner+name, or fetched into `cache`.
    Raises MissingData if no such folder has it, and it cannot be fetched."""
    spellings = (name, f"{name}.git", name.replace("/", "+"))
    folders = [base / spelling for base in (repositories, cache) if base for spelling in spellings]
    for folder in folders:
        for found in (folder / ".git", folder / "repo", folder):
            if (found / "HEAD").is_file() and _git(found, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0:
                return found
    fetched = cache / name.replace("/", "+")
    fetched.mkdir(parents=True, exist_ok=True)
    _git(fetched, "init", "--quiet", "--bare")
    answer = _git(fetched, "fetch", "--quiet", "--depth", "1", f"https://github.com/{name}", commit)
    if answer.returncode != 0:
        raise MissingData(
            f"{name} at {commit} is neither below --repositories nor can it be fetched "
            f"({answer.stderr.decode(errors='replace').strip()}): clone it to DIR/{name} and pass --repositories DIR"
        )
    return fetched


def _git(folder: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. Raises MissingData if it does not end in time."""
    command = ["git", "--git-dir", str(folder), *arguments]
    try:
        return subprocess.run(command, input=given, capture_output=True, check=False, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired as error:
        told = " ".join(command)
        raise MissingData(
            f"{told} did not end within {FETCH_SECONDS} s: run it by hand, and then again this"
        ) from error


def _read_repository(folder: Path, commit: str, files: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    listed = _git(folder, "ls-tree", "-r", "-z", commit).stdout.decode(errors="replace").split("\0")
    entries = [line.split("\t", 1) for line in listed if line]
    blobs = {path: fields.split()[2] for fields, path in entries if fields.startswith("100") and files.fullmatch(path)}
    paths = sorted(blobs)
    answer = _git(folder, "cat-file", "--batch", given="".join(f"{blobs[path]}\n" for path in paths).encode()).stdout
    place = 0
    for path in paths:
        end = answer.index(b"\n", place)
        header, place = answer[place:end].split(), end + 1
        if len(header) != 3:
            raise MissingData(f"{path} of {folder} at {commit} is absent from this clone: fetch the commit whole")
        size = int(header[2])
        if size < LARGEST_FILE_BYTES:
            yield path, answer[place : place + size]
        place += size + 1


def download_wheel(name: str, version: str, cache: Path) -> Path:
    """Return the wheel of a package from `cache`, or download it by pip. Raises MissingData if pip cannot."""
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not (found := sorted(cache.glob(pattern))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        answer = subprocess.run(
            [*command, "--dest", str(cache), f"{name}=={version}"], capture_output=True, check=False, text=True
        )
        if answer.returncode != 0 or not (found := sorted(cache.glob(pattern))):
            raise MissingData(f"pip cannot download {name} {version}: {answer.stderr.strip().splitlines()[-1:]}")
    return found[0]


def _read_wheel(wheel: Path, files: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if files.fullmatch(name) and archive.getinfo(name).file_size < LARGEST_FILE_BYTES:
                yield name, archive.read(name)
