"""An iterator's next items made in a thread, while the last ones are used."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import TypeVar

Item = TypeVar("Item")

DEPTH = 2
POLL_SECONDS = 0.05


class _End:
    """What comes behind the last item: the reason why there is none, None for the iterator's own end."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def ahead(items: Iterator[Item], depth: int = DEPTH) -> Iterator[Item]:
    """The same items, up to `depth` of them made before they are asked for; an error comes where it arose.

    Close the result, or let it go, to end the thread.
    """
    ready: Queue[Item | _End] = Queue(maxsize=depth)
    closing = threading.Event()
    thread = threading.Thread(target=_make, args=(items, ready, closing), name="ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        closing.set()
        with suppress(Empty):
            while True:
                ready.get_nowait()
        if threading.current_thread() is not thread:  # the collector may let go of the result in any thread
            thread.join()


def _make(items: Iterator[Item], ready: "Queue[Item | _End]", closing: threading.Event) -> None:
    error: BaseException | None = None
    try:
        for item in items:
            if not _put(item, ready, closing):
                return
    except BaseException as raised:
        error = raised
    _put(_End(error), ready, closing)


def _put(item: "Item | _End", ready: "Queue[Item | _End]", closing: threading.Event) -> bool:
    """Wait for room; whether there was any before the end."""
    while not closing.is_set():
        with suppress(Full):
            ready.put(item, timeout=POLL_SECONDS)
            return True
    return False
