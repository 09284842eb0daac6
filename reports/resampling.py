"""The bootstrap over development examples: every metric of a task recomputed for each resample, exactly and at once.

A resample is a number of copies of each example. It depends on the task and its number of examples alone, so all models
are scored on the same resamples, whoever computes them. Examples with equal label and prediction are one pattern.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from neobert.glue.tasks import Metric, Task
from neobert.identity import identity

Array = np.ndarray[Any, np.dtype[Any]]
Predictions = Mapping[str, Array]  # by validation split: logits (examples, classes) or values (examples)

DRAWS = 1000


def resampled_scores(task: Task, predictions: Predictions, labels: Predictions, draws: int = DRAWS) -> Array:
    """The task's score, 0..1, on each resample: (draws). NaN where a metric has no value on a resample. Splits are
    resampled each by itself.

    Raises:
        ValueError: predictions and labels have different numbers of examples.
    """
    metrics = []
    for split in task.validation_splits:
        true, predicted = np.asarray(labels[split]), _decided(task, predictions[split])
        if len(true) != len(predicted):
            raise ValueError(f"{task.title} {split}: {len(true)} and {len(predicted)} examples do not fit together")
        patterns, place = np.unique(np.stack([true, predicted], axis=1), axis=0, return_inverse=True)
        weights = _pattern_weights(copies_of_examples(task.name, split, len(true), draws), place.ravel())
        metrics += [weighted_metric(metric, patterns[:, :1], patterns[:, 1:], weights)[:, 0] for metric in task.metrics]
    return np.asarray(sum(metrics) / len(metrics))


@lru_cache(maxsize=8)
def copies_of_examples(task: str, split: str, examples: int, draws: int) -> Array:
    """How often each example is in each resample: (draws, examples)."""
    random = np.random.default_rng(int(identity([task, split, examples]), 16))
    return np.stack(
        [
            np.bincount(random.integers(0, examples, examples), minlength=examples).astype(np.uint16)
            for _ in range(draws)
        ]
    )


def _pattern_weights(copies: Array, place: Array) -> Array:
    """How often each pattern is in each resample, (draws, patterns), from the pattern of each example."""
    patterns = int(place.max()) + 1
    if patterns == len(place):
        return copies[:, np.argsort(place)].astype(np.float64)
    return np.stack([np.bincount(place, weights=row, minlength=patterns) for row in copies])


def _decided(task: Task, predictions: Array) -> Array:
    return predictions.astype(np.float64) if task.is_regression else predictions.argmax(axis=1)


def weighted_metric(metric: Metric, true: Array, predicted: Array, weights: Array) -> Array:
    """A metric where patterns count as often as their weights say: (draws, models).

    `true` is (patterns, 1), `predicted` (patterns, models), `weights` (draws, patterns). The conventions for constants
    are those of `neobert.glue.metrics`, with NaN for what is undefined there.
    """
    if metric == "accuracy":
        return weights @ (predicted == true) / weights.sum(axis=1, keepdims=True)
    if metric in ("f1", "matthews"):
        return _of_confusion(metric, true == 1, predicted == 1, weights)
    if metric == "pearson":
        return _correlation(true, predicted, weights)
    ranks = _centred_ranks(true[:, 0], weights)
    columns = [_correlation_of_ranks(ranks, _centred_ranks(column, weights), weights) for column in predicted.T]
    return np.stack(columns, axis=1)


def _of_confusion(metric: Metric, true: Array, predicted: Array, weights: Array) -> Array:
    """F1 of class 1 or Matthews' correlation of two classes; 0 where a denominator is 0."""
    hits, only_predicted = weights @ (predicted & true), weights @ (predicted & ~true)
    only_true, neither = weights @ (~predicted & true), weights @ (~predicted & ~true)
    if metric == "f1":
        return _quotient(2 * hits, 2 * hits + only_predicted + only_true)
    product = (hits + only_predicted) * (hits + only_true) * (neither + only_predicted) * (neither + only_true)
    return _quotient(hits * neither - only_predicted * only_true, np.sqrt(product))


def _quotient(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def _correlation(true: Array, predicted: Array, weights: Array) -> Array:
    total = weights.sum(axis=1, keepdims=True)
    true, predicted = true - true.mean(), predicted - predicted.mean(axis=0)  # against cancellation
    mean_true, mean_predicted = weights @ true / total, weights @ predicted / total
    covariance = weights @ (true * predicted) / total - mean_true * mean_predicted
    variance_true = weights @ true**2 / total - mean_true**2
    variances = variance_true * (weights @ predicted**2 / total - mean_predicted**2)
    return np.divide(covariance, np.sqrt(variances), out=np.full_like(covariance, np.nan), where=variances > 1e-18)


def _correlation_of_ranks(first: Array, second: Array, weights: Array) -> Array:
    """Pearson's correlation of centred ranks (draws, patterns) within each resample: (draws)."""
    covariance = (weights * first * second).sum(axis=1)
    variances = (weights * first**2).sum(axis=1) * (weights * second**2).sum(axis=1)
    return np.divide(covariance, np.sqrt(variances), out=np.full_like(covariance, np.nan), where=variances > 1e-18)


def _centred_ranks(values: Array, weights: Array) -> Array:
    """The rank of every value among the examples of each resample less the mean rank, (draws, patterns); ties share."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    in_group = np.add.reduceat(weights[:, order], starts, axis=1)
    before = np.cumsum(in_group, axis=1) - in_group
    mean_rank = (weights.sum(axis=1, keepdims=True) + 1) / 2
    return (before + (in_group + 1) / 2 - mean_rank)[:, group]
