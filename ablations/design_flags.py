"""The flags of run.py that choose a design; imports nothing heavy."""

import argparse


def add_design_flags(parser: argparse.ArgumentParser) -> None:
    """--design, --factors and --fraction."""
    add = parser.add_argument
    kinds = ("ladder", "leave-one-out", "add-one", "factorial")
    add("--design", choices=kinds, help="variants that answer a question, instead of --variant")
    add("--factors", nargs="+", action="extend", metavar="NAME", help="what a design varies: positions, norm, …")
    add("--fraction", choices=("full", "half"), default="full", help="how much of a factorial (default: full)")
