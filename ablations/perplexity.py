"""The stage `perplexity` of run.py: pseudo-perplexity of all pre-training of a plan, once each. Torch-free."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ablations.plan import Row
from neobert.evaluation.pseudo_perplexity import TEXT_HELP, sample
from neobert.processes import start_child, wait_for, worker_environment
from neobert.runs.layout import Layout
from neobert.runs.specifications import PretrainingRun

COMMAND = "neobert.evaluation.pseudo_perplexity"
STDERR = 2


def pretraining_ids(rows: Sequence[Row]) -> list[str]:
    """The stages of pre-training of a plan, each once."""
    return list(
        dict.fromkeys(unit.run.id for row in rows for unit in row.units if isinstance(unit.run, PretrainingRun))
    )


def add_perplexity_flags(parser: argparse.ArgumentParser) -> None:
    """`--perplexity-text` and `--perplexity-sample`; the command itself has more."""
    group = parser.add_argument_group("pseudo-perplexity", "with --stages … perplexity (Figure 2)")
    group.add_argument("--perplexity-text", type=Path, metavar="PATH", help=TEXT_HELP)
    group.add_argument(
        "--perplexity-sample",
        type=sample,
        default=64,
        metavar="N",
        help="positions of a document, or all (default: 64)",
    )


def perplexity_flags(options: argparse.Namespace) -> list[str]:
    """The same as flags of the command."""
    positions = "all" if options.perplexity_sample is None else str(options.perplexity_sample)
    text = options.perplexity_text
    return ["--sample", positions, *(["--text", str(text.resolve())] if text is not None else [])]


def measure_perplexity(
    layout: Layout, run_ids: Sequence[str], *, threads: int, as_json: bool, flags: Sequence[str] = ()
) -> int:
    """Measure every finished stage with the command's own defaults but `flags`, one after the other; the worst exit
    code.

    With `as_json` its tables go to stderr, so that stdout stays what it is.
    """
    command = [sys.executable, "-m", COMMAND, "--runs", str(layout.root), *flags, "--run"]
    where = STDERR if as_json else None
    codes = [
        code
        for run_id in run_ids
        for code in wait_for([start_child([*command, run_id], worker_environment(threads), stdout=where)])
    ]
    return max(codes, default=0)
