"""A request to stop soon: set by a signal, read between steps, so that work ends at a checkpoint."""

import signal
from types import FrameType

from neobert.errors import RunFailed


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
        self.requested = False

    def listen(self) -> None:
        """Take the signals over; only the main thread of a process may call this."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._note)

    def request(self) -> None:
        """Ask to stop, as a signal does."""
        self.requested = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
