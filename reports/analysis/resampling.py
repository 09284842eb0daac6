"""Bootstrap over development examples: every metric of a task is recomputed exactly for all resamples at once.

A resample is a number of copies of each example. It depends only on the task and its number of examples, so all models
are scored on the same resamples. Examples with equal label and prediction form one pattern.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from neobert.errors import DamagedFile, MissingData
from neobert.files import read_json, require_digest
from neobert.glue.encoding import load_encoded
from neobert.glue.selection import read_arrays
from neobert.glue.tasks import TASKS, Task
from neobert.identity import identity
from neobert.kinds.glue import GlueStudy
from neobert.recipe import Value
from neobert.runs.collected import RunFiles
from neobert.runs.layout import Layout
from neobert.runs.records import read_record, unpack_numbers
from reports.scores import POINTS_OF_SCORE, Row, Seeds

Array = np.ndarray[Any, np.dtype[Any]]
Predictions = Mapping[str, Array]  # by validation split: logits (examples, classes) or values (examples)

DRAWS = 1000


class Resamples(Value):
    """A collected trial's score on each resample, DRAWS numbers in float64, packed by `pack_numbers`."""

    scores: str


class StoredPredictions:
    """Scores of trials on resamples, as far as a folder of runs has them; reads each file once. Raises `MissingData`
    with the reason if something is missing."""

    def __init__(self, root: Path, studies: Mapping[str, GlueStudy]) -> None:
        self._folder = RunFiles(root)
        self._layout = Layout(self._folder.root)
        self._origins: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._studies: dict[tuple[str, str], list[GlueStudy]] = defaultdict(list)
        for study in studies.values():
            self._origins[study.task, study.weights].add(study.task_origin)
            self._studies[study.task, study.task_origin].append(study)
        self._labels: dict[tuple[str, str], Predictions] = {}
        self._resampled: dict[str, Array] = {}

    def resampled(self, task: str, trial_id: str, weights: str) -> Array:
        """Return the score of a trial on each resample of the development examples, 0..1: (DRAWS). It is read from a
        collected folder, else computed from predictions.

        Raises:
            MissingData: the files are missing or cannot be read.
        """
        if trial_id not in self._resampled:
            self._resampled[trial_id] = self._resample(task, trial_id, weights)
        return self._resampled[trial_id]

    def _resample(self, task: str, trial_id: str, weights: str) -> Array:
        collected = self._layout.resampled(task, trial_id)
        if os.path.lexists(collected):
            return self._collected_scores(collected)
        if task not in TASKS:
            raise MissingData(f"{task} is none of GLUE, whose scores alone are resampled")
        record = self._layout.trial(task, trial_id)
        predictions = self._stored_arrays(record.with_suffix(".npz"), TASKS[task].validation_splits, record)
        try:
            return resampled_scores(TASKS[task], predictions, self._labels_of(task, weights))
        except (TypeError, ValueError) as error:
            raise MissingData(f"predictions of {trial_id} do not fit the task: {error}") from error

    def _collected_scores(self, path: Path) -> Array:
        """Read the scores that a collected folder has. Raises MissingData if they cannot be scores."""
        if reason := self._folder.why_not(path):
            raise MissingData(reason)
        try:
            scores = unpack_numbers(Resamples.read(read_json(path)).scores, "<f8", DRAWS)
        except (DamagedFile, OSError, ValueError) as error:
            raise MissingData(f"{path.name} has no {DRAWS} scores: {error}") from error
        if not np.all((np.abs(scores) <= 1) | np.isnan(scores)):
            raise MissingData(f"{path.name} has scores that are not from -1 to 1")
        return np.asarray(scores)

    def _stored_arrays(self, path: Path, names: Sequence[str], record: Path) -> Mapping[str, Array]:
        """Read the named arrays of a trial's predictions.

        Raises:
            MissingData: the file is missing, cannot be read, or does not match its record.
        """
        if reason := self._folder.why_not(path):
            raise MissingData(reason)
        try:
            arrays = read_arrays(path, names)
            require_digest(path, read_record(record).get("sha256", {}).get("predictions"))
            return arrays
        except FileNotFoundError:
            raise MissingData("predictions are not kept") from None
        except (DamagedFile, OSError) as error:
            raise MissingData(str(error).replace(f"{path.parent}/", "")) from error

    def _labels_of(self, task: str, weights: str) -> Predictions:
        """Return the true labels of a task's validation splits, from any encoding used by the studies on these weights,
        since tokenizer and length do not change labels."""
        origins = self._origins.get((task, weights), set())
        if len(origins) != 1:
            raise MissingData(f"the labels of {TASKS[task].title} are not known")
        (origin,) = origins
        if (task, origin) not in self._labels:
            self._labels[task, origin] = self._read_labels(self._studies[task, origin])
        return self._labels[task, origin]

    def _read_labels(self, studies: Sequence[GlueStudy]) -> Predictions:
        for path in sorted({study.encoded_task(self._layout) for study in studies}):
            try:
                return load_encoded(path).labels
            except (MissingData, DamagedFile):
                continue
        raise MissingData("labels of the examples are not kept")


def resampled_differences(
    variant: Row, base: Row, tasks: Sequence[str], stored: StoredPredictions, seeds: Sequence[Seeds]
) -> Array:
    """Return a GLUE delta on each resample of the development examples, in points, (DRAWS). Seeds are not resampled.

    The same examples are drawn for both sides and all seeds.

    Raises:
        MissingData: predictions or labels of some trial are missing.
    """
    differences = [resample(variant, task, stored, seeds) - resample(base, task, stored, seeds) for task in tasks]
    return np.asarray(POINTS_OF_SCORE * np.mean(differences, axis=0))


def resample(row: Row, task: str, stored: StoredPredictions, seeds: Sequence[Seeds]) -> Array:
    """Return a row's score on each resample of the development examples, 0..1: (DRAWS). It is the mean over
    pre-training seeds of the means over their fine-tuning seeds.

    Raises:
        MissingData: predictions or labels of some trial are missing.
    """
    ids, weights = row.cells[task].ids, dict(zip(row.runs.seed, row.runs.id, strict=True))
    scores = np.stack([stored.resampled(task, ids[each], weights[each.pretraining]) for each in seeds], axis=1)
    counts: dict[int, int] = defaultdict(int)
    for each in seeds:
        counts[each.pretraining] += 1
    return np.asarray(scores @ np.array([1 / (len(counts) * counts[each.pretraining]) for each in seeds]))


def resampled_scores(task: Task, predictions: Predictions, labels: Predictions, draws: int = DRAWS) -> Array:
    """Return the task's score, 0..1, on each resample: (draws). NaN if a metric has no value on a resample. Splits are
    resampled separately.

    Raises:
        ValueError: predictions and labels have different numbers of examples.
    """
    metrics = []
    for split in task.validation_splits:
        true, own = np.asarray(labels[split]), predictions[split]
        predicted = own.astype(np.float64) if task.is_regression else own.argmax(axis=1)
        if predicted.shape != true.shape:
            raise ValueError(f"{task.title} {split}: {true.shape} labels and {predicted.shape} predictions")
        patterns, place = np.unique(np.stack([true, predicted], axis=1), axis=0, return_inverse=True)
        weights = _pattern_weights(copies_of_examples(task.name, split, len(true), draws), place.ravel())
        metrics += [weighted_metric(metric, patterns[:, 0], patterns[:, 1], weights) for metric in task.metrics]
    return np.asarray(sum(metrics) / len(metrics))


@lru_cache(maxsize=8)
def copies_of_examples(task: str, split: str, examples: int, draws: int) -> Array:
    """Return how often each example is in each resample: (draws, examples)."""
    random = np.random.default_rng(int(identity([task, split, examples]), 16))
    return np.stack(
        [
            np.bincount(random.integers(0, examples, examples), minlength=examples).astype(np.uint16)
            for _ in range(draws)
        ]
    )


def _pattern_weights(copies: Array, place: Array) -> Array:
    """Return how often each pattern is in each resample, (draws, patterns), from the pattern of each example."""
    patterns = int(place.max()) + 1
    if patterns == len(place):
        return copies[:, np.argsort(place)].astype(np.float64)
    return np.stack([np.bincount(place, weights=row, minlength=patterns) for row in copies])


def weighted_metric(metric: str, true: Array, predicted: Array, weights: Array) -> Array:
    """Return a metric, (draws), of patterns (patterns) weighted by their counts (draws, patterns).

    The conventions for constants are those of `neobert.glue.metrics`, with NaN for undefined values.
    """
    if metric == "accuracy":
        return weights @ (predicted == true) / weights.sum(axis=1)
    if metric in ("f1", "matthews"):
        return _of_confusion(metric, true == 1, predicted == 1, weights)
    centred = _centred if metric == "pearson" else _centred_ranks
    ours, theirs = (centred(values, weights) for values in (true, predicted))
    covariance = (weights * ours * theirs).sum(axis=1)
    variances = (weights * ours**2).sum(axis=1) * (weights * theirs**2).sum(axis=1)
    return np.divide(covariance, np.sqrt(variances), out=np.full_like(covariance, np.nan), where=variances > 1e-18)


def _of_confusion(metric: str, true: Array, predicted: Array, weights: Array) -> Array:
    """Return F1 of class 1 or Matthews' correlation of two classes; 0 if the denominator is 0."""
    hits, only_predicted = weights @ (predicted & true), weights @ (predicted & ~true)
    only_true, neither = weights @ (~predicted & true), weights @ (~predicted & ~true)
    above, below = 2 * hits, 2 * hits + only_predicted + only_true
    if metric == "matthews":
        above = hits * neither - only_predicted * only_true
        product = (hits + only_predicted) * (hits + only_true) * (neither + only_predicted) * (neither + only_true)
        below = np.sqrt(product)
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def _centred(values: Array, weights: Array) -> Array:
    """Subtract from values their mean over the examples of each resample: (draws, patterns)."""
    return values - (weights @ values / weights.sum(axis=1))[:, None]


def _centred_ranks(values: Array, weights: Array) -> Array:
    """Return the rank of every value within each resample minus the mean rank, (draws, patterns); ties share a rank."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    in_group = np.add.reduceat(weights[:, order], starts, axis=1)
    before = np.cumsum(in_group, axis=1) - in_group
    mean_rank = (weights.sum(axis=1, keepdims=True) + 1) / 2
    return (before + (in_group + 1) / 2 - mean_rank)[:, group]
