# PYTHON_ARGCOMPLETE_OK
"""python reports/collect.py: what reports read of a folder of runs, small enough to be committed or sent.

The copy has no weights, texts, labels and paths of the machine.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

if not __package__:  # run as a script: its own folder is on sys.path, the repository with the packages is not
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ablations.ladders import add_ladder_flag, on_ladder
from neobert.command_line import Parser, guarded, refuse_no_folder
from neobert.files import inside, json_bytes, replace_file, sha256_of
from neobert.identity import plain


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="collect.py",
        description="Copy what make_figures.py reads of a folder of runs: records, run files, forecasts, thinned "
        "curves, scores on resamples in place of predictions. Weights, texts and labels stay where they are, and of "
        "paths of folders the names are kept. Several folders can be collected into one: runs are named by what "
        "they are. sha256.json lists the copied files, and reports check it.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused, 3 no runs, no record that can be read, or a "
        "changed sha256.json.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add_ladder_flag(parser)
    declared = "store this declared study with the copy, for records that were made without it"
    parser.add_argument("--declaration", type=Path, metavar="FILE", help=declared)
    parser.add_argument("--out", type=Path, required=True, help="folder to copy to")
    parser.add_argument("--json", action="store_true", help="print what was copied as JSON")
    return parser.parse_args(given)


def _collect(arguments: argparse.Namespace) -> int:
    """Copy the files, list on stderr those that cannot be copied, and print how much was written.

    The copy gets a list of its files with their SHA-256, written last. Files that were collected into it before stay
    listed.

    Raises:
        ValueError: the copy would be inside the original or vice versa, or `--out` is a file.
        MissingData: there is no record, or a list of digests was changed.
        DamagedFile: a link in `--out` leads out of it.
    """
    from ablations.declarations import kept_as, read_declaration
    from reports.collection import Collection
    from reports.evidence import read_evidence
    from reports.folder import COLLECTED, DIGESTS, RunsFolder, digests_bytes

    declaration = None if arguments.declaration is None else read_declaration(arguments.declaration)
    root, out = arguments.runs, arguments.out
    refuse_no_folder("--out", out)
    if root.resolve() in [out.resolve(), *out.resolve().parents] or out.resolve() in root.resolve().parents:
        raise ValueError(f"--out {out} and --runs {root} lie in each other: choose a folder of its own")
    collection, before = Collection(root, read_evidence(root)), RunsFolder(out)
    digests = before.listed
    if digests is None:  # a copy of an early version
        digests = {path.relative_to(out).as_posix(): sha256_of(path) for path in before.files(*COLLECTED)}
    files = size = 0
    declared = [] if declaration is None else [(kept_as(declaration), json_bytes(plain(declaration)))]
    for name, content in (*collection.files(), *declared):
        replace_file(inside(out, name), content)
        digests[name] = hashlib.sha256(content).hexdigest()
        files, size = files + 1, size + len(content)
    listed = digests_bytes(digests)
    replace_file(out / DIGESTS, listed)
    files, size = files + 1, size + len(listed)
    for problem in collection.problems:
        print(f"left out: {problem}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"files": files, "bytes": size, "left_out": len(collection.problems)}, indent=1))
    else:
        print(f"{files} files, {size / 1e6:.1f} MB in {out}")
        print(f"figures from it: python reports/make_figures.py --runs {out}")
    return 0


def main(given: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = _arguments(given)
    return guarded("collect.py", on_ladder(arguments, _collect), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
