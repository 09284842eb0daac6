"""Items made ahead are the same ones, in a thread that ends with whoever takes them."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.training.trainer import prefetch
from tests.support.waiting import until


def threads() -> int:
    """Threads that make items now."""
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


class Made:
    """Counts up, and knows how far it is."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.count = 0
        self.fails_at = fails_at

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.count == self.fails_at:
            raise OSError("the shard is gone")
        self.count += 1
        return self.count


@given(items=st.lists(st.none() | st.integers()), depth=st.integers(1, 5))
def test_the_items_are_the_same(items: list[int | None], depth: int) -> None:
    assert list(prefetch(iter(items), depth)) == items
    until(lambda: threads() == 0, pause_seconds=0.001)


@given(before=st.integers(0, 6), depth=st.integers(1, 4))
def test_an_error_comes_where_it_arose(before: int, depth: int) -> None:
    taken = []
    with pytest.raises(OSError, match="the shard is gone"):
        for item in prefetch(Made(fails_at=before), depth):
            taken.append(item)
    assert taken == list(range(1, before + 1))
    until(lambda: threads() == 0, pause_seconds=0.001)


@given(taken=st.integers(1, 6), depth=st.integers(1, 4))
def test_no_more_is_made_than_asked_for(taken: int, depth: int) -> None:
    made = Made()
    items = prefetch(made, depth)
    for _ in range(taken):
        next(items)
    pending = items.gi_frame.f_locals["pending"]  # type: ignore[attr-defined]
    until(lambda: all(future.done() for future in pending), pause_seconds=0.001)
    assert made.count == taken + depth
    items.close()  # type: ignore[attr-defined]
    until(lambda: threads() == 0, pause_seconds=0.001)
