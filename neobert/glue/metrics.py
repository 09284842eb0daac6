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
    """`score` is the task's number as the paper averages it, the mean of all `metrics`: 1 is perfect, a correlation may
    be negative. A correlation with a constant is undefined: it and the score are None, never 0 and never NaN."""

    score: float | None
    metrics: dict[str, float | None]

    def value(self, metric: str | None) -> float | None:
        """A metric by name, or the score."""
        return self.score if metric is None else self.metrics[metric]

    def is_better_than(self, other: "Scores | None", metric: str | None) -> bool:
        """Strictly better in the score, or in one metric; undefined is worse than any number, and anything is better
        than None."""
        if other is None:
            return True
        own, others = self.value(metric), other.value(metric)
        return own is not None and (others is None or own > others)


def evaluate(task: Task, predictions: Mapping[str, Array], labels: Mapping[str, Array]) -> Scores:
    """The scores of one set of predictions.

    `predictions` and `labels` hold one array for each of the task's validation splits: logits (examples, classes) and
    class ids (examples) or, for regression, two arrays of values (examples). Metrics are named by `Task.metric_on`.
    Matthews' correlation with a constant is 0 and F1 without a true positive is 0, as scikit-learn defines them; F1 is
    that of class 1.

    Raises:
        ValueError: a split is missing or empty, shapes do not fit, or a prediction is not finite.
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
    """Class ids or values of one split, predicted and true."""
    if split not in predictions or split not in labels:
        raise ValueError(f"{task.title} is scored on {', '.join(task.validation_splits)}, but {split} is missing")
    predicted, true = np.asarray(predictions[split]), np.asarray(labels[split])
    expected = (len(true),) if task.is_regression else (len(true), task.labels)
    if predicted.shape != expected or not len(true):
        raise ValueError(f"{task.title} {split}: predictions of shape {predicted.shape} do not fit {len(true)} labels")
    if not np.isfinite(predicted).all():
        raise ValueError(f"{task.title} {split}: a prediction is not finite")
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
        return 0.0 if is_constant else float(matthews_corrcoef(true, predicted))  # 0 there too, but with a warning
    if is_constant:
        return None
    correlation = pearsonr if metric == "pearson" else spearmanr
    return float(correlation(true, predicted).statistic)
