"""Texts become arrays of ids, some batches ahead of whoever writes them. Torch-free.

The tokenizers library encodes a batch on all cores without the interpreter's lock. Two batches are under way at once,
so that the cores have work while a batch ends, is copied into arrays, and the next texts are read.
"""

import hashlib
import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.tokenized import DOCUMENT, TOKEN
from neobert.data.tokenizers import TextTokenizer

BATCH_TEXTS = 2048
BATCH_CHARACTERS = 2**20
"""A batch ends with the text that reaches either number; memory is bounded by three batches."""

_UNDER_WAY = 2
_PARALLELISM = "TOKENIZERS_PARALLELISM"


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """A batch: `texts` read, `token_ids` of all of them, flat, and `documents`, a `DOCUMENT` each that is not blank."""

    texts: int
    token_ids: NDArray[np.uint16]
    documents: NDArray[Any]


def encoded(texts: Iterable[str], tokenizer: TextTokenizer) -> Generator[EncodedTexts, None, None]:
    """All texts in order, encoded in batches."""
    under_way: deque[Future[EncodedTexts]] = deque()
    pool = ThreadPoolExecutor(_UNDER_WAY, thread_name_prefix="encode")
    with _all_cores():
        try:
            for batch in batches(texts):
                under_way.append(pool.submit(encode, batch, tokenizer))
                if len(under_way) > _UNDER_WAY:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _all_cores() -> Iterator[None]:
    """Lets the library use its threads: workers start with them off, and who needs the corpus waits for it."""
    before = os.environ.get(_PARALLELISM)
    os.environ[_PARALLELISM] = "true"
    try:
        yield
    finally:
        os.environ.pop(_PARALLELISM)
        if before is not None:
            os.environ[_PARALLELISM] = before


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
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


def encode(texts: list[str], tokenizer: TextTokenizer) -> EncodedTexts:
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
    documents["text_hash"] = [_hash(text) for text in raw]
    token_ids = np.fromiter(chain.from_iterable(ids), dtype=TOKEN, count=int(lengths.sum()))
    return EncodedTexts(len(texts), token_ids, documents)


def text_hash(text: str) -> int:
    """64 bits of a text's BLAKE2b: equal texts, equal hashes, whatever tokenizes them."""
    return _hash(text.encode())


def _hash(raw: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")
