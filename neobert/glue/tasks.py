"""Tasks of fine-tuning: the eight of GLUE that the paper averages, and the form in which a ladder declares its own.

GLUE's have the columns, splits and label ids of nyu-mll/glue. WNLI is left out, as in the paper. Torch is not imported
here.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from neobert.errors import did_you_mean, name_first
from neobert.recipe import FineTuning, Value

TaskKind = Literal["classification", "regression"]
Metric = Literal["accuracy", "f1", "f1_macro", "matthews", "pearson", "spearman"]

TRAIN = "train"

SELECTION_RULES = {  # App. C: the best; ties are not mentioned
    "mean": "highest validation score; of equal scores the first point of the grid",
    "first": "highest first metric on the first validation split; of equal values the first point of the grid",
}
"""Description of the selection rule for records, by the protocol's decisive metric."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_REFUSED_NAMES = ("all", "readouts")
"""Words with another meaning where tasks are named."""
_CORRELATIONS = frozenset({"pearson", "spearman"})
_TITLES = {"sst2": "SST-2", "cola": "CoLA", "stsb": "STS-B"}


class Task(Value):
    """A task. Its score is the mean of all `metrics` on all `validation_splits`.

    `columns` are the texts of an example: one or, for pairs, two. `classes` are the names of the classes, or their
    number if the labels are 0, 1, …; None for regression.

    `folder` has a file for each split, and `starts_from` is the task whose best weights fine-tuning starts from. They
    are no part of ids, which have a hash of the files, and the study that a study starts from.
    """

    name: str
    kind: TaskKind
    columns: tuple[str, ...]
    metrics: tuple[Metric, ...]
    classes: tuple[str, ...] | PositiveInt | None = None
    validation_splits: tuple[str, ...] = ("validation",)
    label_column: str = "label"
    folder: str = Field("", exclude=True)
    starts_from: str | None = Field(None, exclude=True)

    @property
    def title(self) -> str:
        """The name in reports and messages."""
        return task_title(self.name)

    @property
    def labels(self) -> int:
        """The number of classes (1: regression)."""
        return self.classes if isinstance(self.classes, int) else len(self.classes or ("value",))

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number rather than a class."""
        return self.kind == "regression"

    @property
    def is_own(self) -> bool:
        """Whether it is declared by a ladder rather than one of GLUE's."""
        return self.name not in TASKS

    @property
    def splits(self) -> tuple[str, ...]:
        """Every split that fine-tuning needs: train first, then validation."""
        return (TRAIN, *self.validation_splits)

    def metric_on(self, metric: str, split: str) -> str:
        """Return the name of a metric on a validation split, with the split's suffix if the task has several splits
        (`accuracy_matched`)."""
        if len(self.validation_splits) == 1:
            return metric
        return f"{metric}_{split.removeprefix('validation').removeprefix('_') or split}"

    def decisive_metric(self, protocol: FineTuning) -> str | None:
        """Return the metric that a protocol uses for early stopping and selection; None means the score."""
        return (
            None if protocol.decisive_metric == "mean" else self.metric_on(self.metrics[0], self.validation_splits[0])
        )

    def decisive_score(self, protocol: FineTuning, scores: Mapping[str, Any]) -> float | None:
        """Return the value used to select the best trial, from the scores of a record; None if undefined."""
        metric = self.decisive_metric(protocol)
        value: float | None = scores["score"] if metric is None else scores["metrics"][metric]
        return value

    @model_validator(mode="after")
    def _columns_and_splits_are_possible(self) -> Self:
        if _NAME.fullmatch(self.name) is None or self.name in _REFUSED_NAMES:
            raise ValueError(f"{self.name!r} cannot be the name of a task: take small letters, digits, - and _")
        if len(self.columns) not in (1, 2):
            raise ValueError(f"task {self.name} has {len(self.columns)} columns: name one of text, or two for pairs")
        if not self.validation_splits or TRAIN in self.validation_splits:
            raise ValueError(f"task {self.name} is scored on validation_splits: name one or more, and not {TRAIN!r}")
        scored = [self.metric_on(metric, split) for metric in self.metrics for split in self.validation_splits]
        if len(set(scored)) < len(scored):
            raise ValueError(f"task {self.name} would have two scores of one name: {name_first(scored)}")
        return self

    @model_validator(mode="after")
    def _classes_fit_the_metrics(self) -> Self:
        if self.is_regression != (self.classes is None):
            raise ValueError(f"task {self.name}: classes are for classification, and regression has none")
        names = () if isinstance(self.classes, int) else self.classes or ()
        if not self.is_regression and (self.labels < 2 or len(set(names)) < len(names)):
            raise ValueError(f"task {self.name} needs two classes or more, each once")
        if not self.metrics:
            raise ValueError(f"task {self.name} has no metric: name one, such as 'accuracy'")
        if "f1" in self.metrics and self.labels != 2:
            raise ValueError(f"task {self.name}: f1 is that of class 1 of two: take f1_macro")
        if misplaced := [metric for metric in self.metrics if (metric in _CORRELATIONS) != self.is_regression]:
            raise ValueError(f"task {self.name}: {misplaced[0]} is no metric of {self.kind}")
        return self


def _glue(
    name: str,
    columns: tuple[str, ...],
    metrics: tuple[Metric, ...] = ("accuracy",),
    classes: int | None = 2,
    **splits: Any,
) -> Task:
    return Task(
        name=name,
        kind="regression" if classes is None else "classification",
        columns=columns,
        metrics=metrics,
        classes=classes,
        **splits,
    )


_MNLI_SPLITS = ("validation_matched", "validation_mismatched")
_ALL = (  # in the order of the columns of the paper's Table 3
    _glue("mnli", ("premise", "hypothesis"), classes=3, validation_splits=_MNLI_SPLITS),
    _glue("qnli", ("question", "sentence")),
    _glue("qqp", ("question1", "question2"), ("accuracy", "f1")),
    _glue("rte", ("sentence1", "sentence2")),
    _glue("sst2", ("sentence",)),
    _glue("mrpc", ("sentence1", "sentence2"), ("accuracy", "f1")),
    _glue("cola", ("sentence",), ("matthews",)),
    _glue("stsb", ("sentence1", "sentence2"), ("pearson", "spearman"), None),
)
TASKS = {task.name: task for task in _ALL}
"""GLUE's tasks by name."""


def task_title(name: str) -> str:
    """Return the name of a task in reports and messages."""
    return _TITLES.get(name, name.upper()) if name in TASKS else name


def task_named(name: str) -> Task:
    """Return the GLUE task with the given name.

    Raises:
        ValueError: there is no such task.
    """
    if name not in TASKS:
        raise ValueError(f"{name!r} is no GLUE task of this study: {did_you_mean(name, TASKS)}")
    return TASKS[name]


def declared_task(content: Any) -> Task:
    """Return the task that a file names or, of a ladder's own, declares. Raises ValueError if it does neither."""
    return Task.read(content) if isinstance(content, dict) else task_named(str(content))
