"""Fine-tuning follows the paper's protocol, learns, leaks nothing, and gives equal bits for equal arguments."""

import signal

import numpy as np
import pytest
import torch
from torch.nn import functional

from neobert.errors import RunFailed
from neobert.glue import finetuning
from neobert.glue.batching import training_batches
from neobert.glue.encoding import EncodedTask
from neobert.glue.finetuning import FineTuner
from neobert.glue.metrics import Scores
from neobert.glue.tasks import TASKS
from neobert.model.attention import padded_plan
from neobert.model.build import initialize_classifier
from neobert.processes import Stopped, StopRequest
from neobert.training.schedule import FineTuningSchedule
from tests.glue.glue_worlds import (
    CPU,
    classifier,
    counted_split,
    digest,
    encoder_weights,
    fine_tuner,
    marked_task,
    point,
    protocol,
    split_of,
)
from tests.support.small_models import classified

NOTHING = torch.zeros(1)


# The course: steps, rate, evaluations, patience


@pytest.mark.parametrize(
    ("examples", "batch_size", "interval", "steps"),
    [(392_702, 32, 500, 122_720), (1000, 32, 3, 320), (8551, 16, 53, 5350), (5, 2, 1, 30), (1, 32, 1, 10)],
)
def test_the_course_follows_appendix_c(examples, batch_size, interval, steps):
    """Evaluations every min(500, steps of an epoch / 10); warm-up 6 %, floor reached at 90 % of the steps."""
    course = FineTuningSchedule.of(protocol(epochs=10), examples, batch_size)
    assert (course.evaluation_interval, course.steps) == (interval, steps)
    assert course.warmup_steps == round(0.06 * steps)
    assert course.decay_steps == round(0.9 * steps)
    assert course.learning_rate(course.warmup_steps, 2e-5) == pytest.approx(2e-5)
    assert course.learning_rate(course.decay_steps, 2e-5) == pytest.approx(2e-6)
    assert course.learning_rate(steps, 2e-5) == pytest.approx(2e-6)


@pytest.mark.parametrize(
    ("scores", "best_step", "steps"),
    [
        ([0.1, 0.5, 0.5, 0.4, 0.9], 4, 8),  # two evaluations without improvement: the 0.9 is never seen
        ([0.1, 0.5, 0.4, 0.6, 0.5], 8, 9),  # the end of training is evaluated although it lies within an interval
        ([None, None, None, 0.1, 0.2], 2, 6),  # an undefined score is no improvement on an undefined one
        ([-0.5, None, -0.4, None, None], 6, 9),
    ],
)
def test_runs_stop_when_patience_ends_and_keep_the_best_step(monkeypatch, scores, best_step, steps):
    """Nine updates, evaluated after 2, 4, 6, 8 and 9, with a patience of two."""
    told = iter(scores)
    monkeypatch.setattr(finetuning, "evaluate", lambda *_: Scores(next(told), {}))
    tuner = fine_tuner(marked_task(train=72), epochs=1, evaluations_per_epoch=4, patience_evaluations=2)
    outcome = tuner.run(point(batch_size=8), seed=0)
    assert (outcome.best_step, outcome.steps) == (best_step, steps)
    assert outcome.curve == tuple(zip([2, 4, 6, 8, 9], scores, strict=True))[: len(outcome.curve)]
    assert outcome.curve[-1][0] == steps
    assert outcome.score == dict(outcome.curve)[best_step]


# One run is the released code's loop


def test_updates_equal_a_plain_torch_loop():
    """Padded batches, torch's own AdamW on all parameters, no clipping, the course's rates: nine updates."""
    task, cell = marked_task(train=72), point(batch_size=16, learning_rate=1e-3, weight_decay=0.1)
    study = protocol(epochs=2, dropout=0)
    tuner = fine_tuner(task, epochs=2, dropout=0)
    for _ in tuner.evaluations(cell, seed=5):
        pass
    model, train = classifier(2, dropout=0), task.splits["train"]
    initialize_classifier(model, study.classifier_scale, 5)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
    course = FineTuningSchedule.of(study, 72, 16)
    for step, examples in enumerate(training_batches(train, 16, 2, 5), start=1):
        optimizer.param_groups[0]["lr"] = course.learning_rate(step, 1e-3)
        texts = [torch.from_numpy(train[example][0]).long() for example in examples]
        padded = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=-1)
        logits = classified(model, padded.clamp(min=0), padded_plan(padded >= 0))
        optimizer.zero_grad()
        functional.cross_entropy(logits, torch.from_numpy(train.labels[examples])).backward()
        optimizer.step()
    assert step == course.steps == 10
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tuner.classifier.state_dict()[name], tensor, atol=2e-5, rtol=0)


# Learning, and nothing but learning


@pytest.mark.parametrize(("pooling", "precision"), [("cls", "fp32"), ("mean", "fp32"), ("mean", "bf16")])
def test_a_separable_task_is_learnt(pooling, precision):
    outcome = fine_tuner(marked_task(), epochs=4, pooling=pooling, precision=precision).run(point(), seed=0)
    assert outcome.score > 0.9


def test_shuffled_training_labels_teach_nothing():
    """If a label could leak into the input or from validation, this would be learnt."""
    curve = fine_tuner(marked_task(validation=200, shuffled=True), epochs=4).run(point(), seed=0).curve
    assert np.mean([score for _, score in curve]) < 0.65


def test_validation_labels_change_no_weight():
    """They choose the best step and nothing else: with other labels every update is the same."""
    task = marked_task(train=96)
    validation = task.splits["validation"]
    turned = split_of([validation[i][0] for i in range(len(validation))], [1 - int(x) for x in validation.labels])
    weights, losses = [], []
    for split in (validation, turned):
        tuner = fine_tuner(EncodedTask(task.task, {**task.splits, "validation": split}), patience_evaluations=1000)
        losses.append([evaluation.loss for evaluation in tuner.evaluations(point(), seed=0)])
        weights.append(tuner.classifier.state_dict())
    assert losses[0] == losses[1]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_regression_is_learnt_on_raw_values():
    """Not only their order: the predictions come to lie near the labels, 0 to 5."""
    task = EncodedTask(TASKS["stsb"], {"train": counted_split(256, 1), "validation": counted_split(64, 2)})
    tuner = fine_tuner(task, epochs=10, pooling="mean", patience_evaluations=1000)
    outcome = tuner.run(point(learning_rate=5e-3), seed=0)
    assert outcome.score > 0.9
    assert outcome.predictions["validation"].shape == (64,)
    assert np.abs(tuner.predict()["validation"] - task.labels["validation"]).mean() < 0.4


def test_the_loss_of_a_regression_is_the_squared_error_of_the_raw_label():
    task = EncodedTask(TASKS["stsb"], {"train": counted_split(16, 1), "validation": counted_split(8, 2)})
    tuner = fine_tuner(task, epochs=1, dropout=0, classifier_scale=1e-9)
    (evaluation,) = list(tuner.evaluations(point(batch_size=16), seed=0))
    assert evaluation.loss == pytest.approx(np.mean(task.splits["train"].labels ** 2), rel=1e-4)


def test_constant_labels_give_an_undefined_score_and_never_a_number():
    validation = split_of([[1, 7, 2], [1, 8, 9, 2]], [2.5, 2.5])
    task = EncodedTask(TASKS["stsb"], {"train": counted_split(16, 1), "validation": validation})
    outcome = fine_tuner(task, epochs=1, evaluations_per_epoch=2).run(point(batch_size=4), seed=0)
    assert outcome.score is None
    assert outcome.metrics == {"pearson": None, "spearman": None}
    assert outcome.curve == ((2, None), (4, None))
    assert outcome.best_step == 2


# What a run leaves behind


def test_the_best_weights_give_the_best_predictions_bit_for_bit():
    """Even though training went on after them."""
    tuner = fine_tuner(marked_task(), epochs=2, patience_evaluations=1000)
    outcome = tuner.run(point(learning_rate=5e-3), seed=0)
    assert outcome.best_step < outcome.steps
    tuner.classifier.load_state_dict(outcome.weights)
    np.testing.assert_array_equal(tuner.predict()["validation"], outcome.predictions["validation"])


# Equal bits


def test_runs_on_one_object_equal_runs_on_fresh_ones_bit_for_bit():
    """And none changes the outcome of an earlier one, or the weights from which it starts."""
    task = marked_task(train=64)
    used = fine_tuner(task, epochs=1)
    used.run(point(learning_rate=1e-2, batch_size=4), seed=3)
    next(used.evaluations(point(), seed=4))  # begun and left
    again = list(map(digest, [used.run(point(), seed) for seed in (0, 1)]))
    assert again == [digest(fine_tuner(task, epochs=1).run(point(), seed)) for seed in (0, 1)]
    assert again[0] != again[1]


# What can go wrong


def test_the_first_step_with_a_loss_that_is_not_finite_is_named(monkeypatch):
    losses = iter([1.0, 2.0, float("nan"), 1.0, 1.0])
    monkeypatch.setattr(FineTuner, "_update", lambda *_: torch.tensor(next(losses)))
    with pytest.raises(RunFailed, match="step 3: the loss is nan"):
        fine_tuner(marked_task(train=64), epochs=1, evaluations_per_epoch=1).run(point(), seed=0)


def test_a_request_to_stop_ends_a_run_between_steps():
    tuner, stop = fine_tuner(marked_task(train=64), epochs=2), StopRequest()
    run = tuner.evaluations(point(), seed=0, stop=stop)
    assert next(run).step == 1
    stop.signals.add(signal.SIGTERM)
    with pytest.raises(Stopped, match="before step 2"):
        next(run)


@pytest.mark.parametrize("changes", [{"model.layer_norm.weight": None}, {"dense.weight": NOTHING}])
def test_no_tensor_of_the_starting_weights_may_be_missing(changes):
    """None stands for a tensor that is not there. A layer comes with its bias."""
    model = classifier(2)
    start = {name: tensor for name, tensor in (encoder_weights(model) | changes).items() if tensor is not None}
    with pytest.raises(AssertionError, match="the starting weights differ"):
        FineTuner(model, start, marked_task(train=8), protocol(), CPU)
