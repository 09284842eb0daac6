"""A tokenised corpus on disk: uncut documents, two bytes a token, memory-mapped.

A folder holds tokens-00000.bin (uint16) and documents-00000.npy (a `DOCUMENT` record each) for every shard, and
manifest.json, written last, with the SHA-256 of each. While a corpus is tokenised its folder is called <folder>.partial
and keeps every finished shard, so that a killed run goes on behind the last one.
"""

import hashlib
import os
import shutil
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.tokenizers import SpecialIds, TextTokenizer
from neobert.errors import DamagedFile, MissingData
from neobert.files import (
    VERIFIED,
    checksummed,
    clear_temporaries,
    json_bytes,
    publish_folder,
    read_checksummed,
    read_json,
    replace_file,
    require_files,
    set_aside,
    sha256_of,
    sync_file,
)
from neobert.files import verify as verify_files
from neobert.recipe import LongDocuments
from neobert.runs.layout import MANIFEST, PARTIAL

Integers = NDArray[np.int64]

TOKEN = np.dtype("<u2")
DOCUMENT = np.dtype([("length", "<i4"), ("text_bytes", "<i4"), ("text_hash", "<u8")])


def tokens_name(shard: int) -> str:
    return f"tokens-{shard:05d}.bin"


def documents_name(shard: int) -> str:
    return f"documents-{shard:05d}.npy"


def shard_checksums(number: int, shard: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """The SHA-256 of a shard's two files by name, as its record has them; DamagedFile where it names other files."""
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
    lengths: Integers
    text_bytes: Integers
    text_hashes: NDArray[np.uint64]
    shards: tuple[NDArray[np.uint16], ...]
    manifest: Mapping[str, Any]

    @cached_property
    def starts(self) -> Integers:
        """(documents,) address of each document's first token in the concatenated shards."""
        ends: Integers = np.cumsum(self.lengths, dtype=np.int64)
        return ends - self.lengths

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


BATCH_TEXTS = 2048
BATCH_CHARACTERS = 2**20
"""A batch ends with the text that reaches either number; memory is bounded by three batches."""

_UNDER_WAY = 2


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """A batch: `texts` read, `token_ids` of all of them, flat, and `documents`, a `DOCUMENT` each that is not blank."""

    texts: int
    token_ids: NDArray[np.uint16]
    documents: NDArray[Any]


def encode_batches(texts: Iterable[str], tokenizer: TextTokenizer) -> Generator[EncodedTexts, None, None]:
    """All texts in order, encoded in batches.

    The tokenizers library encodes a batch on all cores without the interpreter's lock. Two batches are encoded at once,
    so that the cores have work while one ends, is copied into arrays, and the next texts are read.
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
    """Let `tokenizers` use its threads, which workers switch off at their start."""
    name = "TOKENIZERS_PARALLELISM"
    before = {name: os.environ[name]} if name in os.environ else {}
    os.environ[name] = "true"
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update(before)


def split_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in lists of bounded size."""
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
    """One batch, without its blank texts.

    A text of which a tokenizer leaves nothing, such as zero-width characters, is a document of no tokens: order and
    masks depend on a document's number, so every tokenizer must number the same texts alike.
    """
    kept = [text for text in texts if text.strip()]
    ids = tokenizer.encode(kept)
    raw = [text.encode() for text in kept]
    lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(kept))
    documents = np.empty(len(kept), dtype=DOCUMENT)
    documents["length"] = lengths
    documents["text_bytes"] = [len(text) for text in raw]
    documents["text_hash"] = [_hash_bytes(text) for text in raw]
    token_ids = np.fromiter(chain.from_iterable(ids), dtype=TOKEN, count=int(lengths.sum()))
    return EncodedTexts(len(texts), token_ids, documents)


def text_hash(text: str) -> int:
    """64 bits of a text's BLAKE2b: equal texts, equal hashes, whatever tokenizes them."""
    return _hash_bytes(text.encode())


def _hash_bytes(raw: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


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
    header = {
        "schema": SCHEMA,
        "origins": dict(origins),
        "special_ids": asdict(tokenizer.ids),
        "vocabulary_size": tokenizer.vocabulary_size,
        "shard_tokens": shard_tokens,
    }
    partial = _partial_folder(folder, header)
    shards = _finished_shards(partial)
    left = islice(texts, sum(shard["texts"] for shard in shards), None)
    with closing(encode_batches(left, tokenizer)) as batches:
        while (shard := _write_shard(partial, len(shards), batches, shard_tokens)) is not None:
            shards.append(shard)
    if not any(shard["tokens"] for shard in shards):
        raise ValueError(f"corpus {origins.get('corpus', folder.name)} holds no text: there is nothing to train on")
    _publish(partial, folder, header, shards)
    return open_shards(folder)


def reopen(folder: Path, reason: str) -> None:
    """Turn a damaged corpus back into an unfinished one: `prepare` keeps its shards up to the first damaged one.

    The caller holds its claim.
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


def _partial_folder(folder: Path, header: Mapping[str, Any]) -> Path:
    """The folder of finished shards; one that was begun with another header is removed."""
    partial = folder.with_name(folder.name + PARTIAL)
    begun = None
    with suppress(DamagedFile, FileNotFoundError):
        begun = read_json(partial / _HEADER)
    if begun != header and partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True, exist_ok=True)
    clear_temporaries(partial)
    replace_file(partial / _HEADER, json_bytes(header))
    return partial


def _record_path(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard:05d}.json"


def _finished_shards(partial: Path) -> list[dict[str, Any]]:
    """The records of shards that were finished, up to the first of which a file is absent or damaged."""
    shards: list[dict[str, Any]] = []
    with suppress(DamagedFile, FileNotFoundError, KeyError, TypeError, ValueError):
        while True:
            shard = read_json(_record_path(partial, len(shards)))
            checksums = shard_checksums(len(shards), shard, partial)
            if any(sha256_of(partial / name) != sha256 for name, sha256 in checksums.items()):
                break
            shards.append(shard)
    return shards


def _write_shard(
    partial: Path, number: int, batches: Iterator[EncodedTexts], shard_tokens: int
) -> dict[str, Any] | None:
    """Fill one shard from the batches, and record it last; None where no text is left."""
    tokens_file, index = partial / tokens_name(number), partial / documents_name(number)
    tokens_file.unlink(missing_ok=True)  # not written over: somebody may have mapped the shard that was damaged
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
    if texts == 0:
        tokens_file.unlink()
        return None
    with index.open("wb") as file:
        np.save(file, np.concatenate(documents), allow_pickle=False)
    sync_file(tokens_file)
    sync_file(index)
    shard = {
        "texts": texts,
        "documents": sum(map(len, documents)),
        "tokens": tokens,
        "files": {tokens_file.name: digest.hexdigest(), index.name: sha256_of(index)},
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


FRAME_TOKENS = 2
"""Every document stands between two specials, [CLS] and [SEP]."""

HELDOUT_SHARE = 0.01
_SHARE_BOUND = np.uint64(int(HELDOUT_SHARE * 2**64))
HELDOUT_LEAST_TEXTS = 32
"""A small corpus holds out this many different texts, but never more than a tenth of them (and at least one)."""


@dataclass(frozen=True, eq=False)
class Documents:
    """A choice of documents of a corpus.

    `numbers` (documents,) int64: places in the corpus; `lengths` (documents,) int64: tokens shown, without specials;
    `begins` (documents,) int64: the first token shown, None where it is everywhere the first of the document.
    """

    corpus: TokenizedCorpus
    numbers: Integers
    lengths: Integers
    begins: Integers | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def framed_lengths(self) -> Integers:
        """(documents,) tokens with both specials; a new array of all."""
        return self.lengths + FRAME_TOKENS

    def framed(self, indices: Integers) -> Integers:
        """(indices,) tokens with both specials of some documents of the view."""
        return self.lengths[indices] + FRAME_TOKENS

    def truncated(self, context: int) -> "Documents":
        """The documents cut to `context` tokens, specials included; the rest is never seen, as in the released code.
        ValueError where the context has no room for a token beside the specials."""
        return Documents(self.corpus, self.numbers, np.minimum(self.lengths, _room(context)))

    def split(self, context: int) -> "Documents":
        """The documents as passages of at most `context` tokens, specials included; those of one document follow each
        other and differ by one token in length at most. Raises as `truncated`."""
        passages = np.maximum(-(-self.lengths // _room(context)), 1)
        owner = np.repeat(np.arange(len(self)), passages)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(passages) - passages, passages)
        begins = place * self.lengths[owner] // passages[owner]
        ends = (place + 1) * self.lengths[owner] // passages[owner]
        return Documents(self.corpus, self.numbers[owner], ends - begins, begins)

    def fitted(self, context: int, long_documents: LongDocuments) -> "Documents":
        """The documents `truncated` or `split` to a context."""
        return self.split(context) if long_documents == "split" else self.truncated(context)

    def at_least(self, minimum_tokens: int) -> "Documents":
        """The documents of at least `minimum_tokens` shown tokens, specials included.

        The paper says "> 1,024" (§3.2), the released longer_seq.py keeps ">=" of the framed length: as here.

        Raises:
            ValueError: no document is that long.
        """
        long_enough = self.framed_lengths >= minimum_tokens
        if not long_enough.any():
            longest = int(self.framed_lengths.max(initial=0))
            raise ValueError(
                f"no document has {minimum_tokens} tokens, the longest has {longest}: lower the mixture's "
                f"minimum_tokens or take more text"
            )
        return self.at(long_enough)

    def split_heldout(self) -> tuple["Documents", "Documents"]:
        """(training, held-out): a fixed share by hash of the text.

        Equal texts stay on one side, and the tokenizer has no say, so that variants are compared on the same texts.

        Raises:
            ValueError: there are fewer than two different texts.
        """
        hashes = self.corpus.text_hashes[self.numbers]
        bound = heldout_bound(hashes)
        return self.at(hashes > bound), self.at(hashes <= bound)

    def at(self, chosen: Integers | NDArray[np.bool_]) -> "Documents":
        """Some documents of the view: by index, in that order, or those where a boolean is true."""
        begins = None if self.begins is None else self.begins[chosen]
        return Documents(self.corpus, self.numbers[chosen], self.lengths[chosen], begins)


def _room(context: int) -> int:
    """Tokens of text in a context."""
    if context <= FRAME_TOKENS:
        raise ValueError(f"a context of {context} tokens has no room beside {FRAME_TOKENS} special tokens")
    return context - FRAME_TOKENS


def heldout_bound(hashes: NDArray[np.uint64]) -> np.uint64:
    """The largest hash of a held-out text, given the hashes of all."""
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


def all_documents(corpus: TokenizedCorpus) -> Documents:
    """Every document of a corpus, uncut."""
    return Documents(corpus, np.arange(corpus.documents, dtype=np.int64), corpus.lengths)
