"""Measures in which two variants are compared, each with its unit and its margin of equivalence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neobert.glue.tasks import TASKS
from reports.scores import POINTS_OF_SCORE, Estimate, estimate_by_seed

if TYPE_CHECKING:
    import pandas as pd

POINTS, NATS, BITS = "points", "nats per token", "bits per byte"
BLIMP = "BLiMP"
LOSS = "held-out loss"
GLUE = "GLUE average"


@dataclass(frozen=True)
class Measure:
    """A measured quantity. Differences within ±`margin` are equivalent. Higher is better for points, not for losses."""

    name: str
    unit: str
    margin: float

    @property
    def higher_is_better(self) -> bool:
        return self.unit == POINTS

    @property
    def digits(self) -> int:
        """Number of printed decimals."""
        return 2 if self.unit == POINTS else 4


MARGINS: Mapping[str, float] = {
    GLUE: 0.5,  # the smallest change between neighbours in Figure 1 of arXiv 2502.19587
    "a task": 1.0,  # one standard error of a score of 90 on 1,000 examples
    "an MTEB average": 0.5,  # as GLUE's average
    BLIMP: 4.0,  # three times the noise of 67 paradigms, 1.3
    NATS: 0.05,  # the noise of some hundred held-out documents, up to 0.048 in a paired difference
    BITS: 0.016,  # 0.05 nats of a token of 4.5 bytes
}
"""Margins of equivalence in the unit of the measure."""

GLUE_AVERAGE = Measure(GLUE, POINTS, MARGINS[GLUE])
LOSS_IN_NATS, LOSS_IN_BITS = (Measure(LOSS, unit, MARGINS[unit]) for unit in (NATS, BITS))
MINIMAL_PAIRS = Measure(BLIMP, POINTS, MARGINS[BLIMP])


def task_measure(task: str) -> Measure:
    """Return the measure of a task of GLUE or of the ladder."""
    return Measure(TASKS[task].title if task in TASKS else task, POINTS, MARGINS["a task"])


def mteb_measure(suite: str, protocol: str) -> Measure:
    """Return the measure of an average of a suite."""
    return Measure(f"{suite} average, {protocol.replace('_', '-')}", POINTS, MARGINS["an MTEB average"])


def estimate_accuracies(answers: "pd.DataFrame") -> Estimate:
    """Return the accuracies of a readout by seed, in points."""
    return estimate_by_seed(answers.seed, (POINTS_OF_SCORE * each.value for each in answers.answer))
