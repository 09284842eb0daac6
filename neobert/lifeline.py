"""Parents and children: signals to a command reach its workers, and no worker outlives its command.

A child holds the reading end of a pipe whose other end its parent alone has. Whatever ends the parent, kill −9 too,
closes it; the child then asks itself to stop, and is killed where it does not within `GRACE_SECONDS`.
"""

import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType

GRACE_SECONDS = 30.0
POLL_SECONDS = 0.1
VARIABLE = "NEOBERT_LIFELINE"
ENDING = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived; like KeyboardInterrupt no error that anything but the command itself may catch."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within, the first SIGTERM or SIGHUP raises Terminated, in whatever wait the main thread is; later ones do
    nothing. Signals that are ignored, as SIGHUP under nohup, stay so."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, lambda *_: None)
        raise Terminated(signal.Signals(number).name)

    is_main = threading.current_thread() is threading.main_thread()
    caught = [number for number in ENDING if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@cache
def _pipe() -> tuple[int, int]:
    """The ends of this process's pipe; never closed, and only the reading one is ever handed on."""
    return os.pipe()


def start_child(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | None = None
) -> "subprocess.Popen[bytes]":
    """Start a process that ends with this one, provided that it calls `end_with_parent`."""
    reading, _ = _pipe()
    variables = {**environment, VARIABLE: str(reading)}
    return subprocess.Popen(command, env=variables, pass_fds=[reading], stdout=stdout)


def end_with_parent() -> None:
    """From now on this process gets SIGTERM when the one that started it as a child has ended, SIGKILL thereafter."""
    with suppress(KeyError, ValueError, OSError):  # nobody's child, or one of a process that closed what it inherited
        descriptor = int(os.environ.pop(VARIABLE))
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            threading.Thread(target=_end_at_the_end_of, args=(descriptor,), daemon=True).start()


def _end_at_the_end_of(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(
    children: Sequence["subprocess.Popen[bytes]"], watch: Callable[[], None] = lambda: None, interval: float = 1.0
) -> list[int]:
    """Wait until all children have ended, calling `watch` every `interval` seconds; their exit codes.

    Ctrl-C, SIGTERM and SIGHUP are passed on at once, and the children waited for, which save what they have. A second
    Ctrl-C kills them.
    """
    try:
        try:
            while any(child.poll() is None for child in children):
                watch()
                _wait_any(children, interval)
        except (KeyboardInterrupt, Terminated):
            for child in children:
                child.terminate()
            raise
        finally:
            codes = [child.wait() for child in children]
    except KeyboardInterrupt:
        for child in children:
            child.kill()
        raise
    return codes


def _wait_any(children: Sequence["subprocess.Popen[bytes]"], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(child.poll() is None for child in children):
        time.sleep(min(POLL_SECONDS, seconds))
