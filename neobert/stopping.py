"""A request to stop soon: set by a signal, read between steps, so that work ends at a checkpoint."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from neobert.errors import RunFailed

WARNINGS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
POLL_SECONDS = 0.1
Result = TypeVar("Result")


class Stopped(RunFailed):
    """The work was asked to stop, saved what it had, and goes on when started again (exit code 75).

    `progressed` says whether this attempt got further than where it began, so that starting it again makes sense.
    """

    def __init__(self, message: str, *, progressed: bool = False) -> None:
        super().__init__(message)
        self.progressed = progressed


class StopRequest:
    """Whether SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 has arrived since `listen`."""

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
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
            signal.signal(signal.SIGHUP, self._note)

    def request(self) -> None:
        """Ask to stop, as a signal to another process of the same run does."""
        self._asked = True

    def check(self, waiting_for: str) -> None:
        """Call in every wait and between pieces of work that no checkpoint needs.

        Raises:
            Stopped: somebody asked.
        """
        if self.requested:
            raise Stopped(f"asked to stop while waiting for {waiting_for}")

    def outlive(self, action: Callable[[], Result], waiting_for: str) -> Result:
        """The result of a long call into a library that looks at no signal. It is left behind, in a thread that ends
        with the process, where somebody asks to stop: only for what may die at any moment.

        Raises:
            Stopped: somebody asked before it was done.
        """
        results: list[Result] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                results.append(action())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        while thread.is_alive():
            self.check(waiting_for)
            thread.join(POLL_SECONDS)
        if errors:
            raise errors[0]
        return results[0]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.add(number)
