"""Errors that a user may meet, and their exit codes.

A refused configuration is a plain `ValueError`; `exit_code` maps it to 2.
"""

import difflib
from collections.abc import Iterable, Sequence

EXIT_DONE = 0
EXIT_RUN_FAILED = 1
EXIT_REFUSED = 2
EXIT_MISSING = 3
EXIT_OFF = 4
EXIT_REQUEUE = 75


class MissingData(Exception):
    """Data or a run that the command needs is missing."""


class ChangedData(MissingData):
    """The data differ from those that the work was planned with."""


class RunFailed(Exception):
    """Work started but could not be finished."""


class DamagedFile(RunFailed):
    """A file does not match its checksum or cannot be parsed."""


class ParityOff(Exception):
    """Results that must be equal are not."""


def exit_code(error: BaseException) -> int:
    """Return the documented exit code of an error."""
    codes = {ValueError: EXIT_REFUSED, MissingData: EXIT_MISSING, ParityOff: EXIT_OFF}
    return next((code for kind, code in codes.items() if isinstance(error, kind)), EXIT_RUN_FAILED)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a phrase with the nearest known words, or with all of them if none is near."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, names, n=2, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(repr(name) for name in near)}?"
    return f"known: {', '.join(names)}"


def name_first(names: Sequence[str], most: int = 3) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
