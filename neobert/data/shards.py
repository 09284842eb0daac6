"""A tokenised corpus on disk: uncut documents, two bytes per token, memory-mapped.

A folder contains tokens-00000.bin (uint16) and documents-00000.npy (one `DOCUMENT` record per document) for every
shard, and manifest.json, written last, with the SHA-256 of each file. During tokenisation the folder is named
<folder>.partial and keeps every finished shard, so that a killed run resumes after the last one.
"""

import hashlib
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from neobert.data.manifest import MANIFEST, PARTIAL
from neobert.data.tokenizers import SpecialIds, TextTokenizer
from neobert.errors import DamagedFile, MissingData
from neobert.files import (
    TOKENISE_AGAIN,
    as_written,
    checksummed,
    children,
    clear_temporaries,
    is_file,
    is_there,
    json_bytes,
    publish_folder,
    read_checksummed,
    read_json,
    replace_file,
    sha256_of,
    sync_file,
    verify,
)
from neobert.recipe import LongDocuments

logger = logging.getLogger(__name__)

Integers = NDArray[np.int64]

TOKEN = np.dtype("<u2")
DOCUMENT = np.dtype([("length", "<i4"), ("text_bytes", "<i4"), ("text_hash", "<u8"), ("words", "<i4")])


def tokens_name(shard: int) -> str:
    return f"tokens-{shard:05d}.bin"


def documents_name(shard: int) -> str:
    return f"documents-{shard:05d}.npy"


@dataclass(frozen=True)
class Shard:
    """Record of a shard: numbers of texts read, of documents and of tokens, and the SHA-256 of its two files."""

    texts: int
    documents: int
    tokens: int
    files: dict[str, str]


_SHARD, _SHARDS = TypeAdapter(Shard), TypeAdapter(list[Shard])


@dataclass(frozen=True, eq=False)
class TokenizedCorpus:
    """Tokenised documents without special tokens; a document's number is its index in the corpus.

    `lengths` (documents,) int64: tokens; `text_bytes` (documents,) int64: size of the text in UTF-8; `text_hashes`
    (documents,) uint64: a hash of the text, the same for every tokenizer; `shards`: the token arrays whose
    concatenation is the corpus; `manifest`: the content of manifest.json.
    """

    ids: SpecialIds
    lengths: Integers
    text_bytes: Integers
    text_hashes: NDArray[np.uint64]
    shards: tuple[NDArray[np.uint16], ...]
    manifest: Mapping[str, Any]

    @cached_property
    def starts(self) -> Integers:
        """(documents,) index of each document's first token in the concatenated shards."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @cached_property
    def _shard_starts(self) -> Integers:
        return np.cumsum([0, *(len(shard) for shard in self.shards[:-1])], dtype=np.int64)

    @property
    def documents(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """Tokens without specials."""
        return sum(len(shard) for shard in self.shards)

    def copy(self, starts: Integers, counts: Integers, into: Integers, targets: Integers) -> None:
        """Copy runs of `counts` tokens from indices `starts` of the concatenated shards to indices `targets` of `into`.

        All (runs,) int64. Each run belongs to one document and therefore to one shard.
        """
        numbers = np.searchsorted(self._shard_starts, starts, side="right") - 1
        first = starts - self._shard_starts[numbers]
        columns = (numbers, first, first + counts, targets, targets + counts)
        for shard, begin, end, target, stop in zip(*(column.tolist() for column in columns), strict=True):
            into[target:stop] = self.shards[shard][begin:end]


def open_shards(folder: Path) -> TokenizedCorpus:
    """Memory-map a tokenised corpus. Checksums are compared, only once for files that do not change.

    Raises:
        MissingData: there is no finished corpus in the folder.
        DamagedFile: a file is missing, torn or does not match its checksum.
    """
    if not is_file(folder / MANIFEST):
        raise MissingData(f"there is no tokenised corpus in {folder}: prepare it first")
    manifest = read_checksummed(folder / MANIFEST)
    shards = as_written(_SHARDS, manifest["shards"], folder / MANIFEST, TOKENISE_AGAIN)
    verify(folder, {name: sha256 for shard in shards for name, sha256 in shard.files.items()})
    records = [np.load(folder / documents_name(number), mmap_mode="r") for number in range(len(shards))]
    columns = {name: np.concatenate([part[name] for part in records]) for name in ("length", "text_bytes", "text_hash")}
    return TokenizedCorpus(
        ids=SpecialIds(**manifest["special_ids"]),
        lengths=columns["length"].astype(np.int64),
        text_bytes=columns["text_bytes"].astype(np.int64),
        text_hashes=columns["text_hash"],
        shards=tuple(_tokens(folder / tokens_name(number)) for number in range(len(shards))),
        manifest=manifest,
    )


def _tokens(path: Path) -> NDArray[np.uint16]:
    if path.stat().st_size == 0:  # cannot be mapped
        return np.empty(0, dtype=TOKEN)
    return np.asarray(np.memmap(path, dtype=TOKEN, mode="r"))


BATCH_TEXTS = 2048
BATCH_CHARACTERS = 2**20
"""A batch ends with the text that reaches either limit. Memory is bounded by three batches."""

_UNDER_WAY = 2


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """A batch: number of `texts` read, concatenated `token_ids`, and `documents`, one `DOCUMENT` per non-blank text."""

    texts: int
    token_ids: NDArray[np.uint16]
    documents: NDArray[Any]


def encode_batches(texts: Iterable[str], tokenizer: TextTokenizer) -> Generator[EncodedTexts, None, None]:
    """Encode texts in batches and yield them in order.

    The tokenizers library encodes a batch on all cores without the interpreter's lock. Two batches are encoded at once,
    so that the cores stay busy while one is copied into arrays and the next texts are read.
    """
    under_way: deque[Future[EncodedTexts]] = deque()
    pool = ThreadPoolExecutor(_UNDER_WAY, thread_name_prefix="encode")
    with _all_cores():
        try:
            for batch in split_batches(texts):
                under_way.append(pool.submit(encode_batch, batch, tokenizer))
                if len(under_way) > _UNDER_WAY:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _all_cores() -> Iterator[None]:
    """Enable the threads of `tokenizers`, which workers disable at start."""
    name = "TOKENIZERS_PARALLELISM"
    before = {name: os.environ[name]} if name in os.environ else {}
    os.environ[name] = "true"
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update(before)


def split_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield texts in lists of bounded size."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == BATCH_TEXTS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def encode_batch(texts: list[str], tokenizer: TextTokenizer) -> EncodedTexts:
    """Encode one batch, without its blank texts.

    A text that encodes to no tokens, such as zero-width characters, stays as an empty document: order and masks depend
    on document numbers, which must be the same for every tokenizer.
    """
    kept = [text for text in texts if text.strip()]
    ids = tokenizer.encode(kept)
    raw = [text.encode() for text in kept]
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(kept))
    documents = np.empty(len(kept), dtype=DOCUMENT)
    documents["length"] = lengths
    documents["text_bytes"] = [len(text) for text in raw]
    documents["text_hash"] = [_hash_bytes(text) for text in raw]
    documents["words"] = [len(text.split()) for text in kept]
    token_ids = np.fromiter(chain.from_iterable(ids), dtype=TOKEN, count=int(lengths.sum()))
    return EncodedTexts(len(texts), token_ids, documents)


def text_hash(text: str) -> int:
    """Return 64 bits of the text's BLAKE2b hash, which do not depend on the tokenizer."""
    return _hash_bytes(text.encode())


def _hash_bytes(raw: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


SCHEMA = 3
SHARD_TOKENS = 2**27
"""A shard ends with the batch of texts that reaches this many tokens (256 MiB)."""

LARGEST_VOCABULARY = 2**16

_HEADER = "header.json"


def prepare(
    texts: Iterable[str],
    tokenizer: TextTokenizer,
    folder: Path,
    *,
    origins: Mapping[str, str],
    shard_tokens: int = SHARD_TOKENS,
    check: Callable[[], object] = lambda: None,
) -> TokenizedCorpus:
    """Tokenise `texts` into `folder`, or open the existing corpus. Memory is bounded by a few batches of texts.

    Blank texts are dropped and counted. `origins` ({"corpus": …, "tokenizer": …}) are stored in the manifest. After a
    kill, the same call resumes: finished shards are kept, and their texts are skipped without tokenising. `check` is
    called before anything is written and raises if another process has taken over.

    Raises:
        ValueError: the vocabulary does not fit into two bytes, or there is no text.
        DamagedFile: `folder` exists and is damaged.
    """
    if is_file(folder / MANIFEST):
        return open_shards(folder)
    if is_there(folder):
        raise DamagedFile(f"{folder} exists without {MANIFEST}: remove it to tokenise again")
    if tokenizer.vocabulary_size > LARGEST_VOCABULARY:
        raise ValueError(
            f"the tokenizer has ids up to {tokenizer.vocabulary_size - 1} but shards hold ids below "
            f"{LARGEST_VOCABULARY}: choose a smaller vocabulary"
        )
    header = {
        "schema": SCHEMA,
        "origins": dict(origins),
        "special_ids": asdict(tokenizer.ids),
        "vocabulary_size": tokenizer.vocabulary_size,
        "shard_tokens": shard_tokens,
    }
    partial = _partial_folder(folder, header)
    shards = _finished_shards(partial)
    left = islice(texts, sum(shard.texts for shard in shards), None)
    with closing(encode_batches(left, tokenizer)) as batches:
        while (shard := _write_shard(partial, len(shards), batches, shard_tokens, check)) is not None:
            shards.append(shard)
    if not any(shard.tokens for shard in shards):
        raise ValueError(f"corpus {origins.get('corpus', folder.name)} holds no text: there is nothing to train on")
    check()
    _publish(partial, folder, header, shards)
    return open_shards(folder)


def finished_shards(folder: Path) -> int:
    """Return the number of finished shards of an unfinished corpus."""
    return len(children(folder.with_name(folder.name + PARTIAL), "shard-*.json"))


def _partial_folder(folder: Path, header: Mapping[str, Any]) -> Path:
    """Create or open the folder of finished shards. A folder with another header is removed first."""
    partial = folder.with_name(folder.name + PARTIAL)
    begun = None
    with suppress(DamagedFile, FileNotFoundError):
        begun = read_json(partial / _HEADER)
    if begun != header and is_there(partial):
        shutil.rmtree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    clear_temporaries(partial)
    replace_file(partial / _HEADER, json_bytes(header))
    return partial


def _record_path(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard:05d}.json"


def _finished_shards(partial: Path) -> list[Shard]:
    """Return the records of finished shards, up to the first shard with an absent or damaged file."""
    shards: list[Shard] = []
    with suppress(DamagedFile, FileNotFoundError):
        while True:
            path = _record_path(partial, len(shards))
            shard = as_written(_SHARD, read_json(path), path, TOKENISE_AGAIN)
            if any(sha256_of(partial / name) != sha256 for name, sha256 in shard.files.items()):
                break
            shards.append(shard)
    return shards


def _write_shard(
    partial: Path, number: int, batches: Iterator[EncodedTexts], shard_tokens: int, check: Callable[[], object]
) -> Shard | None:
    """Write one shard from the batches, its record last. Return the record, or None if no text is left."""
    tokens_file, index = partial / tokens_name(number), partial / documents_name(number)
    check()
    tokens_file.unlink(missing_ok=True)  # not overwritten: a process may have mapped the damaged shard
    documents: list[NDArray[Any]] = []
    texts = tokens = 0
    digest = hashlib.sha256()
    with tokens_file.open("xb") as file:
        while tokens < shard_tokens and (batch := next(batches, None)) is not None:
            content = batch.token_ids.tobytes()
            file.write(content)
            digest.update(content)
            documents.append(batch.documents)
            texts += batch.texts
            tokens += len(batch.token_ids)
    check()
    if texts == 0:
        tokens_file.unlink()
        return None
    with index.open("wb") as file:
        np.save(file, np.concatenate(documents), allow_pickle=False)
    sync_file(tokens_file)
    sync_file(index)
    files = {tokens_file.name: digest.hexdigest(), index.name: sha256_of(index)}
    shard = Shard(texts, sum(map(len, documents)), tokens, files)
    replace_file(_record_path(partial, number), json_bytes(asdict(shard)))
    return shard


def _publish(partial: Path, folder: Path, header: Mapping[str, Any], shards: list[Shard]) -> None:
    """Write the manifest, rename the folder to its final name, and remove the notes, without which a killed process
    would start over."""
    texts, documents = sum(shard.texts for shard in shards), sum(shard.documents for shard in shards)
    manifest = {
        **header,
        "texts": texts,
        "documents": documents,
        "tokens": sum(shard.tokens for shard in shards),
        "blank_texts_dropped": texts - documents,
        "shards": list(map(asdict, shards)),
    }
    replace_file(partial / MANIFEST, json_bytes(checksummed(manifest)))
    publish_folder(partial, folder)
    for number in range(len(shards)):
        _record_path(folder, number).unlink()
    (folder / _HEADER).unlink()


FRAME_TOKENS = 2
"""Number of special tokens around a document: [CLS] and [SEP]."""

HELDOUT_SHARE = 0.01
_SHARE_BOUND = np.uint64(int(HELDOUT_SHARE * 2**64))
HELDOUT_LEAST_TEXTS = 32
"""Minimum number of distinct held-out texts, but never more than a tenth of the distinct texts (and at least one)."""


@dataclass(frozen=True, eq=False)
class Documents:
    """A view of some documents of a corpus.

    `numbers` (documents,) int64: indices in the corpus; `lengths` (documents,) int64: visible tokens, without specials;
    `begins` (documents,) int64: index of the first visible token, None if it is 0 for all documents.
    """

    corpus: TokenizedCorpus
    numbers: Integers
    lengths: Integers
    begins: Integers | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def framed_lengths(self) -> Integers:
        """(documents,) tokens including both specials; allocates a new array."""
        return self.lengths + FRAME_TOKENS

    def framed(self, indices: Integers) -> Integers:
        """Return the tokens (indices,) of some documents of the view, including both specials."""
        return self.lengths[indices] + FRAME_TOKENS

    def truncated(self, context: int) -> "Documents":
        """Cut the documents to `context` tokens, specials included. The rest is dropped, as in the released code.

        Raises:
            ValueError: the context has no room for a token beside the specials.
        """
        return Documents(self.corpus, self.numbers, np.minimum(self.lengths, _room(context)))

    def split(self, context: int) -> "Documents":
        """Split the documents into passages of at most `context` tokens, specials included. The passages of a document
        are consecutive and differ in length by at most one token. Raises as `truncated`."""
        passages = np.maximum(-(-self.lengths // _room(context)), 1)
        owner = np.repeat(np.arange(len(self)), passages)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(passages) - passages, passages)
        begins = number * self.lengths[owner] // passages[owner]
        ends = (number + 1) * self.lengths[owner] // passages[owner]
        return Documents(self.corpus, self.numbers[owner], ends - begins, begins)

    def fitted(self, context: int, long_documents: LongDocuments) -> "Documents":
        """Cut (`truncated`) or `split` the documents to a context."""
        return self.split(context) if long_documents == "split" else self.truncated(context)

    def at_least(self, minimum_tokens: int) -> "Documents":
        """Select the documents of at least `minimum_tokens` visible tokens, specials included.

        The paper says "> 1,024" (§3.2); the released longer_seq.py uses ">=" on the length with specials, as here.

        Raises:
            ValueError: no document is that long.
        """
        long_enough = self.lengths >= minimum_tokens - FRAME_TOKENS
        if not long_enough.any():
            longest = int(self.framed_lengths.max(initial=0))
            raise ValueError(
                f"no document has {minimum_tokens} tokens, the longest has {longest}: lower the mixture's "
                f"minimum_tokens or take more text"
            )
        if long_enough.all():
            return self  # without a copy of what may be hundreds of millions
        return self.at(long_enough)

    def at(self, chosen: Integers | NDArray[np.bool_] | slice) -> "Documents":
        """Select documents of the view by indices, in that order, by a boolean mask, or by a slice without a copy."""
        begins = None if self.begins is None else self.begins[chosen]
        return Documents(self.corpus, self.numbers[chosen], self.lengths[chosen], begins)


def _room(context: int) -> int:
    """Return the number of text tokens that fit into a context."""
    if context <= FRAME_TOKENS:
        raise ValueError(f"a context of {context} tokens has no room beside {FRAME_TOKENS} special tokens")
    return context - FRAME_TOKENS


def heldout_bound(hashes: NDArray[np.uint64]) -> np.uint64:
    """Return the largest hash of a held-out text, given the hashes of all texts."""
    in_share = hashes <= _SHARE_BOUND
    different = np.unique(hashes[in_share])
    heldout = len(different)
    if heldout < HELDOUT_LEAST_TEXTS or in_share.all():
        different = np.unique(hashes)
        if len(different) < 2:
            raise ValueError(f"the corpus has {len(different)} different texts, too few to hold one out: take more")
        least = max(1, min(HELDOUT_LEAST_TEXTS, len(different) // 10))
        heldout = min(max(heldout, least), len(different) - 1)
    return np.uint64(different[heldout - 1])


def split_corpus(corpus: TokenizedCorpus) -> tuple[Documents, Documents]:
    """Split a corpus into (training, held-out) documents; a fixed share, chosen by hash of the text, is held out.

    Equal texts stay on one side. The split does not depend on the tokenizer, so variants are compared on the same
    texts.

    Raises:
        ValueError: there are fewer than two different texts.
    """
    bound = heldout_bound(corpus.text_hashes)

    training = np.flatnonzero(corpus.text_hashes > bound)
    heldout = np.flatnonzero(corpus.text_hashes <= bound)
    return Documents(corpus, training, corpus.lengths[training]), Documents(corpus, heldout, corpus.lengths[heldout])


def all_documents(corpus: TokenizedCorpus) -> Documents:
    """Return a view of all documents of a corpus, uncut."""
    return Documents(corpus, np.arange(corpus.documents, dtype=np.int64), corpus.lengths)
