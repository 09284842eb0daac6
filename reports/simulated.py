"""Tables of simulations: printed, or written into a page between its markers."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from neobert.errors import EXIT_DONE, EXIT_REFUSED
from neobert.files import replace_file

PLACE = re.compile(r"(<!-- simulation -->\n).*?(<!-- end of simulation -->)", re.DOTALL)


def add_page_flag(parser: argparse.ArgumentParser) -> None:
    """Add --page."""
    parser.add_argument("--page", type=Path, help="page whose tables are written; default: print them")


def print_tables(parser: argparse.ArgumentParser, page: Path | None, make: Callable[[], Iterable[str]]) -> int:
    """Make the lines of the tables, and print them or write them into the page; return the exit code (2: it cannot be
    read or has no markers, and nothing was made)."""
    if page is None:
        print("\n".join(make()))
        return EXIT_DONE
    try:
        text = page.read_text(encoding="utf-8")
        if not PLACE.search(text):
            raise ValueError("the page has no lines <!-- simulation --> and <!-- end of simulation -->")
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {page}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    lines = "\n".join(make())
    replace_file(page, PLACE.sub(lambda found: f"{found[1]}{lines}\n{found[2]}", text).encode())
    return EXIT_DONE
