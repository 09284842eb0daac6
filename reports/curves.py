"""Curves of pre-training from metrics.jsonl, thinned for small charts."""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from neobert.errors import DamagedFile
from neobert.files import require_digest, whole_lines
from neobert.runs.collected import RunFiles
from neobert.runs.layout import Layout

PIECES = 80
READ = ("step", "loss", "real_tokens", "seconds", "heldout_loss")
"""Fields that are read from a line; other fields are ignored."""

UNUSABLE = (DamagedFile, OSError, ValueError, TypeError, AttributeError, KeyError)
"""Exceptions raised on reading a curve that is damaged, or that is of another run."""

Line = dict[str, Any]
Array = NDArray[np.float64]
Points = tuple[tuple[float, float], ...]


class Stage(NamedTuple):
    """A finished stage of pre-training: its index, the run that it continues, its steps, and the SHA-256 of its curve
    (None in older records)."""

    id: str
    number: int
    previous: str | None
    steps: int
    curve_sha256: str | None


class Curves:
    """Reader of metrics.jsonl files; each is read once. Steps are counted over all stages of a run. `problems` has a
    sentence for each unusable file."""

    def __init__(self, files: RunFiles, runs: pd.DataFrame) -> None:
        self._files, self._stages, self._layout = files, stages_of(runs), Layout(files.root)
        self._kept: dict[str, Array] = {}  # as there may be thousands of runs
        self.problems: list[str] = []

    def training(self, run: str) -> Points:
        """Return the training loss of a run, including its earlier stages; empty if a stage has no metrics."""
        if run not in self._kept:
            self._kept[run] = np.array(thinned([line for line in self._lines_of(run) if "loss" in line]))
        return tuple((step, loss) for step, loss in self._kept[run].tolist())

    def _lines_of(self, run: str) -> list[Line]:
        lines: list[Line] = []
        offset = 0
        for stage in stages_up_to(run, self._stages):
            own = self._read(stage)
            if not own:
                return []
            lines += [{**line, "step": line["step"] + offset} for line in own] if offset else own
            offset += stage.steps
        return lines

    def _read(self, stage: Stage) -> list[Line]:
        path = self._layout.pretraining(stage.id) / "metrics.jsonl"
        try:
            if reason := self._files.why_not(path):
                raise DamagedFile(reason)
            return [_checked(line) for line in read_curve(path, stage.curve_sha256)]
        except UNUSABLE as error:
            reason = str(error).replace(f"{self._layout.root}{os.sep}", "")
            problem = f"the curve of {path.relative_to(self._layout.root)} is left out: {reason}"
            self.problems += [] if problem in self.problems else [problem]
            return []


def read_curve(path: Path, sha256: str | None) -> list[Line]:
    """Return the lines of a metrics.jsonl; none if there is no file. `sha256` is that in the record of its run.

    Raises:
        DamagedFile: the file is missing or differs from what the record says.
        ValueError: a line is damaged.
    """
    if sha256 is not None:
        require_digest(path, sha256)
    return whole_lines(path)


def stages_of(runs: pd.DataFrame) -> dict[str, Stage]:
    """Return the finished stages by id."""
    steps = [weights.stages[-1].steps for weights in runs.weights]
    facts = zip(runs.id, runs.stage, runs.previous, steps, runs.curve_sha256, strict=True)
    return {stage[0]: Stage(*stage) for stage in facts}


def stages_up_to(run: str, stages: Mapping[str, Stage]) -> list[Stage]:
    """Return the stages that a run continues, as far as they have records, and the run itself. Cycles are ignored."""
    found = [stages[run]]
    while (previous := stages.get(found[0].previous or "")) is not None and previous.number < found[0].number:
        found.insert(0, previous)
    return found


def _checked(line: Line) -> Line:
    values: Line = {name: float(line[name]) for name in READ if name in line}
    wrong = [name for name, value in values.items() if not 0 <= value < math.inf]
    if wrong or "step" not in values or ("loss" in values and "real_tokens" not in values):
        raise ValueError(f"a line has no usable {', '.join(wrong) or 'step and real_tokens'}")
    return values


def thinned(lines: Sequence[Mapping[str, float]]) -> Points:
    """Return at most PIECES points: the mean step and mean loss of equal stretches of lines."""
    return tuple(
        (statistics.fmean(line["step"] for line in piece), statistics.fmean(line["loss"] for line in piece))
        for piece in stretches(lines)
    )


def stretches(lines: Sequence[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Split lines into at most PIECES stretches of equal length."""
    size = max(1, math.ceil(len(lines) / PIECES))
    return [lines[start : start + size] for start in range(0, len(lines), size)]
