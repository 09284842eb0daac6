"""Fine-tuning on a GLUE task by the paper's protocol (App. C): one point of a grid, one seed, one curve of scores."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from neobert.errors import RunFailed
from neobert.glue.batching import ExampleBatch, batch_logits, evaluation_batches, lay_out, training_batches
from neobert.glue.encoding import EncodedTask
from neobert.glue.metrics import Scores, evaluate
from neobert.model.build import initialize_classifier
from neobert.model.heads import SequenceClassifier
from neobert.recipe import FineTuning, Point
from neobert.training.engine import autocast
from neobert.training.loop import seed_step
from neobert.training.optimization import set_learning_rate
from neobert.training.schedule import learning_rate

Array = np.ndarray[Any, np.dtype[Any]]
Predictions = dict[str, Array]


@dataclass(frozen=True)
class Evaluation:
    """One look at the validation splits after update number `step`; `loss` is the mean training loss since the last."""

    step: int
    score: float | None
    metrics: dict[str, float | None]
    loss: float


@dataclass(frozen=True, eq=False)
class Outcome:
    """The best evaluation of a run and what was predicted then; `steps` counts all updates that were made.

    `score` is None where no evaluation had a defined one. `predictions` holds, by validation split, float32 logits
    (examples, classes) or values (examples); `weights` is the classifier's state dict on the CPU.
    """

    score: float | None
    metrics: dict[str, float | None]
    best_step: int
    steps: int
    curve: tuple[tuple[int, float | None], ...]
    predictions: Predictions
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class Course:
    """The numbers of a run that follow from protocol, examples and batch size."""

    steps: int
    evaluation_interval: int
    warmup_steps: int
    decay_steps: int

    @classmethod
    def of(cls, protocol: FineTuning, examples: int, batch_size: int) -> "Course":
        """App. C: evaluations every min(500, steps of an epoch / 10) updates; fractions count all updates."""
        steps_per_epoch = -(-examples // batch_size)
        steps = steps_per_epoch * protocol.epochs
        interval = min(protocol.evaluation_interval_steps, steps_per_epoch // protocol.evaluations_per_epoch)
        warmup_steps = round(protocol.warmup_fraction * steps)
        decay_steps = max(warmup_steps + 1, round(protocol.decay_fraction * steps))
        return cls(steps, max(1, interval), warmup_steps, decay_steps)

    def evaluates_after(self, step: int) -> bool:
        """At every interval and at the end."""
        return step % self.evaluation_interval == 0 or step == self.steps


class Patience:
    """Remembers the best scores and counts the evaluations since."""

    def __init__(self, evaluations: int) -> None:
        self.evaluations = evaluations
        self.best: Scores | None = None
        self.waited = 0

    def improves(self, scores: Scores) -> bool:
        """Note an evaluation; True where it is strictly better than all before it. A first one always is."""
        better = scores.is_better_than(self.best)
        self.best = scores if better else self.best
        self.waited = 0 if better else self.waited + 1
        return better

    @property
    def is_exhausted(self) -> bool:
        """Whether the last `evaluations` evaluations brought nothing better."""
        return self.waited >= self.evaluations


class FineTuner:
    """One model and one encoded task, for any number of points and seeds.

    The weights that `classifier` has at construction are the start of every run, apart from its head, which each run
    draws from its seed. `classifier` stays where it is (device) and is changed in place; one run at a time.
    """

    def __init__(self, classifier: SequenceClassifier, encoded: EncodedTask, protocol: FineTuning) -> None:
        self.classifier = classifier
        self.encoded = encoded
        self.protocol = protocol
        self.device = next(classifier.parameters()).device
        self._train = encoded.train(protocol.train_examples)
        self._labels = encoded.labels
        self._start = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
        self._validation = {
            name: [(examples, lay_out(split, examples, self.device)) for examples in evaluation_batches(split)]
            for name, split in encoded.validation.items()
        }

    def run(self, point: Point, seed: int) -> Generator[Evaluation, None, Outcome]:
        """Fine-tune on one point: yields every evaluation, returns the outcome. Closing it early stops the run.

        Equal arguments give equal bits at equal threads, whatever ran before on this object.

        Raises:
            RunFailed: a loss or prediction is not finite; names the step.
        """
        self.classifier.load_state_dict(self._start)
        initialize_classifier(self.classifier, self.protocol.classifier_scale, seed)
        course = Course.of(self.protocol, len(self._train), point.batch_size)
        patience, optimizer = Patience(self.protocol.patience_evaluations), self._optimizer(point)
        losses: list[Tensor] = []
        curve: list[tuple[int, float | None]] = []
        for step, batch in enumerate(self._batches(point.batch_size, seed), start=1):
            set_learning_rate(optimizer, _learning_rate(step, point, course, self.protocol))
            seed_step(seed, step, process=0)
            losses.append(self._update(optimizer, batch))
            if not course.evaluates_after(step):
                continue
            loss = _mean_loss(losses, step)
            losses.clear()
            scores, predictions = self._evaluate(step)
            curve.append((step, scores.score))
            if patience.improves(scores):
                best_step, best_predictions, best_weights = step, predictions, self._copy_of_weights()
            yield Evaluation(step, scores.score, scores.metrics, loss)
            if patience.is_exhausted:
                break
        assert patience.best is not None
        return Outcome(
            patience.best.score, patience.best.metrics, best_step, step, tuple(curve), best_predictions, best_weights
        )

    def _batches(self, batch_size: int, seed: int) -> Iterator[ExampleBatch]:
        for examples in training_batches(self._train, batch_size, self.protocol.epochs, seed):
            yield lay_out(self._train, examples, self.device)

    def _optimizer(self, point: Point) -> torch.optim.AdamW:
        """Weight decay on all parameters, norms and biases too, and no clipping: as the released code."""
        return torch.optim.AdamW(
            self.classifier.parameters(),
            lr=point.learning_rate,
            betas=(self.protocol.beta1, self.protocol.beta2),
            eps=self.protocol.epsilon,
            weight_decay=point.weight_decay,
            fused=True,
        )

    def _update(self, optimizer: torch.optim.AdamW, batch: ExampleBatch) -> Tensor:
        self.classifier.train()
        loss = self._loss(self._logits(batch), batch.labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _logits(self, batch: ExampleBatch) -> Tensor:
        with autocast(self.device, self.protocol.precision):
            return batch_logits(self.classifier, batch, self.protocol.pooling).float()

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean over the batch: squared error of the raw value, or cross-entropy."""
        if self.encoded.task.is_regression:
            return functional.mse_loss(logits.squeeze(1), labels)
        return functional.cross_entropy(logits, labels)

    def _evaluate(self, step: int) -> tuple[Scores, Predictions]:
        predictions = self.predict()
        if not all(np.isfinite(values).all() for values in predictions.values()):
            raise RunFailed(f"step {step}: a prediction is not finite")
        return evaluate(self.encoded.task, predictions, self._labels), predictions

    @torch.no_grad()
    def predict(self) -> Predictions:
        """What the classifier as it is now predicts on the validation splits, as `Outcome.predictions`."""
        self.classifier.eval()
        predictions = {}
        for name, batches in self._validation.items():
            values = np.empty((len(self._labels[name]), self.encoded.task.labels), np.float32)
            for examples, batch in batches:
                values[examples] = self._logits(batch).cpu().numpy()
            predictions[name] = values.squeeze(1) if self.encoded.task.is_regression else values
        return predictions

    def _copy_of_weights(self) -> dict[str, Tensor]:
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.classifier.state_dict().items()}


def fine_tune(
    classifier: SequenceClassifier, encoded: EncodedTask, protocol: FineTuning, point: Point, seed: int
) -> Generator[Evaluation, None, Outcome]:
    """`FineTuner.run` for a single point."""
    return FineTuner(classifier, encoded, protocol).run(point, seed)


def finish(run: Generator[Evaluation, None, Outcome]) -> Outcome:
    """Exhaust a run for its outcome alone."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def _learning_rate(step: int, point: Point, course: Course, protocol: FineTuning) -> float:
    return learning_rate(
        step,
        peak=point.learning_rate,
        warmup_steps=course.warmup_steps,
        decay_steps=course.decay_steps,
        floor_fraction=protocol.floor_fraction,
        shape="linear",
    )


def _mean_loss(losses: list[Tensor], last_step: int) -> float:
    """The mean of the losses of the updates up to `last_step`.

    Raises:
        RunFailed: one is not finite; names its step.
    """
    values: list[float] = torch.stack(losses).tolist()
    for step, value in enumerate(values, start=last_step - len(values) + 1):
        if not np.isfinite(value):
            raise RunFailed(f"step {step}: the loss is {value}")
    return sum(values) / len(values)
