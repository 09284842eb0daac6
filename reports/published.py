"""The numbers that the paper prints, from the CSV files in `published/`; they are never mixed with this study's."""

import csv
from dataclasses import dataclass
from pathlib import Path

from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from neobert.runs.records import TASKS_IN_SUITE, Category

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
class PublishedRow:
    """One row of Table 3: scores by task and the printed average, in points."""

    size: str
    model: str
    scores: dict[str, float]
    average: float
    source: str


def cells(name: str) -> list[dict[str, str]]:
    """The rows of one published figure or table as the file has them; every row has a `source`."""
    assert name in NAMES, name
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


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


def table3() -> tuple[PublishedRow, ...]:
    """The rows of Table 3 in the paper's order."""
    return tuple(
        PublishedRow(
            size=row["size"],
            model=row["model"],
            scores={task: float(row[task]) for task in TASKS},
            average=float(row["average"]),
            source=row["source"],
        )
        for row in cells("table3")
    )


@dataclass(frozen=True)
class PublishedOptima:
    """One model of Table 5: the best point of the grid by task."""

    model: str
    points: dict[str, Point]
    source: str


def table5() -> tuple[PublishedOptima, ...]:
    """The models of Table 5 in the paper's order."""
    rows = cells("table5")
    models = dict.fromkeys(row["model"] for row in rows)
    return tuple(_optima(model, [row for row in rows if row["model"] == model]) for model in models)


def _optima(model: str, rows: list[dict[str, str]]) -> PublishedOptima:
    points = {
        row["task"]: Point(
            batch_size=int(row["batch_size"]),
            learning_rate=float(row["learning_rate"]),
            weight_decay=float(row["weight_decay"]),
        )
        for row in rows
    }
    return PublishedOptima(model, {task: points[task] for task in TASKS}, rows[0]["source"])


@dataclass(frozen=True)
class PublishedEmbeddings:
    """One row of Table 4: means by category and the flat mean of 56 tasks, in points."""

    size: str
    model: str
    categories: dict[Category, float]
    average: float
    source: str


def table4() -> tuple[PublishedEmbeddings, ...]:
    """The rows of Table 4 in the paper's order."""
    return tuple(
        PublishedEmbeddings(
            size=row["size"],
            model=row["model"],
            categories={category: float(row[category]) for category in TASKS_IN_SUITE},
            average=float(row["average"]),
            source=row["source"],
        )
        for row in cells("table4")
    )


@dataclass(frozen=True)
class PublishedThroughput:
    """One model of Table 9 on one A100: tokens a second and their spread, both in thousands, by sequence length."""

    size: str
    model: str
    thousands: dict[int, tuple[float, float]]
    source: str


def table9() -> tuple[PublishedThroughput, ...]:
    """The models of Table 9 in the paper's order."""
    rows = cells("table9")
    models = dict.fromkeys(row["model"] for row in rows)
    return tuple(_throughput([row for row in rows if row["model"] == model]) for model in models)


def _throughput(rows: list[dict[str, str]]) -> PublishedThroughput:
    thousands = {
        int(row["sequence_tokens"]): (float(row["thousand_tokens_per_second"]), float(row["spread"])) for row in rows
    }
    return PublishedThroughput(rows[0]["size"], rows[0]["model"], thousands, rows[0]["source"])
