"""Several tokenised corpora as one, so that rows and batches need not know that there are several. Without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from neobert.data.shards import Documents, TokenizedCorpus, split_corpus


def join_corpora(corpora: Sequence[TokenizedCorpus]) -> TokenizedCorpus:
    """Return corpora in the same tokens as one: the documents of each follow those of the one before it. No token is
    copied."""
    if len(corpora) == 1:
        return corpora[0]
    return replace(
        corpora[0],
        lengths=np.concatenate([corpus.lengths for corpus in corpora]),
        text_bytes=np.concatenate([corpus.text_bytes for corpus in corpora]),
        text_hashes=np.concatenate([corpus.text_hashes for corpus in corpora]),
        shards=tuple(shard for corpus in corpora for shard in corpus.shards),
        manifest={},
        shared=None,
    )


def training_sides(corpora: Mapping[str, TokenizedCorpus]) -> dict[str, Documents]:
    """Return the documents of each corpus that are trained on, as views of the joined corpora. A text that is held out
    of one corpus is left out of all.

    Raises:
        ValueError: a corpus has fewer than two different texts, or none that is not held out of another.
    """
    if len(corpora) == 1:
        return {name: split_corpus(corpus)[0] for name, corpus in corpora.items()}
    parts = {name: split_corpus(corpus) for name, corpus in corpora.items()}
    heldout = np.unique(np.concatenate([_hashes(held_out) for _, held_out in parts.values()]))
    joined = join_corpora(list(corpora.values()))
    starts = accumulate((corpus.documents for corpus in corpora.values()), initial=0)
    sides = {}
    for start, (name, (training, _)) in zip(starts, parts.items(), strict=False):
        hashes = _hashes(training)
        suspects = np.flatnonzero(hashes <= heldout[-1])  # few, unless a corpus is small
        known = suspects[np.isin(hashes[suspects], heldout)]
        if len(known) == len(training):
            raise ValueError(f"every text of corpus {name} is held out of another corpus of the mixture: leave it out")
        side = Documents(joined, training.numbers + start, training.lengths)
        sides[name] = side.at(np.delete(np.arange(len(side)), known)) if len(known) else side
    return sides


def _hashes(documents: Documents) -> NDArray[np.uint64]:
    return documents.corpus.text_hashes[documents.numbers]
