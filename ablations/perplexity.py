"""The stage `perplexity` of run.py: pseudo-perplexity of all pre-training of a plan, once each. Torch-free."""

import sys
from collections.abc import Sequence

from ablations.plan import Row
from neobert.launching.here import worker_environment
from neobert.layout import Layout
from neobert.lifeline import start_child, wait_for
from neobert.specifications import PretrainingRun

COMMAND = "neobert.evaluation.pseudo_perplexity"
STDERR = 2


def pretraining_ids(rows: Sequence[Row]) -> list[str]:
    """The stages of pre-training of a plan, each once."""
    return list(
        dict.fromkeys(unit.run.id for row in rows for unit in row.units if isinstance(unit.run, PretrainingRun))
    )


def measure_perplexity(layout: Layout, run_ids: Sequence[str], *, threads: int, as_json: bool) -> int:
    """Measure every finished stage with the command's own defaults, one after the other; the worst exit code.

    With `as_json` its tables go to stderr, so that stdout stays what it is.
    """
    flags = [sys.executable, "-m", COMMAND, "--runs", str(layout.root), "--run"]
    where = STDERR if as_json else None
    codes = [
        code
        for run_id in run_ids
        for code in wait_for([start_child([*flags, run_id], worker_environment(threads), stdout=where)])
    ]
    return max(codes, default=0)
