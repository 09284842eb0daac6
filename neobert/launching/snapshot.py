"""A copy of the code that jobs run, taken at submission: editing while they queue changes nothing. Torch-free."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import neobert
from neobert.files import TEMPORARY_MARK, json_bytes, publish_folder, replace_file, temporary_sibling
from neobert.launching.here import REPOSITORY
from neobert.records import SNAPSHOT_FILE, code_state

PACKAGES = ("neobert", "ablations", "sweeps")
IDENTITY_DIGITS = 12


def take_snapshot(folder: Path) -> Path:
    """Copy the packages that jobs import into `folder`/<id>, once for equal code; returns that folder.

    snapshot.json beside the packages names the commit and whether the tree differed from it, dirty.patch how.
    """
    files = sorted(_source_files())
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(REPOSITORY).as_posix()}\0{len(content)}\0".encode() + content)
    identifier = digest.hexdigest()[:IDENTITY_DIGITS]
    final = folder / identifier
    if not final.exists():
        _copy(files, final, identifier)
    return final


def _source_files() -> Iterator[Path]:
    for package in PACKAGES:
        for path in (REPOSITORY / package).rglob("*"):
            hidden = "__pycache__" in path.parts or TEMPORARY_MARK in path.name
            if path.is_file() and not hidden:
                yield path


def _copy(files: list[Path], final: Path, identifier: str) -> None:
    temporary = temporary_sibling(final)
    for path in files:
        target = temporary / path.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    replace_file(temporary / SNAPSHOT_FILE, json_bytes({"id": identifier, **code_state()}))
    (temporary / "dirty.patch").write_bytes(_patch())
    try:
        publish_folder(temporary, final)
    except OSError:  # another launcher was faster
        shutil.rmtree(temporary)
        if not final.exists():
            raise


def _patch() -> bytes:
    """What the tree changes in the tracked files of its commit; empty without a repository."""
    command = ["git", "diff", "HEAD", "--binary"]
    try:
        return subprocess.run(command, check=True, cwd=REPOSITORY, capture_output=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return b""


def refuse_another_copy(snapshot: Path) -> None:
    """Make sure that this process runs the code of a snapshot.

    Raises:
        ValueError: neobert was imported from elsewhere.
    """
    imported = Path(neobert.__file__).resolve().parent.parent
    if imported != snapshot.resolve():
        raise ValueError(
            f"this job was submitted with the code in {snapshot} but imports {imported}: an environment that puts "
            f"another copy first (a .pth file, PYTHONPATH, {sys.executable}'s own site) must not; nothing was run"
        )
