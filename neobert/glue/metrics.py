"""GLUE's metrics and each task's score, computed by scikit-learn and scipy from stored predictions."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from neobert.data.tokenizers import Array
from neobert.glue.tasks import Metric, Task


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
    class ids (examples) or, for regression, two arrays of values (examples). Metrics are named by `Task.metric_on`.
    Matthews' correlation with a constant is 0 and F1 without a true positive is 0, as scikit-learn defines them; F1 is
    that of class 1.

    Raises:
        ValueError: a split is missing or empty, or shapes do not fit.
    """
    metrics: dict[str, float | None] = {}
    for split in task.validation_splits:
        predicted, true = _checked(task, split, predictions, labels)
        metrics |= {task.metric_on(metric, split): _measure(metric, true, predicted) for metric in task.metrics}
    values = [value for value in metrics.values() if value is not None]
    return Scores(sum(values) / len(values) if len(values) == len(metrics) else None, metrics)


def _checked(
    task: Task, split: str, predictions: Mapping[str, Array], labels: Mapping[str, Array]
) -> tuple[Array, Array]:
    """Return the predicted and true class ids or values of one split."""
    if split not in predictions or split not in labels:
        raise ValueError(f"{task.title} is scored on {', '.join(task.validation_splits)}, but {split} is missing")
    predicted, true = np.asarray(predictions[split]), np.asarray(labels[split])
    expected = (len(true),) if task.is_regression else (len(true), task.labels)
    if predicted.shape != expected or not len(true):
        raise ValueError(f"{task.title} {split}: predictions of shape {predicted.shape} do not fit {len(true)} labels")
    if task.is_regression:
        return predicted.astype(np.float64), true.astype(np.float64)
    return predicted.argmax(axis=1), true


def _measure(metric: Metric, true: Array, predicted: Array) -> float | None:
    if metric == "accuracy":
        return float(accuracy_score(true, predicted))
    if metric == "f1":
        return float(f1_score(true, predicted, pos_label=1, zero_division=0.0))
    is_constant = np.ptp(true) == 0 or np.ptp(predicted) == 0
    if metric == "matthews":
        return 0.0 if is_constant else float(matthews_corrcoef(true, predicted))  # also 0 there, but warns
    if is_constant:
        return None
    correlation = pearsonr if metric == "pearson" else spearmanr
    return float(correlation(true, predicted).statistic)
