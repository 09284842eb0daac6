"""What all commands share: errors as one sentence with the documented exit code, and flags that check themselves."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from neobert.errors import EXIT_DONE, EXIT_REQUEUE, EXIT_RUN_FAILED, MissingData, ParityOff, RunFailed, exit_code
from neobert.lifeline import Terminated, ended_by_signals

EXIT_INTERRUPTED = 130


def guarded(program: str, action: Callable[[], int], place: Path) -> int:
    """The exit code of an action; what a person can fix becomes a sentence on stderr, and no traceback. SIGTERM and
    SIGHUP end it like Ctrl-C, but with the code of what is to be continued.

    `place` is named where the system says that a file cannot be written but not which.
    """
    try:
        with ended_by_signals():
            return action()
    except (ValueError, MissingData, RunFailed, ParityOff) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return exit_code(error)
    except BrokenPipeError:  # whoever read our output has seen enough: `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except OSError as error:
        where = error.filename or place
        print(f"{program}: {where}: {error.strerror or error}; nothing finished is lost", file=sys.stderr)
        return EXIT_RUN_FAILED
    except KeyboardInterrupt:
        print(f"{program}: stopped; the same command goes on with what is missing", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Terminated as signal:
        print(f"{program}: stopped by {signal}; the same command goes on with what is missing", file=sys.stderr)
        return EXIT_REQUEUE


def refuse_no_folder(flag: str, folder: Path) -> None:
    """Check that a flag's value is a folder, or that one can be made there.

    Raises:
        ValueError: it, or what it should lie in, is a file.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ValueError(f"{flag} {folder}: {nearest} is a file; name a folder")


def parser_from(program: str, documentation: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a module's docstring: the first line, and behind the flags its examples."""
    lines = (documentation or "").splitlines()
    return argparse.ArgumentParser(
        prog=program,
        description=lines[0],
        epilog="\n".join(lines[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def whole_number(text: str) -> int:
    """A flag's value from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")
    return int(text)


def count(text: str) -> int:
    """A flag's value from 1."""
    if whole_number(text) == 0:
        raise argparse.ArgumentTypeError("0 is no whole number from 1")
    return int(text)


def byte_count(text: str) -> int:
    """A flag's value in bytes: 2000000, 500MB, 1.5TB."""
    letters = text.upper().lstrip("0123456789.")
    number = text[: len(text) - len(letters)]
    factors = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    try:
        size = int(float(number) * factors[letters])
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 500MB, 20GB or 1.5TB") from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} leaves nothing")
    return size


def positive_number(text: str) -> float:
    """A flag's value above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value
