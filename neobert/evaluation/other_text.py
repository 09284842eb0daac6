"""Text that no run was made for, tokenised as a run's own, to measure pseudo-perplexity on. Torch-free."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neobert.data.parquet import require_columns, texts_of
from neobert.data.preparation import POLL_SECONDS, open_specified, text_tokenizer
from neobert.data.shards import prepare
from neobert.data.tokenized import TokenizedCorpus, open_shards
from neobert.errors import MissingData
from neobert.files import sha256_of
from neobert.grid.claims import acquire
from neobert.identity import NUMERICS, identity
from neobert.layout import MANIFEST, Layout
from neobert.specifications import RunFile

COLUMN = "text"
SUFFIXES = (".parquet", ".txt")


@dataclass(frozen=True)
class OtherText:
    """Documents of a file or folder: the rows of parquet files with a column `text`, and each .txt file as a whole.
    `name` is the file's or folder's, `content` the hash of all bytes."""

    name: str
    content: str
    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.name}@{self.content}"

    def documents(self) -> Iterator[str]:
        """The texts, file by file."""
        for path in self.paths:
            yield from texts_of({path: COLUMN}) if path.suffix == ".parquet" else [path.read_text(encoding="utf-8")]


def open_text(place: Path) -> OtherText:
    """The documents of a file or folder.

    Raises:
        MissingData: nothing is there.
        ValueError: a parquet file has no column `text`, or a .txt file is no UTF-8.
        DamagedFile: a parquet file cannot be read.
    """
    found = sorted(place.rglob("*")) if place.is_dir() else [place]
    paths = tuple(path for path in found if path.suffix in SUFFIXES and path.is_file())
    if not paths:
        raise MissingData(f"{place} holds no text: name a file or folder of {' or '.join(SUFFIXES)} files")
    for path in paths:
        if path.suffix == ".parquet":
            require_columns(path, (COLUMN,))
    return OtherText(place.resolve().name, identity(sorted(map(sha256_of, paths))), paths)


def tokenized_text(layout: Layout, run_file: RunFile, text: OtherText) -> TokenizedCorpus:
    """The text in the tokens of a run, from disk or made now by one process while others wait."""
    run = run_file.pretraining
    assert run is not None
    origins = {"corpus": str(text), "tokenizer": run.tokenizer_origin}
    size = run.recipe.model.vocabulary_size
    folder = layout.data(identity([text.content, run.tokenizer_origin, size, NUMERICS["tokenization"]]))
    while not (folder / MANIFEST).exists():
        claim = acquire(layout.claims(f"data-{folder.name}"))
        if claim is None:
            time.sleep(POLL_SECONDS)
            continue
        with claim:
            source, origin = open_specified(run_file.source), run.tokenizer_origin
            tokenizer = text_tokenizer(layout, source, run.recipe.data.tokenizer, size, origin)
            prepare(text.documents(), tokenizer, folder, origins=origins)
    return open_shards(folder)
