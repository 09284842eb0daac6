"""Items of readouts: stretches of held-out text, cloze items, and the minimal pairs of BLiMP. Torch-free.

Items of held-out text are drawn by hashes of the text, so that all variants and tokenizers get the same ones. They are
drawn once for a source and context, and kept in the folder of runs. They are for languages written with blanks and
Latin letters; of a long run without blanks only the end is read.
"""

import hashlib
import heapq
import re
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neobert.data.blimp import MinimalPair
from neobert.data.masking import counter_hash, threshold
from neobert.data.own_readouts import Choice
from neobert.data.preparation import open_specified, prepare_once, require_origin
from neobert.data.shards import FRAME_TOKENS, heldout_bound, text_hash
from neobert.errors import DamagedFile
from neobert.files import checksummed, json_bytes, read_checksummed, replace_file, set_aside
from neobert.identity import IDENTITY_DIGITS, canonical
from neobert.kinds.readouts import BLIMP, ReadoutRun
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.run_file import SourceSpecification

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
CHARACTERS_PER_TOKEN = 3
"""Fewer characters than a token has in nearly all text, so that windows fit into the context with every tokenizer."""
WORD_SHARE = 0.15
CLOZE_ITEMS = 2000
CLOZE_LETTERS = 4
"""Shortest word of a cloze item; shorter ones are mostly function words."""
COUNTED_BYTES = 2**28
"""Amount of text in which words are counted; like `HELDOUT_BYTES`, a character counts as one byte."""
LEAST_COUNT = 5
MOST_RATIO = 1.25
"""Largest ratio between the frequencies of a word and its distractor."""
NEAREST = 10
"""Number of words of the nearest frequency from which the distractor is drawn."""
SALTS = {"stretch": 1, "word": 2, "cloze": 3, "distractor": 4}
WORD = re.compile(r"(?<![\w'’-])[a-z]{2,30}(?![\w'’-])")
"""A separate lower-case word, so that cased and uncased tokenizers predict the same."""


@dataclass(frozen=True)
class Stretch:
    """A part of a held-out document: the document's hash, the index of the first character, and the text."""

    document: int
    begin: int
    text: str


@dataclass(frozen=True)
class ClozeItem:
    """A text with a word from character `begin` to `end`, and a distractor: another word of equal length that is about
    as frequent."""

    text: str
    begin: int
    end: int
    distractor: str

    @property
    def distracted(self) -> str:
        """The text with the distractor in place of the word."""
        return self.text[: self.begin] + self.distractor + self.text[self.end :]


@dataclass(frozen=True)
class Items:
    """All items of a source, by corpus; a corpus with too little text may lack some.

    `documents` are beginnings of documents. They are drawn alone, and all others without them. `pairs` are those of
    BLiMP, and `own` those of a readout that a ladder declares, by its name; both are read alone.
    """

    stretches: Mapping[str, Sequence[Stretch]] = field(default_factory=dict)
    cloze: Mapping[str, Sequence[ClozeItem]] = field(default_factory=dict)
    pairs: Mapping[str, Sequence[MinimalPair]] = field(default_factory=dict)
    own: Mapping[str, Sequence[MinimalPair | Choice]] = field(default_factory=dict)
    documents: Mapping[str, Sequence[Stretch]] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The hash of all texts and items."""
        return hashlib.sha256(canonical(_as_lists(self)).encode()).hexdigest()[:IDENTITY_DIGITS]


DRAWN = {"stretches": Stretch, "cloze": ClozeItem, "documents": Stretch}
"""The kinds of items that are drawn and kept."""


def _as_lists(items: Items) -> dict[str, Any]:
    """Return the items by kind and corpus."""
    return {
        kind: {corpus: [list(astuple(item)) for item in own] for corpus, own in by_corpus.items()}
        for kind, by_corpus in vars(items).items()
        if by_corpus
    }


def read_items(path: Path) -> Items:
    """Read items that `items_of` wrote.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedFile: the file is torn or was changed.
    """
    content = read_checksummed(path)
    try:
        return Items(
            **{
                kind: {corpus: [DRAWN[kind](*item) for item in own] for corpus, own in by_corpus.items()}
                for kind, by_corpus in content.items()
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"{path} holds no items of readouts ({error!r})") from error


def items_of(layout: Layout, run: ReadoutRun, specification: SourceSpecification, stop: StopRequest) -> Items:
    """Return the items of a source, from disk or drawn now by one process while others wait; those of BLiMP as its
    files have them.

    Raises:
        ChangedData: a corpus, or BLiMP, is not the planned one.
        DamagedFile: a file of BLiMP has too few pairs.
        MissingData: a corpus is missing or has no text.
        Stopped: a stop was requested.
    """
    if run.pairs_per_paradigm is not None:
        source, planned = open_specified(specification), run.corpora[BLIMP]
        require_origin("BLiMP", planned, source.blimp_origin())
        pairs = source.minimal_pairs(run.pairs_per_paradigm)
        require_origin("BLiMP", planned, open_specified(specification).blimp_origin())
        return Items(pairs={BLIMP: pairs})
    if run.own is not None:
        own = run.own.model_copy(update={"file": specification.readout_files.get(run.readout, "")})
        items = own.items
        require_origin(f"the readout {own.name}", run.corpora[own.name], own.origin)
        return Items(own={own.name: items})
    path = layout.readout_items(run.items_id)

    def make(damage: DamagedFile | None, claim: Claim) -> None:
        if damage is not None:
            set_aside(path, str(damage))
        drawn: defaultdict[str, dict[str, Sequence[Any]]] = defaultdict(dict)
        for corpus, origin in run.corpora.items():
            for kind, own in _draw_of_corpus(corpus, origin, specification, run, stop).items():
                drawn[kind][corpus] = own
        items = Items(**drawn)
        claim.check()
        replace_file(path, json_bytes(checksummed(_as_lists(items))))

    return prepare_once(
        layout.claims(f"readouts-{run.items_id}"), "items of readouts", stop, lambda: read_items(path), make
    )


def _draw_of_corpus(
    corpus: str, origin: str, specification: SourceSpecification, run: ReadoutRun, stop: StopRequest
) -> dict[str, Sequence[Any]]:
    require_origin(f"corpus {corpus}", origin, open_specified(specification).corpus_origin(corpus))

    def texts() -> Iterator[str]:
        for text in open_specified(specification).documents(corpus):
            if stop.requested:
                raise Stopped("asked to stop while items of readouts were drawn", progressed=False)
            yield text

    heldout, counts = survey(texts(), DOCUMENTS_FROM_BYTES if run.reads_documents else HELDOUT_BYTES)
    require_origin(f"corpus {corpus}", origin, open_specified(specification).corpus_origin(corpus))
    if run.reads_documents:
        return {"documents": choose_documents(heldout, run.context)}
    stretches = cut_stretches(heldout)
    return {
        "stretches": choose_stretches(stretches),
        "cloze": draw_cloze(stretches, counts, run.context, CLOZE_ITEMS // len(run.corpora)),
    }


def survey(texts: Iterator[str], most_bytes: int = HELDOUT_BYTES) -> tuple[dict[int, str], Counter[str]]:
    """Read a corpus once and return its held-out texts by hash and the count of each word. Only the texts with the
    smallest hashes are kept, `most_bytes` in total.

    Raises:
        ValueError: there are fewer than two different texts.
    """
    hashes = array("Q")
    kept: dict[int, str] = {}
    largest: list[int] = []  # a heap of the negative hashes of kept texts
    held = counted = 0
    counts: Counter[str] = Counter()
    for text in texts:
        if not text.strip():
            continue
        if counted < COUNTED_BYTES:
            counts.update(WORD.findall(text))
            counted += len(text)
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
    return {number: kept[number] for number in sorted(kept) if number <= bound}, counts


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
    ordered = sorted(stretches, key=lambda stretch: _hash("stretch", stretch.document, stretch.begin))
    sizes = np.cumsum([len(stretch.text.encode()) for stretch in ordered])
    chosen = ordered[: int(np.searchsorted(sizes, most_bytes)) + 1]
    return sorted(chosen, key=lambda stretch: (stretch.document, stretch.begin))


def choose_documents(heldout: Mapping[int, str], context: int) -> list[Stretch]:
    """Return the beginnings of up to 64 held-out texts, given by hash: of those that are long enough for `context`
    tokens the ones with the smallest hashes; if these are too few, also the longest of the others."""
    enough = ENOUGH_CHARACTERS_PER_TOKEN * context
    beginnings = [Stretch(number, 0, text[:enough]) for number, text in sorted(heldout.items())]
    return sorted(beginnings, key=lambda document: -len(document.text))[:DOCUMENTS]


def windows(text: str, context: int) -> Iterator[tuple[int, int]]:
    """Split a text into windows, (begin, end), that are short enough to fit into `context` tokens."""
    return pieces(text, CHARACTERS_PER_TOKEN * (context - FRAME_TOKENS))


def masked_words(stretch: Stretch) -> list[tuple[int, int]]:
    """Return the masked words of a stretch, (begin, end). Each word has the same probability, decided by the document's
    hash and the position in it."""
    return [
        found.span()
        for found in WORD.finditer(stretch.text)
        if _hash("word", stretch.document, stretch.begin + found.start()) < threshold(WORD_SHARE)
    ]


def draw_cloze(stretches: Sequence[Stretch], counts: Mapping[str, int], context: int, most: int) -> list[ClozeItem]:
    """Return up to `most` items, at most one per window, those with the smallest hashes."""
    ranked: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)  # by word length: (count, word), ascending
    for word, count in counts.items():
        if count >= LEAST_COUNT and len(word) >= CLOZE_LETTERS:
            ranked[len(word)].append((count, word))
    for words in ranked.values():
        words.sort()
    found: list[tuple[int, ClozeItem]] = []
    for stretch in stretches:
        for begin, end in windows(stretch.text, context):
            words_of_window = list(WORD.finditer(stretch.text, begin, end))
            visible = {word.group() for word in words_of_window}
            hashed = [
                (_hash("cloze", stretch.document, stretch.begin + word.start()), word) for word in words_of_window
            ]
            for number, asked in sorted(hashed, key=lambda each: each[0]):
                distractor = _distractor(asked.group(), ranked[len(asked.group())], visible, counts, number)
                if distractor is not None:
                    item = ClozeItem(stretch.text[begin:end], asked.start() - begin, asked.end() - begin, distractor)
                    found.append((number, item))
                    break
    return [item for _, item in sorted(found, key=lambda each: (each[0], each[1].text))[:most]]


def _distractor(
    word: str, ranked: Sequence[tuple[int, str]], visible: set[str], counts: Mapping[str, int], number: int
) -> str | None:
    """Return a word of equal length and similar count that is not visible, or None if there is none."""
    count = counts[word]
    if len(word) < CLOZE_LETTERS or count < LEAST_COUNT:
        return None
    first = bisect_left(ranked, (count / MOST_RATIO, ""))
    last = bisect_left(ranked, (count * MOST_RATIO + 1e-9, ""))
    near = sorted((abs(other - count), name) for other, name in ranked[first:last] if name not in visible)[:NEAREST]
    return near[_hash("distractor", number, 0) % len(near)][1] if near else None


def _hash(purpose: str, number: int, place: int) -> int:
    """Hash 64 bits of a text and a position in it to 32 bits, differently for each purpose."""
    return int(counter_hash(SALTS[purpose], number & 0xFFFFFFFF, number >> 32, place))
