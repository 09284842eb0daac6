"""The data sets of a contrastive run in token ids, each encoded once for all workers: whoever comes first does it."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from neobert.data.corpora import Source
from neobert.data.pairs import Pair
from neobert.data.preparation import require_origin
from neobert.embeddings.pairs import (
    EncodedPairs,
    Framing,
    Instructing,
    clear_unfinished,
    encode_pairs,
    open_pairs,
    save_pairs,
)
from neobert.embeddings.sampling import FEWEST_PAIRS
from neobert.embeddings.specification import ContrastiveRun, PairSet
from neobert.errors import DamagedFile
from neobert.files import set_aside
from neobert.grid.claims import acquire
from neobert.layout import Layout
from neobert.stopping import Stopped, StopRequest

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
