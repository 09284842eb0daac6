"""Declarations: what a study runs and how it is judged, in a file that is committed before its runs.

`declarations/<study>.json` holds one. Its hash is a label of the runs and a part of the forecasts made for it, so that
reports can list the deviations of the records from it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from neobert.errors import MissingData
from neobert.identity import identity
from neobert.recipe import Value


class Measure(Value):
    """A quantity of the reports on the corpus that the child was trained on (`own`), or on the others."""

    quantity: str
    corpus: Literal["own", "other"] = "own"


class Protocol(Value):
    """How the differences of a study are judged.

    `looks` are numbers of seeds with the largest family-wise p that claims a difference there. `margins` are the
    bounds of equivalence by quantity. `primary` is one family: of each step the first of these measures that both arms
    have. The measures of `sequence` are tested in this order, each only for the steps that all before it claimed.
    Everything else is exploratory and has no verdict.
    """

    looks: Mapping[PositiveInt, float]
    margins: Mapping[str, PositiveFloat]
    primary: tuple[Measure, ...] = Field(min_length=1)
    sequence: tuple[Measure, ...]


class Declaration(Value):
    """A study: its arms, seeds, budgets, rates and commands, and the protocol that judges it.

    `own_rates` are the arms that are also trained at their own best rate, found on `pilot_seeds`. `budgets` are the
    shares of the steps that the forecast rests on, trained with the seeds `budget_seeds`.
    """

    name: str
    question: str
    ladder: str
    scale: str
    data: str
    arms: tuple[str, ...]
    seeds: tuple[NonNegativeInt, ...]
    pilot_seeds: tuple[NonNegativeInt, ...]
    own_rates: tuple[str, ...]
    budgets: tuple[PositiveFloat, ...]
    budget_seeds: tuple[NonNegativeInt, ...]
    protocol: Protocol
    commands: tuple[str, ...]

    @property
    def id(self) -> str:
        """The hash of everything declared."""
        return identity(self)


PROTOCOL = Protocol(
    looks={6: 0.032, 8: 0.016, 10: 0.02},
    margins={
        "GLUE": 0.5,
        "loss": 0.05,
        "bits per byte": 0.016,
        "loss, all [MASK]": 0.05,
        "loss, 80/10/10": 0.05,
        "whole words": 0.016,
        "cloze": 3.0,
        "minimal pairs": 5.0,
    },
    primary=(Measure(quantity="bits per byte"),),
    sequence=(
        Measure(quantity="bits per byte", corpus="other"),
        Measure(quantity="whole words"),
        Measure(quantity="cloze"),
    ),
)
"""The protocol of records without a declaration."""


def read_declaration(path: Path) -> Declaration:
    """Read a declaration.

    Raises:
        MissingData: there is no such file.
        ValueError: it is no declaration.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingData(f"{path}: there is no such declaration") from error
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    return Declaration.read(content)
