"""Parquet files as the sources read them: columns checked, rows and texts one after the other. Torch-free."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neobert.errors import DamagedFile, did_you_mean

_ROWS_PER_BATCH = 1024


def require_columns(path: Path, names: Sequence[str]) -> None:
    """Check that a parquet file can be opened and has these columns.

    Raises:
        DamagedFile: it cannot.
        ValueError: a column is missing.
    """
    from pyarrow import ArrowInvalid, parquet

    try:
        present = parquet.read_schema(path).names
    except ArrowInvalid as error:
        raise DamagedFile(f"{path} is not readable as parquet ({error}): fetch it again") from error
    for name in names:
        if name not in present:
            hint = did_you_mean(name, present)
            raise ValueError(f"{path} has no column {name!r} ({hint}): rename the column that holds it")


def text_size(path: Path, name: str) -> tuple[int, int]:
    """Bytes of the column `name` before compression, and rows; reads the footer alone."""
    from pyarrow import parquet

    require_columns(path, (name,))
    footer = parquet.read_metadata(path)
    column = footer.schema.to_arrow_schema().names.index(name)
    groups = (footer.row_group(number).column(column) for number in range(footer.num_row_groups))
    return sum(group.total_uncompressed_size for group in groups), footer.num_rows


def texts_of(columns: Mapping[Path, str]) -> Iterator[str]:
    """The texts in a column of each file, file after file; a missing one is empty."""
    from pyarrow import parquet

    for path, column in columns.items():
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_PER_BATCH, columns=[column]):
                yield from (text or "" for text in batch.column(0).to_pylist())


def rows_of(path: Path, needed: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a file that has the columns `needed`.

    Raises:
        DamagedFile, ValueError: as `require_columns`.
    """
    from pyarrow import parquet

    require_columns(path, needed)
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS_PER_BATCH):
            yield from batch.to_pylist()
