"""Files are read in full against their checksums once, and again whenever one is no longer the same file. Torch-free.

What was found right is remembered beside the files with size, times and inode of each. The time of change cannot be set
by hand, so a file that was written, copied or restored since is read again, even where its size and date were kept.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neobert.errors import DamagedFile
from neobert.files import json_bytes, read_json, replace_file, sha256_of

VERIFIED = "verified.json"


def verify(folder: Path, checksums: Mapping[str, str], advice: str = "remove its folder to tokenise again") -> None:
    """Compare the files of a folder with their SHA-256, {name: digits}; `advice` is what helps where one differs.

    Raises:
        DamagedFile: a file is missing or differs.
    """
    require_files(folder, checksums, advice)
    stamps = {name: _stamp(folder / name, sha256) for name, sha256 in checksums.items()}
    known = _remembered(folder)
    unknown = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    for name in unknown:
        if sha256_of(folder / name) != checksums[name]:
            raise DamagedFile(f"{folder / name} does not match its checksum: {advice}")
    if unknown:
        with suppress(OSError):  # a folder that only others may write is read in full each time
            replace_file(folder / VERIFIED, json_bytes({**known, **stamps}))


def require_files(
    folder: Path, checksums: Mapping[str, str], advice: str = "remove its folder to tokenise again"
) -> None:
    """Check that the files are there.

    Raises:
        DamagedFile: one is missing.
    """
    for name in checksums:
        if not (folder / name).is_file():
            raise DamagedFile(f"{folder / name} is missing: {advice}")


def _stamp(path: Path, sha256: str) -> list[Any]:
    status = path.stat()
    return [sha256, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _remembered(folder: Path) -> dict[str, Any]:
    try:
        known = read_json(folder / VERIFIED)
    except (OSError, DamagedFile):
        return {}
    return known if isinstance(known, dict) else {}
