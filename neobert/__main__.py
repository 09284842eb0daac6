"""neobert-ablations, also `python -m neobert`: all commands of the harness under one name.

neobert-ablations run --variant M7 --dry-run       the same as python ablations/run.py --variant M7 --dry-run
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from neobert.errors import EXIT_DONE, EXIT_REFUSED, did_you_mean

PROGRAM = "neobert-ablations"
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("ablations.run", "run variants of the ladder: pre-training, GLUE and more"),
    "status": ("ablations.status", "show the state of every run"),
    "prefetch": ("ablations.prefetch", "download the data of variants"),
    "grid": ("sweeps.glue_grid", "run the GLUE grid of a pre-trained model"),
    "rates": ("sweeps.learning_rates", "search the peak learning rate of pre-training"),
    "mteb": ("sweeps.mteb_suite", "fine-tune contrastively and evaluate on MTEB"),
    "figures": ("reports.make_figures", "make figures, tables and the page from records"),
    "collect": ("reports.collect", "collect the records of a folder of runs in one archive"),
    "export": ("neobert.export.__main__", "export a checkpoint for another library"),
}
"""Modules with a function `main(arguments)`, and what they do. A module is imported when its command runs."""


def usage() -> str:
    """Return the list of all commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join([f"usage: {PROGRAM} COMMAND …", "", *lines, "", f"{PROGRAM} COMMAND --help lists its flags."])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; return its exit code (2 if there is none of this name)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return EXIT_DONE if given else EXIT_REFUSED
    name, *others = given
    if name not in COMMANDS:
        print(f"{PROGRAM}: {name!r} is no command: {did_you_mean(name, COMMANDS)}", file=sys.stderr)
        return EXIT_REFUSED
    command: Callable[[Sequence[str]], int] = import_module(COMMANDS[name][0]).main
    return command(others)


if __name__ == "__main__":
    sys.exit(main())
