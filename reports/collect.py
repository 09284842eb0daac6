# PYTHON_ARGCOMPLETE_OK
"""python reports/collect.py: what reports read of a folder of runs, in a few files that can be committed or sent.

They have no weights, texts, labels and paths of the machine.
"""

import argparse
import json
import sys
from pathlib import Path

if not __package__:  # run as a script: its own folder is on sys.path, the repository with the packages is not
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ablations.ladders import add_ladder_flag, on_ladder
from neobert.command_line import Parser, guarded, refuse_no_folder
from neobert.errors import EXIT_DONE, MissingData
from neobert.files import json_bytes
from neobert.identity import plain


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="collect.py",
        description="Collect what make_figures.py reads from a folder of runs into a few files: records, run files, "
        "forecasts, thinned curves, and scores on resamples instead of predictions. Weights, texts and labels are not "
        "collected, and paths are shortened to names. Several folders can be collected into one. sha256.json lists "
        "what was collected, and reports check it.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused, 3 no runs, no record that can be read, or a "
        "changed sha256.json.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add_ladder_flag(parser)
    declared = "store this declared study with the copy, for records that were made without it"
    parser.add_argument("--declaration", type=Path, metavar="FILE", help=declared)
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--out", type=Path, help="folder to write")
    back = "write the files of this collected folder back into --runs, so that recorded runs are not repeated"
    ways.add_argument("--restore", type=Path, metavar="DIR", help=back)
    parser.add_argument("--json", action="store_true", help="print what was collected as JSON")
    return parser.parse_args(given)


def _restore(arguments: argparse.Namespace) -> int:
    """Write the files of a collected folder into the folder of runs, except those that are there.

    Weights are not collected: what needs those of a restored run is refused, and all that has a record is done. Records
    are written last, so that a killed command leaves no record without its run file.

    Raises:
        MissingData: the collected folder holds no record, or its list of digests was changed.
        DamagedFile: a link in the folder of runs leads out of it.
    """
    from neobert.files import inside, replace_file
    from neobert.runs.collected import Collected, table_of

    refuse_no_folder("--runs", arguments.runs)
    collected = Collected(arguments.restore)
    records = {path for path in collected.files if table_of(path) == "records.jsonl"}
    if not records:
        raise MissingData(f"--restore {arguments.restore} holds no collected record: give a folder that --out wrote")
    restored = 0
    for path in sorted(collected.files, key=lambda path: (path in records, path)):
        target = inside(arguments.runs, path)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, collected.files[path])
            restored += path in records
    for problem in collected.problems:
        print(problem, file=sys.stderr)
    if arguments.json:
        print(json.dumps({"restored": restored, "records": len(records)}, indent=1))
    else:
        print(f"{restored} of {len(records)} records restored in {arguments.runs}; the others are there")
    return EXIT_DONE


def _collect(arguments: argparse.Namespace) -> int:
    """Write the tables, list on stderr what cannot be collected, and print how much was written.

    What was collected into the folder before stays.

    Raises:
        ValueError: the copy would be inside the original or vice versa, or `--out` is a file or a folder of runs.
        MissingData: there is no record, or a list of digests was changed.
        DamagedFile: a link in `--out` leads out of it.
    """
    from ablations.declarations import kept_as, read_declaration
    from neobert.runs.collected import Collected
    from reports.collection import Collection
    from reports.evidence import read_evidence

    declaration = None if arguments.declaration is None else read_declaration(arguments.declaration)
    root, out = arguments.runs, arguments.out
    _refuse_out(out, root)
    collection, collected = Collection(root, read_evidence(root)), Collected(out)
    files = dict(collection.files())
    if declaration is not None:
        files[kept_as(declaration)] = json_bytes(plain(declaration))
    size = collected.write(files)
    for problem in collection.left_out:
        print(f"left out: {problem}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"files": len(files), "bytes": size, "left_out": len(collection.left_out)}, indent=1))
    else:
        print(f"{len(files)} files of runs, {size / 1e6:.1f} MB in {out}")
        print(f"figures from it: python reports/make_figures.py --runs {out}")
    return EXIT_DONE


def _refuse_out(out: Path, root: Path) -> None:
    refuse_no_folder("--out", out)
    if root.resolve() in [out.resolve(), *out.resolve().parents] or out.resolve() in root.resolve().parents:
        raise ValueError(f"--out {out} and --runs {root} lie in each other: choose a folder of its own")
    if any((out / folder).is_dir() for folder in ("pretraining", "glue")):
        raise ValueError(f"--out {out} is a folder of runs, which tables would hide: choose a folder of its own")


def main(given: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = _arguments(given)
    act = _collect if arguments.restore is None else _restore
    return guarded("collect.py", on_ladder(arguments, act), arguments.out or arguments.runs)


if __name__ == "__main__":
    sys.exit(main())
