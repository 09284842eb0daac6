"""python reports/collect.py: what reports read of a folder of runs, small enough to be committed or sent."""

import argparse
import json
import sys
from pathlib import Path

if not __package__:  # run as a script: its own folder is on sys.path, the repository with the packages is not
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from neobert.command_line import Parser


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="collect.py",
        description="Copy what make_figures.py reads of a folder of runs: records, run files, thinned curves, scores "
        "on resamples in place of predictions. Weights, texts and labels stay where they are, and of paths of data "
        "folders the names are kept. Several folders can be collected into one: runs are named by what they are.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused, 3 no runs or no record that can be read.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    parser.add_argument("--out", type=Path, required=True, help="folder to copy to")
    parser.add_argument("--json", action="store_true", help="print what was copied as JSON")
    return parser.parse_args(given)


def _collect(root: Path, out: Path) -> dict[str, int]:
    """Copy, and name on stderr what cannot be; files and bytes of the copy.

    Raises:
        ValueError: the copy would lie in the original or the other way round, or `out` is a file.
        MissingData: there is no record.
    """
    from neobert.command_line import refuse_no_folder
    from neobert.files import replace_file
    from reports.collecting import Collection
    from reports.trials import read_evidence

    refuse_no_folder("--out", out)
    if root.resolve() in [out.resolve(), *out.resolve().parents] or out.resolve() in root.resolve().parents:
        raise ValueError(f"--out {out} and --runs {root} lie in each other: choose a folder of its own")
    collection = Collection(root, read_evidence(root))
    files = size = 0
    for name, content in collection.files():
        replace_file(out / name, content)
        files, size = files + 1, size + len(content)
    for problem in collection.problems:
        print(f"left out: {problem}", file=sys.stderr)
    return {"files": files, "bytes": size, "left_out": len(collection.problems)}


def main(given: list[str] | None = None) -> int:
    """Run the command; the exit code is the answer."""
    arguments = _arguments(given)
    from neobert.command_line import guarded

    return guarded("collect.py", lambda: _told(arguments), arguments.out)


def _told(arguments: argparse.Namespace) -> int:
    summary = _collect(arguments.runs, arguments.out)
    if arguments.json:
        print(json.dumps(summary, indent=1))
    else:
        print(f"{summary['files']} files, {summary['bytes'] / 1e6:.1f} MB in {arguments.out}")
        print(f"figures from it: python reports/make_figures.py --runs {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
