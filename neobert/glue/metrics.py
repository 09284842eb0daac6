"""Metrics and the score of a task, computed from stored predictions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from neobert.data.tokenizers import Array
from neobert.glue.tasks import Task


@dataclass(frozen=True)
class Scores:
    """Scores of a task. `score` is the number that the paper averages, the mean of all `metrics`: 1 is perfect,
    correlations may be negative. A correlation with a constant is undefined: it and the score are None, never 0 or
    NaN."""

    score: float | None
    metrics: dict[str, float | None]

    def value(self, metric: str | None) -> float | None:
        """Return the named metric, or the score if `metric` is None."""
        return self.score if metric is None else self.metrics[metric]

    def is_better_than(self, other: "Scores | None", metric: str | None) -> bool:
        """Return whether the score, or one metric, is strictly better. Undefined is worse than any number, and
        anything is better than no other scores (None)."""
        if other is None:
            return True
        own, others = self.value(metric), other.value(metric)
        return own is not None and (others is None or own > others)


def evaluate(task: Task, predictions: Mapping[str, Array], labels: Mapping[str, Array]) -> Scores:
    """Compute the scores of one set of predictions.

    `predictions` and `labels` have one array for each validation split of the task: logits (examples, classes) and
    labels as in `neobert.glue.encoding` or, for regression, two arrays of values (examples). Metrics are named by
    `Task.metric_on`. Matthews' correlation with a constant is 0 and F1 without a true positive is 0, as scikit-learn
    defines them; F1 is that of class 1.

    Raises:
        ValueError: a split is missing or empty, or shapes do not fit.
    """
    metrics: dict[str, float | None] = {}
    for split in task.validation_splits:
        predicted, true = _checked(task, split, predictions, labels)
        metrics |= {task.metric_on(metric, split): _measure(task, metric, true, predicted) for metric in task.metrics}
    values = [value for value in metrics.values() if value is not None]
    return Scores(sum(values) / len(values) if len(values) == len(metrics) else None, metrics)


def _checked(
    task: Task, split: str, predictions: Mapping[str, Array], labels: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Return the logits or predicted values, and the labels, of one split."""
    if split not in predictions or split not in labels:
        raise ValueError(f"{task.title} is scored on {', '.join(task.validation_splits)}, but {split} is missing")
    predicted, true = np.asarray(predictions[split]), np.asarray(labels[split])
    expected = (len(true),) if task.is_regression else (len(true), task.labels)
    if predicted.shape != expected or not len(true):
        raise ValueError(f"{task.title} {split}: predictions of shape {predicted.shape} do not fit {len(true)} labels")
    return (predicted.astype(np.float64), true.astype(np.float64)) if task.is_regression else (predicted, true)


def _measure(task: Task, metric: str, labels: Array, predictions: Array) -> float | None:
    predicted = predictions if task.is_regression else predictions.argmax(axis=1)
    value = METRICS[metric](labels, predicted)
    return None if value is None or not math.isfinite(value) else float(value)


def _matthews(true: Array, predicted: Array) -> float:
    is_constant = np.ptp(true) == 0 or np.ptp(predicted) == 0
    return 0.0 if is_constant else float(matthews_corrcoef(true, predicted))  # also 0 there, but warns


def _correlation(correlation: Callable[[Array, Array], Any], true: Array, predicted: Array) -> float | None:
    is_constant = np.ptp(true) == 0 or np.ptp(predicted) == 0
    return None if is_constant else float(correlation(true, predicted).statistic)


METRICS: Mapping[str, Callable[[Array, Array], float | None]] = {
    "accuracy": accuracy_score,
    "f1": partial(f1_score, pos_label=1, zero_division=0.0),
    "f1_macro": partial(f1_score, average="macro", zero_division=0.0),
    "matthews": _matthews,
    "pearson": partial(_correlation, pearsonr),
    "spearman": partial(_correlation, spearmanr),
}
"""Metrics of true and predicted class ids or values."""
