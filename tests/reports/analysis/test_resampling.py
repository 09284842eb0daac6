"""The bootstrap over examples: its metrics are the task's own, whatever is drawn."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.glue.metrics import evaluate
from neobert.glue.tasks import TASKS
from reports.analysis.resampling import (
    StoredPredictions,
    copies_of_examples,
    resample,
    resampled_differences,
    resampled_scores,
    weighted_metric,
)
from reports.scores import Row, Seeds

Array = np.ndarray[Any, np.dtype[Any]]


def world(task: str, examples: int, seed: int) -> tuple[dict[str, Array], list[dict[str, Array]]]:
    """Labels and two models' predictions; coarse values, so that there are ties."""
    random, of_task = np.random.default_rng(seed), TASKS[task]
    labels, models = {}, [{}, {}]  # type: ignore[var-annotated]
    for split in of_task.validation_splits:
        if of_task.is_regression:
            labels[split] = random.integers(0, 6, examples).astype(np.float64)
            for model in models:
                model[split] = np.round(labels[split] + random.normal(0, 2, examples))
        else:
            labels[split] = random.integers(0, of_task.labels, examples)
            for model in models:
                model[split] = random.normal(0, 1, (examples, of_task.labels)).astype(np.float32)
    return labels, models


@given(st.sampled_from(sorted(TASKS)), st.integers(2, 30), st.integers(0, 2**31))
@settings(max_examples=60)
def test_weights_count_as_copies_of_the_examples(task: str, examples: int, seed: int) -> None:
    """A weighted metric is the metric of the examples repeated so often, by scikit-learn and scipy."""
    labels, models = world(task, examples, seed)
    weights = np.random.default_rng(seed).integers(0, 3, examples)
    weights[0] += 1
    for split in TASKS[task].validation_splits:
        chosen = np.repeat(np.arange(examples), weights)
        for model in models:
            expected = evaluate(
                TASKS[task],
                {name: model[name][chosen] for name in labels},
                {name: labels[name][chosen] for name in labels},
            )
            predicted = model[split] if TASKS[task].is_regression else model[split].argmax(axis=1)
            suffix = split.removeprefix("validation") if len(labels) > 1 else ""
            for metric in TASKS[task].metrics:
                (found,) = weighted_metric(metric, labels[split], predicted, weights[None, :].astype(float))
                value = expected.metrics[f"{metric}{suffix}"]
                assert np.isnan(found) if value is None else found == pytest.approx(value, abs=1e-7)


@pytest.mark.parametrize("task", ["cola", "mrpc", "mnli", "stsb"])
def test_resamples_are_centred_and_spread_as_the_plain_bootstrap(task: str) -> None:
    labels, models = world(task, 80, 3)
    first, second = (resampled_scores(TASKS[task], model, labels, 2000) for model in models)
    assert first.shape == (2000,)
    random, plain = np.random.default_rng(2), []
    for _ in range(300):
        chosen = {split: random.integers(0, 80, 80) for split in labels}
        scores = [
            evaluate(
                TASKS[task], {s: model[s][chosen[s]] for s in labels}, {s: labels[s][chosen[s]] for s in labels}
            ).score
            for model in models
        ]
        plain.append(scores[0] - scores[1])  # type: ignore[operator]
    differences = first - second
    assert differences.std() == pytest.approx(np.std(plain), rel=0.15)
    assert differences.mean() == pytest.approx(np.mean(plain), abs=4 * np.std(plain) / np.sqrt(300))


@pytest.mark.parametrize("task", ["cola", "mnli", "stsb"])
def test_a_resample_is_so_many_copies_of_each_example(task: str) -> None:
    """Scores on a resample are those of the task's own metrics on the examples that it repeats."""
    labels, models = world(task, 30, 1)
    found = resampled_scores(TASKS[task], models[0], labels, 5)
    for draw in range(5):
        chosen = {split: np.repeat(np.arange(30), copies_of_examples(task, split, 30, 5)[draw]) for split in labels}
        assert all(len(each) == 30 for each in chosen.values())
        expected = evaluate(
            TASKS[task],
            {split: models[0][split][chosen[split]] for split in labels},
            {split: labels[split][chosen[split]] for split in labels},
        )
        assert found[draw] == pytest.approx(expected.score, abs=1e-7)


def test_models_are_scored_on_the_same_examples() -> None:
    """Equal predictions differ on no resample, however noisy the resamples are, in another process too."""
    labels, models = world("cola", 40, 0)
    first = resampled_scores(TASKS["cola"], models[0], labels, 200)
    copies_of_examples.cache_clear()
    second = resampled_scores(TASKS["cola"], models[0], labels, 200)
    assert (first == second).all() and first.std() > 0.01


def test_predictions_of_another_number_of_examples_are_refused() -> None:
    labels, models = world("rte", 10, 0)
    shorter = {"validation": models[0]["validation"][:9]}
    with pytest.raises(ValueError, match="RTE validation"):
        resampled_scores(TASKS["rte"], shorter, labels, 10)


SCORES = {("sst2", 0, 0): 0.5, ("sst2", 0, 7): 0.9, ("sst2", 1, 1): 0.2, ("stsb", 0, 0): 0.1, ("stsb", 0, 7): 0.3}
SEEDS = [Seeds(0, 0), Seeds(0, 7), Seeds(1, 1)]


@dataclass(frozen=True)
class Known:
    """Scores on resamples that are known: those of SCORES plus what the draw adds, of the base 0."""

    def resampled(self, task: str, trial_id: str, weights: str) -> Array:
        assert weights == f"run {trial_id.split()[2]}", "the weights are those of the trial's own run"
        name, who, pretraining, finetuning = trial_id.split()
        known = SCORES.get((name, int(pretraining), int(finetuning)), 0.0)
        return np.array([known, known + 0.1]) if who == "M1" else np.zeros(2)


def row(name: str) -> Row:
    """What the bootstrap reads of a row: its trials by seeds, and its runs."""
    cells = {
        task: SimpleNamespace(ids={each: f"{task} {name} {each.pretraining} {each.finetuning}" for each in SEEDS})
        for task in ("sst2", "stsb")
    }
    runs = pd.DataFrame({"seed": [0, 1], "id": ["run 0", "run 1"]})
    return cast(Row, SimpleNamespace(name=name, cells=cells, runs=runs))


def test_a_resampled_score_is_the_mean_over_seeds_of_means_over_fine_tuning_seeds() -> None:
    """Seed 0 has two trials and seed 1 one: each counts half."""
    found = resample(row("M1"), "sst2", cast(StoredPredictions, Known()), SEEDS)
    assert found.tolist() == pytest.approx([(0.7 + 0.2) / 2, (0.8 + 0.3) / 2])


def test_resampled_differences_are_means_over_tasks_in_points() -> None:
    rows, stored = (row("M1"), row("M0")), cast(StoredPredictions, Known())
    first = [Seeds(0, 0), Seeds(0, 7)]
    found = resampled_differences(*rows, ["sst2", "stsb"], stored, first)
    assert found.tolist() == pytest.approx([100 * (0.7 + 0.2) / 2, 100 * (0.8 + 0.3) / 2])
