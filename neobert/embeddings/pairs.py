"""Tokenised data sets of pairs: encoded once for a tokenizer, length and instruction, memory-mapped, and sampled."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from neobert.data.manifest import MANIFEST
from neobert.data.pairs import Pair
from neobert.data.streams import shuffle
from neobert.data.tokenizers import Array, FramedTexts, Framing, frame_texts
from neobert.errors import DamagedFile
from neobert.files import (
    as_written,
    checksummed,
    is_file,
    json_bytes,
    publish_folder,
    read_checksummed,
    sha256_of,
    temporary_sibling,
    verify,
)

PARTS = ("queries", "documents", "negatives")
ARRAYS = ("token_ids", "offsets", "token_types")
ENCODE_AGAIN = "remove its folder to encode the pairs again"
CHUNK_PAIRS = 4096


@dataclass(frozen=True)
class PairCounts:
    """Numbers of pairs read and kept; of pairs left out because their query or document is blank (`empty`); of blank
    negatives left out; and of texts cut to the context."""

    read: int = 0
    kept: int = 0
    empty: int = 0
    empty_negatives: int = 0
    cut: int = 0

    def __add__(self, other: "PairCounts") -> "PairCounts":
        return PairCounts(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class PairsManifest:
    """Content of manifest.json: the counts, and the SHA-256 of each file."""

    counts: PairCounts
    sha256: dict[str, str]


_MANIFEST = TypeAdapter(PairsManifest)


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Queries, documents and hard negatives; pair i has `negatives[first_negatives[i]:first_negatives[i + 1]]`."""

    queries: FramedTexts
    documents: FramedTexts
    negatives: FramedTexts
    first_negatives: Array
    counts: PairCounts

    def __len__(self) -> int:
        return len(self.queries)

    def negatives_of(self, pair: int, most: int | None) -> range:
        """Return the indices of the first `most` negatives of a pair (None: all)."""
        first, end = int(self.first_negatives[pair]), int(self.first_negatives[pair + 1])
        return range(first, end if most is None else min(end, first + most))

    def texts_per_pair(self, most: int | None) -> int:
        """Return the largest number of texts of a pair: query, document and at most `most` negatives (None: all)."""
        negatives = int(np.diff(self.first_negatives).max(initial=0))
        return 2 + (negatives if most is None else min(most, negatives))


def encode_pairs(
    pairs: Iterable[Pair],
    tokenizer: Framing,
    max_tokens: int,
    *,
    query_instruction: str | None = None,
    document_instruction: str | None = None,
) -> EncodedPairs:
    """Tokenise pairs. Pairs with a blank query or document and blank negatives are left out. Longer texts are cut. All
    of these are counted."""
    instructions = {
        "queries": query_instruction,
        "documents": document_instruction,
        "negatives": document_instruction,
    }
    columns: dict[str, list[FramedTexts]] = {part: [] for part in PARTS}
    counts, first_negatives = PairCounts(), [0]
    stream = iter(pairs)
    while chunk := list(islice(stream, CHUNK_PAIRS)):
        kept, left_out = _kept_pairs(chunk)
        counts += left_out
        first_negatives += [len(pair.negatives) for pair in kept]
        texts = {
            "queries": [pair.query for pair in kept],
            "documents": [pair.document for pair in kept],
            "negatives": list(chain.from_iterable(pair.negatives for pair in kept)),
        }
        for part, column in texts.items():
            framed, was_cut = frame_texts(column, tokenizer, instructions[part], max_tokens)
            columns[part].append(framed)
            counts += PairCounts(cut=int(was_cut.sum()))
    joined = {part: FramedTexts.concatenate(columns.pop(part)) for part in PARTS}  # not all columns are there twice
    return EncodedPairs(**joined, first_negatives=np.cumsum(first_negatives), counts=counts)


def _kept_pairs(pairs: Sequence[Pair]) -> tuple[list[Pair], PairCounts]:
    written = [pair for pair in pairs if pair.query.strip() and pair.document.strip()]
    kept = [pair._replace(negatives=tuple(filter(str.strip, pair.negatives))) for pair in written]
    return kept, PairCounts(
        read=len(pairs),
        kept=len(kept),
        empty=len(pairs) - len(written),
        empty_negatives=sum(len(pair.negatives) for pair in written) - sum(len(pair.negatives) for pair in kept),
    )


def save_pairs(folder: Path, pairs: EncodedPairs) -> None:
    """Write a data set as a folder of arrays, atomically. The caller must own its claim."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(folder)
    temporary.mkdir()
    arrays = {f"{part}.{name}": getattr(getattr(pairs, part), name) for part in PARTS for name in ARRAYS}
    arrays["first_negatives"] = pairs.first_negatives
    for name, array in arrays.items():
        np.save(temporary / f"{name}.npy", array, allow_pickle=False)
    sha256 = {f"{name}.npy": sha256_of(temporary / f"{name}.npy") for name in arrays}
    (temporary / MANIFEST).write_bytes(json_bytes(checksummed(asdict(PairsManifest(pairs.counts, sha256)))))
    publish_folder(temporary, folder)


def open_pairs(folder: Path) -> EncodedPairs:
    """Memory-map a data set that `save_pairs` wrote; files changed since their last verification are read in full.
    Raises DamagedFile if a file is torn, absent or does not match its checksum."""
    if not is_file(folder / MANIFEST):
        raise DamagedFile(f"{folder} has no {MANIFEST}: {ENCODE_AGAIN}")
    manifest = as_written(_MANIFEST, read_checksummed(folder / MANIFEST), folder / MANIFEST, ENCODE_AGAIN)
    verify(folder, manifest.sha256, ENCODE_AGAIN)
    arrays = {part: [_map(folder / f"{part}.{name}.npy") for name in ARRAYS] for part in PARTS}
    texts = {part: FramedTexts(*of_part) for part, of_part in arrays.items()}
    return EncodedPairs(**texts, first_negatives=_map(folder / "first_negatives.npy"), counts=manifest.counts)


def _map(path: Path) -> Array:
    mapped: Array = np.load(path, mmap_mode="r" if path.stat().st_size > 4096 else None, allow_pickle=False)
    return mapped  # an empty file cannot be mapped, and for a small one it does not pay


_SETS, _PAIRS, _HELDOUT = 11, 12, 13
_ORDERS_KEPT = 32
MOST_HELDOUT = 64
HELDOUT_SHARE = 10
FEWEST_PAIRS = 2


@dataclass(frozen=True)
class Draw:
    """The pairs of a step: distinct indices (pairs,) into data set number `of_set`."""

    of_set: int
    pairs: Array


def probabilities(sizes: Sequence[int], exponent: float) -> Array:
    """Return each data set's share of the steps: n^exponent, normalised to sum 1 (paper App. D.2)."""
    weights = np.asarray(sizes, np.float64) ** exponent
    shares: Array = weights / weights.sum()
    return shares


@lru_cache(maxsize=_ORDERS_KEPT)
def _order(size: int, *words: int) -> Array:
    """Shuffle, with a cache: sorting millions of pairs at each step would take longer than the step."""
    return shuffle(size, *words)


@dataclass(frozen=True)
class Sampling:
    """Sampling of pairs without replacement: each data set is shuffled in each of its epochs. A draw is a function of
    seed and step.

    sizes: number of pairs of each data set. pairs_per_step: number of pairs in a step of each data set.
    """

    sizes: tuple[int, ...]
    pairs_per_step: tuple[int, ...]
    exponent: float
    seed: int
    steps: int

    @cached_property
    def sets(self) -> Array:
        """The data set of each step, (steps,). The first steps do not depend on the number of steps."""
        bits = np.random.Philox(np.random.SeedSequence((self.seed, _SETS))).random_raw(self.steps)
        edges = np.cumsum(probabilities(self.sizes, self.exponent))
        drawn: Array = np.searchsorted(edges[:-1], (bits >> np.uint64(11)) * 2.0**-53, side="right")
        return drawn

    def draw(self, step: int) -> Draw:
        """Return the pairs of step number `step`, counted from 1."""
        of_set = int(self.sets[step - 1])
        size, count = self.sizes[of_set], min(self.pairs_per_step[of_set], self.sizes[of_set])
        epoch, round_ = divmod(int((self.sets[: step - 1] == of_set).sum()), size // count)
        order = _order(size, self.seed, _PAIRS, of_set, epoch)
        return Draw(of_set, order[round_ * count : (round_ + 1) * count])


def split_heldout(pairs: int) -> tuple[Array, Array]:
    """Return the indices of training pairs and of held-out pairs of a data set, the same for every run. A tenth is held
    out, at most 64, and none if that would be a single pair."""
    order = shuffle(pairs, _HELDOUT)
    heldout = min(MOST_HELDOUT, pairs // HELDOUT_SHARE)
    heldout = heldout if heldout >= FEWEST_PAIRS else 0
    return np.sort(order[heldout:]), order[:heldout]


def alike(pairs: Iterable[Pair], similar_above: float | None) -> Iterator[Pair]:
    """Yield the pairs without a similarity and those with a similarity above `similar_above` (None: all pairs)."""
    return (
        pair for pair in pairs if similar_above is None or pair.similarity is None or pair.similarity > similar_above
    )
