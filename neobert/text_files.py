"""Text files, compressed or not: UTF-8, with or without a byte order mark."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from neobert.errors import DamagedFile

COMPRESSIONS = {".gz": 3, ".zst": 3, ".bz2": 4, ".xz": 4}
"""Suffixes of compressed text files, with the approximate number of text bytes per compressed byte."""

BYTE_ORDER_MARK = "\ufeff"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")

_MAGIC: Mapping[str, bytes] = {
    ".gz": rb"\x1f\x8b",
    ".zst": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
    ".bz2": b"BZh",
    ".xz": rb"\xfd7zXZ\x00",
    ".parquet": b"PAR1|PARE",
    ".arrow": rb"ARROW1|\xff\xff\xff\xff",
}
"""Patterns of the first bytes of binary files."""

_DAMAGE = re.compile(
    "corrupt|checksum|codec failed|data check|ended before|deserialize thrift|unexpected end|expected to (be able to )?"
    "read|magic bytes|file size is|not an arrow file|too small|invalid data stream",
    re.IGNORECASE,
)
"""Words of the libraries for a file that ends early or has other bytes than were written."""

_ZSTD_WINDOW = 1 << 31
"""The largest window of zstd (--long=31), in bytes."""
_ZSTD_BYTES = 1 << 14


def text_lines(path: Path, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file with their ends; `newline` is that of `open`.

    Raises:
        DamagedFile: a compressed file ends early, or has other bytes than were written.
        ValueError: it is not compressed as its name says, or not UTF-8, or has a NUL character.
    """
    with readable(path, path.suffix), _opened(path) as file:
        if cast(Any, file).peek(2)[:2] in _UTF16:
            raise _NoText(f"{path} is UTF-16, and texts are read as UTF-8: convert it (iconv -f UTF-16 -t UTF-8)")
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline=newline)
        for number, line in enumerate(text, start=1):
            if "\0" in line:
                raise _NoText(
                    f"{path}, line {number}: a NUL character, so it is no text or UTF-16: convert it to UTF-8"
                )
            if not line.isascii() and not _is_utf8(line):
                raise _NoText(f"{path}, line {number}: not UTF-8: convert it (such as iconv -f LATIN1 -t UTF-8)")
            yield line


def read_text(path: Path) -> str:
    """Return the content of a text file, whose lines end in "\\n". Raises as `text_lines`."""
    return "".join(text_lines(path))


@contextmanager
def readable(path: Path, suffix: str) -> Iterator[None]:
    """Explain what the libraries raise while they read a file, compressed or in the binary format of `suffix`.

    Raises:
        DamagedFile: it ends early, or has other bytes than were written.
        ValueError: it is of another format, or uses something that the library cannot read.
    """
    require_format(path, suffix)
    try:
        yield
    except _NoText:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _unreadable(path, suffix, error, is_damaged=True) from error
    except Exception as error:  # pyarrow and zstandard have many kinds, which are not imported here
        if not _is_of_a_library(error):
            raise
        raise _unreadable(path, suffix, error, is_damaged=_DAMAGE.search(str(error)) is not None) from error


def require_format(path: Path, suffix: str) -> None:
    """Raise DamagedFile if a compressed or binary file is empty, and ValueError if it is of another format."""
    if suffix not in _MAGIC:
        return
    with path.open("rb") as file:
        head = file.read(8)
    kind = suffix.removeprefix(".")
    if not head:
        raise DamagedFile(f"{path} is empty, which no {kind} file is: fetch it again")
    if re.match(_MAGIC[suffix], head) is None:
        raise ValueError(f"{path} is no {kind} file (it begins with {head!r}): give it the name of its format")


class _NoText(ValueError):
    """Raised if a file is read and its content is no text."""


def _is_utf8(line: str) -> bool:
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_of_a_library(error: Exception) -> bool:
    """Return whether an error is about the content of a file: one of the system has a number."""
    is_system = isinstance(error, OSError) and error.errno is not None
    is_library = type(error).__module__.partition(".")[0] in ("pyarrow", "zstandard") or isinstance(error, OSError)
    return (is_library or isinstance(error, lzma.LZMAError)) and not is_system


def _unreadable(path: Path, suffix: str, error: Exception, *, is_damaged: bool) -> Exception:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    sentence = f"{path} is not readable as {suffix.removeprefix('.')} ({reason})"
    if is_damaged:
        return DamagedFile(f"{sentence}: fetch it again")
    return ValueError(f"{sentence}: the file may be whole, so write it in another way, such as jsonl")


def _opened(path: Path) -> IO[bytes]:
    """Open a file for reading its bytes, uncompressed."""
    openers: Mapping[str, Callable[[Path], Any]] = {
        ".gz": gzip.open,
        ".bz2": bz2.open,
        ".xz": lzma.open,
        ".zst": lambda each: io.BufferedReader(_Pieces(_zstd_pieces(each)), _ZSTD_BYTES),
    }
    return cast(IO[bytes], openers.get(path.suffix, lambda each: each.open("rb"))(path))


class _Pieces(io.RawIOBase):
    """A stream of consecutive pieces of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _zstd_pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a zstd file. Raises EOFError if its last frame is cut off, which the reader of `zstandard`
    takes for whole."""
    from zstandard import ZstdDecompressor

    decompressor = ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame: Any = None
    data = b""
    with path.open("rb") as file:
        while data or (data := file.read(_ZSTD_BYTES)):
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(data)
            data = b""
            if frame.eof:
                frame, data = None, frame.unused_data
    if frame is not None:
        raise EOFError("its last frame is cut off")
