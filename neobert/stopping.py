"""A request to stop soon: set by a signal, read between steps, so that work ends at a checkpoint."""

import signal
from types import FrameType

from neobert.errors import RunFailed

WARNINGS = frozenset({signal.SIGUSR1, signal.SIGUSR2})


class Stopped(RunFailed):
    """The work was asked to stop, saved what it had, and goes on when started again (exit code 75).

    `progressed` says whether this attempt got further than where it began, so that starting it again makes sense.
    """

    def __init__(self, message: str, *, progressed: bool = False) -> None:
        super().__init__(message)
        self.progressed = progressed


class StopRequest:
    """Whether SIGINT (Ctrl-C), SIGTERM, SIGUSR1 or SIGUSR2 has arrived since `listen`."""

    def __init__(self) -> None:
        self.signals: set[int] = set()
        self._asked = False

    @property
    def requested(self) -> bool:
        """Whether any of them arrived, or another process asked."""
        return self._asked or bool(self.signals)

    @property
    def was_warned(self) -> bool:
        """Whether a scheduler announced the end: SIGUSR1 or SIGUSR2."""
        return not self.signals.isdisjoint(WARNINGS)

    def listen(self) -> None:
        """Take the signals over; only the main thread of a process may call this."""
        for number in (signal.SIGINT, signal.SIGTERM, *WARNINGS):
            signal.signal(number, self._note)

    def request(self) -> None:
        """Ask to stop, as a signal to another process of the same run does."""
        self._asked = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.add(number)
