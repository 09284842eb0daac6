"""Claims of packing: every document once, no row too full, as best-fit-decreasing is defined, and full rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpora import realistic_lengths

from neobert.data.rows import best_fit_decreasing

CONTEXT = 64


def best_fit_decreasing_by_definition(lengths: list[int], context: int) -> list[int]:
    """Room left in each row when every document goes where it leaves least room."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - length)
        else:
            rooms.append(context - length)
    return sorted(rooms)


@settings(deadline=None)
@given(st.lists(st.integers(1, CONTEXT), max_size=200))
def test_documents_lie_side_by_side_and_no_row_overflows(lengths: list[int]) -> None:
    packing = best_fit_decreasing(np.array(lengths, dtype=np.int64), CONTEXT)
    slots = np.zeros((packing.count, CONTEXT), dtype=np.int64)
    for row, column, length in zip(packing.rows, packing.columns, lengths, strict=True):
        assert column + length <= CONTEXT
        slots[row, column : column + length] += 1
    assert slots.max(initial=0) <= 1
    assert slots.sum() == sum(lengths)
    # Filler stands at the end of a row, and no row is empty.
    assert (np.diff(slots, axis=1) <= 0).all() and (slots[:, 0] == 1).all()


@settings(deadline=None)
@given(st.lists(st.integers(1, CONTEXT), max_size=200))
def test_rooms_are_those_of_the_definition(lengths: list[int]) -> None:
    packing = best_fit_decreasing(np.array(lengths, dtype=np.int64), CONTEXT)
    used = np.bincount(packing.rows, weights=lengths, minlength=packing.count)
    assert sorted((CONTEXT - used).astype(int).tolist()) == best_fit_decreasing_by_definition(lengths, CONTEXT)


@pytest.mark.parametrize(
    ("context", "mean"), [(128, 60), (512, 60), (512, 400), (1024, 400), (1024, 620), (1024, 900), (4096, 620)]
)
def test_a_window_of_realistic_documents_fills_98_percent(context: int, mean: float) -> None:
    lengths = np.minimum(realistic_lengths(4096, mean), context - 2) + 2
    packing = best_fit_decreasing(lengths, context)
    assert lengths.sum() >= 0.98 * packing.count * context


@pytest.mark.parametrize("lengths", [[5, 65], [0, 3]])
def test_documents_that_are_no_row_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="truncate them first"):
        best_fit_decreasing(np.array(lengths), CONTEXT)
