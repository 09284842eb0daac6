"""Curves of pre-training from metrics.jsonl, thinned to what a small picture can show."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.files import whole_lines
from neobert.runs.layout import Layout
from reports.trials import Run

PIECES = 80
READ = ("step", "loss", "real_tokens", "seconds", "heldout_loss")
"""What is read of a line; others may stand in it."""

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Curve:
    """A run from its first stage on: (step, value), with steps counted over all stages.

    `loss` and `tokens_per_second` are means and medians over pieces of the run, `heldout` is as measured.
    """

    seed: int
    loss: Points
    tokens_per_second: Points
    heldout: Points


class Curves:
    """Reads each metrics.jsonl once; `problems` has a sentence for each that cannot be used."""

    def __init__(self, root: Path, runs: Sequence[Run]) -> None:
        self._layout, self._runs = Layout(root), {run.id: run for run in runs}
        self._lines: dict[str, list[dict[str, float]]] = {}
        self.problems: list[str] = []

    def of(self, run: Run) -> Curve | None:
        """The curve of a run and the stages before it; None where some stage has no metrics."""
        lines: list[dict[str, float]] = []
        offset = 0
        for stage in stages_up_to(run, self._runs):
            own = self._read(stage)
            if not own:
                return None
            lines += [{**line, "step": line["step"] + offset} for line in own]
            offset += stage.weights.stages[-1].steps
        steps = [line for line in lines if "loss" in line]
        rates = [{**line, "rate": line["real_tokens"] / line["seconds"]} for line in steps if line.get("seconds")]
        heldout = tuple((line["step"], line["heldout_loss"]) for line in lines if "heldout_loss" in line)
        return Curve(run.seed, _thinned(steps, "loss"), _thinned(rates, "rate"), heldout)

    def _read(self, run: Run) -> list[dict[str, float]]:
        if run.id not in self._lines:
            path = self._layout.pretraining(run.id) / "metrics.jsonl"
            try:
                self._lines[run.id] = [_checked(line) for line in whole_lines(path)]
            except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
                self._lines[run.id] = []
                where = path.relative_to(self._layout.root)
                self.problems.append(f"the curve of {where} is left out: {error}")
        return self._lines[run.id]


def stages_up_to(run: Run, runs: Mapping[str, Run]) -> list[Run]:
    """A run behind the stages that it continues, as far as they have records; never in a circle."""
    stages = [run]
    while (previous := runs.get(stages[0].previous or "")) is not None and previous.stage < stages[0].stage:
        stages.insert(0, previous)
    return stages


def _checked(line: dict[str, Any]) -> dict[str, float]:
    values = {name: float(line[name]) for name in READ if name in line}
    wrong = sorted(name for name, value in values.items() if not (math.isfinite(value) and value >= 0))
    if wrong or "step" not in values or ("loss" in values and "real_tokens" not in values):
        raise ValueError(f"a line has no usable {', '.join(wrong) or 'step and real_tokens'}")
    return values


def _thinned(lines: Sequence[Mapping[str, float]], name: str) -> Points:
    """At most PIECES points: of equal stretches of lines the middle step and the mean, of rates the median."""
    middle = statistics.median if name == "rate" else statistics.fmean
    size = max(1, math.ceil(len(lines) / PIECES))
    pieces = [lines[start : start + size] for start in range(0, len(lines), size)]
    return tuple(
        (statistics.fmean(line["step"] for line in piece), middle(line[name] for line in piece)) for piece in pieces
    )
