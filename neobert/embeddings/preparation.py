"""The data sets of a contrastive run in token ids, each encoded once for all workers: whoever comes first does it."""

import time
from collections.abc import Iterable, Iterator

from neobert.data.corpora import Source
from neobert.data.pairs import Pair
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
from neobert.grid.claims import acquire
from neobert.layout import Layout
from neobert.stopping import Stopped, StopRequest

POLL_SECONDS = 0.2


def prepared_pairs(
    layout: Layout, run: ContrastiveRun, source: Source, framing: Framing, stop: StopRequest
) -> list[EncodedPairs]:
    """Every data set of a run, from disk or encoded now.

    Raises:
        MissingData: the source has no such set.
        ValueError: a set has fewer than two pairs with text.
        Stopped: `stop` asked to while one was encoded.
    """
    return [_prepared(layout, run, pairs, source, framing, stop) for pairs in run.sets]


def _prepared(
    layout: Layout, run: ContrastiveRun, pairs: PairSet, source: Source, framing: Framing, stop: StopRequest
) -> EncodedPairs:
    folder = layout.pairs(run.pairs_id(pairs))
    while not folder.exists():
        claim = acquire(layout.claims(f"pairs-{folder.name}"))
        if claim is None:
            stop.check(f"the pairs of {pairs.name}")
            time.sleep(POLL_SECONDS)
            continue
        with claim:
            if not folder.exists():
                clear_unfinished(folder)
                texts = _until_stopped(source.pairs(pairs.name), pairs.name, stop)
                instructing = _instructing(run, pairs)
                save_pairs(folder, encode_pairs(texts, framing, instructing, run.max_tokens, source.leaves_out))
    encoded = open_pairs(folder)
    if len(encoded) < FEWEST_PAIRS:
        raise ValueError(
            f"data set {pairs.name} has {len(encoded)} pairs with text (of {encoded.counts.read}): a pair needs "
            "another one to be told from, so leave the set out or fill it"
        )
    return encoded


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
