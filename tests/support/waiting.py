"""Waiting for something that another process does: never a fixed sleep, always a limit."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def until(
    condition: Callable[[], Value], seconds: float = 120, what: str = "waiting", pause_seconds: float = 0.1
) -> Value:
    """The first true value of `condition`; a TimeoutError says `what` took too long."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(pause_seconds)
    return value
