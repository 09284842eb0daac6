"""Scores equal scikit-learn's and scipy's, undefined ones are said to be undefined, and tasks are GLUE's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from neobert.data.catalog import TASK_SPLITS
from neobert.data.synthetic import task_examples
from neobert.glue.metrics import Scores, evaluate
from neobert.glue.tasks import TASKS, task_named

REFERENCES = {
    "accuracy": sk.accuracy_score,
    "f1": sk.f1_score,
    "matthews": sk.matthews_corrcoef,
    "pearson": lambda true, predicted: stats.pearsonr(true, predicted)[0],
    "spearman": lambda true, predicted: stats.spearmanr(true, predicted)[0],
}


def logits(classes, labels):
    """One-hot float32 logits of class ids."""
    return np.eye(labels, dtype=np.float32)[np.asarray(classes)]


def test_tasks_name_the_columns_and_splits_of_the_synthetic_source():
    for name, task in TASKS.items():
        assert task.splits == TASK_SPLITS[name]
        assert set(task.columns) == set(task_examples(name, "train")) - {"label", "idx"}


def test_an_unknown_task_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="'cola'"):
        task_named("colla")


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@given(seed=st.integers(0, 2**32), count=st.integers(20, 60))
def test_scores_equal_the_reference_libraries_on_random_predictions(task, seed, count):
    rng = np.random.default_rng(seed)
    predictions, labels, expected = {}, {}, []
    for split in task.validation_splits:
        if task.is_regression:
            predictions[split], labels[split] = rng.normal(size=(2, count)).astype(np.float32)
            chosen = predictions[split]
        else:
            predictions[split] = rng.normal(size=(count, task.labels)).astype(np.float32)
            chosen, labels[split] = predictions[split].argmax(1), rng.permutation(np.arange(count) % task.labels)
        expected += [REFERENCES[metric](labels[split], chosen) for metric in task.metrics]
    scores = evaluate(task, predictions, labels)
    assert list(scores.metrics.values()) == pytest.approx(expected, abs=1e-6)
    assert scores.score == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.parametrize("side", ["predictions", "labels"])
def test_a_correlation_with_a_constant_is_none_and_so_is_the_score(side):
    """Not 0, not NaN, and not the mean of what is left."""
    arrays = {"predictions": np.array([1.0, 2, 3]), "labels": np.array([1.0, 2, 3])} | {side: np.full(3, 2.5)}
    scores = evaluate(TASKS["stsb"], {"validation": arrays["predictions"]}, {"validation": arrays["labels"]})
    assert scores == Scores(None, {"pearson": None, "spearman": None})


def test_constant_classes_have_the_values_that_scikit_learn_defines():
    constant, true = logits([0, 0, 0, 0], 2), np.array([0, 1, 1, 0])
    assert evaluate(TASKS["cola"], {"validation": constant}, {"validation": true}).score == 0
    assert evaluate(TASKS["mrpc"], {"validation": constant}, {"validation": true}).metrics == {"accuracy": 0.5, "f1": 0}
    assert evaluate(TASKS["cola"], {"validation": constant}, {"validation": np.zeros(4, int)}).score == 0


def test_an_undefined_score_is_worse_than_any_number_and_better_than_none_at_all():
    undefined, worst, equal = Scores(None, {}), Scores(-1.0, {}), Scores(-1.0, {})
    assert undefined.is_better_than(None, None)
    assert worst.is_better_than(undefined, None)
    assert not undefined.is_better_than(worst, None)
    assert not undefined.is_better_than(undefined, None)
    assert not equal.is_better_than(worst, None)


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        ({"validation_matched": np.zeros((2, 3))}, {"validation_matched": np.zeros(2)}, "validation_mismatched"),
        ({"validation": np.zeros((2, 2))}, {"validation": np.zeros(3, int)}, "do not fit 3 labels"),
        ({"validation": np.zeros((2, 3))}, {"validation": np.zeros(2, int)}, "do not fit"),
        ({"validation": np.zeros((0, 2))}, {"validation": np.zeros(0, int)}, "do not fit 0 labels"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(predictions, labels, message):
    task = TASKS["mnli"] if "validation_matched" in predictions else TASKS["cola"]
    with pytest.raises(ValueError, match=message):
        evaluate(task, predictions, labels)
