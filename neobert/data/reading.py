"""Reading of text and table files row by row: parquet, JSON lines, csv, tsv and txt (one document per line).

All but parquet may be compressed as .gz, and are UTF-8. Rows keep the order of the file. Cells of csv and tsv are
texts, and what needs a number takes it from the text (`as_number`).
"""

import csv
import glob
import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from neobert.errors import DamagedFile, did_you_mean, name_first

FORMATS = (".parquet", ".jsonl", ".csv", ".tsv", ".txt")
_BATCH_ROWS = 1024
_COMPRESSED = ".gz"
_TEXT_BYTES = 3
"""Approximate number of bytes of text per compressed byte."""

_BYTE_ORDER_MARK = "\ufeff"
_NUMBERED = re.compile(r"-\d{5}-of-\d{5}")

Row = dict[str, Any]


def split_name(path: Path) -> tuple[str, str]:
    """Split a file name into stem and format: ("train", ".jsonl") for train.jsonl.gz. The format is "" if it is not
    supported."""
    name = path.stem if path.suffix == _COMPRESSED else path.name
    suffix = Path(name).suffix
    is_read = suffix in FORMATS and not (name != path.name and suffix == ".parquet")
    return name.removesuffix(suffix), suffix if is_read else ""


def files_below(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted by path, without hidden ones. Links to folders are followed."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_refuse) if folder.is_dir() else ():
        folders[:] = [name for name in folders if name[0] != "."]
        found += [Path(parent, name) for name in names if name[0] != "."]
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise error


def data_files(folder: Path) -> list[Path]:
    """Return the files below a folder in one of the formats, as `files_below`."""
    return [path for path in files_below(folder) if split_name(path)[1]]


def table_file(folder: Path, name: str) -> Path:
    """Return the file of the table `name` in a folder, which may be numbered as on the hub (train-00000-of-00001); if
    there is none, the path <name>.parquet. Raises ValueError if there are several such files."""
    found = [path for path in sorted(folder.glob(f"{glob.escape(name)}*")) if split_name(path)[1]]
    found = [path for path in found if _NUMBERED.sub("", split_name(path)[0]) == name]
    if len(found) > 1:
        raise ValueError(f"{folder} holds {name} as {' and as '.join(path.name for path in found)}: keep one of them")
    return found[0] if found else folder / f"{name}.parquet"


def as_number(cell: Any) -> Any:
    """Return the number that a text says; anything else as it is."""
    if isinstance(cell, str):
        for kind in (int, float):
            with suppress(ValueError):
                return kind(cell)
    return cell


# Rows of each format


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise DamagedFile in place of whatever a reader raises about the content of a file."""
    try:
        yield
    except (ValueError, OSError, EOFError, NotImplementedError, zlib.error, csv.Error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the system
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        kind = split_name(path)[1].removeprefix(".")
        raise DamagedFile(f"{path} is not readable as {kind} ({reason}): correct it, or fetch it again") from error


def _opened(path: Path, newline: str | None = None) -> IO[str]:
    opener: Callable[..., Any] = gzip.open if path.suffix == _COMPRESSED else open
    return cast(IO[str], opener(path, "rt", encoding="utf-8-sig", newline=newline))


def _parquet(path: Path, only: Sequence[str] | None) -> Iterator[Row]:
    from pyarrow.parquet import ParquetFile

    for batch in ParquetFile(path).iter_batches(batch_size=_BATCH_ROWS, columns=only and list(only)):
        yield from batch.to_pylist()


def _json_lines(path: Path, only: Sequence[str] | None) -> Iterator[Row]:
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line, strict=False)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number}: expected an object, got a {type(row).__name__}")
            yield row


def _delimited(path: Path, only: Sequence[str] | None) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    with _opened(path, newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if split_name(path)[1] == ".tsv" else ",", strict=True)
        for row in reader:
            if None in row or None in row.values():
                names = reader.fieldnames or ()
                raise ValueError(
                    f"line {reader.line_num}: expected {len(names)} cells ({name_first(names)}); quote cells that "
                    "have a separator"
                )
            yield row


def _text(path: Path, only: Sequence[str] | None) -> Iterator[Row]:
    with _opened(path) as file:
        yield from ({"text": line.removesuffix("\n")} for line in file)


_READERS: Mapping[str, Callable[[Path, Sequence[str] | None], Iterator[Row]]] = {
    ".parquet": _parquet,
    ".jsonl": _json_lines,
    ".csv": _delimited,
    ".tsv": _delimited,
    ".txt": _text,
}


def read_rows(path: Path, needed: Sequence[str] = (), only: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield the rows of a file, with all columns or `only` some; the columns `needed` are required.

    Raises:
        DamagedFile: the file is torn, or a row is not in the format.
        ValueError: a column is missing.
    """
    require_columns(path, needed)
    with _readable(path):
        yield from _READERS[split_name(path)[1]](path, only)


def require_columns(path: Path, names: Sequence[str]) -> None:
    """Raise as `read_rows` if a file cannot be opened, or its first row lacks one of the columns."""
    suffix = split_name(path)[1]
    with _readable(path):
        if suffix == ".parquet":
            from pyarrow.parquet import read_schema

            present = read_schema(path).names
        else:
            present = list(next(_READERS[suffix](path, None), {}))
    for name in names if present else ():
        if name not in present:
            raise ValueError(
                f"{path} has no column {name!r} ({did_you_mean(name, present)}): rename the column that holds it"
            )


def read_table(path: Path, needed: Sequence[str]) -> dict[str, list[Any]]:
    """Read all columns of a file into memory; the columns `needed` are required. Raises as `read_rows`."""
    rows = list(read_rows(path, needed))
    names = dict.fromkeys(chain.from_iterable([*rows, needed]))
    return {name: [row.get(name) for row in rows] for name in names}


def read_texts(path: Path, column: str) -> Iterator[str]:
    """Yield the texts of a file; missing ones are empty. The only column of .txt files is "text".

    Raises as `read_rows`, and ValueError if the column does not contain text.
    """
    for row in read_rows(path, (column,), (column,)):
        text = row.get(column)
        if not isinstance(text, str | None):
            found = type(text).__name__
            raise ValueError(f"column {column!r} of {path} holds {found} and not text: name another one")
        yield (text or "").removeprefix(_BYTE_ORDER_MARK)


def text_size(path: Path, column: str) -> tuple[float, float]:
    """Estimate the bytes of uncompressed text and the rows of a file.

    Both are in the footer of parquet files; for other formats they are extrapolated from the first rows.
    """
    if split_name(path)[1] != ".parquet":
        rows = list(islice(read_rows(path), _BATCH_ROWS))
        if not rows:
            return 0.0, 0.0
        size = path.stat().st_size * (_TEXT_BYTES if path.suffix == _COMPRESSED else 1)
        share = size / len(json.dumps(rows, default=str))
        return share * sum(len(str(row.get(column) or "")) for row in rows), share * len(rows)
    from pyarrow import parquet

    require_columns(path, (column,))
    footer = parquet.read_metadata(path)
    columns = [number for number in range(footer.num_columns) if footer.schema.column(number).path == column]
    groups = map(footer.row_group, range(footer.num_row_groups))
    return sum(group.column(number).total_uncompressed_size for group in groups for number in columns), footer.num_rows
