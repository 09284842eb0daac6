"""Common parts of all commands: one-sentence errors with documented exit codes, diagnostics on stderr, standard streams
that nobody reads, and types that validate flags."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO

from neobert.errors import (
    EXIT_DONE,
    EXIT_MISSING,
    EXIT_OFF,
    EXIT_REFUSED,
    EXIT_REQUEUE,
    EXIT_RUN_FAILED,
    MissingData,
    ParityOff,
    RunFailed,
    exit_code,
)
from neobert.files import reason_of
from neobert.processes import Terminated, ended_by_signals

EXIT_INTERRUPTED = 130
MOST_OF_ANYTHING = 2**31 - 1
MOST_SEED = 2**32 - 1
"""Largest seed. Seeds of steps are multiples of a run's seed and must fit torch's generator (64 bits)."""

_errors_as_json: ContextVar[bool] = ContextVar("errors_as_json", default=False)
"""Whether the running command was given --json."""

ERROR_KINDS = {
    EXIT_RUN_FAILED: "run_failed",
    EXIT_REFUSED: "refused",
    EXIT_MISSING: "missing",
    EXIT_OFF: "off",
    EXIT_REQUEUE: "to_be_continued",
    EXIT_INTERRUPTED: "interrupted",
}
"""By exit code: its `kind` in JSON errors."""


def tell_error(program: str, message: str, code: int) -> None:
    """Print on stderr why a command ends: a sentence, or with --json one line `{"error": {…}}`."""
    said = f"{program}: {message}"
    if _errors_as_json.get():
        error = {"code": code, "kind": ERROR_KINDS.get(code, "run_failed"), "program": program, "message": message}
        said = json.dumps({"error": error})
    try:
        print(said, file=sys.stderr)
    except BrokenPipeError:
        drop(sys.stderr)


def guarded(program: str, action: Callable[[], int], place: Path) -> int:
    """Run an action and return its exit code. Errors that a user can fix are printed on stderr without a traceback.
    Diagnostics go to stderr too.

    SIGTERM and SIGHUP end it like Ctrl-C, but with exit code 75 (to be continued). `place` is named if the system
    reports an error without the name of the file.
    """
    set_up_logging()
    try:
        with ended_by_signals():
            code = action()
            sys.stdout.flush()
            return code
    except (ValueError, MissingData, RunFailed, ParityOff) as error:
        tell_error(program, str(error), exit_code(error))
        return exit_code(error)
    except BrokenPipeError:  # the reader of the output has closed it: `… | head`
        drop(sys.stdout)
        return EXIT_DONE
    except OSError as error:
        flush_output()
        said = reason_of(error) if error.filename else f"{place}: {error.strerror or error}"
        tell_error(program, f"{said}; nothing finished is lost", EXIT_RUN_FAILED)
        return EXIT_RUN_FAILED
    except KeyboardInterrupt:
        tell_error(program, "stopped; the same command goes on with what is missing", EXIT_INTERRUPTED)
        return EXIT_INTERRUPTED
    except Terminated as signal:
        tell_error(program, f"stopped by {signal}; the same command goes on with what is missing", EXIT_REQUEUE)
        return EXIT_REQUEUE


_HANDLER: logging.Handler = logging._StderrHandler(logging.INFO)  # type: ignore[attr-defined]
"""Writes to what `sys.stderr` is when a message comes."""


def set_up_logging(rank: int = 0, ranks: int = 1) -> None:
    """Send the messages of neobert's loggers to stderr; each line names the rank where there are several."""
    _HANDLER.setFormatter(logging.Formatter("%(message)s" if ranks == 1 else f"[rank {rank} of {ranks}] %(message)s"))
    logger = logging.getLogger("neobert")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    if _HANDLER not in logger.handlers:
        logger.addHandler(_HANDLER)


def flush_output() -> None:
    """Write what is buffered for stdout; drop it if its reader has gone or its disk is full."""
    try:
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)


def drop(stream: TextIO) -> None:
    """Send what is buffered for a stream, and what is printed to it from now on, to /dev/null."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def refuse_no_folder(flag: str, folder: Path) -> None:
    """Check that a flag's value is a folder or can become one. Raises ValueError if it or a parent is a file."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ValueError(f"{flag} {folder}: {nearest} is a file; name a folder")


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one sentence and end with exit code 2."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse. From then on errors are JSON if --json is given."""
        given = sys.argv[1:] if args is None else list(args)
        has_flag = "--json" in self._option_string_actions
        _errors_as_json.set(has_flag and any(len(word) > 2 and "--json".startswith(word) for word in given))
        return super().parse_args(args, namespace)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the command, as after --help, whether or not somebody has read all of it."""
        flush_output()
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit. The usage of some commands is longer than a screen: --help has it."""
        words = self.prog.split()
        script = next((word for word in words if word.endswith(".py")), words[-1]).rpartition("/")[2]
        tell_error(script, f"{message}; --help lists the flags", EXIT_REFUSED)
        self.exit(EXIT_REFUSED)


def parser_from(program: str, documentation: str | None) -> Parser:
    """Return a parser whose help is a module's docstring: its first line, then the flags, then the rest. Under
    `python -OO` there is none, and the help has the flags alone."""
    first, _, rest = (documentation or "").partition("\n")
    return Parser(
        prog=program,
        description=first,
        epilog=rest.strip("\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def whole_number(text: str, least: int = 0, most: int = MOST_OF_ANYTHING) -> int:
    """Parse a flag's value: a whole number from `least` to `most`."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most:,}, got {text[:24]!r}")
    return int(text)


count = partial(whole_number, least=1)
seed = partial(whole_number, most=MOST_SEED)


def byte_count(text: str) -> int:
    """Parse a flag's value to bytes: 2000000, 500MB, 1.5TB."""
    letters = text.upper().lstrip("0123456789.")
    number = text[: len(text) - len(letters)]
    factors = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    try:
        size = float(number) * factors[letters]
    except (KeyError, ValueError):
        size = 0.0
    if not 1 <= size <= 1e18:
        raise argparse.ArgumentTypeError(f"expected a size such as 500MB, 20GB or 1.5TB, got {text[:24]!r}")
    return int(size)


def number_above_0(text: str) -> float:
    """Parse a flag's value: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number above 0 and below 1e9, got {text[:24]!r}")
    return value
