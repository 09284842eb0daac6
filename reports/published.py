"""The numbers that the paper prints, from the CSV files in `published/`; they are never mixed with this study's."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from neobert.runs.records import TASKS_IN_SUITE

FOLDER = Path(__file__).resolve().parent / "published"
NAMES = ("figure1", "table3", "table4", "table5", "table9")


@cache
def read(name: str) -> pd.DataFrame:
    """One published figure or table: the columns of its file, None where nothing is printed. Every row has a `source`;
    scores are in points, changes in percent, throughputs in thousands of tokens a second on one A100."""
    assert name in NAMES, name
    frame = pd.read_csv(FOLDER / f"{name}.csv", true_values=["yes"], false_values=["no"])
    return frame.astype(object).where(frame.notna(), None)


@cache
def figure1() -> Mapping[str, Any]:
    """The bars of Figure 1 by variant: `average`, `parent`, and `printed_delta_percent` where the paper prints one."""
    return {row.variant: row for row in read("figure1").itertuples()}


@dataclass(frozen=True)
class PublishedScores:
    """One model of Table 3 or 4: scores by GLUE task or by category of embedding tasks, and the printed average, in
    points."""

    size: str
    model: str
    scores: dict[str, float]
    average: float
    source: str

    @property
    def name(self) -> str:
        """The model with its size."""
        return f"{self.model} ({self.size})"


def table3() -> tuple[PublishedScores, ...]:
    """GLUE by task, in the paper's order."""
    return _scores("table3", tuple(TASKS))


def table4() -> tuple[PublishedScores, ...]:
    """Embedding tasks by category, in the paper's order."""
    return _scores("table4", tuple(TASKS_IN_SUITE))


def _scores(name: str, columns: tuple[str, ...]) -> tuple[PublishedScores, ...]:
    return tuple(
        PublishedScores(row["size"], row["model"], {each: row[each] for each in columns}, row["average"], row["source"])
        for row in read(name).to_dict("records")
    )


def table5() -> dict[str, dict[str, Point]]:
    """The best point of the grid by model and task, in the paper's order."""
    table = read("table5").set_index("task")
    axes = list(Point.model_fields)
    return {
        model: {task: Point(**own.loc[task, axes]) for task in TASKS}
        for model, own in table.groupby("model", sort=False)
    }


@dataclass(frozen=True)
class PublishedThroughput:
    """One model of Table 9 on one A100: tokens a second and their spread, both in thousands, by sequence length."""

    model: str
    thousands: dict[int, tuple[float, float]]
    source: str


def table9() -> tuple[PublishedThroughput, ...]:
    """The models of Table 9 in the paper's order."""
    return tuple(
        PublishedThroughput(
            model=model,
            thousands=dict(
                zip(rows.sequence_tokens, zip(rows.thousand_tokens_per_second, rows.spread, strict=True), strict=True)
            ),
            source=rows.source.iloc[0],
        )
        for model, rows in read("table9").groupby("model", sort=False)
    )
