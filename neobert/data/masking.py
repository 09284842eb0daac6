"""Masked language modelling: predicted tokens and their replacements, as pure functions of hashes.

A hash only depends on (pass over the corpus, document, token offset, stream). So masks do not depend on packing,
micro-batch, process or device, and the mask at a rate of 15 % is a subset of that at 20 %.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.shards import Integers
from neobert.data.tokenizers import SpecialIds
from neobert.recipe import Masking

Words = Any
"""An integer, or an array (n,) int64."""

_BITS = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_ROUNDS = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))

PREDICTED, REPLACEMENT, RANDOM_TOKEN = 0x1B873593, 0x2545F491, 0x52DCE729
"""Hash streams: whether a token is predicted, how it is replaced, and by which random token."""


def fold(state: Words, word: Words) -> Words:
    """Mix a number (modulo 2^32) into a 32-bit state with the finaliser of MurmurHash3 (Appleby)."""
    if isinstance(state, np.ndarray) or isinstance(word, np.ndarray):
        return _fold_arrays(state, word)
    mixed = (state + (word + 1) * _GOLDEN) & _BITS
    for shift, factor in _ROUNDS:
        mixed = (mixed ^ (mixed >> shift)) * factor & _BITS
    return mixed ^ (mixed >> 16)


def _fold_arrays(state: Words, word: Words) -> Integers:
    """Compute `fold` in uint32, where array arithmetic wraps by itself; takes a fifth of the time."""
    mixed = _low_bits(word) * np.uint32(_GOLDEN) + _low_bits(state)
    mixed += np.uint32(_GOLDEN)
    for shift, factor in _ROUNDS:
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    mixed ^= mixed >> np.uint32(16)
    return mixed.astype(np.int64)


def _low_bits(values: Words) -> NDArray[np.uint32]:
    """Return integers modulo 2^32; a scalar becomes an array, because numpy warns if a scalar wraps."""
    if isinstance(values, np.ndarray):
        return values.astype(np.uint32)
    return np.array([values & _BITS], dtype=np.uint32)


def counter_hash(*words: Words) -> Words:
    """Return a 32-bit hash of the words and their order."""
    state: Words = 0
    for word in words:
        state = fold(state, word)
    return state


def threshold(share: float) -> int:
    """Return the number below which this share of all 32-bit hashes lies."""
    return int(share * 2**32)


def predicted_tokens(
    token_ids: Integers, keys: Integers, offsets: Integers, rate: float, ids: SpecialIds
) -> NDArray[np.bool_]:
    """Select tokens with probability `rate`, never special or unknown ones; return a boolean (tokens,).

    `keys` (tokens,) is the mask key of each token's document, `offsets` (tokens,) its index in the document.
    """
    predicted: NDArray[np.bool_] = fold(keys ^ PREDICTED, offsets) < threshold(rate)
    for special in ids.never_predicted:
        predicted &= token_ids != special
    return predicted


def mask_tokens(
    token_ids: Integers, keys: Integers, offsets: Integers, masking: Masking, ids: SpecialIds
) -> tuple[Integers, NDArray[np.bool_]]:
    """Mask tokens; return (masked token ids, boolean of the predicted tokens).

    All arrays are (tokens,) int64. Of the predicted tokens, `mask_share` become [MASK], `random_share` become a random
    text token, and the rest stay (Devlin 2019 §3.1; the NeoBERT paper §3.3 masks all).
    """
    predicted = predicted_tokens(token_ids, keys, offsets, masking.rate, ids)
    chosen = np.flatnonzero(predicted)  # few, so replacements are only drawn for these
    masked = token_ids.copy()
    if masking.mask_share == 1:
        masked[chosen] = ids.mask
        return masked, predicted
    keys, offsets = keys[chosen], offsets[chosen]
    draw = fold(keys ^ REPLACEMENT, offsets)
    text_ids = ids.end_text_id - ids.first_text_id
    random_ids = ids.first_text_id + ((fold(keys ^ RANDOM_TOKEN, offsets) * text_ids) >> 32)
    kept_or_random = np.where(draw < threshold(masking.mask_share + masking.random_share), random_ids, masked[chosen])
    masked[chosen] = np.where(draw < threshold(masking.mask_share), ids.mask, kept_or_random)
    return masked, predicted
