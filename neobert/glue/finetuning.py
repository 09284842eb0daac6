"""Fine-tuning on a GLUE task by the paper's protocol (App. C): one point of a grid, one seed, one curve of scores."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from neobert.errors import RunFailed
from neobert.glue.batching import SHARED_ROWS, Batch, Form, evaluation_batches, fixed_row_tokens, training_batches
from neobert.glue.encoding import EncodedSplit, EncodedTask
from neobert.glue.metrics import Scores, evaluate
from neobert.model.build import initialize_classifier
from neobert.model.encoder import Encoder
from neobert.model.heads import Classifier
from neobert.processes import Stopped, StopRequest
from neobert.recipe import FineTuning, Point, Precision
from neobert.runs.optuna_view import Report
from neobert.runs.specifications import CompileWord
from neobert.training.compiling import COMPILE_SECONDS, COMPILE_SECONDS_PER_LAYER, SAVED_SHARE, Trial, compiled
from neobert.training.engine import autocast
from neobert.training.loop import seed_step
from neobert.training.optimization import set_learning_rate
from neobert.training.schedule import FineTuningSchedule, Patience


@dataclass(frozen=True)
class Compiling:
    """What is asked for. `auto` weighs the `points` that are left to run; `backend` is one of torch.compile's."""

    word: CompileWord = "off"
    points: tuple[Point, ...] = ()
    backend: str | Callable[..., Any] = "inductor"


NEVER = Compiling()


@dataclass(frozen=True)
class Remainder:
    """What is left to do at one batch size.

    steps: updates. seconds: of an eager forward and backward pass. slots_ratio: slots of a batch in fixed sizes to
    those of an eager one, which has less padding. shapes: sizes that would be compiled.
    """

    steps: int
    seconds: float
    slots_ratio: float
    shapes: int


def pays(left: Iterable[Remainder], layers: int, device: torch.device, precision: Precision) -> bool:
    """Whether compiling earns itself back in what is left to do."""
    kept = 1 - SAVED_SHARE[device.type, precision]
    gain_seconds, cost_seconds = 0.0, 0.0
    for part in left:
        gain_seconds += part.steps * part.seconds * (1 - kept * part.slots_ratio)
        cost_seconds += part.shapes * (COMPILE_SECONDS + COMPILE_SECONDS_PER_LAYER * layers)
    return gain_seconds > cost_seconds


@dataclass(frozen=True, eq=False)
class Candidate:
    """An encoder that is to be fine-tuned: its examples, how they come to it, the mean loss of a batch, and the updates
    of a run."""

    encoder: nn.Module
    train: EncodedSplit
    form: Form[Any]
    loss: Callable[[Any], Tensor]
    course_steps: Callable[[Point], int]
    precision: Precision
    device: torch.device

    def compiled(self, compiling: Compiling, batch_size: int) -> bool:
        """Compile the encoder in place for fixed sizes, if that is asked for or pays, and try it; whether it is.

        On CUDA its forward and backward pass become CUDA graphs, as steps of small batches wait for launches alone.

        Raises:
            RunFailed: compiling was asked for, and there is no compiler that works.
        """
        if compiling.word == "off" or self.form.fixed is None:
            return False
        if compiling.word == "auto" and not self._pays(compiling.points):
            return False
        mode = "reduce-overhead" if self.device.type == "cuda" and compiling.backend == "inductor" else None
        trial = self._trial(self._first_batches(batch_size)[1])
        return compiled(trial, compiling.word, backend=compiling.backend, mode=mode)

    def _pays(self, points: Sequence[Point]) -> bool:
        sizes = sorted({point.batch_size for point in points})
        left = [self._left(size, [point for point in points if point.batch_size == size]) for size in sizes]
        return pays(left, len(cast(Encoder, self.encoder).transformer_encoder), self.device, self.precision)

    def _left(self, batch_size: int, points: Sequence[Point]) -> Remainder:
        eager, fixed = self._first_batches(batch_size)
        trial = self._trial(eager)
        trial.seconds()  # the first one is slower
        return Remainder(
            steps=sum(map(self.course_steps, points)),
            seconds=trial.seconds(),
            slots_ratio=fixed.token_ids.numel() / eager.token_ids.numel(),
            shapes=len({fixed_row_tokens(length) for length in self.train.lengths.tolist()}),
        )

    def _first_batches(self, batch_size: int) -> tuple[Any, Any]:
        """The same examples as they are laid out for an eager encoder and for a compiled one."""
        assert self.form.fixed is not None
        examples = next(training_batches(self.train, batch_size, epochs=1, seed=0))
        eager = self.form.lay_out(self.train, examples, self.device)
        return eager, self.form.fixed(self.train, examples, self.device, batch_size)

    def _trial(self, batch: Any) -> Trial:
        return Trial(self.encoder, lambda: self.loss(batch), self.precision, self.device)


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


class FineTuner:
    """One model and one encoded task, for any number of points and seeds.

    Every run starts from `start`, the tensors of the encoder by their names in `classifier` ("model.…"), and from a
    head drawn from its seed, of which `start` may hold the layer `dense`. `classifier` is moved to `device` and
    changed in place: one run at a time. `form` says how examples come to its kind of encoder.

    `compiled` tells whether updates run compiled: decided at the first run, for all. Evaluations never do, since their
    shapes come seldom.

    Raises:
        ValueError: `start` has other names than the encoder.
    """

    def __init__(
        self,
        classifier: Classifier,
        start: Mapping[str, Tensor],
        encoded: EncodedTask,
        protocol: FineTuning,
        device: torch.device,
        form: Form[Any] = SHARED_ROWS,
        compiling: Compiling = NEVER,
    ) -> None:
        _check_names(classifier, start)
        self.classifier = classifier.to(device)
        self.encoded = encoded
        self.protocol = protocol
        self.device = device
        self.form = form
        self.compiling = compiling
        self.compiled: bool | None = None
        self._start = {name: tensor.to(device, copy=True) for name, tensor in start.items()}
        self._train = encoded.train(protocol.train_examples)
        self._labels = encoded.labels
        self._validation = {
            name: [(examples, form.lay_out(split, examples, device)) for examples in evaluation_batches(split)]
            for name, split in encoded.validation.items()
        }

    def course_steps(self, point: Point) -> int:
        """How many updates a run at a point makes if patience does not end it."""
        return FineTuningSchedule.of(self.protocol, len(self._train), point.batch_size).steps

    def run(self, point: Point, seed: int, stop: StopRequest | None = None, report: Report | None = None) -> Outcome:
        """`evaluations` to their end; each is reported.

        Raises:
            RunFailed, Stopped: as `evaluations`; and whatever `report` raises to end the run.
        """
        course = self.evaluations(point, seed, stop)
        while True:
            try:
                evaluation = next(course)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            if report is not None:
                report(evaluation.step, evaluation.score)

    def evaluations(
        self, point: Point, seed: int, stop: StopRequest | None = None
    ) -> Generator[Evaluation, None, Outcome]:
        """Fine-tune at one point: yields every evaluation, returns the outcome. Closing it early ends the run.

        Equal arguments give equal bits at equal threads, whatever ran before on this object.

        Raises:
            RunFailed: a loss or prediction is not finite; names the step.
            Stopped: `stop` was requested; nothing is kept.
        """
        if self.compiled is None:
            self.compiled = self._compile(point)
        initialize_classifier(self.classifier, self.protocol.classifier_scale, seed)
        self.classifier.load_state_dict(self._start, strict=False)  # what of the head is not there stays as drawn
        course = FineTuningSchedule.of(self.protocol, len(self._train), point.batch_size)
        metric = self.encoded.task.decisive_metric(self.protocol)
        patience, optimizer = Patience(self.protocol.patience_evaluations, metric), self._optimizer(point)
        losses: list[Tensor] = []
        curve: list[tuple[int, float | None]] = []
        for step, batch in enumerate(self._batches(point.batch_size, seed), start=1):
            if stop is not None and stop.requested:
                raise Stopped(f"fine-tuning on {self.encoded.task.title} was asked to stop before step {step}")
            set_learning_rate(optimizer, course.learning_rate(step, point.learning_rate))
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

    def _compile(self, point: Point) -> bool:
        """Compile the encoder if that is asked for or pays; whether it is."""
        self.classifier.train()
        candidate = Candidate(
            encoder=self.classifier.model,
            train=self._train,
            form=self.form,
            loss=lambda batch: self._loss(self._logits(batch), batch.labels),
            course_steps=self.course_steps,
            precision=self.protocol.precision,
            device=self.device,
        )
        return candidate.compiled(self.compiling, point.batch_size)

    def _batches(self, batch_size: int, seed: int) -> Iterator[Batch]:
        for examples in training_batches(self._train, batch_size, self.protocol.epochs, seed):
            if self.compiled and self.form.fixed is not None:
                yield self.form.fixed(self._train, examples, self.device, batch_size)
            else:
                yield self.form.lay_out(self._train, examples, self.device)

    def _optimizer(self, point: Point) -> torch.optim.AdamW:
        """Without clipping, as the released code. Weight decay is on norms too; on biases if the protocol says so."""
        parameters = dict(self.classifier.named_parameters())
        spares_biases = self.protocol.weight_decay_on == "all_but_biases"
        spared = {name for name in parameters if spares_biases and name.endswith("bias")}
        groups: list[dict[str, Any]] = [{"params": [parameters[name] for name in parameters if name not in spared]}]
        if spared:
            groups.append({"params": [parameters[name] for name in parameters if name in spared], "weight_decay": 0.0})
        return torch.optim.AdamW(
            groups,
            lr=point.learning_rate,
            betas=(self.protocol.beta1, self.protocol.beta2),
            eps=self.protocol.epsilon,
            weight_decay=point.weight_decay,
            fused=True,
        )

    def _update(self, optimizer: torch.optim.AdamW, batch: Batch) -> Tensor:
        self.classifier.train()
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._logits(batch), batch.labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def _logits(self, batch: Batch) -> Tensor:
        with autocast(self.device, self.protocol.precision):
            return self.form.logits(self.classifier, batch, self.protocol.pooling).float()

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
                with torch.compiler.set_stance("force_eager") if self.compiled else nullcontext():
                    values[examples] = self._logits(batch).cpu().numpy()
            predictions[name] = values.squeeze(1) if self.encoded.task.is_regression else values
        return predictions

    def _copy_of_weights(self) -> dict[str, Tensor]:
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.classifier.state_dict().items()}


def _check_names(classifier: Classifier, start: Mapping[str, Tensor]) -> None:
    parts = ("model.", "dense.") if any(name.startswith("dense.") for name in start) else ("model.",)
    expected = {name for name in classifier.state_dict() if name.startswith(parts)}
    if start.keys() != expected:
        first = min(start.keys() ^ expected)
        side = "lack" if first in expected else "have, beside the encoder's,"
        raise ValueError(f"the starting weights {side} {first!r}: give the encoder's tensors of an equal model")


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
