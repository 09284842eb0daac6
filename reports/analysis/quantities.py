"""Measured quantities: GLUE, held-out losses and readouts, each with its unit and equivalence margin."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import pandas as pd

from ablations.declarations import MINIMAL_PAIRS, PROTOCOL
from neobert.kinds.readouts import ReadoutName
from reports.scores import POINTS_OF_SCORE, Estimate, estimate_by_seed

BITS = "bits per byte"
POINTS, NATS = "points", "nats per token"


@dataclass(frozen=True)
class Units:
    """One model's numbers by unit (a document, a stretch of text, an item), packed as in records. Its value is `factor`
    times the sum of numerators over the sum of denominators."""

    numerators: str
    denominators: str | None
    units: int
    factor: float = 1.0


@dataclass(frozen=True)
class Quantity:
    """A measured quantity. Differences within ±`margin` are equivalent; `reason` justifies the margin. Higher is better
    for points, lower for all other units. `shares_tokens` restricts comparisons to models with the same tokenizer."""

    name: str
    unit: str
    reason: str
    shares_tokens: bool = False

    @property
    def margin(self) -> float:
        """Bound of equivalence without a declaration."""
        return PROTOCOL.margins[self.name]

    @property
    def better(self) -> str:
        """Better direction: "higher" or "lower"."""
        return "higher" if self.unit == POINTS else "lower"

    @property
    def digits(self) -> int:
        """Number of printed decimals."""
        return 2 if self.unit == POINTS else 4

    @property
    def factor(self) -> int:
        """Factor from the values of records to the unit."""
        return POINTS_OF_SCORE if self.unit == POINTS else 1


_OF_BITS = Quantity(BITS, "bits per byte", "the 0.05 nats of a token of 4.5 bytes")
_OTHERS = (
    Quantity("GLUE", POINTS, "the smallest change between neighbours in Figure 1 of arXiv 2502.19587"),
    Quantity("loss", NATS, "the noise of some hundred held-out documents, up to 0.048 in a paired difference"),
)
_ONE_MIB = "as other losses; a MiB of text has a noise of 0.006 in a paired difference"
_WORDS = "as bits per byte; the words of a MiB of text have a noise of 0.0025"
READOUTS: Mapping[ReadoutName, Quantity] = {
    "words": Quantity("whole words", "bits per byte", _WORDS),
    "cloze": Quantity("cloze", POINTS, "three times the noise of 1,000 items, 1.0"),
    "blimp": Quantity(MINIMAL_PAIRS, POINTS, "three times the noise of 67 paradigms, 1.3"),
    "loss": Quantity("loss, all [MASK]", NATS, _ONE_MIB, shares_tokens=True),
    "loss_80_10_10": Quantity("loss, 80/10/10", NATS, "the same", shares_tokens=True),
}
"""Readouts in the order of tables."""
QUANTITIES: Mapping[str, Quantity] = {each.name: each for each in (_OF_BITS, *READOUTS.values(), *_OTHERS)}
"""All quantities in the order of tables: bits per byte first."""


def quantity_of(readout: str) -> Quantity:
    """Return the quantity of a readout; one that a ladder declares is an accuracy, without a margin."""
    declared = READOUTS.get(cast(ReadoutName, readout))
    return Quantity(readout, POINTS, "accuracies of items that a ladder declares") if declared is None else declared


def estimate_answers(answers: pd.DataFrame, quantity: str) -> Estimate:
    """Return the values of one readout by seed, in its unit."""
    return estimate_by_seed(answers.seed, (QUANTITIES[quantity].factor * each.value for each in answers.answer))


def name_measurement(quantity: str, corpus: str, context: int | None = None) -> str:
    """Return the name of a measurement: the quantity, with the corpus and the context where given."""
    return quantity + (f" on {corpus}" if corpus else "") + (f", {context} tokens" if context else "")
