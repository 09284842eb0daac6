"""python reports/collect.py: what reports read of a folder of runs, in one archive that can be committed or sent.

It has no weights, predictions, texts, labels and paths of the machine.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a script: the repository in place of the script's own folder, with its `statistics`
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.launch.flags import add_ladder_flag
from neobert.command_line import Parser, guarded, refuse_no_folder
from neobert.errors import EXIT_DONE, DamagedFile, MissingData

if TYPE_CHECKING:
    from ablations.ladders import Ladder

FOLDERS = re.compile(r"""(?<![\w.-])(?<!:/)(?:~/(?:[^\s/'":,;()<>]+/)*|/(?:[^\s/'":,;()<>]+/)+)""")
"""The folders of an absolute path, or of one below ~; not those of a URL."""
PACKED = frozenset({"numerators", "denominators"})
"""Numbers in base64, which may look like paths."""


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="collect.py",
        description="Collect what make_figures.py reads from a folder of runs into OUT/runs.tar.gz: records, run files "
        "and metrics. Weights, predictions, texts and labels are not collected, and paths are shortened to names. "
        "To collect several folders, restore their archives into one folder.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused, 3 no runs, no record that can be read, or a "
        "damaged archive.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add_ladder_flag(parser)
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--out", type=Path, help="folder to write")
    back = "write the files of this collected folder back into --runs, so that recorded runs are not repeated"
    ways.add_argument("--restore", type=Path, metavar="DIR", help=back)
    parser.add_argument("--json", action="store_true", help="print what was collected as JSON")
    return parser.parse_args(given)


def _collect(arguments: argparse.Namespace, ladder: "Ladder") -> int:
    """Write the archive, list on stderr what cannot be collected, and print how much was written."""
    from neobert.runs.collected import write_archive
    from reports.frames import read_frames

    root, out = arguments.runs, arguments.out
    refuse_no_folder("--out", out)
    if root.resolve() in [out.resolve(), *out.resolve().parents] or out.resolve() in root.resolve().parents:
        raise ValueError(f"--out {out} and --runs {root} lie in each other: choose a folder of its own")
    if any((out / folder).is_dir() for folder in ("pretraining", "glue")):
        raise ValueError(f"--out {out} is a folder of runs, which an archive would hide: choose a folder of its own")
    read_frames(ladder, root)  # refuses a folder without records
    problems: list[str] = []
    files = dict(collected_files(root, problems))
    size = write_archive(out, files)
    for problem in problems:
        print(f"left out: {problem}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"files": len(files), "bytes": size, "left_out": len(problems)}, indent=1))
    else:
        print(f"{len(files)} files of runs, {size / 1e6:.1f} MB in {out}")
        print(f"figures from it: python reports/make_figures.py --runs {out}")
    return EXIT_DONE


def collected_files(root: Path, problems: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the path of each file to collect, relative to the folder of runs, and its content. A changed record or
    curve, and what cannot be read, becomes a sentence in `problems`."""
    from neobert.files import json_bytes, read_json
    from neobert.runs.collected import COLLECTED, RunFiles
    from neobert.runs.records import read_sealed, sealed

    folder = RunFiles(root)
    for path in folder.files(*COLLECTED):
        name = path.relative_to(folder.root).as_posix()
        try:
            if path.suffix != ".json":
                yield name, path.read_bytes()
            else:
                content = read_json(path)
                is_sealed = isinstance(content, dict) and "checksum" in content
                cut = without_paths(read_sealed(path) if is_sealed else content)
                yield name, sealed(cut) if is_sealed else json_bytes(cut)
        except (DamagedFile, OSError, ValueError, RecursionError) as error:
            problems.append(str(error).replace(f"{folder.root}{os.sep}", ""))
    problems += [problem.removesuffix(": left out") for problem in folder.problems]


def without_paths(value: Any) -> Any:
    """Return a JSON value without paths of the machine: of absolute paths the folders are cut. Tracebacks, which are
    full of them, are left out."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key != "traceback"}
        return {key: each if key in PACKED else without_paths(each) for key, each in kept.items()}
    if isinstance(value, list):
        return [without_paths(each) for each in value]
    if not isinstance(value, str) or "/" not in value:
        return value
    if value.startswith(("/", "~/")):  # a path may have blanks
        return Path(value).name
    return FOLDERS.sub("", value)


def _restore(arguments: argparse.Namespace, _ladder: "Ladder") -> int:
    """Write the files of an archive into the folder of runs, except those that are there.

    What needs the weights of a restored run is refused, and all that has a record is done. Records are written last, so
    that a killed command leaves no record without its run file.
    """
    from neobert.files import replace_file
    from neobert.runs.collected import ARCHIVE, COLLECTED, RunFiles
    from neobert.runs.kinds import RECORDS

    refuse_no_folder("--runs", arguments.runs)
    folder = RunFiles(arguments.restore)
    if folder.root == arguments.restore:
        raise MissingData(f"--restore {arguments.restore} holds no {ARCHIVE}: give a folder that --out wrote")
    records, restored = set(folder.files(*RECORDS)), 0
    for path in sorted(folder.files(*COLLECTED), key=lambda path: (path in records, path)):
        target = arguments.runs / path.relative_to(folder.root)
        if not target.exists():
            replace_file(target, path.read_bytes())
            restored += path in records
    for problem in folder.problems:
        print(problem, file=sys.stderr)
    if arguments.json:
        print(json.dumps({"restored": restored, "records": len(records)}, indent=1))
    else:
        print(f"{restored} of {len(records)} records restored in {arguments.runs}; the others are there")
    return EXIT_DONE


def main(given: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = _arguments(given)

    from ablations.loading import load

    act = _collect if arguments.restore is None else _restore
    return guarded("collect.py", lambda: act(arguments, load(arguments.ladder)), arguments.out or arguments.runs)


if __name__ == "__main__":
    sys.exit(main())
