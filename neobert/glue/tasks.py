"""The eight GLUE tasks that the paper averages, with the columns, splits and label ids of nyu-mll/glue.

WNLI is left out, as in the paper. Torch is not imported here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from neobert.errors import did_you_mean
from neobert.recipe import FineTuning

Metric = Literal["accuracy", "f1", "matthews", "pearson", "spearman"]

TRAIN = "train"

SELECTION_RULES = {  # App. C: the best; ties are not mentioned
    "mean": "highest validation score; of equal scores the first point of the grid",
    "first": "highest first metric on the first validation split; of equal values the first point of the grid",
}
"""Description of the selection rule for records, by the protocol's decisive metric."""


@dataclass(frozen=True)
class Task:
    """One task: `first` and `second` are its text columns (None: single sentences), `labels` the number of classes
    (1: regression). Its score is the mean of all `metrics` on all `validation_splits`."""

    name: str
    title: str
    first: str
    second: str | None
    labels: int
    metrics: tuple[Metric, ...]
    validation_splits: tuple[str, ...] = ("validation",)

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number rather than a class."""
        return self.labels == 1

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The text columns."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def splits(self) -> tuple[str, ...]:
        """Every split that fine-tuning needs: train first, then validation."""
        return (TRAIN, *self.validation_splits)

    def metric_on(self, metric: Metric, split: str) -> str:
        """Return the name of a metric on a validation split, with the split's suffix if the task has several splits
        (`accuracy_matched`)."""
        return metric + split.removeprefix("validation") if len(self.validation_splits) > 1 else metric

    def decisive_metric(self, protocol: FineTuning) -> str | None:
        """Return the metric that a protocol uses for early stopping and selection; None means the score."""
        return (
            None if protocol.decisive_metric == "mean" else self.metric_on(self.metrics[0], self.validation_splits[0])
        )


_ALL = (  # in the order of the columns of the paper's Table 3
    Task("mnli", "MNLI", "premise", "hypothesis", 3, ("accuracy",), ("validation_matched", "validation_mismatched")),
    Task("qnli", "QNLI", "question", "sentence", 2, ("accuracy",)),
    Task("qqp", "QQP", "question1", "question2", 2, ("accuracy", "f1")),
    Task("rte", "RTE", "sentence1", "sentence2", 2, ("accuracy",)),
    Task("sst2", "SST-2", "sentence", None, 2, ("accuracy",)),
    Task("mrpc", "MRPC", "sentence1", "sentence2", 2, ("accuracy", "f1")),
    Task("cola", "CoLA", "sentence", None, 2, ("matthews",)),
    Task("stsb", "STS-B", "sentence1", "sentence2", 1, ("pearson", "spearman")),
)
TASKS = {task.name: task for task in _ALL}


def task_named(name: str) -> Task:
    """Return the task with the given name.

    Raises:
        ValueError: there is no such task.
    """
    if name not in TASKS:
        raise ValueError(f"{name!r} is no GLUE task of this study: {did_you_mean(name, TASKS)}")
    return TASKS[name]


def decisive_score(task: str, protocol: FineTuning, scores: Mapping[str, Any]) -> float | None:
    """Return the value used to select the best trial, from the scores of a record; None if undefined."""
    metric = task_named(task).decisive_metric(protocol)
    value: float | None = scores["score"] if metric is None else scores["metrics"][metric]
    return value
