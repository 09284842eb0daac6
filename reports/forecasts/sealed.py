"""Forecasts as sealed files below `forecasts/` of a folder of runs: the expected differences, and the records used.

A file is written once, with its SHA-256. It lists the runs that were finished at that time, so that newer records can
be recognised; git records when it was committed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveInt, model_validator

from ablations.ladders import current
from ablations.scales import Scale
from neobert.errors import DamagedFile
from neobert.identity import Neutral, identity
from neobert.recipe import Value
from neobert.runs.collected import RunFiles
from neobert.runs.layout import Layout
from neobert.runs.records import code_state, read_sealed

KIND = "forecast"
Place = tuple[str, str, str, str]
"""Forecast difference: (variant, base, quantity, corpus)."""


class AtBudget(Value):
    """A difference at a smaller budget: its mean and standard deviation over seeds; `octaves` is the logarithm to base
    2 of its compute over that of what is forecast. The deviation is None for one seed."""

    budget: str
    octaves: Annotated[float, Field(lt=0)]
    seeds: PositiveInt
    mean: float
    deviation: Annotated[NonNegativeFloat | None, Neutral(None)]


class Predicted(Value):
    """One step of the ladder in one quantity, from its budgets (the smallest first).

    `probability_higher` is that of a difference above 0; `mean` and the 80 % interval are of the mean over the seeds of
    the forecast, None where only signs are forecast. `tasks` are those whose mean GLUE is.
    """

    variant: str
    base: str
    quantity: str
    corpus: str
    budgets: tuple[AtBudget, ...] = Field(min_length=2)
    probability_higher: float = Field(ge=0, le=1)
    mean: float | None
    low: float | None
    high: float | None
    tasks: Annotated[str, Neutral("")]

    @model_validator(mode="after")
    def _has_a_whole_interval(self) -> "Predicted":
        is_whole = self.mean is not None and self.interval is not None and self.interval[0] <= self.interval[1]
        if not is_whole and (self.mean, self.low, self.high) != (None, None, None):
            raise ValueError(f"{self.low} … {self.high} around {self.mean} is no interval")
        return self

    @property
    def place(self) -> Place:
        return self.variant, self.base, self.quantity, self.corpus

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 80 % interval; None if only the sign is forecast."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def is_higher_at_smallest(self) -> bool:
        """Whether the difference at the smallest budget is above 0: the naive forecast of the sign."""
        return self.budgets[0].mean > 0


class Forecast(Value):
    """What `scale` with `data` was expected to measure in the mean of so many first `seeds`.

    `records` are those that it was made from, `present` those of `scale` and `data` that were there. Where the budgets
    are of other scales it is of signs alone. `ladder` is the file of a ladder of one's own, `declaration` the hash of
    the study's declaration.
    """

    model_config = ConfigDict(extra="ignore")

    id: str
    scale: Scale
    data: str
    budgets: tuple[str, ...]
    seeds: PositiveInt
    predictions: tuple[Predicted, ...]
    left_out: tuple[str, ...]
    records: tuple[str, ...]
    present: tuple[str, ...]
    commit: str | None
    dirty: bool | None
    ladder: str = ""
    declaration: str = ""

    @property
    def is_of_signs(self) -> bool:
        """Whether it forecasts signs without sizes."""
        return all(each.mean is None for each in self.predictions)

    @property
    def code(self) -> str:
        """The commit of the code that made it."""
        return f"{self.commit or 'no commit'}{' with uncommitted changes' if self.dirty else ''}"


def name_forecast(facts: dict[str, Any]) -> Forecast:
    """Return a forecast with its id, a hash of its content, and the commit of the code."""
    code = {name: code_state()[name] for name in ("commit", "dirty")}
    return Forecast(id=identity(facts), **facts, **code)


def write_forecast(root: Path, forecast: Forecast) -> tuple[Path, bool]:
    """Write a forecast unless it is there; return the file that holds it, and whether the forecast is new."""
    folder = RunFiles(root)
    path = Layout(folder.root).forecast(forecast.id)
    is_new = folder.publish(path, {"kind": KIND, **forecast.model_dump(mode="json")})
    return folder.holder(path), is_new


def read_forecasts(folder: RunFiles, problems: list[str]) -> Iterator[Forecast]:
    """Yield the forecasts of a folder of runs, sorted by name; add a sentence to `problems` for each unusable file."""
    for path in folder.files("forecasts/*.json"):
        try:
            content = read_sealed(path)
            if content.get("kind") != KIND:
                raise ValueError("it is no forecast")
            forecast = Forecast.read(content)
            if forecast.ladder == current().name:
                yield forecast
            else:
                problems.append(f"the forecast {forecast.id} is of another ladder ({forecast.ladder or 'the paper'})")
        except DamagedFile as error:
            problems.append(str(error))
        except (OSError, ValueError) as error:
            problems.append(f"the forecast {path} is left out: {' '.join(str(error).split())}")
