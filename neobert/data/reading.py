"""Files of texts and of tables in any common format, read row by row.

`datasets` reads them in streaming mode, one file after the other: nothing is copied or converted, memory holds one
batch, and rows come in the order of the file. A .txt file holds one document a line.
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
"""The builder of `datasets` for each suffix."""

COMPRESSIONS = {".gz": 3, ".zst": 3, ".bz2": 4, ".xz": 4}
"""What may follow the suffix of a text format, and about how many bytes of text one compressed byte holds."""

_BINARY = (".parquet", ".arrow")
_BATCH_ROWS = 1024
_UNREADABLE = (ValueError, EOFError, OSError, lzma.LZMAError, zlib.error)


def split_name(path: Path) -> tuple[str, str]:
    """The name of a file without suffixes, and its format: ("train", ".jsonl") of train.jsonl.gz.

    The format is "" where the file is in none that is read here.
    """
    name = path.stem if path.suffix in COMPRESSIONS else path.name
    suffix = Path(name).suffix
    is_read = suffix in FORMATS and not (name != path.name and suffix in _BINARY)
    return name.removesuffix(suffix), suffix if is_read else ""


def data_files(folder: Path, formats: Collection[str] = FORMATS) -> list[Path]:
    """The files below a folder that are in one of the formats, in the order of their paths; none that is hidden."""
    found = (path for path in folder.rglob("*") if split_name(path)[1] in formats and path.is_file())
    return sorted(path for path in found if not any(part[0] == "." for part in path.relative_to(folder).parts))


def table_file(folder: Path, name: str) -> Path:
    """The file that holds the table `name` in a folder; <name>.parquet, whether it exists or not, if no other does.
    ValueError where several do."""
    parquet = folder / f"{name}.parquet"
    found = [path for path in sorted(folder.glob(f"{glob.escape(name)}.*")) if split_name(path)[0] == name]
    found = [path for path in found if split_name(path)[1]]
    if parquet in found or not found:
        return parquet
    if len(found) > 1:
        raise ValueError(f"{folder} holds {name} as {' and as '.join(path.name for path in found)}: keep one of them")
    return found[0]


def require_columns(path: Path, names: Sequence[str]) -> None:
    """Check that a file can be opened, else DamagedFile, and has these columns, else ValueError."""
    if split_name(path)[1] == ".parquet":
        from pyarrow import ArrowInvalid, parquet

        try:
            _require(path, names, parquet.read_schema(path).names)
        except ArrowInvalid as error:
            raise _damaged(path, error) from error
    else:
        next(read_batches(path, names), None)


def read_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator["Table"]:
    """The rows of a file as Arrow tables of at most 1,024 rows. `columns` are those that are needed; None stands for
    all, and formats that hold whole rows give all of them in any case.

    Raises:
        DamagedFile: the file is not readable in its format.
        ValueError: a column is missing.
    """
    from datasets import load_dataset, logging

    if not path.stat().st_size:
        return
    if split_name(path)[1] == ".parquet":
        require_columns(path, columns or ())
    logging.set_verbosity(logging.CRITICAL)  # what it would log is raised below
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
    """A stream imports torch, a second of the processor, to share its epoch with workers of a DataLoader, which there
    are none of where nobody has imported torch."""
    from datasets import config

    is_available = config.TORCH_AVAILABLE
    config.TORCH_AVAILABLE = is_available and "torch" in sys.modules
    try:
        yield
    finally:
        config.TORCH_AVAILABLE = is_available


def read_rows(path: Path, needed: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a file that has the columns `needed`, with all their columns. Raises as `read_batches`."""
    for batch in read_batches(path):
        _require(path, needed, batch.column_names)
        yield from batch.to_pylist()


def read_table(path: Path, needed: Sequence[str]) -> dict[str, list[Any]]:
    """All columns of a file that fits into memory and has the columns `needed`. Raises as `read_batches`."""
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
    """How many rows a file has; 0 where it is not there or cannot be read: what reads it says why."""
    from pyarrow import ArrowInvalid, parquet

    try:
        if split_name(path)[1] == ".parquet":
            return int(parquet.read_metadata(path).num_rows)
        return sum(batch.num_rows for batch in read_batches(path))
    except (OSError, ArrowInvalid, DamagedFile):
        return 0


def read_texts(path: Path, column: str) -> Iterator[str]:
    """The texts of a file, one after the other; a missing one is empty. A .txt file has one column alone.

    Raises:
        DamagedFile: the file is not readable in its format.
        ValueError: it has no such column, or one of something else than text.
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
    """About how many bytes of text before compression, and rows, a file has.

    Parquet says both in its footer; of another format the first rows stand for all.
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
    """A column is not there, or not of text."""


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
    """What the builder of a file's format is told beside the file."""
    suffix = split_name(path)[1]
    if suffix == ".parquet":
        return {"batch_size": _BATCH_ROWS, "columns": None if columns is None else list(columns)}
    if FORMATS[suffix] == "csv":  # pandas would make a number of the text "7" and nothing of "NA"
        texts = dict.fromkeys(columns or (), str)
        return {"sep": "\t" if suffix == ".tsv" else ",", "na_filter": False, "converters": texts}
    return {}
