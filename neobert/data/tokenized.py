"""A tokenised corpus on disk, memory-mapped: uncut documents, two bytes a token. Torch-free.

A folder holds tokens-00000.bin (uint16) and documents-00000.npy (a `DOCUMENT` record each) for every shard and
manifest.json, written last, with the SHA-256 of each. `neobert.data.verification` remembers there what it compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.tokenizers import SpecialIds
from neobert.data.verification import require_files
from neobert.data.verification import verify as verify_files
from neobert.errors import DamagedFile, MissingData
from neobert.files import read_checksummed
from neobert.layout import MANIFEST

Integers = NDArray[np.int64]

TOKEN = np.dtype("<u2")
DOCUMENT = np.dtype([("length", "<i4"), ("text_bytes", "<i4"), ("text_hash", "<u8")])


def tokens_name(shard: int) -> str:
    return f"tokens-{shard:05d}.bin"


def documents_name(shard: int) -> str:
    return f"documents-{shard:05d}.npy"


def shard_checksums(number: int, shard: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The SHA-256 of a shard's two files by name, as its record has them.

    Raises:
        DamagedFile: the record names other files.
    """
    checksums = dict(shard["files"])
    if checksums.keys() != {tokens_name(number), documents_name(number)}:
        raise DamagedFile(f"{folder} has a record of shard {number} that names {sorted(checksums)}: it is not trusted")
    return checksums


@dataclass(frozen=True, eq=False)
class TokenizedCorpus:
    """Documents as runs of token ids without specials; a document's number is its place in the corpus.

    `lengths` (documents,) int64 tokens; `text_bytes` (documents,) int64 size of the text in UTF-8; `text_hashes`
    (documents,) uint64, a hash of the text that knows no tokenizer; `shards` the token arrays whose concatenation is
    the corpus; `manifest` what was written beside them.
    """

    ids: SpecialIds
    lengths: NDArray[np.int64]
    text_bytes: NDArray[np.int64]
    text_hashes: NDArray[np.uint64]
    shards: tuple[NDArray[np.uint16], ...]
    manifest: Mapping[str, Any]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(documents,) address of each document's first token in the concatenated shards."""
        ends: NDArray[np.int64] = np.cumsum(self.lengths, dtype=np.int64)
        return ends - self.lengths

    @cached_property
    def _shard_starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(len(shard) for shard in self.shards[:-1])], dtype=np.int64)

    @property
    def documents(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """Tokens without specials."""
        return sum(len(shard) for shard in self.shards)

    def copy(self, starts: Integers, counts: Integers, into: Integers, places: Integers) -> None:
        """Copy runs of `counts` tokens from addresses `starts` of the concatenated shards to `places` of `into`.

        All (runs,) int64. A run is of one document, so it lies in one shard.
        """
        numbers = np.searchsorted(self._shard_starts, starts, side="right") - 1
        first = starts - self._shard_starts[numbers]
        columns = (numbers, first, first + counts, places, places + counts)
        for shard, begin, end, place, stop in zip(*(column.tolist() for column in columns), strict=True):
            into[place:stop] = self.shards[shard][begin:end]


def open_shards(folder: Path, *, verify: bool = True) -> TokenizedCorpus:
    """Memory-map a tokenised corpus; `verify` compares checksums, of files that did not change since once only.

    Raises:
        MissingData: there is no finished corpus in the folder.
        DamagedFile: a file is missing, torn or does not match its checksum.
    """
    if not (folder / MANIFEST).is_file():
        raise MissingData(f"there is no tokenised corpus in {folder}: prepare it first")
    manifest = read_checksummed(folder / MANIFEST)
    checksums: dict[str, str] = {}
    for number, shard in enumerate(manifest["shards"]):
        checksums |= shard_checksums(number, shard, folder)
    (verify_files if verify else require_files)(folder, checksums)
    documents = [_documents(folder / documents_name(number)) for number in range(len(manifest["shards"]))]
    corpus = TokenizedCorpus(
        ids=SpecialIds(**manifest["special_ids"]),
        lengths=np.concatenate([records["length"] for records in documents], dtype=np.int64),
        text_bytes=np.concatenate([records["text_bytes"] for records in documents], dtype=np.int64),
        text_hashes=np.concatenate([records["text_hash"] for records in documents]),
        shards=tuple(
            _tokens(folder / tokens_name(number), shard["tokens"]) for number, shard in enumerate(manifest["shards"])
        ),
        manifest=manifest,
    )
    if int(corpus.lengths.sum()) != corpus.tokens:
        raise DamagedFile(f"{folder} holds {corpus.tokens} tokens but its documents add up to another number: redo it")
    return corpus


def _documents(path: Path) -> NDArray[Any]:
    try:
        records: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DamagedFile(f"{path} is not readable ({error}): remove its folder to tokenise again") from error
    if records.dtype != DOCUMENT:
        raise DamagedFile(f"{path} holds {records.dtype} and not {DOCUMENT}: remove its folder to tokenise again")
    return records


def _tokens(path: Path, tokens: int) -> NDArray[np.uint16]:
    if path.stat().st_size != tokens * TOKEN.itemsize:
        raise DamagedFile(f"{path} is not {tokens} tokens long: remove its folder to tokenise again")
    if tokens == 0:
        return np.empty(0, dtype=TOKEN)
    return np.asarray(np.memmap(path, dtype=TOKEN, mode="r"))
