"""Claims of masking: a pure function of who a token is, nested in the rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.data.masking import counter_hash, fold, mask_tokens, predicted_tokens
from neobert.recipe import Masking
from tests.support.small_corpora import IDS

BERT = Masking(rate=0.15, mask_share=0.8, random_share=0.1)
NEOBERT = Masking(rate=0.2, mask_share=1.0, random_share=0.0)
COUNT = 200_000


def reference_fold(state: int, word: int) -> int:
    """MurmurHash3's 32-bit finaliser as published, of a state and a word, in unbounded integers."""
    value = (state + (word + 1) * 0x9E3779B9) % 2**32
    value ^= value >> 16
    value = value * 0x85EBCA6B % 2**32
    value ^= value >> 13
    value = value * 0xC2B2AE35 % 2**32
    return value ^ value >> 16


def tokens() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(token ids, keys, offsets) of many ordinary tokens in documents of 100."""
    place = np.arange(COUNT)
    return np.full(COUNT, 77), counter_hash(0, 0, 0, 0, place // 100), place % 100


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_the_mixer_is_murmurs(state: int, word: int) -> None:
    expected = reference_fold(state, word)
    states, words = np.array([state]), np.array([word])
    assert fold(state, word) == expected
    assert fold(states, word) == fold(state, words) == fold(states, words) == [expected]


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_lower_rate_nests_in_a_higher_one(one: float, other: float) -> None:
    low, high = sorted((one, other))
    token_ids, keys, offsets = (array[:2000] for array in tokens())
    inner = predicted_tokens(token_ids, keys, offsets, low, IDS)
    outer = predicted_tokens(token_ids, keys, offsets, high, IDS)
    assert not (inner & ~outer).any()


@pytest.mark.parametrize("rate", [0.15, 0.2, 0.4])
def test_the_rate_is_met_in_every_position_and_document(rate: float) -> None:
    token_ids, keys, offsets = tokens()
    predicted = predicted_tokens(token_ids, keys, offsets, rate, IDS).reshape(-1, 100)
    deviation = np.sqrt(rate * (1 - rate))
    assert abs(predicted.mean() - rate) < 4 * deviation / np.sqrt(COUNT)
    assert abs(predicted.mean(axis=0) - rate).max() < 5 * deviation / np.sqrt(2000)
    assert abs(predicted.mean(axis=1) - rate).max() < 5.5 * deviation / np.sqrt(100)
    together = (predicted[:, 1:] & predicted[:, :-1]).mean()
    assert abs(together - rate**2) < 5 * np.sqrt(rate**2 / COUNT)


def test_special_tokens_are_never_predicted() -> None:
    _, keys, offsets = tokens()
    for special in IDS.never_predicted:
        assert not predicted_tokens(np.full(COUNT, special), keys, offsets, 0.9, IDS).any()


def test_berts_shares_are_mask_random_and_keep() -> None:
    token_ids, keys, offsets = tokens()
    masked, predicted = mask_tokens(token_ids, keys, offsets, BERT, IDS)
    assert (masked[~predicted] == 77).all()
    chosen = masked[predicted]
    replaced = chosen[(chosen != IDS.mask) & (chosen != 77)]
    for share, wanted in (((chosen == IDS.mask).mean(), 0.8), (len(replaced) / len(chosen), 0.1)):
        assert abs(share - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / len(chosen))
    assert replaced.min() >= IDS.first_text_id and replaced.max() < IDS.end_text_id
    assert abs(replaced.mean() - (IDS.first_text_id + IDS.end_text_id) / 2) < 4 * IDS.end_text_id / np.sqrt(
        12 * len(replaced)
    )


@pytest.mark.parametrize("word", range(5))
def test_seed_stage_subset_epoch_and_document_each_change_the_masks(word: int) -> None:
    pass_words = [1, 1, 1, 1, 1]
    before = counter_hash(*pass_words)
    pass_words[word] += 1
    token_ids, _, offsets = (array[:100] for array in tokens())
    masks = [
        predicted_tokens(token_ids, np.full(100, key), offsets, 0.5, IDS) for key in (before, counter_hash(*pass_words))
    ]
    assert 25 < (masks[0] != masks[1]).sum() < 75
