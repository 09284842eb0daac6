"""Items of readouts: stretches of held-out text, beginnings of documents, and the minimal pairs of BLiMP. Torch-free.

Items of held-out text are drawn by hashes of the text, so that all variants and tokenizers get the same ones. They are
for languages written with blanks; of a long run without blanks only the end is read.
"""

import hashlib
import heapq
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neobert.data.masking import counter_hash
from neobert.data.shards import heldout_bound, text_hash
from neobert.data.task_files import MinimalPair
from neobert.errors import DamagedFile
from neobert.files import checksummed, json_bytes, read_checksummed, replace_file
from neobert.identity import IDENTITY_DIGITS, canonical

HELDOUT_BYTES = 2**22
"""Largest amount of held-out text of each corpus that is kept in memory to draw from."""
DOCUMENTS = 64
"""Number of documents of a corpus that are read at every length."""
DOCUMENTS_FROM_BYTES = 2**26
"""As `HELDOUT_BYTES`, but for documents: long ones are rare."""
ENOUGH_CHARACTERS_PER_TOKEN = 8
"""A text with so many characters for each token of the context reaches the context with nearly every tokenizer."""
READ_BYTES = 2**20
"""Approximate amount of text of each corpus on which losses are measured."""
STRETCH_CHARACTERS = 1500
"""Longest stretch. A novel has many stretches, most web documents have one. The noise is estimated over stretches."""
STRETCH_SALT = 1


@dataclass(frozen=True)
class Stretch:
    """A part of a held-out document: the document's hash, the index of the first character, and the text."""

    document: int
    begin: int
    text: str


@dataclass(frozen=True)
class Items:
    """All items of a source, by corpus; a corpus with too little text may lack some.

    `documents` are beginnings of documents, and `pairs` those of BLiMP. Each kind is drawn alone.
    """

    stretches: Mapping[str, Sequence[Stretch]] = field(default_factory=dict)
    pairs: Mapping[str, Sequence[MinimalPair]] = field(default_factory=dict)
    documents: Mapping[str, Sequence[Stretch]] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The hash of all texts and items."""
        return hashlib.sha256(canonical(_as_lists(self)).encode()).hexdigest()[:IDENTITY_DIGITS]


DRAWN = ("stretches", "documents")
"""The kinds of items that are drawn and kept. Older files have cloze items too, which are no longer read."""


def _as_lists(items: Items) -> dict[str, Any]:
    """Return the items by kind and corpus."""
    return {
        kind: {corpus: [list(astuple(item)) for item in own] for corpus, own in by_corpus.items()}
        for kind, by_corpus in vars(items).items()
        if by_corpus
    }


def write_items(path: Path, items: Items) -> None:
    """Write items that were drawn, atomically."""
    replace_file(path, json_bytes(checksummed(_as_lists(items))))


def read_items(path: Path) -> Items:
    """Read what `write_items` wrote.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedFile: the file is torn or was changed.
    """
    content = read_checksummed(path)
    try:
        drawn = {
            kind: {corpus: [Stretch(*item) for item in own] for corpus, own in content.get(kind, {}).items()}
            for kind in DRAWN
        }
        return Items(stretches=drawn["stretches"], documents=drawn["documents"])
    except (TypeError, AttributeError) as error:
        raise DamagedFile(f"{path} holds no items of readouts ({error!r})") from error


def survey(texts: Iterator[str], most_bytes: int = HELDOUT_BYTES) -> dict[int, str]:
    """Read a corpus once and return its held-out texts by hash. Only the texts with the smallest hashes are kept,
    `most_bytes` in total.

    Raises:
        ValueError: there are fewer than two different texts.
    """
    hashes = array("Q")
    kept: dict[int, str] = {}
    largest: list[int] = []  # a heap of the negative hashes of kept texts
    held = 0
    for text in texts:
        if not text.strip():
            continue
        number = text_hash(text)
        hashes.append(number)
        if number in kept or (held >= most_bytes and number > -largest[0]):
            continue
        kept[number] = text
        heapq.heappush(largest, -number)
        held += len(text)
        while held - len(kept[-largest[0]]) >= most_bytes:
            held -= len(kept.pop(-heapq.heappop(largest)))
    bound = int(heldout_bound(np.frombuffer(hashes, dtype=np.uint64)))
    return {number: kept[number] for number in sorted(kept) if number <= bound}


def pieces(text: str, most: int) -> Iterator[tuple[int, int]]:
    """Yield runs of whole words of at most `most` characters, (begin, end). Blanks between runs and the beginning of a
    longer word are left out."""
    for found in re.finditer(rf"(?s)\S(?:.{{0,{max(0, most - 2)}}}\S)?(?=\s|$)", text):
        yield found.span()


def cut_stretches(heldout: Mapping[int, str]) -> list[Stretch]:
    """Return all stretches of held-out texts, given by hash."""
    return [
        Stretch(number, begin, text[begin:end])
        for number, text in heldout.items()
        for begin, end in pieces(text, STRETCH_CHARACTERS)
    ]


def choose_stretches(stretches: Sequence[Stretch], most_bytes: int = READ_BYTES) -> list[Stretch]:
    """Return the stretches with the smallest hashes, `most_bytes` in total, or all; in the order of documents."""
    ordered = sorted(stretches, key=_hash)
    sizes = np.cumsum([len(stretch.text.encode()) for stretch in ordered])
    chosen = ordered[: int(np.searchsorted(sizes, most_bytes)) + 1]
    return sorted(chosen, key=lambda stretch: (stretch.document, stretch.begin))


def choose_documents(heldout: Mapping[int, str], context: int) -> list[Stretch]:
    """Return the beginnings of up to 64 held-out texts, given by hash: of those that are long enough for `context`
    tokens the ones with the smallest hashes; if these are too few, also the longest of the others."""
    enough = ENOUGH_CHARACTERS_PER_TOKEN * context
    beginnings = [Stretch(number, 0, text[:enough]) for number, text in sorted(heldout.items())]
    return sorted(beginnings, key=lambda document: -len(document.text))[:DOCUMENTS]


def _hash(stretch: Stretch) -> int:
    """Hash the 64 bits of a text and a position in it to 32 bits."""
    return int(counter_hash(STRETCH_SALT, stretch.document & 0xFFFFFFFF, stretch.document >> 32, stretch.begin))
