"""The paper's numbers, read from CSV files. They are never mixed with this study's, and other ladders have none."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from ablations.ladders import Ladder
from neobert.glue.tasks import TASKS
from neobert.kinds.mteb import TASKS_IN_SUITE
from neobert.recipe import Point

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "figure1": ("variant", "title", "parent", "carried_forward", "average", "printed_delta_percent", "source"),
    "table3": ("size", "model", *TASKS, "average", "source"),
    "table4": ("size", "model", *TASKS_IN_SUITE, "average", "source"),
    "table5": ("task", "model", *Point.model_fields, "source"),
    "table9": ("model", "sequence_tokens", "thousand_tokens_per_second", "spread", "source"),
}


def read(ladder: Ladder, name: str) -> pd.DataFrame:
    """Read one published figure or table of a ladder; values that are not printed are None. Every row has a `source`;
    scores are in points, changes in percent, throughputs in thousands of tokens per second on one A100."""
    return _read(ladder.published, name)


@cache
def _read(folder: Path | None, name: str) -> pd.DataFrame:
    path = None if folder is None else folder / f"{name}.csv"
    if path is None or not path.is_file():
        return pd.DataFrame(columns=list(COLUMNS[name]), dtype=object)
    frame = pd.read_csv(path, true_values=["yes"], false_values=["no"])
    return frame.astype(object).where(frame.notna(), None)


def figure1(ladder: Ladder) -> Mapping[str, Any]:
    """Return the bars of Figure 1 by variant: `average`, `parent`, and `printed_delta_percent` if printed."""
    return {row.variant: row for row in read(ladder, "figure1").itertuples()}


@dataclass(frozen=True)
class PublishedScores:
    """One model of Table 3 or 4: scores by GLUE task or embedding category, and the printed average, in points."""

    size: str
    model: str
    scores: dict[str, float]
    average: float
    source: str

    @property
    def name(self) -> str:
        return f"{self.model} ({self.size})"


def table3(ladder: Ladder) -> tuple[PublishedScores, ...]:
    """Return GLUE scores by task of the ladder, in the paper's order; the average is over all eight tasks."""
    return _scores(ladder, "table3", ladder.glue_tasks)


def table4(ladder: Ladder) -> tuple[PublishedScores, ...]:
    """Return embedding scores by category, in the paper's order."""
    return _scores(ladder, "table4", tuple(TASKS_IN_SUITE))


def _scores(ladder: Ladder, name: str, columns: tuple[str, ...]) -> tuple[PublishedScores, ...]:
    return tuple(
        PublishedScores(row["size"], row["model"], {each: row[each] for each in columns}, row["average"], row["source"])
        for row in read(ladder, name).to_dict("records")
    )


def table5(ladder: Ladder) -> dict[str, dict[str, Point]]:
    """Return the best grid point by model and task, in the paper's order."""
    table = read(ladder, "table5").set_index("task")
    axes = list(Point.model_fields)
    return {
        model: {task: Point(**own.loc[task, axes]) for task in ladder.glue_tasks}
        for model, own in table.groupby("model", sort=False)
    }


def table9(ladder: Ladder) -> dict[str, pd.DataFrame]:
    """Return the rows of Table 9 by model, in the paper's order, with `tokens_per_second` as our records have."""
    rows = read(ladder, "table9").rename(columns={"source": "reference"})
    rows = rows.assign(tokens_per_second=1000 * rows.thousand_tokens_per_second, spread=1000 * rows.spread)
    return dict(list(rows.groupby("model", sort=False)))
