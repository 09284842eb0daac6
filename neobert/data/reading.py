"""Reading of text and table files in any common format, row by row.

Nothing is copied or converted, only a part of a file is in memory (but all of a JSON file that is not in lines), and
rows keep the order of the file. A .txt file has one document per line. Types are those of the file: cells of csv and
tsv are texts, and what needs a number takes it from the text (`as_number`).
"""

import csv
import glob
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from errno import ELOOP
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

from neobert.errors import DamagedFile, MissingData, did_you_mean, name_first
from neobert.text_files import BYTE_ORDER_MARK, COMPRESSIONS, readable, text_lines

FORMATS = (".parquet", ".arrow", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")
_BINARY = (".parquet", ".arrow")
_BATCH_ROWS = 1024

_POINTERS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/")
_POINTER_BYTES = 1024
"""A pointer of git LFS is shorter."""

_NUMBERED = re.compile(r"-\d{5}-of-\d{5}")
_NUMBER = re.compile(r"[+-]?(\d{1,300}|(\d+\.\d*|\.?\d+)([eE][+-]?\d+)?)", re.ASCII)
_ESCAPED_HALF = re.compile(r"\\u[dD]")
_TRUTHS = {"true": True, "false": False}

Row = dict[str, Any]
Content = tuple[Sequence[str], Iterator[Row]]
"""The names of the columns of a file, none if it is empty, and its rows."""


def split_name(path: Path) -> tuple[str, str]:
    """Split a file name into stem and format: ("train", ".jsonl") for train.jsonl.gz or train.JSONL.gz.

    The format is "" if it is not supported.
    """
    name = path.stem if path.suffix in COMPRESSIONS else path.name
    suffix = Path(name).suffix
    known = suffix.lower()
    is_read = known in FORMATS and not (name != path.name and known in _BINARY)
    return name.removesuffix(suffix), known if is_read else ""


def files_below(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted by path, without hidden ones.

    Links to folders are followed, but no folder is read twice. Raises as `require_file`.
    """
    if not folder.is_dir():
        if folder.is_symlink():
            require_there(folder)
        return []
    found: list[Path] = []
    starts, seen = [folder], set()
    for start in starts:
        for parent, folders, names in os.walk(start, onerror=_refuse):  # lists links to folders without entering them
            folders[:] = sorted(name for name in folders if name[0] != ".")
            if (real := os.path.realpath(parent)) in seen:
                folders.clear()
                continue
            seen.add(real)
            starts += [path for name in folders if (path := Path(parent, name)).is_symlink()]
            found += [Path(parent, name) for name in names if name[0] != "."]
    for path in found:
        require_file(path)
    return sorted(found)


def _refuse(error: OSError) -> NoReturn:
    raise error


def data_files(folder: Path) -> list[Path]:
    """Return the files below a folder in one of the formats, as `files_below`."""
    return [path for path in files_below(folder) if split_name(path)[1]]


def require_there(path: Path) -> os.stat_result:
    """Return the status of a path. Raises MissingData if it is a link to nowhere."""
    try:
        return path.stat()
    except OSError as error:
        if not path.is_symlink() or not (isinstance(error, FileNotFoundError) or error.errno == ELOOP):
            raise
        raise MissingData(
            f"{path} is a link to {path.readlink()}, which is not there: restore that file, or remove the link"
        ) from error


def require_file(path: Path) -> None:
    """Raise MissingData if a path is a link to nowhere, or a pointer of git LFS or git-annex in place of the content,
    and ValueError if it is a folder or no regular file."""
    status = require_there(path)
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path} is a folder with the name of a file: put a single file in its place")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is no regular file: put one in its place")
    if 0 < status.st_size <= _POINTER_BYTES:
        with path.open("rb") as file:
            head = file.read(_POINTER_BYTES)
        if head.startswith(_POINTERS):
            raise MissingData(
                f"{path} is a pointer in place of the content: fetch it with `git lfs pull` (or `git annex get`)"
            )


def table_file(folder: Path, name: str) -> Path:
    """Return the file of the table `name` in a folder, which may be numbered as on the hub (train-00000-of-00001); if
    there is none, the path <name>.parquet. Raises ValueError if there are several such files, and as `require_file`."""
    found = [path for path in sorted(folder.glob(f"{glob.escape(name)}*")) if split_name(path)[1]]
    found = [path for path in found if _NUMBERED.sub("", split_name(path)[0]) == name]
    if not found:
        return folder / f"{name}.parquet"
    if len(found) > 1:
        raise ValueError(f"{folder} holds {name} as {' and as '.join(path.name for path in found)}: keep one of them")
    require_file(found[0])
    return found[0]


def as_number(cell: Any) -> Any:
    """Return the number that a text says ("7", "-0.5", "1e-3"), or True or False; anything else as it is."""
    if not isinstance(cell, str):
        return cell
    word = cell.strip()
    if word.lower() in _TRUTHS:
        return _TRUTHS[word.lower()]
    if _NUMBER.fullmatch(word) is None:
        return cell
    return int(word) if word.lstrip("+-").isdecimal() else float(word)


# Contents of each format


def _text(path: Path, only: Sequence[str] | None) -> Content:
    return ("text",), ({"text": line.removesuffix("\n")} for line in text_lines(path))


def _delimited(path: Path, only: Sequence[str] | None) -> Content:
    """Return the rows of csv or tsv. Raises ValueError at a row that does not fit the header or the rules of quotes."""
    rows = _cells(path)
    names = next((cells for _, cells in rows), [])
    columns = [name or f"Unnamed: {number}" for number, name in enumerate(names)]
    _require_unique(path, columns)
    return columns, (dict(zip(columns, cells, strict=True)) for cells in _fitting(path, columns, rows))


def _fitting(path: Path, columns: Sequence[str], rows: Iterable[tuple[int, list[str]]]) -> Iterator[list[str]]:
    for line, cells in rows:
        if len(cells) == 1 < len(columns) and not cells[0].strip():
            continue
        if len(cells) != len(columns):
            counts = f"{len(cells)} cell{'s'[: len(cells) != 1]} under {len(columns)} name{'s'[: len(columns) != 1]}"
            raise ValueError(
                f"{path}, line {line}: {counts} ({name_first(columns)}): quote cells that have a separator, and give "
                "each row a cell for each name"
            )
        yield cells


def _cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of csv or tsv that are not empty, each with the number of its first line."""
    csv.field_size_limit(sys.maxsize)
    is_tabbed = split_name(path)[1] == ".tsv"
    reader = csv.reader(text_lines(path, newline=""), delimiter="\t" if is_tabbed else ",", strict=True)
    line = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {line} has a quote that begins a cell and does not end it ({error}): double the quotes "
                "within a quoted cell, or write the file as jsonl"
            ) from error
        if cells is None:
            return
        if cells:
            yield line, cells
        line = reader.line_num + 1


def _json(path: Path, only: Sequence[str] | None) -> Content:
    """Return the objects of a file of JSON Lines, or of one with arrays or objects over several lines."""
    lines = ((number, line) for number, line in enumerate(text_lines(path), start=1) if line.strip())
    first = list(islice(lines, 1))
    in_lines = not first or _is_object(first[0][1])
    rows = _json_lines(path, chain(first, lines)) if in_lines else _json_values(path, chain(first, lines))
    head = list(islice(rows, _BATCH_ROWS))
    return list(dict.fromkeys(chain.from_iterable(head))), chain(head, rows)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line, strict=False), dict)
    except (ValueError, RecursionError):
        return False


def _json_lines(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    for number, line in lines:
        try:
            row = json.loads(line.lstrip(BYTE_ORDER_MARK), strict=False, object_pairs_hook=_object)
            yield _checked(row, has_escapes=_ESCAPED_HALF.search(line) is not None)
        except (ValueError, RecursionError) as error:
            if not line.endswith("\n") and isinstance(error, json.JSONDecodeError) and next(lines, None) is None:
                raise DamagedFile(f"{path} ends within line {number} ({error}): fetch it again") from error
            raise ValueError(f"{path}, line {number} is no JSON object ({error}): correct it") from error


def _json_values(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Row]:
    text = "".join(line for _, line in lines).strip()
    has_escapes = _ESCAPED_HALF.search(text) is not None
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=_object)
    place = number = 0
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
            for each in value if isinstance(value, list) else [value]:
                yield _checked(each, has_escapes=has_escapes)
                number += 1
        except (ValueError, RecursionError) as error:
            if isinstance(error, json.JSONDecodeError) and _is_cut(error):
                raise DamagedFile(f"{path} ends within a value ({error}): fetch it again") from error
            raise ValueError(f"{path}, object {number + 1} cannot be read ({error}): correct it") from error
        while text[place : place + 1].isspace():
            place += 1


def _is_cut(error: json.JSONDecodeError) -> bool:
    """Return whether a text that is no JSON only lacks its end."""
    return not error.doc[error.pos :].strip(", ") or error.msg.startswith("Unterminated")


def _object(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} comes twice")
    return found


def _checked(row: Any, *, has_escapes: bool) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"it is a {type(row).__name__}")
    if has_escapes:
        json.dumps(row, ensure_ascii=False).encode()  # raises ValueError for half a surrogate pair
    return row


def _parquet(path: Path, only: Sequence[str] | None) -> Content:
    from pyarrow import OSFile
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(OSFile(os.fsencode(path)))
    columns = file.schema_arrow.names
    _require_unique(path, columns)
    return columns, _rows_of(path, file.iter_batches(batch_size=_BATCH_ROWS, columns=only and list(only)))


def _arrow(path: Path, only: Sequence[str] | None) -> Content:
    from pyarrow import OSFile, ipc

    with path.open("rb") as file:
        is_file = file.read(6) == b"ARROW1"
    source = OSFile(os.fsencode(path))
    if is_file:
        opened = ipc.open_file(source)
        batches = map(opened.get_batch, range(opened.num_record_batches))
    else:
        batches = opened = ipc.open_stream(source)
    _require_unique(path, opened.schema.names)
    pieces = (batch.slice(start, _BATCH_ROWS) for batch in batches for start in range(0, len(batch), _BATCH_ROWS))
    return opened.schema.names, _rows_of(path, pieces)


def _rows_of(path: Path, batches: Iterable[Any]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        try:
            rows: list[Row] = batch.to_pylist()
        except UnicodeDecodeError:
            for single in (batch.slice(row, 1) for row in range(len(batch))):
                number += 1
                try:
                    single.to_pylist()
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f"{path}, row {number} has text that is not UTF-8 ({error}): write the file again from its "
                        "source"
                    ) from error
            raise
        number += len(rows)
        yield from rows


_READERS: Mapping[str, Callable[[Path, Sequence[str] | None], Content]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".jsonl": _json,
    ".ndjson": _json,
    ".json": _json,
    ".csv": _delimited,
    ".tsv": _delimited,
    ".txt": _text,
}


# What is read of them


def _rows(path: Path, needed: Sequence[str], only: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield the rows of a file; only some columns suffice."""
    suffix = split_name(path)[1]
    with readable(path, suffix):
        columns, rows = _READERS[suffix](path, only)
        if columns:
            _require(path, needed, columns)
        for row in islice(rows, 1):
            yield {name: _without_mark(value) for name, value in row.items()}
        yield from rows


def _without_mark(value: Any) -> Any:
    return value.removeprefix(BYTE_ORDER_MARK) if isinstance(value, str) else value


def read_rows(path: Path, needed: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of a file with all columns; the columns `needed` are required.

    Raises:
        DamagedFile: the file ends early, or has other bytes than were written.
        ValueError: a column is missing or comes twice, or a row is not in the format, or does not fit the header.
    """
    return _rows(path, needed)


def require_columns(path: Path, names: Sequence[str]) -> None:
    """Raise as `read_rows` if a file cannot be opened or lacks one of the columns."""
    suffix = split_name(path)[1]
    with readable(path, suffix):
        columns, _ = _READERS[suffix](path, names)
    if columns:
        _require(path, names, columns)


def read_table(path: Path, needed: Sequence[str]) -> dict[str, list[Any]]:
    """Read all columns of a file into memory; the columns `needed` are required.

    Raises as `read_rows`, and ValueError if a cell of a .tsv file has a line break.
    """
    rows = list(read_rows(path, needed))
    if split_name(path)[1] == ".tsv" and any("\n" in value for row in rows for value in row.values()):
        raise ValueError(f"{path} has a quote that begins a cell and ends in another row: write it as jsonl")
    names = dict.fromkeys(chain.from_iterable([*rows, needed]))
    return {name: [row.get(name) for row in rows] for name in names}


def read_texts(path: Path, column: str) -> Iterator[str]:
    """Yield the texts of a file; missing ones are empty. The only column of .txt files is "text".

    Raises as `read_rows`, and ValueError if the column does not contain text.
    """
    for row in _rows(path, (column,), (column,)):
        text = row.get(column)
        if not isinstance(text, str | None):
            found = type(text).__name__
            raise ValueError(f"column {column!r} of {path} holds {found} and not text: name another one")
        yield (text or "").removeprefix(BYTE_ORDER_MARK)


def text_size(path: Path, column: str) -> tuple[float, float]:
    """Estimate the bytes of uncompressed text and the rows of a file.

    Both are in the footer of parquet files; for other formats they are extrapolated from the first rows.
    """
    if split_name(path)[1] != ".parquet":
        rows = list(islice(read_rows(path), _BATCH_ROWS))
        if not rows:
            return 0.0, 0.0
        share = path.stat().st_size * COMPRESSIONS.get(path.suffix, 1) / len(json.dumps(rows, default=str))
        return share * sum(len(str(row.get(column) or "")) for row in rows), share * len(rows)
    from pyarrow import OSFile, parquet

    require_columns(path, (column,))
    footer = parquet.read_metadata(OSFile(os.fsencode(path)))
    columns = [number for number in range(footer.num_columns) if footer.schema.column(number).path == column]
    groups = map(footer.row_group, range(footer.num_row_groups))
    return sum(group.column(number).total_uncompressed_size for group in groups for number in columns), footer.num_rows


def _require(path: Path, names: Sequence[str], present: Collection[str]) -> None:
    for name in names:
        if name not in present:
            hint = did_you_mean(name, present)
            raise ValueError(f"{path} has no column {name!r} ({hint}): rename the column that holds it")


def _require_unique(path: Path, names: Sequence[str]) -> None:
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"{path} has two columns named {twice[0]!r}: rename one")
