"""Data sets of pairs in token ids: encoded once for a tokenizer, length and instruction, memory-mapped, and sampled."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from pathlib import Path

import numpy as np

from neobert.data.pairs import Pair
from neobert.data.preparation import prepare_once, require_origin
from neobert.data.rows import shuffle
from neobert.data.sources import Source
from neobert.data.tokenizers import Array, FramedTexts, Framing, frame_texts
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
from neobert.runs.layout import Layout
from neobert.runs.specifications import ContrastiveRun, PairSet

MANIFEST = "manifest.json"
PARTS = ("queries", "documents", "negatives")
CHUNK_PAIRS = 4096


@dataclass(frozen=True)
class PairCounts:
    """How many pairs were read and kept; how many were left out because their query or document is blank, or because
    they share a text with an evaluation (`shared`); blank negatives left out, and texts cut to the context."""

    read: int = 0
    kept: int = 0
    empty: int = 0
    empty_negatives: int = 0
    cut: int = 0
    shared: int = 0

    def __add__(self, other: "PairCounts") -> "PairCounts":
        return PairCounts(*(own + more for own, more in zip(astuple(self), astuple(other), strict=True)))


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


def encode_pairs(
    pairs: Iterable[Pair],
    tokenizer: Framing,
    max_tokens: int,
    *,
    query_instruction: str | None = None,
    document_instruction: str | None = None,
    leaves_out: Callable[[Pair], bool] = lambda pair: False,
) -> EncodedPairs:
    """Tokenise pairs. Those with a blank query or document and those that `leaves_out` names are left out, blank
    negatives too, and longer texts are cut; all of them are counted."""
    columns: dict[str, list[FramedTexts]] = {"queries": [], "documents": [], "negatives": []}
    counts, first_negatives = PairCounts(), [0]
    stream = iter(pairs)
    while chunk := list(islice(stream, CHUNK_PAIRS)):
        written = [pair for pair in chunk if pair.query.strip() and pair.document.strip()]
        kept = [pair for pair in written if not leaves_out(pair)]
        negatives = [[text for text in pair.negatives if text.strip()] for pair in kept]
        first_negatives += [len(texts) for texts in negatives]
        texts = {
            "queries": ([pair.query for pair in kept], query_instruction),
            "documents": ([pair.document for pair in kept], document_instruction),
            "negatives": (list(chain.from_iterable(negatives)), document_instruction),
        }
        cut = 0
        for name, (column, instruction) in texts.items():
            framed, was_cut = frame_texts(column, tokenizer, instruction, max_tokens)
            columns[name].append(framed)
            cut += int(was_cut.sum())
        counts += PairCounts(
            read=len(chunk),
            kept=len(kept),
            empty=len(chunk) - len(written),
            empty_negatives=sum(len(pair.negatives) for pair in kept) - sum(map(len, negatives)),
            cut=cut,
            shared=len(written) - len(kept),
        )
    joined = {name: FramedTexts.concatenate(parts) for name, parts in columns.items()}
    return EncodedPairs(**joined, first_negatives=np.cumsum(first_negatives), counts=counts)


def save_pairs(folder: Path, pairs: EncodedPairs) -> None:
    """Write a data set as a folder of arrays, whole or not at all; only for whoever owns its claim."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(folder)
    temporary.mkdir()
    arrays = {f"{part}.{name}": array for part in PARTS for name, array in vars(getattr(pairs, part)).items()}
    arrays["first_negatives"] = pairs.first_negatives
    for name, array in arrays.items():
        np.save(temporary / f"{name}.npy", array, allow_pickle=False)
    sha256 = {f"{name}.npy": sha256_of(temporary / f"{name}.npy") for name in arrays}
    manifest = checksummed({"counts": asdict(pairs.counts), "sha256": sha256})
    (temporary / MANIFEST).write_bytes(json_bytes(manifest))
    publish_folder(temporary, folder)


def open_pairs(folder: Path) -> EncodedPairs:
    """What `save_pairs` wrote, memory-mapped; files that changed since they were last compared are read in full.

    Raises:
        DamagedFile: a file is torn, absent or does not match its checksum.
    """
    try:
        manifest = read_checksummed(folder / MANIFEST)
        counts = PairCounts(**manifest["counts"])
        verify(folder, manifest.get("sha256", {}), "remove its folder to encode the pairs again")
        parts = {
            part: FramedTexts(
                *(_map(folder / f"{part}.{name}.npy") for name in ("token_ids", "offsets", "token_types"))
            )
            for part in PARTS
        }
        first = np.load(folder / "first_negatives.npy", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{folder} is no data set of pairs ({error}): remove it to encode them again") from error
    return EncodedPairs(**parts, first_negatives=first, counts=counts)


def _map(path: Path) -> Array:
    mapped: Array = np.load(path, mmap_mode="r" if path.stat().st_size > 4096 else None, allow_pickle=False)
    return mapped  # an empty file cannot be mapped, and a small one need not be


_SETS, _PAIRS, _HELDOUT = 11, 12, 13
_ORDERS_KEPT = 32
MOST_HELDOUT = 64
HELDOUT_SHARE = 10
FEWEST_PAIRS = 2


@dataclass(frozen=True)
class Draw:
    """The pairs of a step: numbers (pairs,), each once, in data set number `of_set`."""

    of_set: int
    pairs: Array


def probabilities(sizes: Sequence[int], exponent: float) -> Array:
    """The share of steps that each data set gets: n^exponent over the sum of all (paper App. D.2)."""
    weights = np.asarray(sizes, np.float64) ** exponent
    shares: Array = weights / weights.sum()
    return shares


@lru_cache(maxsize=_ORDERS_KEPT)
def _order(size: int, *words: int) -> Array:
    """Cached: sorting millions of pairs for each step would take longer than the step."""
    return shuffle(size, *words)


@dataclass(frozen=True)
class Sampling:
    """Draws pairs without replacement: each set has an order of its own, shuffled in each of its epochs. A draw is a
    function of seed and step.

    sizes: pairs of each set. pairs_per_step: how many of them a step holds.
    """

    sizes: tuple[int, ...]
    pairs_per_step: tuple[int, ...]
    exponent: float
    seed: int
    steps: int

    @cached_property
    def sets(self) -> Array:
        """(steps,) the data set of each step; the first steps do not depend on how many there are."""
        bits = np.random.Philox(np.random.SeedSequence((self.seed, _SETS))).random_raw(self.steps)
        edges = np.cumsum(probabilities(self.sizes, self.exponent))
        drawn: Array = np.searchsorted(edges[:-1], (bits >> np.uint64(11)) * 2.0**-53, side="right")
        return drawn

    def draw(self, step: int) -> Draw:
        """The pairs of step number `step`, counted from 1."""
        of_set = int(self.sets[step - 1])
        size, count = self.sizes[of_set], min(self.pairs_per_step[of_set], self.sizes[of_set])
        epoch, round_ = divmod(int((self.sets[: step - 1] == of_set).sum()), size // count)
        order = _order(size, self.seed, _PAIRS, of_set, epoch)
        return Draw(of_set, order[round_ * count : (round_ + 1) * count])


def split_heldout(pairs: int) -> tuple[Array, Array]:
    """(pairs to train on, pairs held out) of a data set, the same for every run: a tenth is held out, 64 at most, and
    none where that would be a single pair."""
    order = shuffle(pairs, _HELDOUT)
    heldout = min(MOST_HELDOUT, pairs // HELDOUT_SHARE)
    heldout = heldout if heldout >= FEWEST_PAIRS else 0
    return np.sort(order[heldout:]), order[:heldout]


def prepare_pairs(
    layout: Layout, run: ContrastiveRun, source: Source, tokenizer: Framing, stop: StopRequest
) -> list[EncodedPairs]:
    """Every data set of a run, from disk or encoded now; one worker encodes a set while the others wait.

    Raises:
        MissingData: the source has no such set, or another one than was planned on.
        ValueError: a set has fewer than two pairs with text.
        Stopped: `stop` asked to while one was encoded.
    """
    return [_prepare(layout, run, pairs, source, tokenizer, stop) for pairs in run.sets]


def _prepare(
    layout: Layout, run: ContrastiveRun, pairs: PairSet, source: Source, tokenizer: Framing, stop: StopRequest
) -> EncodedPairs:
    folder = layout.pairs(run.pairs_id(pairs))

    def make(damage: DamagedFile | None) -> None:
        if damage is not None and folder.exists():
            set_aside(folder, str(damage))
        if folder.parent.is_dir():
            clear_temporaries(folder.parent, folder.name)
        save_pairs(folder, _encode(run, pairs, source, tokenizer, stop))

    claims = layout.claims(f"pairs-{folder.name}")
    encoded = prepare_once(claims, f"the pairs of {pairs.name}", stop, lambda: open_pairs(folder), make)
    if len(encoded) < FEWEST_PAIRS:
        raise ValueError(
            f"data set {pairs.name} has {len(encoded)} pairs with text (of {encoded.counts.read}): a pair needs "
            "another one to be told from, so leave the set out or fill it"
        )
    return encoded


def _encode(run: ContrastiveRun, pairs: PairSet, source: Source, tokenizer: Framing, stop: StopRequest) -> EncodedPairs:
    name, instructed = f"data set {pairs.name} of {source.label}", run.protocol.instructed
    require_origin(name, pairs.origin, source.pair_origin(pairs.name))
    encoded = encode_pairs(
        _until_stopped(alike(source.pairs(pairs.name), run.protocol.similar_above), pairs.name, stop),
        tokenizer,
        run.max_tokens,
        query_instruction=None if instructed == "nothing" else pairs.instruction,
        document_instruction=pairs.instruction if instructed == "queries_and_documents" else None,
        leaves_out=source.leaves_out,
    )
    require_origin(name, pairs.origin, source.pair_origin(pairs.name))
    return encoded


def alike(pairs: Iterable[Pair], similar_above: float | None) -> Iterator[Pair]:
    """The pairs without a similarity, and those whose similarity is above `similar_above`; None takes all."""
    return (
        pair for pair in pairs if similar_above is None or pair.similarity is None or pair.similarity > similar_above
    )


def _until_stopped(pairs: Iterable[Pair], name: str, stop: StopRequest) -> Iterator[Pair]:
    for pair in pairs:
        if stop.requested:
            raise Stopped(f"encoding {name} was asked to stop")
        yield pair
