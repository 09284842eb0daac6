"""Curves of pre-training from metrics.jsonl, thinned for small charts."""

import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from neobert.errors import DamagedFile
from neobert.files import require_digest, whole_lines
from neobert.runs.layout import Layout

PIECES = 80
UNUSABLE = (DamagedFile, OSError, ValueError, TypeError, AttributeError, KeyError)
"""Exceptions raised on reading a curve that is damaged, or that is of another run."""

Array = NDArray[np.float64]
Points = tuple[tuple[float, float], ...]


class Curves:
    """Reader of metrics.jsonl files; each is read once. Steps are counted over all stages of a run. `problems` has a
    sentence for each unusable file."""

    def __init__(self, root: Path, runs: pd.DataFrame) -> None:
        self._layout = Layout(root)
        self._runs = {run.id: run for run in runs.itertuples()}
        self._kept: dict[str, Array] = {}  # as there may be thousands of runs
        self.problems: list[str] = []

    def training(self, run: str) -> Points:
        """Return the training loss of a run, including its earlier stages; empty if a stage has no metrics."""
        if run not in self._kept:
            self._kept[run] = np.array(thinned(self._points_of(run)))
        return tuple((step, loss) for step, loss in self._kept[run].tolist())

    def _points_of(self, run: str) -> list[tuple[float, float]]:
        points: list[tuple[float, float]] = []
        offset = 0
        for stage in self.stages_up_to(run):
            own = self._read(stage.id, stage.curve_sha256)
            if not own:
                return []
            points += [(step + offset, loss) for step, loss in own]
            offset += stage.weights.stages[-1].steps
        return points

    def stages_up_to(self, run: str) -> list[Any]:
        """Return the rows of the runs that a run continues, as far as they have records, and its own. Cycles are
        ignored."""
        found = [self._runs[run]]
        while (previous := self._runs.get(found[0].previous)) is not None and previous.stage < found[0].stage:
            found.insert(0, previous)
        return found

    def _read(self, run: str, sha256: str | None) -> list[tuple[float, float]]:
        """Return step and training loss of each line of a metrics.jsonl that has one; none if there is no file, or if
        it differs from what the record says."""
        path = self._layout.pretraining(run) / "metrics.jsonl"
        try:
            if sha256 is not None:
                require_digest(path, sha256)
            return [_point(line) for line in whole_lines(path) if "loss" in line]
        except UNUSABLE as error:
            reason = str(error).replace(f"{self._layout.root}{os.sep}", "")
            problem = f"the curve of {path.relative_to(self._layout.root)} is left out: {reason}"
            self.problems += [] if problem in self.problems else [problem]
            return []


def _point(line: dict[str, Any]) -> tuple[float, float]:
    step, loss = float(line["step"]), float(line["loss"])
    if not (0 <= step < math.inf and 0 <= loss < math.inf):
        raise ValueError(f"a line has step {step} and loss {loss}")
    return step, loss


def thinned(points: Sequence[tuple[float, float]]) -> Points:
    """Return at most PIECES points: the mean step and mean loss of equal stretches."""
    size = max(1, math.ceil(len(points) / PIECES))
    stretches = [zip(*points[start : start + size], strict=True) for start in range(0, len(points), size)]
    return tuple((statistics.fmean(steps), statistics.fmean(losses)) for steps, losses in stretches)
