"""Metrics and the score of a task, computed from stored predictions.

GLUE's are computed by scikit-learn and scipy under their names in `Task`. Other metrics are scorers of scikit-learn
under its own names (`sklearn.metrics.get_scorer_names`), and `span_f1`, seqeval's F1 of spans such as named entities.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import pearsonr, spearmanr
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, f1_score, get_scorer, get_scorer_names, matthews_corrcoef

from neobert.data.tokenizers import Array
from neobert.errors import did_you_mean
from neobert.glue.tasks import SPAN_F1, Task


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

    `predictions` and `labels` have one array for each validation split of the task: logits (predictions, classes) and
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
    true = labels[:, 0] if task.tags_words else labels
    if metric == SPAN_F1:
        assert isinstance(task.classes, tuple)
        tags, found = ([task.classes[tag] for tag in each] for each in (true, predicted))
        return span_f1(tags, found, labels[:, 1].tolist())
    if metric not in METRICS:
        return _scored(task, metric, true, predictions)
    value = METRICS[metric](true, predicted)
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
    "matthews": _matthews,
    "pearson": partial(_correlation, pearsonr),
    "spearman": partial(_correlation, spearmanr),
}
"""GLUE's metrics of true and predicted class ids or values."""


class _Predicted(BaseEstimator):
    """An estimator that has predicted already, as scorers of scikit-learn ask one."""

    def __init__(self, predictions: Array) -> None:
        self.predictions = predictions

    def predict(self, _: Any) -> Array:
        return self.predictions


class _PredictedClasses(ClassifierMixin, _Predicted):
    @property
    def classes_(self) -> Array:
        return np.arange(self.predictions.shape[1])

    def predict(self, _: Any) -> Array:
        return self.predictions.argmax(axis=1)

    def predict_proba(self, _: Any) -> Array:
        probabilities: Array = softmax(self.predictions.astype(np.float64), axis=1)
        return probabilities


class _PredictedValues(RegressorMixin, _Predicted):
    pass


def _scored(task: Task, metric: str, true: Array, predictions: Array) -> float | None:
    """Return the value of a scorer of scikit-learn; None where it is undefined, such as without one of the classes."""
    kind = _PredictedValues if task.is_regression else _PredictedClasses
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of undefined values, and of classes that are not predicted
        try:
            value = float(get_scorer(metric)(kind(predictions), predictions, true))
        except (AttributeError, ValueError):  # what a scorer raises if it is not one of these labels
            return None
    return value if math.isfinite(value) else None


def refuse_impossible_metrics(task: Task) -> None:
    """Try every metric of a task on made-up predictions. Raises ValueError if there is no such metric, or it is not one
    of this kind of task."""
    known = [*METRICS, SPAN_F1, *get_scorer_names()]
    true = np.arange(2.0 * task.labels) if task.is_regression else np.arange(2 * task.labels) % task.labels
    right = true + 0.5 if task.is_regression else np.eye(task.labels)[true]
    labels = np.stack([true, np.zeros_like(true)], axis=1) if task.tags_words else true
    for metric in task.metrics:
        if metric not in known:
            raise ValueError(f"task {task.name}: there is no metric {metric!r}: {did_you_mean(metric, known)}")
        if _measure(task, metric, labels, right) is None:
            what = "values" if task.is_regression else f"{task.labels} classes"
            raise ValueError(f"task {task.name}: {metric} is no metric of {what}: take another one")


def span_f1(true: Sequence[str], predicted: Sequence[str], sentences: Sequence[int]) -> float:
    """Return the F1 of all spans of tags like B-PER, I-PER and O, as seqeval and CoNLL's script define it: a predicted
    span is right if its type, its first and its last word are. 0 if none is."""
    wanted, found = (set(spans(tags, sentences)) for tags in (true, predicted))
    return 2 * len(wanted & found) / (len(wanted) + len(found)) if wanted & found else 0.0


def spans(tags: Sequence[str], sentences: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Yield the type, first and last word of each span.

    A word continues the span of the word before it in the same sentence if its tag is I or E of the same type and the
    tag before is B or I. Every other tag but O begins a span, also an I after O.
    """
    begin = 0
    for word, tag in enumerate(tags):
        following = tags[word + 1] if word + 1 < len(tags) and sentences[word + 1] == sentences[word] else "O"
        goes_on = tag[0] in "BI" and following[0] in "IE" and tag[1:] == following[1:]
        if tag != "O" and not goes_on:
            yield tag[2:], begin, word
        if not goes_on:
            begin = word + 1
