"""Write the table of README.md from the result files: python -m benchmarks.table."""

import sys
from pathlib import Path
from typing import Any

from benchmarks.results import read_results
from neobert.files import replace_file

README = Path(__file__).parent / "README.md"
BEGIN = "<!-- table: python -m benchmarks.table -->"
END = "<!-- end of table -->"
COLUMNS = ("benchmark", "ratio", "goal", "met", "what is compared", "machine", "date")


def table(results: list[dict[str, Any]]) -> str:
    """One row a result, as Markdown."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    goal, ratio, machine = result["goal"], result["ratio"], result["machine"]
    sign = "≥" if goal["side"] == "at least" else "≤"
    return (
        f"[{result['name']}](results/{result['name']}.json)",
        "not measured" if ratio is None else f"{ratio:.2f}",
        f"{sign} {goal['bound']:g}",
        {True: "yes", False: "no", None: "–"}[result["met"]],
        goal["of"],
        "–" if ratio is None else machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores",
        "–" if ratio is None else result["date"],
    )


def with_table(text: str, results: list[dict[str, Any]]) -> str:
    """`text` with the table between its two marker lines.

    Raises:
        ValueError: a marker line is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{README.name} lacks the line {END if begin else BEGIN!r}: put the table between both")
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def main() -> int:
    """The command; prints the table and writes it."""
    results = read_results()
    replace_file(README, with_table(README.read_text(), results).encode())
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
