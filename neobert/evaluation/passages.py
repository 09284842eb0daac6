"""Beginnings of long documents, and which of their tokens are masked alone. Torch-free."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from neobert.data.tokenized import TokenizedCorpus
from neobert.data.views import FRAME_TOKENS, Documents

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Passage:
    """`token_ids` (tokens,) int64: the beginning of a text between [CLS] and [SEP]; `places` (positions,) int64,
    ascending: the tokens to be masked alone; `text_hash`: the hash of the whole text."""

    token_ids: Integers
    places: Integers
    text_hash: int


def same_documents(
    documents: Documents, lengths: Sequence[int], most: int, least: int
) -> tuple[Documents, tuple[int, ...]]:
    """Up to `most` different texts that are read at every length, and the lengths that at least `least` texts have.

    All of the texts have the longest of these lengths, specials included, and a token to be masked within the
    shortest. They are those with the smallest hashes, so that every model reads the same ones.
    """
    _, first = np.unique(documents.corpus.text_hashes[documents.numbers], return_index=True)
    never, shortest = documents.corpus.ids.never_predicted, min(lengths)
    for longest in sorted(lengths, reverse=True):
        long_enough = first[documents.framed(first) >= longest]
        chosen = list(islice((index for index in long_enough if _has_text(documents, index, shortest, never)), most))
        if len(chosen) >= least:
            return documents.at(np.array(chosen)), tuple(tokens for tokens in lengths if tokens <= longest)
    return documents.at(first[:0]), ()


def _has_text(documents: Documents, index: np.int64, tokens: int, never: Sequence[int]) -> bool:
    return not np.isin(_framed(documents.corpus, int(documents.numbers[index]), tokens), never).all()


def passages(documents: Documents, tokens: int, most: int, sampled: int | None, seed: int) -> list[Passage]:
    """Up to `most` different texts of at least `tokens` tokens, specials included, cut to exactly that length.

    They come in the order of their hashes, so that every model reads the same ones. `sampled` positions of each are
    drawn without replacement by `seed` and hash; None, or more than there are, takes all. Special and unknown tokens
    are never masked, and a text of nothing else is passed over.

    Raises:
        ValueError: the length has no room for a token beside the specials.
    """
    cut = documents.truncated(tokens)
    numbers = cut.numbers[cut.framed_lengths == tokens]
    _, first = np.unique(documents.corpus.text_hashes[numbers], return_index=True)
    return list(islice(_readable(documents.corpus, numbers[first], tokens, sampled, seed), most))


def _readable(
    corpus: TokenizedCorpus, numbers: Integers, tokens: int, sampled: int | None, seed: int
) -> Iterator[Passage]:
    for number in numbers:
        token_ids = _framed(corpus, int(number), tokens)
        text_hash = int(corpus.text_hashes[number])
        places = np.flatnonzero(~np.isin(token_ids, corpus.ids.never_predicted)).astype(np.int64)
        if sampled is not None and sampled < len(places):
            draw = np.random.default_rng([seed, text_hash, tokens])
            places = np.sort(draw.choice(places, sampled, replace=False))
        if len(places):
            yield Passage(token_ids, places, text_hash)


def _framed(corpus: TokenizedCorpus, number: int, tokens: int) -> Integers:
    token_ids = np.empty(tokens, dtype=np.int64)
    token_ids[0], token_ids[-1] = corpus.ids.cls, corpus.ids.sep
    corpus.copy(corpus.starts[[number]], np.array([tokens - FRAME_TOKENS]), token_ids, np.array([1]))
    return token_ids
