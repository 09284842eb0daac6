"""Random documents of drawn lengths under one fixed masking, the same for every contender of a benchmark of training.

Torch-free.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from neobert.data.masking import counter_hash, mask_tokens
from neobert.data.rows import Integers
from neobert.data.shards import FRAME_TOKENS, Documents, TokenizedCorpus, all_documents
from neobert.data.tokenizers import SpecialIds
from neobert.recipe import Masking

SEED = 0
MASKING = Masking(rate=0.2, mask_share=1.0, random_share=0.0)
SHORTEST = 8
"""Tokens of the shortest document, specials included."""

WEB_MEAN, WEB_SIGMA = 620.0, 1.0
"""Log-normal lengths of web pages: 600 billion tokens in 968 million documents (RefinedWeb, Penedo et al. 2023)."""


class MaskedDocument(NamedTuple):
    """What a model reads of a framed document, and its labels: -100 where nothing is predicted; both (tokens,)."""

    token_ids: Integers
    labels: Integers


@dataclass(frozen=True, eq=False)
class MaskedDocuments:
    """Documents of a corpus in memory, cut to `context` tokens; `keys` (documents,) decide their masks."""

    view: Documents
    keys: Integers
    context: int

    def __len__(self) -> int:
        return len(self.view)

    @property
    def lengths(self) -> Integers:
        """(documents,) tokens with both specials."""
        return self.view.framed_lengths

    @property
    def real_tokens(self) -> int:
        """Tokens of all documents, specials included."""
        return int(self.lengths.sum())

    @property
    def padded_fill(self) -> float:
        """Share of real tokens where every document has a row of its own."""
        return self.real_tokens / (len(self) * self.context)

    @property
    def attended_tokens(self) -> float:
        """Mean over the tokens of how many tokens each sees: its own document."""
        return float((self.lengths**2).sum() / self.lengths.sum())

    @cached_property
    def shown(self) -> list[MaskedDocument]:
        """All documents as a model sees them one by one."""
        return list(self._masked())

    def _masked(self) -> Iterator[MaskedDocument]:
        corpus = self.view.corpus
        for number, length, key in zip(self.view.numbers, self.lengths, self.keys, strict=True):
            token_ids = np.full(length, corpus.ids.cls, dtype=np.int64)
            token_ids[-1] = corpus.ids.sep
            starts, counts = corpus.starts[[number]], np.array([length - FRAME_TOKENS])
            corpus.copy(starts, counts, token_ids, np.array([1]))
            keys, offsets = np.full(length, key), np.arange(length) - 1
            masked, predicted = mask_tokens(token_ids, keys, offsets, MASKING, corpus.ids)
            yield MaskedDocument(masked, np.where(predicted, token_ids, -100))


def masked_documents(framed_lengths: Integers, vocabulary_size: int, context: int) -> MaskedDocuments:
    """Documents of random tokens with these lengths, specials included, cut to `context`."""
    generator = np.random.default_rng(SEED)
    lengths = framed_lengths - FRAME_TOKENS
    ids = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, first_text_id=5, end_text_id=vocabulary_size)
    tokens = generator.integers(ids.first_text_id, ids.end_text_id, size=int(lengths.sum())).astype(np.uint16)
    hashes = generator.integers(0, 2**63, size=len(lengths)).astype(np.uint64)
    view = all_documents(TokenizedCorpus(ids, lengths, 4 * lengths, hashes, (tokens,), {})).truncated(context)
    return MaskedDocuments(view, counter_hash(SEED, view.numbers), context)


def beta_lengths(count: int, context: int) -> Integers:
    """(count,) lengths of which some fill a row and most do not, 0.6 of the context in the mean."""
    drawn = context * np.random.default_rng(SEED).beta(1.2, 0.8, size=count)
    return np.clip(drawn.round(), SHORTEST, context).astype(np.int64)


def web_lengths(count: int, at_least: int = SHORTEST) -> Integers:
    """(count,) uncut lengths as those of web pages, of which only documents of `at_least` tokens are kept."""
    generator = np.random.default_rng(SEED)
    kept = np.empty(0, dtype=np.int64)
    while len(kept) < count:
        drawn = generator.lognormal(np.log(WEB_MEAN) - WEB_SIGMA**2 / 2, WEB_SIGMA, size=4 * count)
        kept = np.concatenate([kept, drawn[drawn >= at_least].astype(np.int64)])
    return kept[:count]


def rows_per_step(rows: int, about: int) -> int:
    """How many of `rows` rows a step takes, within a tenth of `about`, so that the last step lacks fewest rows."""
    slack = about // 10
    return min(range(about - slack, about + slack + 1), key=lambda size: (-rows % size, abs(size - about)))
