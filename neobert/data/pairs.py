"""Pairs of texts that belong together, with texts that do not: what they are and how parquet files hold them.

Torch-free. A file of a person's own has the columns `query`, `document` and, where there are any, `negative` or
`negatives`, each a text or a list of texts. Files of the hub are read by their declaration (`pair_repositories`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from neobert.data.parquet import rows_of
from neobert.errors import DamagedFile

INSTRUCTIONS_FILE = "instructions.json"
NEGATIVE_COLUMNS = ("negative", "negatives")


class Pair(NamedTuple):
    """A query, a document that belongs to it, and hard negatives: documents that seem to and do not. `similarity`
    (0..5) is how alike people found query and document, where a data set says it."""

    query: str
    document: str
    negatives: tuple[str, ...] = ()
    similarity: float | None = None


def own_pairs(path: Path) -> Iterator[Pair]:
    """The pairs of a person's own file, in its order; a missing text counts as an empty one.

    Raises:
        DamagedFile: it cannot be read.
        ValueError: it lacks a column, or a text is none.
    """
    for number, row in enumerate(rows_of(path, ("query", "document"))):
        negatives = tuple(text for column in NEGATIVE_COLUMNS for text in _texts(row.get(column)))
        yield checked(Pair(row["query"] or "", row["document"] or "", negatives), f"{path}, row {number}")


def checked(pair: Pair, where: str) -> Pair:
    """The pair itself, if all of it is text.

    Raises:
        ValueError: it is not.
    """
    for text in (pair.query, pair.document, *pair.negatives):
        if not isinstance(text, str):
            raise ValueError(f"{where}: {text!r} is not a text")
    return pair


def _texts(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def own_instructions(folder: Path) -> dict[str, str]:
    """The instruction of each data set that `instructions.json` in a folder of pairs names; none without the file.

    Raises:
        DamagedFile: it is no JSON object of texts.
    """
    path = folder / INSTRUCTIONS_FILE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} is not readable as JSON ({error}): write {{name: instruction}}") from error
    if not isinstance(content, dict) or not all(isinstance(text, str) for text in content.values()):
        raise DamagedFile(f"{path} is no JSON object of texts: write {{name: instruction}}")
    return content
