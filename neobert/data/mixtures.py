"""Several tokenised corpora as one, so that rows and batches need not know that there are several. Without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
    joined = join_corpora(list(corpora.values()))
    ends = np.cumsum([corpus.documents for corpus in corpora.values()]).tolist()
    starts = [0, *ends[:-1]]
    views = [
        Documents(joined, np.arange(start, end, dtype=np.int64), joined.lengths[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]
    parts = {name: view.split_heldout() for name, view in zip(corpora, views, strict=True)}
    sides = {name: training for name, (training, _) in parts.items()}
    heldout = np.unique(np.concatenate([_hashes(held_out) for _, held_out in parts.values()]))
    for name, training in sides.items():
        hashes = _hashes(training)
        suspects = np.flatnonzero(hashes <= heldout[-1])  # few, unless a corpus is small
        sides[name] = training.at(np.delete(np.arange(len(training)), suspects[np.isin(hashes[suspects], heldout)]))
        if not len(sides[name]):
            raise ValueError(f"every text of corpus {name} is held out of another corpus of the mixture: leave it out")
    return sides


def _hashes(documents: Documents) -> NDArray[np.uint64]:
    return documents.corpus.text_hashes[documents.numbers]
