"""Measurements side by side, and the table of README.md from their result files.

python -m benchmarks [--data DIR]           all of them, one after the other, then the table
python -m benchmarks NAME [--help]          one of them: data_loader, data_tokenize, encoding, glue,
                                            pretraining, pretraining_gpu, scaling_processes, throughput
python -m benchmarks table                  the table alone
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

from benchmarks.measuring import FOLDER, README, SIGNS, Benchmark, between_markers, read_results
from neobert.files import replace_file
from reports.tables import markdown_row

BENCHMARKS = {
    "data_loader": "benchmarks.data:LOADER",
    "data_tokenize": "benchmarks.data:TOKENIZE",
    "encoding": "benchmarks.encoding:ENCODING",
    "glue": "benchmarks.glue:GLUE",
    "pretraining": "benchmarks.pretraining:PRETRAINING",
    "pretraining_gpu": "benchmarks.pretraining:PRETRAINING_GPU",
    "scaling_processes": "benchmarks.pretraining:PROCESSES",
    "throughput": "benchmarks.throughput:THROUGHPUT",
}
"""The location of each `Benchmark`."""

TAKE_DATA = ("encoding", "glue")
"""Benchmarks that use --data of the whole run; the others keep to synthetic data, as in the table."""

BEGIN = "<!-- table: python -m benchmarks table -->"
END = "<!-- end of table -->"
COLUMNS = ("benchmark", "ratio", "goal", "met", "what is compared", "machine", "date")


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 1 if a benchmark did not finish. A missed goal is a result, not a failure."""
    if arguments and arguments[0] in BENCHMARKS:
        benchmark: Benchmark = resolve_name(BENCHMARKS[arguments[0]])
        return benchmark.run(arguments[0], arguments[1:])
    if arguments == ["table"]:
        return write_table()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help=f"data folder for {' and '.join(TAKE_DATA)} (default: synthetic data)")
    options = parser.parse_args(arguments)
    failed, started = [], time.time()
    for name in BENCHMARKS:
        data = ["--data", options.data] if options.data and name in TAKE_DATA else []
        if subprocess.run([sys.executable, "-m", "benchmarks", name, *data], check=False).returncode:
            failed.append(name)
    write_table()
    if kept := [path.stem for path in sorted(FOLDER.glob("*.json")) if path.stat().st_mtime < started]:
        print(f"not measured here, so the results on record stay: {', '.join(kept)}", file=sys.stderr)
    print(f"failed: {', '.join(failed)}" if failed else "all ran", file=sys.stderr)
    return bool(failed)


def write_table() -> int:
    """Print the table of all result files and write it into README.md."""
    results = read_results()
    replace_file(README, with_table(README.read_text(), results).encode())
    print(table(results))
    return 0


def table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table with one row per result."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, results)]
    return "\n".join(map(markdown_row, rows))


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    goal, ratio, machine = result["goal"], result["ratio"], result["machine"]
    return (
        f"[{result['name']}](results/{result['name']}.json)",
        "not measured" if ratio is None else f"{ratio:.2f}",
        f"{SIGNS[goal['side']]} {goal['bound']:g}",
        {True: "yes", False: "no", None: "–"}[result["met"]],
        goal["of"],
        "–" if ratio is None else machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores",
        "–" if ratio is None else result["date"],
    )


def with_table(text: str, results: list[dict[str, Any]]) -> str:
    """Return `text` with the table between its two marker lines.

    Raises:
        ValueError: a marker line is missing.
    """
    return between_markers(text, BEGIN, END, table(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
