"""Tokenise a corpus once into shards on disk. Torch-free.

While a corpus grows its folder is called <folder>.partial and keeps every finished shard, so that a killed run goes on
behind the last one. `neobert.data.tokenized` has the format and reads it.
"""

import hashlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from neobert.data.encoding import EncodedTexts, encoded
from neobert.data.tokenized import TokenizedCorpus, documents_name, open_shards, shard_checksums, tokens_name
from neobert.data.tokenizers import TextTokenizer
from neobert.data.verification import VERIFIED
from neobert.errors import DamagedFile
from neobert.files import (
    checksummed,
    clear_temporaries,
    json_bytes,
    publish_folder,
    read_checksummed,
    read_json,
    replace_file,
    set_aside,
    sha256_of,
    sync_file,
    temporary_sibling,
)
from neobert.layout import MANIFEST, PARTIAL

__all__ = ["LARGEST_VOCABULARY", "SHARD_TOKENS", "TokenizedCorpus", "open_shards", "prepare"]

SCHEMA = 2
SHARD_TOKENS = 2**27
"""A shard ends with the batch of texts that reaches this many tokens: 256 MiB."""

LARGEST_VOCABULARY = 2**16

_HEADER = "header.json"
_HEADER_KEYS = ("schema", "origins", "special_ids", "vocabulary_size", "shard_tokens")


def prepare(
    texts: Iterable[str],
    tokenizer: TextTokenizer,
    folder: Path,
    *,
    origins: Mapping[str, str],
    shard_tokens: int = SHARD_TOKENS,
) -> TokenizedCorpus:
    """Tokenise `texts` into `folder`, or open what is there. Memory is bounded by a few batches of texts.

    Blank texts are dropped and counted. `origins` ({"corpus": …, "tokenizer": …}) go into the manifest. Call it
    again after a kill: finished shards are kept, and their texts are skipped without tokenising.

    Raises:
        ValueError: the vocabulary does not fit into two bytes, or there is no text at all.
        DamagedFile: `folder` exists and is damaged.
    """
    if (folder / MANIFEST).is_file():
        return open_shards(folder)
    if tokenizer.vocabulary_size > LARGEST_VOCABULARY:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocabulary_size} tokens but shards hold ids below {LARGEST_VOCABULARY}: "
            f"choose a smaller vocabulary"
        )
    header = _header(tokenizer, origins, shard_tokens)
    partial = _partial_folder(folder, header)
    shards = _finished_shards(partial)
    left = islice(texts, sum(shard["texts"] for shard in shards), None)
    with closing(encoded(left, tokenizer)) as batches:
        while (shard := _write_shard(partial, len(shards), batches, shard_tokens)) is not None:
            shards.append(shard)
    if not any(shard["tokens"] for shard in shards):
        raise ValueError(f"corpus {origins.get('corpus', folder.name)} holds no text: there is nothing to train on")
    _publish(partial, folder, header, shards)
    return open_shards(folder)


def reopen(folder: Path, reason: str) -> None:
    """Make a damaged corpus one that grows again: `prepare` keeps its shards up to the first that is damaged.

    Only for whoever owns its claim.
    """
    try:
        manifest = read_checksummed(folder / MANIFEST)
        shards, header = list(manifest["shards"]), {key: manifest[key] for key in _HEADER_KEYS}
    except (DamagedFile, KeyError, TypeError):
        set_aside(folder, reason)
        return
    partial = folder.with_name(folder.name + PARTIAL)
    if partial.exists():
        shutil.rmtree(partial)
    folder.rename(partial)
    for name in (MANIFEST, VERIFIED):
        (partial / name).unlink(missing_ok=True)
    for number, shard in enumerate(shards):
        replace_file(_record_path(partial, number), json_bytes(shard))
    replace_file(partial / _HEADER, json_bytes(header))  # last: without it all is made again
    print(f"{reason}: the shards before it are kept, the others made again", file=sys.stderr, flush=True)


def finished_shards(folder: Path) -> int:
    """How many shards of a corpus in work lie finished."""
    return len(list(folder.with_name(folder.name + PARTIAL).glob("shard-*.json")))


def _header(tokenizer: TextTokenizer, origins: Mapping[str, str], shard_tokens: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "origins": dict(origins),
        "special_ids": asdict(tokenizer.ids),
        "vocabulary_size": tokenizer.vocabulary_size,
        "shard_tokens": shard_tokens,
    }


def _partial_folder(folder: Path, header: Mapping[str, Any]) -> Path:
    """The growing folder; what somebody began with another header is thrown away."""
    partial = folder.with_name(folder.name + PARTIAL)
    if partial.exists() and not _began_with(partial, header):
        shutil.rmtree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    clear_temporaries(partial)
    replace_file(partial / _HEADER, json_bytes(header))
    return partial


def _began_with(partial: Path, header: Mapping[str, Any]) -> bool:
    try:
        return bool(read_json(partial / _HEADER) == header)
    except (DamagedFile, FileNotFoundError):
        return False


def _record_path(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard:05d}.json"


def _finished_shards(partial: Path) -> list[dict[str, Any]]:
    """The records of shards that were finished, up to the first that is not whole."""
    shards: list[dict[str, Any]] = []
    while (shard := _whole_shard(partial, len(shards))) is not None:
        shards.append(shard)
    return shards


def _whole_shard(partial: Path, number: int) -> dict[str, Any] | None:
    """The record of a finished shard; None where it or one of the shard's files is absent or damaged."""
    try:
        shard: dict[str, Any] = read_json(_record_path(partial, number))
        checksums = shard_checksums(number, shard, partial)
        is_whole = all(sha256_of(partial / name) == sha256 for name, sha256 in checksums.items())
    except (DamagedFile, FileNotFoundError, KeyError, TypeError, ValueError):
        return None
    return shard if is_whole else None


@dataclass
class _Growing:
    """A shard on its way to the disk."""

    file: BinaryIO
    texts: int = 0
    tokens: int = 0
    documents: list[NDArray[Any]] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)

    def add(self, encoded: EncodedTexts) -> None:
        content = encoded.token_ids.tobytes()
        self.file.write(content)
        self.digest.update(content)
        self.documents.append(encoded.documents)
        self.texts += encoded.texts
        self.tokens += len(encoded.token_ids)


def _write_shard(
    partial: Path, number: int, batches: Iterator[EncodedTexts], shard_tokens: int
) -> dict[str, Any] | None:
    """Fill one shard from the batches and record it; None where no text is left."""
    path = partial / tokens_name(number)
    temporary = temporary_sibling(path)
    try:
        with temporary.open("xb") as file:
            growing = _Growing(file)
            while growing.tokens < shard_tokens and (batch := next(batches, None)) is not None:
                growing.add(batch)
        if growing.texts == 0:
            return None
        sync_file(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return _record_shard(partial, number, growing)


def _record_shard(partial: Path, number: int, growing: _Growing) -> dict[str, Any]:
    documents = np.concatenate(growing.documents)
    index = partial / documents_name(number)
    with index.open("wb") as file:
        np.save(file, documents, allow_pickle=False)
    sync_file(index)
    shard = {
        "texts": growing.texts,
        "documents": len(documents),
        "tokens": growing.tokens,
        "files": {tokens_name(number): growing.digest.hexdigest(), index.name: sha256_of(index)},
    }
    replace_file(_record_path(partial, number), json_bytes(shard))
    return shard


def _publish(partial: Path, folder: Path, header: Mapping[str, Any], shards: list[dict[str, Any]]) -> None:
    """Write the manifest and give the folder its name."""
    totals = {count: sum(shard[count] for shard in shards) for count in ("texts", "documents", "tokens")}
    dropped = totals["texts"] - totals["documents"]
    manifest = {**header, **totals, "blank_texts_dropped": dropped, "shards": shards}
    replace_file(partial / MANIFEST, json_bytes(checksummed(manifest)))
    for number in range(len(shards)):
        _record_path(partial, number).unlink()
    (partial / _HEADER).unlink()
    if folder.exists():
        raise DamagedFile(f"{folder} exists without {MANIFEST}: remove it to tokenise again")
    publish_folder(partial, folder)
