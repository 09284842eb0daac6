"""What reports read of a folder of runs, without weights, texts, labels and paths of the machine.

`collect.py` writes it.
"""

import hashlib
import json
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ablations.ladders import HASH_DIGITS, is_as_kept
from neobert.errors import DamagedFile, MissingData
from neobert.files import json_bytes, read_json
from neobert.identity import plain
from neobert.runs.collected import CURVES, DECLARATIONS, DOCUMENTS, LADDERS, RUN_FILES, RunFiles
from neobert.runs.kinds import RECORDS
from neobert.runs.layout import Layout
from neobert.runs.records import pack_numbers, read_sealed, sealed
from neobert.training.transitions import SMALL_TEXT_LOSS
from reports.analysis.resampling import Resamples, StoredPredictions
from reports.curves import UNUSABLE, read_curve, stretches
from reports.evidence import Evidence

File = tuple[Path, bytes]
CURVE = "metrics.jsonl"
FOLDERS = re.compile(r"""(?<![\w.-])(?<!:/)(?:~/(?:[^\s/'":,;()<>]+/)*|/(?:[^\s/'":,;()<>]+/)+)""")
"""The folders of an absolute path, or of one below ~; not those of a URL."""
PACKED = frozenset({"numerators", "denominators"})
"""Numbers in base64, which may look like paths."""
LEFT_OUT = frozenset({"traceback"})  # of failures: the message is enough, and tracebacks contain local paths
SUMMED = ("real_tokens", "seconds")


class Collection:
    """The files of a folder of runs to copy."""

    def __init__(self, root: Path, evidence: Evidence) -> None:
        self._evidence, self._folder = evidence, RunFiles(root)
        self._layout, self._problems = Layout(self._folder.root), self._folder.problems

    @property
    def left_out(self) -> list[str]:
        """A sentence for each file that cannot be copied, as far as `files` has been read."""
        below = f"{self._folder.root}{os.sep}"
        return [problem.replace(below, "").removesuffix(": left out") for problem in self._problems]

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path of each file relative to the copy, and its content."""
        contents = dict(self._read(self._folder.files(*RECORDS, *RUN_FILES, *DOCUMENTS)))
        names = self._names(contents)
        curves = dict(self._curves(contents))
        documents = self._documents(contents, names, curves)
        declarations = ((path, path.read_bytes()) for path in self._folder.files(DECLARATIONS))
        for path, content in chain(documents, curves.items(), self._resamples(), self._ladders(names), declarations):
            yield path.relative_to(self._folder.root).as_posix(), content

    def _read(self, paths: Iterable[Path]) -> Iterator[tuple[Path, Any]]:
        for path in paths:
            try:
                content = read_json(path)
                if isinstance(content, dict) and "checksum" in content:
                    read_sealed(path)  # a copy must not seal what was changed
                yield path, content
            except (DamagedFile, OSError) as error:
                self._problems.append(str(error))

    def _names(self, contents: Mapping[Path, Any]) -> dict[str, str]:
        """Return what stands for a path of this machine: the names of the folders of runs, texts and models."""
        root, home = self._layout.root, Path.home()
        known = [str(root.absolute()), str(root.resolve())]
        for path, content in contents.items():
            if path.name in ("run.json", "model.json"):
                known += _folders_named_in(content)
        names = {path: Path(path).name for path in known if Path(path).name}
        return {str(home): "~", **names} if home.name else names

    def _documents(
        self, contents: Mapping[Path, Any], names: Mapping[str, str], curves: Mapping[Path, bytes]
    ) -> Iterator[File]:
        """Yield records, run files, forecasts, selections, errors and model descriptions. A record has the SHA-256 of
        its curve as it is in the copy."""
        for path, content in contents.items():
            curve = curves.get(path.with_name(CURVE))
            try:
                cut = without_paths(content, names)
                if curve is not None and _curve_digest(path, content) is not None:
                    cut = {**cut, "sha256": {**cut["sha256"], "metrics": hashlib.sha256(curve).hexdigest()}}
                yield path, sealed(cut) if isinstance(cut, dict) and "checksum" in cut else json_bytes(cut)
            except (ValueError, RecursionError) as error:
                self._problems.append(f"{path} cannot be copied: {error}")

    def _curves(self, contents: Mapping[Path, Any]) -> Iterator[File]:
        """Yield the thinned curves. That of a finished run must be the one that its record names."""
        expected = {
            path.with_name(CURVE): sha256
            for path, content in contents.items()
            if (sha256 := _curve_digest(path, content)) is not None
        }
        gone = [path for path in expected if not os.path.lexists(path)]
        for path in sorted([*self._folder.files(CURVES), *gone]):
            try:
                lines = list(thin(read_curve(path, expected.get(path))))
            except UNUSABLE as error:
                self._problems.append(f"the curve of {path}: {error}")
                continue
            yield path, "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines).encode()

    def _resamples(self) -> Iterator[File]:
        """Yield scores on resamples in place of predictions, which are of little use without labels."""
        trials, stored = self._evidence.trials, StoredPredictions(self._folder.root, self._evidence.studies)
        for task, trial, run in zip(trials.task, trials.id, trials.run, strict=True):
            try:
                scores = stored.resampled(task, trial, run)
            except MissingData as error:
                # A failed trial has none; of others the reports say that no predictions are kept.
                if os.path.lexists(self._layout.resampled(task, trial)):
                    self._problems.append(f"the scores on resamples of {task} trial {trial}: {error}")
                continue
            content = plain(Resamples(scores=pack_numbers(scores, "<f8")))
            yield self._layout.resampled(task, trial), json_bytes(content)

    def _ladders(self, names: Mapping[str, str]) -> Iterator[File]:
        """Yield ladder files; one with a path of this machine gets the name of its new content."""
        for path in self._folder.files(LADDERS):
            content = path.read_bytes()
            if not is_as_kept(path, content):
                self._problems.append(f"{path} is not what runs were planned from: its SHA-256 is not that in its name")
                continue
            cut = _with_names(content.decode(errors="surrogateescape"), names).encode(errors="surrogateescape")
            digest = hashlib.sha256(cut).hexdigest()[:HASH_DIGITS]
            yield path if cut == content else self._layout.ladder(path.stem.rpartition("-")[0], digest), cut


def _folders_named_in(content: Any) -> Iterator[str]:
    """Yield the folders of texts in a run file, or the folder of a model in its description."""
    source = content.get("source") if isinstance(content, dict) else None
    if isinstance(source, dict):
        unseen = source.get("unseen")
        for path in (source.get("name"), *(unseen if isinstance(unseen, list) else ())):
            if isinstance(path, str) and "/" in path:
                yield path
    folder = content.get("folder") if isinstance(content, dict) else None
    if isinstance(folder, str):
        yield folder


def _curve_digest(path: Path, content: Any) -> str | None:
    """Return the SHA-256 of the curve that a record names; None if it names none, or the file is no record of a run."""
    digests = content.get("sha256") if path.name == "done.json" and isinstance(content, dict) else None
    sha256 = digests.get("metrics") if isinstance(digests, dict) else None
    return sha256 if isinstance(sha256, str) else None


def without_paths(value: Any, names: Mapping[str, str]) -> Any:
    """Return a JSON value without paths of the machine: folders in `names` are replaced by their names, the longest
    first, and of other absolute paths the folders are cut."""
    if isinstance(value, dict):
        return {
            key: each if key in PACKED else without_paths(each, names)
            for key, each in value.items()
            if key not in LEFT_OUT
        }
    if isinstance(value, list):
        return [without_paths(each, names) for each in value]
    if isinstance(value, str) and "/" in value:
        return FOLDERS.sub("", _with_names(value, names))
    return value


def _with_names(text: str, names: Mapping[str, str]) -> str:
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    return text


def thin(lines: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a metrics.jsonl with training steps joined into as many stretches as a chart shows: the mean
    step, the mean loss, and the sums of tokens and seconds of each. Held-out losses stay as they are."""
    for piece in stretches([line for line in lines if "loss" in line]):
        means = {name: statistics.fmean(line[name] for line in piece) for name in ("step", "loss")}
        yield means | {name: sum(line[name] for line in piece) for name in SUMMED if name in piece[0]}
    yield from (dict(line) for line in lines if "heldout_loss" in line or SMALL_TEXT_LOSS in line)
