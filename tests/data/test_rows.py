"""Claims of rows: best-fit-decreasing packing as defined; an order of documents, fixed, fair, without a table."""

import tracemalloc
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.data.masking import counter_hash
from neobert.data.packing import best_fit_decreasing
from neobert.data.streams import permute
from tests.support.small_corpora import realistic_lengths

CONTEXT = 64
KEYS = st.integers(0, 2**32 - 1)
TRIALS = 24_000


def best_fit_decreasing_by_definition(lengths: list[int], context: int) -> list[int]:
    """The row of each document when it goes where it leaves least room, to the first of several such rows."""
    rooms: list[int] = []
    rows = [0] * len(lengths)
    for document in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        fitting = [row for row, room in enumerate(rooms) if room >= lengths[document]]
        row = min(fitting, key=lambda number: rooms[number], default=len(rooms))
        rooms += [context] if row == len(rooms) else []
        rooms[row] -= lengths[document]
        rows[document] = row
    return rows


@given(st.lists(st.integers(1, CONTEXT), max_size=200))
def test_documents_lie_side_by_side_and_no_row_overflows(lengths: list[int]) -> None:
    rows, columns, count = best_fit_decreasing(np.array(lengths, dtype=np.int64), CONTEXT)
    slots = np.zeros((count, CONTEXT), dtype=np.int64)
    for row, column, length in zip(rows, columns, lengths, strict=True):
        assert column + length <= CONTEXT
        slots[row, column : column + length] += 1
    assert slots.max(initial=0) <= 1
    assert slots.sum() == sum(lengths)
    # Padding stands at the end of a row, and no row is empty.
    assert (np.diff(slots, axis=1) <= 0).all() and (slots[:, 0] == 1).all()


@given(st.lists(st.integers(1, CONTEXT), max_size=200))
def test_rows_are_those_of_the_definition(lengths: list[int]) -> None:
    """To the row, or else to the room left in all rows."""
    expected, given_lengths = best_fit_decreasing_by_definition(lengths, CONTEXT), np.array(lengths, dtype=np.int64)
    assert best_fit_decreasing(given_lengths, CONTEXT, first_row=True)[0].tolist() == expected
    rows, _, count = best_fit_decreasing(given_lengths, CONTEXT)
    used = [np.bincount(np.array(each, np.int64), lengths, count).tolist() for each in (rows, expected)]
    assert sorted(used[0]) == sorted(used[1])


@pytest.mark.parametrize(
    ("context", "mean"), [(128, 60), (512, 60), (512, 400), (1024, 400), (1024, 620), (1024, 900), (4096, 620)]
)
def test_a_window_of_realistic_documents_fills_98_percent(context: int, mean: float) -> None:
    lengths = np.minimum(realistic_lengths(4096, mean), context - 2) + 2
    assert lengths.sum() >= 0.98 * best_fit_decreasing(lengths, context)[-1] * context


@pytest.mark.parametrize("lengths", [[5, 65], [0, 3]])
def test_documents_that_are_no_row_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="truncate them first"):
        best_fit_decreasing(np.array(lengths), CONTEXT)


@given(st.integers(1, 1000), KEYS)
def test_every_number_comes_once(count: int, key: int) -> None:
    assert sorted(permute(np.arange(count), count, key).tolist()) == list(range(count))


@given(st.integers(2**31, 2**45), KEYS, st.integers(0, 2**30))
def test_parts_of_a_huge_permutation_are_those_of_the_whole(count: int, key: int, start: int) -> None:
    together = permute(np.arange(start, start + 300), count, key)
    parts = [permute(np.arange(start + first, start + first + 100), count, key) for first in (0, 100, 200)]
    assert np.concatenate(parts).tolist() == together.tolist()
    assert len(set(together.tolist())) == 300 and together.min() >= 0 and together.max() < count


def test_each_place_may_have_a_key_of_its_own() -> None:
    keys = np.repeat([5, 6], 100)
    both = permute(np.tile(np.arange(100), 2), 100, keys).reshape(2, 100)
    assert both.tolist() == [permute(np.arange(100), 100, key).tolist() for key in (5, 6)]


def test_the_numbers_do_not_change() -> None:
    assert permute(np.arange(6), 1000, 7).tolist() == [407, 437, 342, 956, 156, 761]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_orders_of_few_documents_are_equally_likely(count: int) -> None:
    keys = np.repeat(counter_hash(1, np.arange(TRIALS)), count)
    orders = permute(np.tile(np.arange(count), TRIALS), count, keys).reshape(TRIALS, count)
    seen = np.unique(orders, axis=0, return_counts=True)[1]
    expected = TRIALS / len(list(permutations(range(count))))
    assert len(seen) * expected == TRIALS
    assert abs(seen - expected).max() < 4.5 * np.sqrt(expected)


def test_neighbours_are_scattered_and_keys_give_unlike_orders() -> None:
    count = 100_003
    one, other = (permute(np.arange(count), count, key) for key in (1, 2))
    # Two independent uniform numbers are a third of the range apart; a random order keeps about one in place.
    assert abs(np.abs(np.diff(one)).mean() / count - 1 / 3) < 0.005
    assert (np.abs(np.diff(one)) == 1).sum() < 15
    assert (one == np.arange(count)).sum() < 10 and (one == other).sum() < 10
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02 and abs(np.corrcoef(one, np.arange(count))[0, 1]) < 0.02


def test_a_billion_documents_need_no_table() -> None:
    tracemalloc.start()
    try:
        permute(np.arange(4096), 10**9, 3)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
