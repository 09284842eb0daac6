"""A data set of pairs in token ids: framed once for a tokenizer, a length and an instruction, and memory-mapped."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from neobert.data.pairs import Pair
from neobert.data.preparation import require_origin
from neobert.data.rows import shuffled
from neobert.data.sources import Source
from neobert.data.tokenizers import Framed
from neobert.errors import DamagedFile
from neobert.files import (
    checksummed,
    clear_temporaries,
    json_bytes,
    publish_folder,
    read_checksummed,
    set_aside,
    sha256_of,
    temporary_sibling,
    verify,
)
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import acquire
from neobert.runs.layout import Layout
from neobert.runs.specifications import ContrastiveRun, PairSet

Array = np.ndarray[Any, np.dtype[Any]]

MANIFEST = "manifest.json"
PARTS = ("queries", "documents", "negatives")
_FRAMED_AT_ONCE = 4096


class Framing(Protocol):
    """What turns texts, or pairs of two columns, into ids with specials."""

    def frame_all(self, columns: Sequence[Sequence[str]], *, max_tokens: int) -> list[Framed]: ...


@dataclass(frozen=True)
class PairCounts:
    """Pairs that were read and kept, those left out because query or document is blank, blank negatives left out,
    texts that were cut to the context, and pairs left out because they share a text with what must stay unseen."""

    read: int = 0
    kept: int = 0
    empty: int = 0
    empty_negatives: int = 0
    cut: int = 0
    shared: int = 0

    def __add__(self, other: "PairCounts") -> "PairCounts":
        return PairCounts(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, eq=False)
class FramedTexts:
    """Texts one behind the other: `token_ids` (tokens) int32, `offsets` (texts + 1) int64, and `token_types` (tokens)
    int8, all 0 where the tokenizer tells none."""

    token_ids: Array
    offsets: Array
    token_types: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def text(self, number: int) -> tuple[Array, Array]:
        """Ids and types of one text."""
        tokens = slice(self.offsets[number], self.offsets[number + 1])
        return self.token_ids[tokens], self.token_types[tokens]


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Queries, their documents, and hard negatives: those of pair i are `first_negatives`[i] up to that of i + 1."""

    queries: FramedTexts
    documents: FramedTexts
    negatives: FramedTexts
    first_negatives: Array
    counts: PairCounts

    def __len__(self) -> int:
        return len(self.queries)

    def negatives_of(self, pair: int, most: int | None) -> range:
        """The numbers of the first `most` negatives of a pair; None stands for all."""
        first, end = int(self.first_negatives[pair]), int(self.first_negatives[pair + 1])
        return range(first, end if most is None else min(end, first + most))

    def texts_per_pair(self, most: int | None) -> int:
        """Texts of the pair that has most, itself included."""
        negatives = int(np.diff(self.first_negatives).max(initial=0))
        return 2 + (negatives if most is None else min(most, negatives))


@dataclass(frozen=True)
class Instructing:
    """What stands before texts, as a first text of its own (released code: instruction, separator, text)."""

    queries: str | None
    documents: str | None


def encode_pairs(
    pairs: Iterable[Pair],
    framing: Framing,
    instructing: Instructing,
    max_tokens: int,
    leaves_out: Callable[[Pair], bool] = lambda pair: False,
) -> EncodedPairs:
    """Frame pairs; those with a blank query or document and those that `leaves_out` names are left out, longer texts
    are cut, all counted."""
    parts: dict[str, list[tuple[Array, Array]]] = {part: [] for part in PARTS}
    counts, negatives = PairCounts(), [0]
    stream = iter(pairs)
    while chunk := list(islice(stream, _FRAMED_AT_ONCE)):
        kept, left_out = _kept(chunk, leaves_out)
        hard = [[text for text in pair.negatives if text.strip()] for pair in kept]
        negatives += [len(texts) for texts in hard]
        columns = (
            [pair.query for pair in kept],
            [pair.document for pair in kept],
            [text for of in hard for text in of],
        )
        cut = 0
        for part, texts in zip(PARTS, columns, strict=True):
            instruction = instructing.queries if part == "queries" else instructing.documents
            framed, was_cut = framed_texts(texts, framing, instruction, max_tokens)
            parts[part] += framed
            cut += len(was_cut)
        blank = sum(len(pair.negatives) for pair in kept) - len(columns[2])
        counts += left_out + PairCounts(len(chunk), len(kept), empty_negatives=blank, cut=cut)
    texts_of = {part: _joined(texts) for part, texts in parts.items()}
    return EncodedPairs(**texts_of, first_negatives=np.cumsum(negatives), counts=counts)


def _kept(pairs: list[Pair], leaves_out: Callable[[Pair], bool]) -> tuple[list[Pair], PairCounts]:
    """The pairs to train on, and how many of the others there are for which reason."""
    written = [pair for pair in pairs if pair.query.strip() and pair.document.strip()]
    kept = [pair for pair in written if not leaves_out(pair)]
    return kept, PairCounts(empty=len(pairs) - len(written), shared=len(written) - len(kept))


def framed_texts(
    texts: list[str], framing: Framing, instruction: str | None, max_tokens: int
) -> tuple[list[tuple[Array, Array]], list[int]]:
    """(ids, types) of each text behind its instruction, and the numbers of those that were cut to `max_tokens`.

    An instruction has its text's token types, as in the released wrapper, so that a plain prompt says the same.
    """
    if not texts:
        return [], []
    before = [] if instruction is None else [[instruction] * len(texts)]
    framed = framing.frame_all([*before, texts], max_tokens=max_tokens + 1)  # one token more tells that a text is cut
    long = [number for number, text in enumerate(framed) if len(text.token_ids) > max_tokens]
    if long:
        columns = [[column[number] for number in long] for column in (*before, texts)]
        for number, text in zip(long, framing.frame_all(columns, max_tokens=max_tokens), strict=True):
            framed[number] = text
    return [_arrays(text, is_instructed=bool(before)) for text in framed], long


def _arrays(text: Framed, *, is_instructed: bool) -> tuple[Array, Array]:
    ids = np.asarray(text.token_ids, np.int32)
    is_plain = is_instructed or text.token_types is None
    return ids, np.zeros(len(ids), np.int8) if is_plain else np.asarray(text.token_types, np.int8)


def _joined(texts: list[tuple[Array, Array]]) -> FramedTexts:
    offsets = np.cumsum([0, *(len(ids) for ids, _ in texts)], dtype=np.int64)
    ids = np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in texts)])
    return FramedTexts(ids, offsets, np.concatenate([np.empty(0, np.int8), *(types for _, types in texts)]))


def save_pairs(folder: Path, pairs: EncodedPairs) -> None:
    """Write a data set as a folder of arrays, whole or not at all; only for whoever owns its claim."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(folder)
    temporary.mkdir()
    for name, array in _files(pairs).items():
        np.save(temporary / f"{name}.npy", array, allow_pickle=False)
    sha256 = {f"{name}.npy": sha256_of(temporary / f"{name}.npy") for name in _files(pairs)}
    manifest = checksummed({"counts": asdict(pairs.counts), "sha256": sha256})
    (temporary / MANIFEST).write_bytes(json_bytes(manifest))
    publish_folder(temporary, folder)


def _files(pairs: EncodedPairs) -> Mapping[str, Array]:
    texts = {f"{part}.{name}": array for part in PARTS for name, array in vars(getattr(pairs, part)).items()}
    return {**texts, "first_negatives": pairs.first_negatives}


def open_pairs(folder: Path) -> EncodedPairs:
    """What `save_pairs` wrote, memory-mapped; files that changed since they were last compared are read in full.

    Raises:
        DamagedFile: a file is torn, absent or does not match its checksum.
    """
    try:
        manifest = read_checksummed(folder / MANIFEST)
        counts = PairCounts(**manifest["counts"])
        verify(folder, manifest.get("sha256", {}), "remove its folder to encode the pairs again")
        parts = {part: FramedTexts(*_read(folder, part)) for part in PARTS}
        first = np.load(folder / "first_negatives.npy", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{folder} is no data set of pairs ({error}): remove it to encode them again") from error
    return EncodedPairs(**parts, first_negatives=first, counts=counts)


def _read(folder: Path, part: str) -> Iterator[Array]:
    for name in ("token_ids", "offsets", "token_types"):
        path = folder / f"{part}.{name}.npy"
        yield np.load(path, mmap_mode="r" if path.stat().st_size > 4096 else None, allow_pickle=False)


def clear_unfinished(folder: Path) -> None:
    """Remove what killed writers left of a data set; only for whoever owns its claim."""
    if folder.parent.is_dir():
        clear_temporaries(folder.parent, folder.name)


_SETS, _PAIRS, _HELDOUT = 11, 12, 13
_ORDERS_KEPT = 32
MOST_HELDOUT = 64
HELDOUT_SHARE = 10
FEWEST_PAIRS = 2


@dataclass(frozen=True)
class Draw:
    """What a step holds: `pairs` (pairs,) numbers, each once, of data set number `of_set`."""

    of_set: int
    pairs: Array


def probabilities(sizes: Sequence[int], exponent: float) -> Array:
    """The share of steps that each data set gets: n^exponent over the sum of all (paper App. D.2)."""
    weights = np.asarray(sizes, np.float64) ** exponent
    shares: Array = weights / weights.sum()
    return shares


@lru_cache(maxsize=_ORDERS_KEPT)
def _order(size: int, *words: int) -> Array:
    """One of the last orders: sorting millions of pairs anew for each step would take longer than the step."""
    return shuffled(size, *words)


@dataclass(frozen=True)
class Sampling:
    """Draws without replacement: a set's pairs come in an order of their own, shuffled anew in each epoch.

    sizes: pairs of each set. pairs_per_step: how many of them a step holds.
    """

    sizes: tuple[int, ...]
    pairs_per_step: tuple[int, ...]
    exponent: float
    seed: int
    steps: int

    @cached_property
    def sets(self) -> Array:
        """(steps,) the data set of each step; a longer course begins with the shorter one."""
        bits = np.random.Philox(np.random.SeedSequence((self.seed, _SETS))).random_raw(self.steps)
        edges = np.cumsum(probabilities(self.sizes, self.exponent))
        drawn: Array = np.searchsorted(edges[:-1], (bits >> np.uint64(11)) * 2.0**-53, side="right")
        return drawn

    def draw(self, step: int) -> Draw:
        """What step number `step`, counted from 1, holds."""
        of_set = int(self.sets[step - 1])
        size, count = self.sizes[of_set], min(self.pairs_per_step[of_set], self.sizes[of_set])
        epoch, round_ = divmod(int((self.sets[: step - 1] == of_set).sum()), size // count)
        order = _order(size, self.seed, _PAIRS, of_set, epoch)
        return Draw(of_set, order[round_ * count : (round_ + 1) * count])


def split_heldout(pairs: int) -> tuple[Array, Array]:
    """(pairs to train on, pairs held out) of a data set, the same for every run: a tenth, and 64 at most.

    One that has too few pairs for both holds none out.
    """
    order = shuffled(pairs, _HELDOUT)
    heldout = min(MOST_HELDOUT, pairs // HELDOUT_SHARE)
    heldout = heldout if heldout >= FEWEST_PAIRS else 0
    return np.sort(order[heldout:]), order[:heldout]


POLL_SECONDS = 0.2


def prepared_pairs(
    layout: Layout, run: ContrastiveRun, source: Source, framing: Framing, stop: StopRequest
) -> list[EncodedPairs]:
    """Every data set of a run, from disk or encoded now.

    Raises:
        MissingData: the source has no such set, or another one than was planned on.
        ValueError: a set has fewer than two pairs with text.
        Stopped: `stop` asked to while one was encoded.
    """
    return [_prepared(layout, run, pairs, source, framing, stop) for pairs in run.sets]


def _prepared(
    layout: Layout, run: ContrastiveRun, pairs: PairSet, source: Source, framing: Framing, stop: StopRequest
) -> EncodedPairs:
    folder = layout.pairs(run.pairs_id(pairs))
    while (encoded := _whole(folder)) is None:
        claim = acquire(layout.claims(f"pairs-{folder.name}"))
        if claim is None:
            stop.check(f"the pairs of {pairs.name}")
            time.sleep(POLL_SECONDS)
            continue
        with claim:
            _set_aside_if_damaged(folder)
            if not folder.exists():
                clear_unfinished(folder)
                save_pairs(folder, _encoded(run, pairs, source, framing, stop))
    if len(encoded) < FEWEST_PAIRS:
        raise ValueError(
            f"data set {pairs.name} has {len(encoded)} pairs with text (of {encoded.counts.read}): a pair needs "
            "another one to be told from, so leave the set out or fill it"
        )
    return encoded


def _whole(folder: Path) -> EncodedPairs | None:
    try:
        return open_pairs(folder)
    except DamagedFile:
        return None


def _set_aside_if_damaged(folder: Path) -> None:
    try:
        open_pairs(folder)
    except DamagedFile as error:
        if folder.exists():
            set_aside(folder, str(error))


def _encoded(run: ContrastiveRun, pairs: PairSet, source: Source, framing: Framing, stop: StopRequest) -> EncodedPairs:
    name = f"data set {pairs.name} of {source.label}"
    require_origin(name, pairs.origin, source.pair_origin(pairs.name))
    found = alike(source.pairs(pairs.name), run.protocol.similar_above)
    texts = _until_stopped(found, pairs.name, stop)
    encoded = encode_pairs(texts, framing, _instructing(run, pairs), run.max_tokens, source.leaves_out)
    require_origin(name, pairs.origin, source.pair_origin(pairs.name))
    return encoded


def alike(pairs: Iterable[Pair], similar_above: float | None) -> Iterator[Pair]:
    """The pairs that count as pairs: those without a similarity, and those above `similar_above`; None takes all."""
    return (
        pair for pair in pairs if similar_above is None or pair.similarity is None or pair.similarity > similar_above
    )


def _instructing(run: ContrastiveRun, pairs: PairSet) -> Instructing:
    instructed = run.protocol.instructed
    return Instructing(
        queries=None if instructed == "nothing" else pairs.instruction,
        documents=pairs.instruction if instructed == "queries_and_documents" else None,
    )


def _until_stopped(pairs: Iterable[Pair], name: str, stop: StopRequest) -> Iterator[Pair]:
    for pair in pairs:
        if stop.requested:
            raise Stopped(f"encoding {name} was asked to stop")
        yield pair
