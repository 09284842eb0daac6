# PYTHON_ARGCOMPLETE_OK
"""python reports/collect.py: what reports read of a folder of runs, small enough to be committed or sent.

The copy has no weights, texts, labels and paths of the machine.
"""

import argparse
import io
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a script: its own folder is on sys.path, the repository with the packages is not
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ablations.ladders import add_ladder_flag, on_ladder
from neobert.command_line import Parser, guarded, refuse_no_folder
from neobert.errors import DamagedFile, MissingData
from neobert.files import json_bytes, read_json, replace_file, whole_lines
from neobert.runs.layout import Layout

if TYPE_CHECKING:
    from reports.evidence import Evidence

File = tuple[Path, bytes]
LEFT_OUT = frozenset({"traceback"})  # of failures: the message is enough, and tracebacks contain local paths
SUMMED = ("real_tokens", "seconds")


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="collect.py",
        description="Copy what make_figures.py reads of a folder of runs: records, run files, forecasts, thinned "
        "curves, scores on resamples in place of predictions. Weights, texts and labels stay where they are, and of "
        "paths of data folders the names are kept. Several folders can be collected into one: runs are named by what "
        "they are.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused, 3 no runs or no record that can be read.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add_ladder_flag(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder to copy to")
    parser.add_argument("--json", action="store_true", help="print what was copied as JSON")
    return parser.parse_args(given)


class Collection:
    """The files of a folder of runs to copy; `problems` has a sentence for each file that cannot be copied."""

    def __init__(self, root: Path, evidence: "Evidence") -> None:
        self._layout, self._evidence = Layout(root), evidence
        self.problems: list[str] = []

    def files(self) -> Iterator[File]:
        """Yield the path of each file relative to the copy, and its content."""
        ladders = ((path, path.read_bytes()) for path in sorted(self._layout.root.glob("ladders/*.py")))
        for path, content in (*self._documents(), *self._curves(), *self._resamples(), *ladders):
            yield path.relative_to(self._layout.root), content

    def _documents(self) -> Iterator[File]:
        """Yield records, run files, forecasts, selections, errors and model descriptions."""
        from neobert.runs.records import record_paths, sealed

        root = self._layout.root
        run_files = [
            path for path in sorted(root.glob("*/**/run.json")) if "attempts" not in path.relative_to(root).parts
        ]
        others = (
            "forecasts/*.json",
            "glue/*/studies/*/selection.json",
            "glue/*/errors/*.json",
            "pretraining/*/error.json",
            "models/*/model.json",
        )
        paths = [*record_paths(root), *run_files, *(path for each in others for path in sorted(root.glob(each)))]
        contents = dict(self._read(paths))
        names = dict(_data_folders(contents[path] for path in run_files if path in contents))
        for path, content in contents.items():
            try:
                cut = without_paths(content, names)
                yield path, sealed(cut) if isinstance(cut, dict) and "checksum" in cut else json_bytes(cut)
            except (ValueError, RecursionError) as error:
                self.problems.append(f"{path} cannot be copied: {error}")

    def _read(self, paths: Iterable[Path]) -> Iterator[tuple[Path, Any]]:
        from neobert.runs.records import read_sealed

        for path in paths:
            try:
                content = read_json(path)
                if isinstance(content, dict) and "checksum" in content:
                    read_sealed(path)  # a copy must not seal what was changed
                yield path, content
            except (DamagedFile, OSError) as error:
                self.problems.append(str(error))

    def _curves(self) -> Iterator[File]:
        for path in sorted(self._layout.root.glob("pretraining/*/metrics.jsonl")):
            try:
                lines = list(thin(whole_lines(path)))
            except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
                self.problems.append(f"the curve of {path}: {error}")
                continue
            yield path, "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines).encode()

    def _resamples(self) -> Iterator[File]:
        """Yield scores on resamples in place of predictions, which are of little use without labels."""
        import numpy as np

        from reports.analysis.resampling import RESAMPLED, StoredPredictions

        trials, stored = self._evidence.trials, StoredPredictions(self._layout.root, self._evidence.studies)
        for task, trial, run in zip(trials.task, trials.id, trials.run, strict=True):
            try:
                scores = stored.resampled(task, trial, run)
            except MissingData:
                continue  # a failed or pruned trial has none; for others the reports will say that none are kept
            buffer = io.BytesIO()
            np.savez_compressed(buffer, allow_pickle=False, **{RESAMPLED: scores})
            yield self._layout.resampled(task, trial), buffer.getvalue()


def _data_folders(run_files: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield the data folders in run files, and their names."""
    for content in run_files:
        source = content.get("source") if isinstance(content, dict) else None
        if isinstance(source, dict):
            unseen = source.get("unseen")
            for path in (source.get("name"), *(unseen if isinstance(unseen, list) else ())):
                if isinstance(path, str) and "/" in path:
                    yield path, Path(path).name


def without_paths(value: Any, names: Mapping[str, str]) -> Any:
    """Replace each folder's path in a JSON value by its name, the longest paths first."""
    if isinstance(value, dict):
        return {key: without_paths(each, names) for key, each in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [without_paths(each, names) for each in value]
    if isinstance(value, str):
        for path in sorted(names, key=len, reverse=True):
            value = value.replace(path, names[path])
    return value


def thin(lines: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics.jsonl with training steps joined into as many stretches as a chart shows: the mean
    step, the mean loss, and the sums of tokens and seconds of each. Held-out losses of all texts stay as they are."""
    from neobert.training.transitions import SMALL_TEXT_LOSS
    from reports.curves import stretches

    for piece in stretches([line for line in lines if "loss" in line]):
        means = {name: statistics.fmean(line[name] for line in piece) for name in ("step", "loss")}
        yield means | {name: sum(line[name] for line in piece) for name in SUMMED if name in piece[0]}
    yield from (dict(line) for line in lines if "heldout_loss" in line or SMALL_TEXT_LOSS in line)


def _collect(arguments: argparse.Namespace) -> int:
    """Copy the files, list on stderr those that cannot be copied, and print how much was written.

    Raises:
        ValueError: the copy would be inside the original or vice versa, or `--out` is a file.
        MissingData: there is no record.
    """
    from reports.evidence import read_evidence

    root, out = arguments.runs, arguments.out
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
