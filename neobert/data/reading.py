"""Reading of text and table files in any common format, row by row.

`datasets` reads them in streaming mode, one file at a time: nothing is copied or converted, only a part of the file
is in memory (but all of a JSON file that is not in lines), and rows keep the order of the file. A .txt file has one
document per line.
"""

import glob
import json
import lzma
import os
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from neobert.errors import DamagedFile, did_you_mean

if TYPE_CHECKING:
    from pyarrow import Table

FORMATS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
}
"""Builder of `datasets` for each suffix."""

COMPRESSIONS = {".gz": 3, ".zst": 3, ".bz2": 4, ".xz": 4}
"""Suffixes of compressed text files, with the approximate number of text bytes per compressed byte."""

_BINARY = (".parquet", ".arrow")
_BATCH_ROWS = 1024
_UNREADABLE = (ValueError, TypeError, EOFError, OSError, lzma.LZMAError, zlib.error)


def split_name(path: Path) -> tuple[str, str]:
    """Split a file name into stem and format: ("train", ".jsonl") for train.jsonl.gz.

    The format is "" if it is not supported.
    """
    name = path.stem if path.suffix in COMPRESSIONS else path.name
    suffix = Path(name).suffix
    is_read = suffix in FORMATS and not (name != path.name and suffix in _BINARY)
    return name.removesuffix(suffix), suffix if is_read else ""


def data_files(folder: Path, formats: Collection[str] = FORMATS) -> list[Path]:
    """Return the files below a folder in one of the formats, sorted by path, without hidden ones.

    Links to folders are followed, but no folder is read twice.
    """
    found: list[Path] = []
    starts, seen = [folder], set()
    for start in starts:
        for parent, folders, names in os.walk(start):  # lists links to folders, but does not enter them
            folders[:] = sorted(name for name in folders if name[0] != ".")
            if (real := os.path.realpath(parent)) in seen:
                folders.clear()
                continue
            seen.add(real)
            starts += [path for name in folders if (path := Path(parent, name)).is_symlink()]
            found += [Path(parent, name) for name in names if name[0] != "."]
    return sorted(path for path in found if split_name(path)[1] in formats and path.is_file())


def table_file(folder: Path, name: str) -> Path:
    """Return the file of the table `name` in a folder; if there is none, the path <name>.parquet. Raises ValueError if
    there are several such files, none of them parquet."""
    parquet = folder / f"{name}.parquet"
    found = [path for path in sorted(folder.glob(f"{glob.escape(name)}.*")) if split_name(path)[0] == name]
    found = [path for path in found if split_name(path)[1]]
    if parquet in found or not found:
        return parquet
    if len(found) > 1:
        raise ValueError(f"{folder} holds {name} as {' and as '.join(path.name for path in found)}: keep one of them")
    return found[0]


def require_columns(path: Path, names: Sequence[str]) -> None:
    """Raise DamagedFile if a file cannot be opened, and ValueError if it lacks one of the columns."""
    from pyarrow import parquet

    builder = FORMATS[split_name(path)[1]]
    with _readable(path):
        if builder == "parquet":
            _require(path, names, parquet.read_schema(path).names)
        elif builder == "csv" and path.stat().st_size:
            _require(path, names, _csv_columns(path) or names)
        else:
            next(read_rows(path, names), None)


def _csv_columns(path: Path) -> list[str]:
    """Return the columns of a file, none if it has no row."""
    return [name for head in _streamed(path, "csv", **_options(path), nrows=1) for name in head.column_names]


def _json_batches(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the objects of a JSON file.

    `datasets` only parses arrays and objects of several lines. In JSON Lines it would infer the types of all values
    from the first 10 MB, and fail if a later value, even of a column that nobody reads, has another one.
    """
    batches = _streamed(path, "text", encoding="utf-8-sig")
    lines = ([line for line in batch["text"].to_pylist() if line.strip()] for batch in batches)
    first = next(lines, [])
    if not first or _is_object(first[0]):
        for batch in chain([first], lines):
            yield list(map(_parsed, batch))
    else:
        yield from (batch.to_pylist() for batch in _streamed(path, "json"))


def _parsed(line: str) -> dict[str, Any]:
    row = dict(json.loads(line, strict=False))
    if "\\ud" in line.lower():
        json.dumps(row, ensure_ascii=False).encode()  # raises ValueError for half a surrogate pair
    return row


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line, strict=False), dict)
    except ValueError:
        return False


def _streamed(path: Path, builder: str, **options: Any) -> Iterator["Table"]:
    """Yield the rows of a file, as a builder of `datasets` reads them."""
    import fsspec.compression  # type: ignore[import-untyped]
    from datasets import config, load_dataset, logging
    from pyarrow import input_stream

    logging.set_verbosity(logging.CRITICAL)  # errors are raised below instead of logged
    config.HF_UPDATE_DOWNLOAD_COUNTS = False  # it would ask the hub, for seconds where there is no network
    fsspec.compression.register_compression(  # the default takes a truncated file for a whole one
        "zstd", lambda file, **_: input_stream(file, compression="zstd"), "zst", force=True
    )
    with TemporaryDirectory() as scratch, _torch_left_out():
        files = [glob.escape(str(path.absolute()))]
        stream = load_dataset(
            builder, data_files=files, split="train", streaming=True, cache_dir=scratch, **options
        ).with_format("arrow")
    yield from stream.iter(batch_size=_BATCH_ROWS)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise DamagedFile for whatever the libraries raise if a file is not in its format."""
    try:
        yield
    except _UNREADABLE as error:
        if isinstance(error, _MissingColumn) or getattr(error, "errno", None) is not None:
            raise
        raise _damaged(path, error) from error


@contextmanager
def _torch_left_out() -> Iterator[None]:
    """Keep `datasets` from importing torch, which takes a second of CPU time. Streams only use torch to share their
    epoch with DataLoader workers, and there are none unless torch is already imported."""
    from datasets import config

    is_available = config.TORCH_AVAILABLE
    config.TORCH_AVAILABLE = is_available and "torch" in sys.modules
    try:
        yield
    finally:
        config.TORCH_AVAILABLE = is_available


def read_rows(path: Path, needed: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file with all columns; the columns `needed` are required.

    Raises:
        DamagedFile: the file is not readable in its format.
        ValueError: a column is missing.
    """
    return chain.from_iterable(_row_batches(path, needed))


def _row_batches(path: Path, needed: Sequence[str], text_column: str | None = None) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a file, with at least `text_column` if it is given."""
    if not path.stat().st_size:
        return
    builder = FORMATS[split_name(path)[1]]
    with _readable(path):
        columns = None if text_column is None else [text_column]
        if columns and builder == "parquet":
            require_columns(path, columns)
        if columns and builder == "csv":  # other columns are also read as texts, whose type cannot change later on
            columns = _csv_columns(path)
        batches = (batch.to_pylist() for batch in _streamed(path, builder, **_options(path, columns)))
        for number, rows in enumerate(_json_batches(path) if builder == "json" else batches):
            if number == 0 and rows:
                _require(path, needed, dict.fromkeys(chain.from_iterable(rows)))
            yield rows


def read_table(path: Path, needed: Sequence[str]) -> dict[str, list[Any]]:
    """Read all columns of a file into memory; the columns `needed` are required.

    Raises as `read_rows`, and ValueError if a cell of a .tsv file has a line break.
    """
    from pyarrow import parquet

    require_columns(path, needed)
    if split_name(path)[1] == ".parquet":
        with _readable(path):
            columns: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
        return columns
    rows = list(read_rows(path, needed))
    if split_name(path)[1] == ".tsv" and any("\n" in str(value) for row in rows for value in row.values()):
        raise ValueError(f"{path} has a quote that begins a cell and ends in another row: write it as jsonl")
    names = dict.fromkeys(chain.from_iterable([*rows, needed]))
    return {name: [row.get(name) for row in rows] for name in names}


def count_rows(path: Path) -> int:
    """Return the number of rows of a file; 0 if it is missing or unreadable, since reading it raises the error."""
    from pyarrow import parquet

    try:
        with _readable(path):
            if split_name(path)[1] == ".parquet":
                return int(parquet.read_metadata(path).num_rows)
            return sum(1 for _ in read_rows(path))
    except (OSError, DamagedFile):
        return 0


def read_texts(path: Path, column: str) -> Iterator[str]:
    """Yield the texts of a file; missing ones are empty. The only column of .txt files is "text".

    Raises:
        DamagedFile: the file is not readable in its format.
        ValueError: the column is missing, or does not contain text.
    """
    for row in chain.from_iterable(_row_batches(path, (column,), column)):
        text = row.get(column)
        if not isinstance(text, str | None):
            found = type(text).__name__
            raise _MissingColumn(f"column {column!r} of {path} holds {found} and not text: name another one")
        yield text or ""


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
    from pyarrow import parquet

    require_columns(path, (column,))
    footer = parquet.read_metadata(path)
    columns = [number for number in range(footer.num_columns) if footer.schema.column(number).path == column]
    groups = map(footer.row_group, range(footer.num_row_groups))
    return sum(group.column(number).total_uncompressed_size for group in groups for number in columns), footer.num_rows


class _MissingColumn(ValueError):
    """Raised if a column is missing or does not contain text."""


def _require(path: Path, names: Sequence[str], present: Collection[str]) -> None:
    for name in names:
        if name not in present:
            hint = did_you_mean(name, present)
            raise _MissingColumn(f"{path} has no column {name!r} ({hint}): rename the column that holds it")


def _damaged(path: Path, error: Exception) -> DamagedFile:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    kind = split_name(path)[1].removeprefix(".")
    return DamagedFile(f"{path} is not readable as {kind} ({reason}): fetch it again")


def _options(path: Path, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the options for the `datasets` builder of a file's format: `columns` are read as they are, of parquet only
    these."""
    suffix = split_name(path)[1]
    if suffix == ".parquet":
        return {"batch_size": _BATCH_ROWS, "columns": columns and list(columns)}
    if FORMATS[suffix] == "csv":  # pandas would read "7" as a number and "NA" as missing
        texts = dict.fromkeys(columns or (), str)
        return {"sep": "\t" if suffix == ".tsv" else ",", "na_filter": False, "converters": texts}
    return {}
