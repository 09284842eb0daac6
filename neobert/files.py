"""Atomic writes (temporary file, fsync, rename, fsync of the folder), checksummed JSON, absent and damaged files."""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import count
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from neobert.errors import DamagedFile

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Written = TypeVar("Written")
logger = logging.getLogger(__name__)

TEMPORARY_MARK = ".tmp-"
TEMPORARY_NAME = re.compile(re.escape(TEMPORARY_MARK) + "[0-9a-f]{12}")
CHECKSUM = "crc32"
"""What lines of early versions end with."""

ABSENT = (FileNotFoundError, NotADirectoryError)
"""System errors that say that a file is not there. Every other one (no permission, a file server that is away, too many
open files, links in a circle) says nothing about its content. It is raised, and nothing is renamed, deleted or made
again because of it."""

NO_FILE = (*ABSENT, IsADirectoryError)

NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What file systems without hard links answer."""

NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
"""What file systems that flush no folders answer."""


def reason_of(error: BaseException) -> str:
    """Return what an error says; of a system error the file and the reason. Temporary files have the names of those
    that they become."""
    said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    return TEMPORARY_NAME.sub("", said)


def status_of(path: Path, *, follow: bool = True) -> os.stat_result | None:
    """Return the status of a file or folder, or with `follow` false of the link there; None if it is absent.

    `Path.exists` and its like take some errors for absence, and in newer versions of Python all.
    """
    try:
        return path.stat(follow_symlinks=follow)
    except ABSENT:
        return None


def is_there(path: Path, *, follow: bool = True) -> bool:
    """Return whether a file or folder exists. Raises OSError if the system does not tell."""
    return status_of(path, follow=follow) is not None


def is_file(path: Path) -> bool:
    """Return whether a path is a regular file. Raises OSError if the system does not tell."""
    status = status_of(path)
    return status is not None and stat.S_ISREG(status.st_mode)


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder. Raises OSError if the system does not tell."""
    status = status_of(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def children(folder: Path, pattern: str = "*") -> list[Path]:
    """Return what matches a pattern in a folder, sorted; nothing if there is no folder. Raises OSError if it cannot be
    listed, which `Path.glob` takes for empty."""
    return [folder / name for name in sorted(names_in(folder)) if fnmatchcase(name, pattern)]


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder; none if there is no folder. Raises OSError if it cannot be listed."""
    try:
        return os.listdir(folder)  # noqa: PTH208 (names alone; a Path each is ten times slower)
    except ABSENT:
        return []


def matching(root: Path, pattern: str, unlisted: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Yield the files and folders that match a pattern of several steps, sorted, as `Path.glob`.

    A folder that cannot be listed is an error or, if given, is told to `unlisted`. A file whose folder hides it counts
    as there: whoever reads it finds the error.
    """
    step, _, rest = pattern.partition("/")
    if not set(step) & set("*?["):
        found = [root / step] if rest or _is_perhaps_there(root / step) else []
    else:
        try:
            found = children(root, step)
        except OSError as error:
            if unlisted is None:
                raise
            unlisted(error)
            return
    for path in found:
        if rest:
            yield from matching(path, rest, unlisted)
        else:
            yield path


def _is_perhaps_there(path: Path) -> bool:
    try:
        return is_there(path)
    except OSError:
        return True


def temporary_sibling(path: Path) -> Path:
    """Return a path beside `path` that no other process uses and that `clear_temporaries` recognises."""
    return path.with_name(f"{path.name}{TEMPORARY_MARK}{uuid.uuid4().hex[:12]}")


def sync_folder(folder: Path) -> None:
    """Make renames and links inside a folder durable, where the file system can flush folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flush to disk a file that a library wrote, and give it the mode that files get which this process writes there.

    Some libraries write files that only their owner may read.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    usual = _usual_mode(path)
    if mode != usual:
        path.chmod(usual)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _usual_mode(path: Path) -> int:
    """Return the mode of a new file beside `path`, which depends on the umask and on what the folder hands down."""
    other = temporary_sibling(path)
    other.touch(exist_ok=False)
    try:
        return stat.S_IMODE(other.stat().st_mode)
    finally:
        other.unlink()


def _write_temporary(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(path)
    try:
        _create(temporary, content)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part of it."""
    temporary = _write_temporary(path, content)
    temporary.replace(path)
    sync_folder(path.parent)


def publish_once(path: Path, content: bytes) -> bool:
    """Write a file that never changes again. Returns False if another process published it first.

    Without hard links the file is created exclusively and then filled, so that of several writers one wins here too. A
    reader may see a part of it, as after a kill: every file that is published once tells whether it is whole.
    """
    temporary = _write_temporary(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if not _create(path, content):
            return False
    finally:
        temporary.unlink()
    sync_folder(path.parent)
    return True


def _create(path: Path, content: bytes) -> bool:
    """Create a file and fill it. Returns False if it exists."""
    try:
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


def publish_folder(temporary: Path, final: Path) -> None:
    """Rename a finished temporary folder into place after flushing every file in it."""
    for file in sorted(temporary.rglob("*")):
        if is_file(file):
            sync_file(file)
    sync_folder(temporary)
    temporary.rename(final)
    sync_folder(final.parent)


def refresh(folder: Path) -> None:
    """Open and close a folder. Until then a client of NFS may take what another node has published for absent."""
    with suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY))


def line_bytes(value: Mapping[str, Any]) -> bytes:
    """Return a JSON line."""
    return f"{json.dumps(value, sort_keys=True)}\n".encode()


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one JSON line with a single write, so that lines of concurrent writers on one machine never mix.

    On NFS writers on several machines may damage each other's lines, which readers leave out. If only a part is
    written, the rest is written again. After a torn line, a new line is begun.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = line_bytes(value)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)  # less the umask, as of every other file
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(descriptor, line) :]
    finally:
        os.close(descriptor)


def read_lines(path: Path, *keys: str) -> Iterator[Any]:
    """Return the JSON objects of a file's lines, without damaged lines, a torn last one whose writer was killed, and
    lines that lack one of `keys`."""
    return (value for value in _lines(path, keys) if value is not None)


def whole_lines(path: Path) -> list[Any]:
    """Return the JSON objects of a file's lines. Raises ValueError if a line is damaged."""
    found = list(_lines(path, ()))
    if None in found:
        raise ValueError(f"line {found.index(None) + 1} is damaged")
    return found


def _lines(path: Path, keys: Sequence[str]) -> Iterator[Any | None]:
    """Yield the value of each finished line; that of a damaged line is None."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    yield from (line_value(line, keys) for line in content.split(b"\n")[:-1] if line)


def line_value(line: bytes, keys: Sequence[str] = ()) -> Any | None:
    """Return the object of one JSON line, None if it is damaged or lacks one of `keys`."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not value.keys() >= set(keys):
        return None
    value.pop(CHECKSUM, None)
    return value


def set_aside(path: Path, reason: str) -> Path:
    """Rename a damaged file or folder to <name>.damaged-<n>, so that it is made again. Returns the new path.

    The caller must hold the claim of whatever the file belongs to.
    """
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    aside = next(name for name in names if not is_there(name, follow=False))
    path.rename(aside)
    sync_folder(path.parent)
    logger.warning(f"{reason}: set aside as {aside.name}, to be made again")
    return aside


def json_bytes(value: Any) -> bytes:
    """Return readable JSON with a stable order and no NaN."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def read_json(path: Path, advice: str = "remove it to compute it again") -> Any:
    """Read a JSON file. `advice` ends the message if the file is not JSON.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedFile: the file is torn, not JSON, nested too deeply, or a folder.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is not readable as JSON ({error}): {advice}") from error
    except IsADirectoryError as error:
        raise DamagedFile(f"{path} is no file ({error.strerror}): {advice}") from error


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its own checksum."""
    text = json.dumps({key: item for key, item in content.items() if key != "checksum"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def checksummed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its checksum, for `read_checksummed`."""
    return {**content, "checksum": checksum_of(content)}


def read_checksummed(path: Path) -> dict[str, Any]:
    """Read the object of a JSON file and verify its checksum. Files of early versions have none.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedFile: the file is torn, not an object, or was changed after it was written.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise DamagedFile(f"{path} holds no JSON object: remove it to compute it again")
    if content.pop("checksum", None) not in (None, checksum_of(content)):
        raise DamagedFile(f"{path} was changed after it was written (its checksum differs)")
    return content


def as_written(kind: "TypeAdapter[Written]", content: Any, path: Path, advice: str) -> Written:
    """Return the content of a file as the type that this version writes. Raises DamagedFile, which ends in `advice`, if
    it has another form."""
    from pydantic import ValidationError

    try:
        return kind.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise DamagedFile(f"{path} is not as this version writes it ({reason}): {advice}") from error


def require_digest(path: Path, sha256: str | None) -> None:
    """Raise DamagedFile if a file is missing or differs from the SHA-256 in its record (None in older records)."""
    if not is_file(path):
        raise DamagedFile(f"{path} is not there")
    if sha256 is not None and sha256_of(path) != sha256:
        raise DamagedFile(f"{path} does not match the checksum in its record")


def is_local(name: str) -> bool:
    """Return whether a relative path stays below its folder. Links are not resolved."""
    path = PurePosixPath(name)
    return path.name != "" and not path.is_absolute() and ".." not in path.parts and not set(name) & {"\\", "\0"}


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder. Raises DamagedFile if its name or a link leads out of the folder."""
    path = folder / name
    if not is_local(name) or not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise DamagedFile(f"{path} leads out of {folder} (to {os.path.realpath(path)}): nothing is written there")
    return path


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def clear_temporaries(folder: Path, of: str = "*") -> None:
    """Remove temporaries of killed writers from a folder, all or those `of` one name.

    The caller must hold the claim of what they belong to.
    """
    for path in folder.glob(f"{of}{TEMPORARY_MARK}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


VERIFIED = "verified.json"
TOKENISE_AGAIN = "remove its folder to tokenise again"


def sha256_once(path: Path) -> str:
    """Return the SHA-256 of a file, which is read once in this process and again if it was replaced."""
    real = path.resolve()
    return _sha256_of_stamped(real, stamp_of(real.stat()))


@lru_cache(maxsize=1 << 16)
def _sha256_of_stamped(path: Path, stamp: tuple[int, ...]) -> str:
    del stamp
    return sha256_of(path)


def verify(folder: Path, checksums: Mapping[str, str], advice: str = TOKENISE_AGAIN) -> None:
    """Raise DamagedFile, which ends in `advice`, if a file of a folder is missing or differs from its SHA-256, {name:
    digits}."""
    for name in checksums:
        if not is_file(folder / name):
            raise DamagedFile(f"{folder / name} is missing: {advice}")
    for name in differing(folder, checksums):
        raise DamagedFile(f"{folder / name} does not match its checksum: {advice}")


def differing(folder: Path, checksums: Mapping[str, str]) -> list[str]:
    """Return the names of the files of a folder whose SHA-256 is not that of `checksums`.

    Each file is read in full once, and again if it was replaced: size, times and inode are stored in verified.json
    beside the files. The change time cannot be set by hand, so a file that was written, copied or restored since is
    read again even if it has the same size and date.
    """
    known = _read_verified(folder)
    unknown = [
        name for name, sha256 in checksums.items() if known.get(name) != [sha256, *stamp_of((folder / name).stat())]
    ]
    wrong = [name for name in unknown if sha256_of(folder / name) != checksums[name]]
    remember(folder, {name: checksums[name] for name in unknown if name not in wrong})
    return wrong


def remember(folder: Path, checksums: Mapping[str, str]) -> None:
    """Note that files have just been found to have these SHA-256."""
    stamps = {name: [sha256, *stamp_of((folder / name).stat())] for name, sha256 in checksums.items()}
    if stamps:
        with suppress(OSError):  # in a read-only folder, files are read in full each time
            replace_file(folder / VERIFIED, json_bytes({**_read_verified(folder), **stamps}))


def _read_verified(folder: Path) -> dict[str, Any]:
    try:
        known = read_json(folder / VERIFIED)
    except (OSError, DamagedFile):
        return {}
    return known if isinstance(known, dict) else {}


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes if a file is written, replaced, copied or restored: size, times and inode."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
