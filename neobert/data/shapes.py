"""Sizes of a micro-batch: as small as they can be, or so few different ones that a compiled model sees them again.
Torch-free."""

import math
from dataclasses import dataclass
from typing import Protocol

MULTIPLE = 8
"""Kernels like sizes that are multiples of this."""

ROW_STEPS = 4
"""Different numbers of rows that a micro-batch may have when sizes are fixed."""

FULLEST_ROW_DEVIATIONS = 4
"""How many standard deviations more predicted tokens than the mean one the fullest row of a batch may have."""


def multiple(number: float, of: int = MULTIPLE) -> int:
    """`number` rounded up."""
    return math.ceil(number / of) * of


class Shapes(Protocol):
    """How large the parts of a micro-batch are that need so many entries."""

    def rows(self, needed: int) -> int:
        """Rows of tokens."""

    def row_slots(self, needed: int, context: int) -> int:
        """Queries of a row in the last block."""

    def slots(self, needed: int, rows: int) -> int:
        """Predicted tokens."""

    def documents(self, needed: int, rows: int) -> int:
        """Documents, filler at the end of a row counted as one."""


@dataclass(frozen=True)
class Exact:
    """What is needed and no more, rounded up; `least_rows` of them."""

    least_rows: int = 0

    def rows(self, needed: int) -> int:
        return max(self.least_rows, needed)

    def row_slots(self, needed: int, context: int) -> int:
        return multiple(max(1, needed))

    def slots(self, needed: int, rows: int) -> int:
        return multiple(max(1, needed))

    def documents(self, needed: int, rows: int) -> int:
        return needed


@dataclass(frozen=True)
class Fixed:
    """What a batch of so many rows usually needs; a quarter more as often as it takes where that is too little.

    Rows come in steps of a quarter of `most_rows`. `rate` of the tokens are predicted, and a document has
    `document_tokens` in the mean.
    """

    most_rows: int
    context: int
    rate: float
    document_tokens: float

    def rows(self, needed: int) -> int:
        step = max(1, self.most_rows // ROW_STEPS)
        return multiple(max(1, needed), step)

    def row_slots(self, needed: int, context: int) -> int:
        mean = self.rate * self.context
        usual = multiple(mean + FULLEST_ROW_DEVIATIONS * math.sqrt(mean * (1 - self.rate)))
        return min(_grown(usual, needed), multiple(context))

    def slots(self, needed: int, rows: int) -> int:
        """Specials are never predicted."""
        mean = self.rate * rows * self.context * (1 - 2 / self.document_tokens)
        return _grown(multiple(mean + math.sqrt(mean)), needed)

    def documents(self, needed: int, rows: int) -> int:
        """Beside the documents each row may end with filler, and a quarter more may be short."""
        mean = rows * self.context / self.document_tokens
        return _grown(multiple(1.25 * mean + rows), needed)


def _grown(usual: int, needed: int) -> int:
    """`usual`, or as many quarters of it more as are needed."""
    quarters = max(0, math.ceil(4 * (needed - usual) / usual))
    return multiple(usual * (1 + quarters / 4))
