"""Measurements side by side with other libraries, and the table of README.md from their result files.

python -m benchmarks [--data DIR]      all of them, one after the other, then the table
python -m benchmarks NAME              one of them
python -m benchmarks table             the table alone
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from benchmarks.measuring import OPERATIONS_RATIO, three_digits, write_result
from neobert.command_line import guarded, parser_from
from neobert.files import read_json, replace_file
from neobert.processes import gpu_variables
from reports.tables import markdown_row

BENCHMARKS = {
    "data_tokenize": "benchmarks.data:measure",
    "encoding": "benchmarks.encoding:measure",
    "glue": "benchmarks.glue:measure",
    "pretraining": "benchmarks.pretraining:measure",
    "throughput": "benchmarks.throughput:measure",
}
"""The location of each function that yields the results that can be measured here."""

HERE = Path(__file__).parent
FOLDER, README = HERE / "results", HERE / "README.md"
GOALS = read_json(HERE / "goals.json")
BEGIN, END = "<!-- table: python -m benchmarks table -->", "<!-- end of table -->"
COLUMNS = ("benchmark", "ratio", "goal", "met", "at equal operations", "what is compared", "machine", "date")


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 1 if a benchmark did not finish. A missed goal is a result, not a failure."""
    parser = parser_from("python -m benchmarks", __doc__)
    parser.add_argument("name", nargs="?", choices=[*BENCHMARKS, "table"], help="default: all, then the table")
    parser.add_argument("--data", help="folder with glue, corpora and tokenizers, for glue (default: synthetic data)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the results (default: benchmarks/results)")
    options = parser.parse_args(arguments)
    if options.name == "table":
        return write_table()
    if options.name:
        return guarded("benchmarks", lambda: measure(options), options.folder)
    commands = [[sys.executable, "-m", "benchmarks", name, *arguments] for name in BENCHMARKS]
    codes = [subprocess.run(command, check=False).returncode for command in commands]
    write_table()
    return int(any(codes))


def measure(options: argparse.Namespace) -> int:
    """Run one benchmark and write its results. What it does not measure here keeps the result on record."""
    for result in resolve_name(BENCHMARKS[options.name])(options):
        write_result(result, GOALS[result.name], options.folder)
    return 0


def write_table() -> int:
    """Print the table of all result files and write it into README.md."""
    shown = table(read_results())
    (before, _), (_, after) = (README.read_text().split(marker) for marker in (BEGIN, END))
    replace_file(README, f"{before}{BEGIN}\n{shown}\n{END}{after}".encode())
    print(shown)
    return 0


def read_results(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Read all result files, sorted by name."""
    return [read_json(path) for path in sorted(folder.glob("*.json"))]


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with one row per result, and a line that names the goals without a result."""
    rows = "\n".join(map(markdown_row, [COLUMNS, ("---",) * len(COLUMNS), *map(_row, results)]))
    lacking = sorted(set(GOALS) - {result["name"] for result in results})
    others = ", ".join(f"`{name}` (≥ {GOALS[name]['bound']:g})" for name in lacking)
    return f"{rows}\n\nNot measured: {others}." if others else rows


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    machine, equal, spread = result["machine"], result["figures"].get(OPERATIONS_RATIO), result.get("range")
    return (
        f"[{result['name']}](results/{result['name']}.json)",
        three_digits(result["ratio"]) + (f" ({' to '.join(map(three_digits, spread))})" if spread else ""),
        f"≥ {result['goal']['bound']:g}",
        f"open: {result['open']}" if result.get("open") else "yes" if result["met"] else "**missed**",
        "–" if equal is None else f"{equal:.3g}",
        result["goal"]["of"],
        machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores",
        result["date"],
    )


if __name__ == "__main__":
    # As in workers. Read while torch is imported, so for a new start. Threads that spin on shared cores would block
    # those that they wait for.
    variables = {"OMP_WAIT_POLICY": "PASSIVE"} | gpu_variables(os.environ)
    if not variables.keys() <= os.environ.keys():
        environment = variables | os.environ
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], environment)
    sys.exit(main(sys.argv[1:]))
