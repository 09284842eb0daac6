"""The flags that the sweeps share. Imports nothing heavy, so that --help is quick."""

import argparse
from pathlib import Path

from ablations.flags import add_cluster_flags
from neobert.command_line import count, seed

DEFAULT_RUNS = Path("runs")


def add_common_flags(parser: argparse.ArgumentParser, units: str) -> None:
    """Which model on which data, with which seeds and where; `units` are what a dry run prints."""
    add = parser.add_argument
    scales = ("smoke", "laptop", "proxy", "paper")
    add("--scale", choices=scales, default="smoke", help="of the variant (default: smoke)")
    add("--data", metavar="SOURCE", help="synthetic, hub, or a folder (default: synthetic)")
    seeds = "of fine-tuning (default: as trained)"
    add("--seed", type=seed, nargs="+", action="extend", metavar="N", help=seeds)
    add("--pretraining-seed", type=seed, default=0, metavar="N", help="of the variant (default: 0)")
    add("--workers", type=count, metavar="N", help="processes side by side (default: cores / threads of the scale)")
    add("--runs", type=Path, default=DEFAULT_RUNS, help="folder of runs (default: ./runs)")
    add("--dry-run", action="store_true", help=f"print the {units} and their states, and stop")
    add("--json", action="store_true", help="print JSON on stdout")
    add_cluster_flags(parser)
