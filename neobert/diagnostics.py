"""Diagnostics of all commands: one configuration of `logging`.

Modules log to `logging.getLogger(__name__)`. Results go to stdout and progress to stderr, both by `neobert.console`.
"""

import logging
import os
import sys
from typing import TextIO

VARIABLE = "NEOBERT_LOG"
"""Environment variable with the lowest level that is shown: debug, info, warning or error. The default is info."""
LEVELS = ("debug", "info", "warning", "error")


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is when a message comes; tests and notebooks replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


_HANDLER = _Stderr()


def set_up_logging(rank: int = 0, ranks: int = 1) -> None:
    """Send diagnostics of neobert to stderr; each line names the rank where there are several. Raises ValueError if
    NEOBERT_LOG is no level."""
    level = os.environ.get(VARIABLE, "info").lower()
    if level not in LEVELS:
        raise ValueError(f"{VARIABLE}={level}: the levels are {', '.join(LEVELS)}")
    _HANDLER.setFormatter(logging.Formatter("%(message)s" if ranks == 1 else f"[rank {rank} of {ranks}] %(message)s"))
    logger = logging.getLogger("neobert")
    logger.setLevel(level.upper())
    logger.propagate = False
    if _HANDLER not in logger.handlers:
        logger.addHandler(_HANDLER)
