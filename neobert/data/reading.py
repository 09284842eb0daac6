"""Reading of text and table files in any common format, row by row.

`datasets` reads them in streaming mode, one file at a time: nothing is copied or converted, only one batch is in
memory, and rows keep the order of the file. A .txt file has one document per line.
"""

import glob
import json
import lzma
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
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
_UNREADABLE = (ValueError, EOFError, OSError, lzma.LZMAError, zlib.error)


def split_name(path: Path) -> tuple[str, str]:
    """Split a file name into stem and format: ("train", ".jsonl") for train.jsonl.gz.

    The format is "" if it is not supported.
    """
    name = path.stem if path.suffix in COMPRESSIONS else path.name
    suffix = Path(name).suffix
    is_read = suffix in FORMATS and not (name != path.name and suffix in _BINARY)
    return name.removesuffix(suffix), suffix if is_read else ""


def data_files(folder: Path, formats: Collection[str] = FORMATS) -> list[Path]:
    """Return the files below a folder in one of the formats, sorted by path, without hidden ones."""
    found = (path for path in folder.rglob("*") if split_name(path)[1] in formats and path.is_file())
    return sorted(path for path in found if not any(part[0] == "." for part in path.relative_to(folder).parts))


def table_file(folder: Path, name: str) -> Path:
    """Return the file of the table `name` in a folder; if there is none, the path <name>.parquet.

    Raises:
        ValueError: there are several such files, none of them parquet.
    """
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
    if split_name(path)[1] == ".parquet":
        from pyarrow import ArrowInvalid, parquet

        try:
            _require(path, names, parquet.read_schema(path).names)
        except ArrowInvalid as error:
            raise _damaged(path, error) from error
    else:
        next(read_batches(path, names), None)


def read_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator["Table"]:
    """Yield the rows of a file as Arrow tables of at most 1,024 rows. `columns` are the required columns, None for all;
    row-based formats always yield all columns.

    Raises:
        DamagedFile: the file is not readable in its format.
        ValueError: a column is missing.
    """
    from datasets import load_dataset, logging

    if not path.stat().st_size:
        return
    if split_name(path)[1] == ".parquet":
        require_columns(path, columns or ())
    logging.set_verbosity(logging.CRITICAL)  # errors are raised below instead of logged
    try:
        with TemporaryDirectory() as scratch:
            with _torch_left_out():
                stream = load_dataset(
                    FORMATS[split_name(path)[1]],
                    data_files=[glob.escape(str(path.absolute()))],
                    split="train",
                    streaming=True,
                    cache_dir=scratch,
                    **_options(path, columns),
                ).with_format("arrow")
            batches: Iterator[Table] = stream.iter(batch_size=_BATCH_ROWS)
            for batch in batches:
                _require(path, columns or (), batch.column_names)
                yield batch
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
    """Yield the rows of a file with all columns; the columns `needed` are required. Raises as `read_batches`."""
    for batch in read_batches(path):
        _require(path, needed, batch.column_names)
        yield from batch.to_pylist()


def read_table(path: Path, needed: Sequence[str]) -> dict[str, list[Any]]:
    """Read all columns of a file into memory; the columns `needed` are required. Raises as `read_batches`."""
    from pyarrow import concat_tables, parquet

    require_columns(path, needed)
    if split_name(path)[1] == ".parquet":
        table = parquet.read_table(path)
    else:
        batches = list(read_batches(path))
        if not batches:
            return {name: [] for name in needed}
        table = concat_tables(batches)
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def count_rows(path: Path) -> int:
    """Return the number of rows of a file; 0 if it is missing or unreadable, since reading it raises the error."""
    from pyarrow import ArrowInvalid, parquet

    try:
        if split_name(path)[1] == ".parquet":
            return int(parquet.read_metadata(path).num_rows)
        return sum(batch.num_rows for batch in read_batches(path))
    except (OSError, ArrowInvalid, DamagedFile):
        return 0


def read_texts(path: Path, column: str) -> Iterator[str]:
    """Yield the texts of a file; missing ones are empty. `column` is ignored for .txt files, which have only one.

    Raises:
        DamagedFile: the file is not readable in its format.
        ValueError: the column is missing, or does not contain text.
    """
    from pyarrow import types

    if split_name(path)[1] == ".txt":
        column = "text"
    for batch in read_batches(path, (column,)):
        texts = batch[column]
        is_text = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
        if not any(test(texts.type) for test in is_text):
            raise _MissingColumn(f"column {column!r} of {path} holds {texts.type} and not text: name another one")
        yield from (text or "" for text in texts.to_pylist())


def text_size(path: Path, column: str) -> tuple[float, float]:
    """Estimate the bytes of uncompressed text and the rows of a file.

    Both are in the footer of parquet files; for other formats they are extrapolated from the first rows.
    """
    if split_name(path)[1] != ".parquet":
        first = next(read_batches(path), None)
        if first is None:
            return 0.0, 0.0
        rows = first.to_pylist()
        share = path.stat().st_size * COMPRESSIONS.get(path.suffix, 1) / len(json.dumps(rows, default=str))
        return share * sum(len(str(row.get(column) or "")) for row in rows), share * len(rows)
    from pyarrow import parquet

    require_columns(path, (column,))
    footer = parquet.read_metadata(path)
    place = footer.schema.to_arrow_schema().names.index(column)
    groups = (footer.row_group(number).column(place) for number in range(footer.num_row_groups))
    return sum(group.total_uncompressed_size for group in groups), footer.num_rows


class _MissingColumn(ValueError):
    """Raised if a column is missing or does not contain text."""


def _require(path: Path, names: Sequence[str], present: Sequence[str]) -> None:
    for name in names:
        if name not in present:
            hint = did_you_mean(name, present)
            raise _MissingColumn(f"{path} has no column {name!r} ({hint}): rename the column that holds it")


def _damaged(path: Path, error: Exception) -> DamagedFile:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    kind = split_name(path)[1].removeprefix(".")
    return DamagedFile(f"{path} is not readable as {kind} ({reason}): fetch it again")


def _options(path: Path, columns: Sequence[str] | None) -> dict[str, Any]:
    """Return the options for the `datasets` builder of a file's format."""
    suffix = split_name(path)[1]
    if suffix == ".parquet":
        return {"batch_size": _BATCH_ROWS, "columns": None if columns is None else list(columns)}
    if FORMATS[suffix] == "csv":  # pandas would read "7" as a number and "NA" as missing
        texts = dict.fromkeys(columns or (), str)
        return {"sep": "\t" if suffix == ".tsv" else ",", "na_filter": False, "converters": texts}
    return {}
