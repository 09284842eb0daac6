"""Measurements side by side with other libraries, and the table of README.md from their result files.

python -m benchmarks [--data DIR]      all of them, one after the other, then the table
python -m benchmarks NAME              one of them
python -m benchmarks table             the table alone
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from benchmarks.measuring import OPERATIONS_RATIO, Benchmark, Result, write_result
from neobert.command_line import count, guarded, parser_from
from neobert.files import read_json, replace_file
from reports.tables import markdown_row

BENCHMARKS = {
    "data_loader": "benchmarks.data:LOADER",
    "data_tokenize": "benchmarks.data:TOKENIZE",
    "encoding": "benchmarks.encoding:ENCODING",
    "glue": "benchmarks.glue:GLUE",
    "pretraining": "benchmarks.pretraining:PRETRAINING",
    "pretraining_gpu": "benchmarks.pretraining:PRETRAINING_GPU",
    "throughput": "benchmarks.throughput:THROUGHPUT",
}
"""The location of each `Benchmark`."""

FOLDER, README = Path(__file__).parent / "results", Path(__file__).parent / "README.md"
BEGIN, END = "<!-- table: python -m benchmarks table -->", "<!-- end of table -->"
COLUMNS = ("benchmark", "ratio", "goal", "met", "at equal operations", "what is compared", "machine", "date")


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 1 if a benchmark did not finish. A missed goal is a result, not a failure."""
    parser = parser_from("python -m benchmarks", __doc__)
    parser.add_argument("name", nargs="?", choices=[*BENCHMARKS, "table"], help="default: all, then the table")
    parser.add_argument("--data", help="folder with glue, corpora and tokenizers, for glue (default: synthetic data)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the results (default: benchmarks/results)")
    parser.add_argument("--repetitions", type=count, help="of each side (default: that of the benchmark)")
    parser.add_argument("--steps", type=count, help="timed at a time (default: those of the benchmark)")
    parser.add_argument("--lengths", type=count, nargs="+", help="of throughput, in tokens (default: as in the paper)")
    options = parser.parse_args(arguments)
    if options.name == "table":
        return write_table()
    if options.name:
        return guarded("benchmarks", lambda: measure(options), options.folder)
    failed, started = [], time.time()
    for name in BENCHMARKS:
        if subprocess.run([sys.executable, "-m", "benchmarks", name, *arguments], check=False).returncode:
            failed.append(name)
    write_table()
    if kept := [path.stem for path in sorted(FOLDER.glob("*.json")) if path.stat().st_mtime < started]:
        print(f"not measured here, so the results on record stay: {', '.join(kept)}", file=sys.stderr)
    print(f"failed: {', '.join(failed)}" if failed else "all ran", file=sys.stderr)
    return bool(failed)


def measure(options: argparse.Namespace) -> int:
    """Run one benchmark and write its results. A goal without a result is recorded as not measured, unless there is an
    earlier result."""
    benchmark: Benchmark = resolve_name(BENCHMARKS[options.name])
    before = os.getloadavg()
    for result in benchmark.measure(options):
        loads = {"load_before": before, "load_after": os.getloadavg()}
        rounded = {name: [round(load, 2) for load in found] for name, found in loads.items()}
        write_result(result._replace(figures=result.figures | rounded), benchmark.goals[result.name], options.folder)
    for name, goal in benchmark.goals.items():
        if not (options.folder / f"{name}.json").exists():
            write_result(Result(name, None, {}), goal, options.folder)
    return 0


def write_table() -> int:
    """Print the table of all result files and write it into README.md."""
    results = read_results()
    replace_file(README, with_table(README.read_text(), results).encode())
    print(table(results))
    return 0


def read_results(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """Read all result files, sorted by name."""
    return [read_json(path) for path in sorted(folder.glob("*.json"))]


def table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per result, and a line that names what was not measured."""
    measured = [result for result in results if result["ratio"] is not None]
    rows = "\n".join(map(markdown_row, [COLUMNS, ("---",) * len(COLUMNS), *map(_row, measured)]))
    others = [f"`{result['name']}` ({_bound(result)})" for result in results if result["ratio"] is None]
    return f"{rows}\n\nNot measured: {', '.join(others)}." if others else rows


def _bound(result: dict[str, Any]) -> str:
    return f"{'≥' if result['goal']['side'] == 'at least' else '≤'} {result['goal']['bound']:g}"


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    machine, equal = result["machine"], result["figures"].get(OPERATIONS_RATIO)
    return (
        f"[{result['name']}](results/{result['name']}.json)",
        f"{result['ratio']:.3g}",
        _bound(result),
        "yes" if result["met"] else "**missed**",
        "–" if equal is None else f"{equal:.3g}",
        result["goal"]["of"],
        machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores",
        result["date"],
    )


def with_table(text: str, results: list[dict[str, Any]]) -> str:
    """Return `text` with the table between its two marker lines.

    Raises:
        ValueError: a marker line is missing.
    """
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{README.name} lacks the line {END if found else BEGIN!r}: put the table between both")
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
