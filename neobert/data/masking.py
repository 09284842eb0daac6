"""Masked language modelling: which tokens are predicted and what replaces them, as pure functions of hashes.

Every function takes numpy arrays or torch tensors of int64 and uses operators alone, so both give the same numbers.
A hash belongs to (pass over the corpus, document, token offset, stream) and to nothing else: masks do not depend on
packing, micro-batch, process or device, and a rate of 15 % nests in one of 20 %.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neobert.data.tokenizers import SpecialIds
from neobert.recipe import Masking

Array = Any
"""A numpy array or a torch tensor of int64, or a Python integer."""

_BITS = 0xFFFFFFFF
_RANGE = 2**32
_GOLDEN = 0x9E3779B9

PREDICTED, REPLACEMENT, RANDOM_TOKEN = 0x1B873593, 0x2545F491, 0x52DCE729
"""Streams of hashes: whether a token is predicted, how it is replaced, by which random token."""


def _times(values: Array, factor: int) -> Array:
    """Product modulo 2^32 of numbers below 2^32, in steps that no signed 64-bit integer overflows."""
    high = (values * (factor >> 16)) & 0xFFFF
    return (values * (factor & 0xFFFF) + (high << 16)) & _BITS


def mix(values: Array) -> Array:
    """The finaliser of MurmurHash3 (Appleby): a bijection of 32-bit numbers in which every bit moves every other."""
    values = _times(values ^ (values >> 16), 0x85EBCA6B)
    values = _times(values ^ (values >> 13), 0xC2B2AE35)
    return values ^ (values >> 16)


def fold(state: Array, word: Array) -> Array:
    """A 32-bit state with one more number (modulo 2^32) in it."""
    if isinstance(state, np.ndarray) or isinstance(word, np.ndarray):
        return _fold_arrays(state, word)
    return mix((state + _times(word & _BITS, _GOLDEN) + _GOLDEN) & _BITS)


def _fold_arrays(state: Array, word: Array) -> NDArray[np.int64]:
    """`fold` in 32 bits, where products and sums of arrays wrap by themselves: a fifth of the time."""
    mixed = _low_bits(word) * np.uint32(_GOLDEN) + _low_bits(state)
    mixed += np.uint32(_GOLDEN)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    mixed ^= mixed >> np.uint32(16)
    return mixed.astype(np.int64)


def _low_bits(values: Array) -> NDArray[np.uint32]:
    """Integers modulo 2^32; a single one as an array, since numpy warns where a scalar wraps."""
    if isinstance(values, np.ndarray):
        return values.astype(np.uint32)
    return np.array([values & _BITS], dtype=np.uint32)


def counter_hash(*words: Array) -> Array:
    """32 bits that depend on every word and on their order."""
    state: Array = 0
    for word in words:
        state = fold(state, word)
    return state


def token_hash(keys: Array, offsets: Array, stream: int) -> Array:
    """32 bits for each token: `keys` (tokens,) of its document, `offsets` (tokens,) its place inside it."""
    return fold(keys ^ stream, offsets)


def threshold(share: float) -> int:
    """The number below which this share of all 32-bit hashes lies."""
    return int(share * _RANGE)


def predicted_tokens(token_ids: Array, keys: Array, offsets: Array, rate: float, ids: SpecialIds) -> Array:
    """Boolean (tokens,): chosen with probability `rate`; special and unknown tokens never are."""
    predicted = token_hash(keys, offsets, PREDICTED) < threshold(rate)
    for special in ids.never_predicted:
        predicted = predicted & (token_ids != special)
    return predicted


def mask_tokens(
    token_ids: Array, keys: Array, offsets: Array, masking: Masking, ids: SpecialIds
) -> tuple[Array, Array]:
    """(masked token ids, boolean of the predicted tokens).

    All arguments (tokens,) int64. Of the predicted tokens `mask_share` become [MASK], `random_share` a random token of
    the text's ids, the rest stay (Devlin 2019 §3.1; the NeoBERT paper §3.3 masks all).
    """
    predicted = predicted_tokens(token_ids, keys, offsets, masking.rate, ids)
    places = _places(predicted)
    masked = token_ids + 0
    if masking.mask_share == 1:
        masked[places] = ids.mask
        return masked, predicted
    keys, offsets, originals = keys[places], offsets[places], token_ids[places]
    draw = token_hash(keys, offsets, REPLACEMENT)
    masks = threshold(masking.mask_share)
    randoms = threshold(masking.mask_share + masking.random_share)
    text_ids = ids.end_text_id - ids.first_text_id
    random_ids = ids.first_text_id + ((token_hash(keys, offsets, RANDOM_TOKEN) * text_ids) >> 32)
    masked[places] = _choose(draw < masks, ids.mask, _choose(draw < randoms, random_ids, originals))
    return masked, predicted


def _places(predicted: Array) -> Array:
    """Where a boolean array is true: the few predicted tokens are cheaper than all."""
    found = predicted.nonzero()
    return found[0] if isinstance(found, tuple) else found[:, 0]


def _choose(condition: Array, yes: Array, no: Array) -> Array:
    return condition * yes + ~condition * no
