"""The numbers that the paper prints, from the CSV files in `published/`; they are never mixed with this study's."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from neobert.runs.records import TASKS_IN_SUITE

FOLDER = Path(__file__).resolve().parent / "published"
NAMES = ("figure1", "table3", "table4", "table5", "table9")


@dataclass(frozen=True)
class PublishedBar:
    """One bar of Figure 1: GLUE average in points, and the relative change in percent where the paper prints one."""

    variant: str
    title: str
    parent: str | None
    carried_forward: bool
    average: float
    printed_delta_percent: float | None
    source: str


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


@dataclass(frozen=True)
class PublishedOptima:
    """One model of Table 5: the best point of the grid by task."""

    model: str
    points: dict[str, Point]
    source: str


@dataclass(frozen=True)
class PublishedThroughput:
    """One model of Table 9 on one A100: tokens a second and their spread, both in thousands, by sequence length."""

    size: str
    model: str
    thousands: dict[int, tuple[float, float]]
    source: str


def cells(name: str) -> list[dict[str, str]]:
    """The rows of one published figure or table as the file has them; every row has a `source`."""
    assert name in NAMES, name
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def figure1() -> dict[str, PublishedBar]:
    """The bars of Figure 1 by variant."""
    return {
        row["variant"]: PublishedBar(
            variant=row["variant"],
            title=row["title"],
            parent=row["parent"] or None,
            carried_forward=row["carried_forward"] == "yes",
            average=float(row["average"]),
            printed_delta_percent=float(row["printed_delta_percent"]) if row["printed_delta_percent"] else None,
            source=row["source"],
        )
        for row in cells("figure1")
    }


def table3() -> tuple[PublishedScores, ...]:
    """GLUE by task, in the paper's order."""
    return _scores("table3", tuple(TASKS))


def table4() -> tuple[PublishedScores, ...]:
    """Embedding tasks by category, in the paper's order."""
    return _scores("table4", tuple(TASKS_IN_SUITE))


@cache
def _scores(name: str, columns: tuple[str, ...]) -> tuple[PublishedScores, ...]:
    return tuple(
        PublishedScores(
            size=row["size"],
            model=row["model"],
            scores={column: float(row[column]) for column in columns},
            average=float(row["average"]),
            source=row["source"],
        )
        for row in cells(name)
    )


def table5() -> tuple[PublishedOptima, ...]:
    """The best points, in the paper's order."""
    return tuple(
        PublishedOptima(
            model=model,
            points={task: _point(row) for task in TASKS for row in rows if row["task"] == task},
            source=rows[0]["source"],
        )
        for model, rows in _by_model("table5").items()
    )


def table9() -> tuple[PublishedThroughput, ...]:
    """The models of Table 9 in the paper's order."""
    return tuple(
        PublishedThroughput(
            size=rows[0]["size"],
            model=model,
            thousands={
                int(row["sequence_tokens"]): (float(row["thousand_tokens_per_second"]), float(row["spread"]))
                for row in rows
            },
            source=rows[0]["source"],
        )
        for model, rows in _by_model("table9").items()
    )


def _by_model(name: str) -> dict[str, list[dict[str, str]]]:
    models: dict[str, list[dict[str, str]]] = {}
    for row in cells(name):
        models.setdefault(row["model"], []).append(row)
    return models


def _point(row: dict[str, str]) -> Point:
    return Point(
        batch_size=int(row["batch_size"]),
        learning_rate=float(row["learning_rate"]),
        weight_decay=float(row["weight_decay"]),
    )
