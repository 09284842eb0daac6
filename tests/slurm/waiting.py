"""Waiting for something that another process does: never a fixed sleep, always a limit."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
PAUSE_SECONDS = 0.1


def until(condition: Callable[[], Value], seconds: float, what: str) -> Value:
    """The first true value of ``condition``, asked ten times a second; a TimeoutError says ``what`` took too long."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(PAUSE_SECONDS)
    return value
