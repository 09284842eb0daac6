"""Fine-tuning on a task by the paper's protocol (App. C), for one point of a grid and one seed."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from neobert.errors import RunFailed
from neobert.execution import CompileWord
from neobert.glue.batching import ExampleLayout, PackedLayout, evaluation_batches, training_batches
from neobert.glue.encoding import Array, EncodedTask
from neobert.glue.metrics import Scores, evaluate
from neobert.model.build import initialize_classifier
from neobert.model.heads import Classifier
from neobert.processes import Stopped, StopRequest
from neobert.recipe import FineTuning, Point
from neobert.training import checkpoints
from neobert.training.compiling import compile_model, compiling_in_one_sentence, wants_compiling
from neobert.training.engine import autocast, seed_step
from neobert.training.optimization import numbers_beside_state, optimizer_tensors, restore_optimizer, set_learning_rate
from neobert.training.schedule import FineTuningSchedule

Predictions = dict[str, Array]


@dataclass(frozen=True)
class EvaluatedStep:
    """Result on the validation splits after update number `step`.

    value: the score or metric used for early stopping and selection; None if undefined.
    loss: the mean training loss since the last evaluation.
    """

    step: int
    value: float | None
    loss: float


@dataclass(frozen=True, eq=False)
class FineTuningResult:
    """The best evaluation of a run and its predictions; `steps` counts all updates of the run.

    `score` is None if no evaluation had a defined one. `curve` has the step and value of each `EvaluatedStep`.
    `predictions` contains, by validation split, float32 logits (examples, classes) or values (examples);
    `weights` is the classifier's state dict, on its device.
    """

    score: float | None
    metrics: dict[str, float | None]
    best_step: int
    steps: int
    curve: tuple[tuple[int, float | None], ...]
    predictions: Predictions
    weights: dict[str, Tensor]


@dataclass(eq=False)
class Course:
    """A run so far: its evaluations, and the best one with its predictions and weights."""

    evaluations: list[EvaluatedStep] = field(default_factory=list)
    best: Scores | None = None
    best_step: int = 0
    predictions: Predictions = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The update after which it was evaluated last."""
        return self.evaluations[-1].step if self.evaluations else 0

    @property
    def evaluations_since_best(self) -> int:
        return sum(each.step > self.best_step for each in self.evaluations)


@dataclass(frozen=True, eq=False)
class FineTuningState:
    """All that a run needs to go on after its last evaluation. The tensors by name are those of the run itself, which
    its next update changes."""

    course: Course
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]


SAVE_SECONDS = 600
"""Progress is saved at the first evaluation after so long. Shorter trials, which are most, save nothing."""
BEST, PREDICTIONS = "best/", "predictions/"


class SavedProgress:
    """Keeps the progress of a run in a folder, in the form of a checkpoint of pre-training, so that a run that takes
    hours goes on after a kill. `check` is called before it is saved; what it raises is raised. `saved_step` is the
    update of the progress that this process has saved, 0 before the first."""

    def __init__(self, folder: Path, check: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.check = check
        self.saved_step = 0
        self._last = time.monotonic()

    def load(self) -> FineTuningState | None:
        """Return the newest progress that is intact, None without any."""
        checkpoint = checkpoints.newest(self.folder)
        if checkpoint is None:
            return None
        tensors, state = checkpoint.weights(), checkpoint.state()
        course = Course(
            evaluations=[EvaluatedStep(**each) for each in state["evaluations"]],
            best=Scores(**state["best"]),
            best_step=state["best_step"],
            predictions={name: tensor.numpy() for name, tensor in _below(PREDICTIONS, tensors).items()},
            weights=_below(BEST, tensors),
        )
        now = {name: tensor for name, tensor in tensors.items() if not name.startswith((BEST, PREDICTIONS))}
        return FineTuningState(course, now, checkpoint.optimizer())

    def keep(self, progress: Callable[[], FineTuningState]) -> None:
        """Save what `progress` returns if the last time was long ago."""
        if time.monotonic() - self._last < SAVE_SECONDS:
            return
        now = progress()
        course = now.course
        assert course.best is not None
        predictions = {name: torch.from_numpy(values) for name, values in course.predictions.items()}
        tensors = {**now.weights, **_above(BEST, course.weights), **_above(PREDICTIONS, predictions)}
        state: dict[str, Any] = {
            "evaluations": [asdict(each) for each in course.evaluations],
            "best": asdict(course.best),
            "best_step": course.best_step,
        }
        checkpoints.save(self.folder, course.step, _on_host(tensors), _on_host(now.optimizer), state, self.check)
        checkpoints.prune(self.folder, frozenset(), course.step)
        self.saved_step = course.step
        self._last = time.monotonic()


def _below(place: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(place): tensor for name, tensor in tensors.items() if name.startswith(place)}


def _above(place: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{place}{name}": tensor for name, tensor in tensors.items()}


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


class FineTuner:
    """Fine-tune one model on one encoded task, for any number of points and seeds.

    Every run starts from `start`, the tensors of the encoder by their names in `classifier` ("model.…"), and from a
    head initialised from the run's seed; `start` may also contain the head's layer `dense`. `classifier` is moved to
    `device` and changed in place, so only one run can proceed at a time. `layout` prepares batches for the encoder.

    `compile` is whether updates run compiled, by a `backend` of torch.compile: on a GPU as CUDA graphs, compiled once
    for all sizes and recorded for each. `auto` compiles on a GPU as soon as the updates that ran eagerly and those of
    the next run are enough, so that at most twice the time is lost that any rule loses. A model that is compiled stays
    so. Evaluations never are: their shapes occur too rarely.
    """

    def __init__(
        self,
        classifier: Classifier,
        start: Mapping[str, Tensor],
        encoded: EncodedTask,
        protocol: FineTuning,
        device: torch.device,
        layout: ExampleLayout | None = None,
        compile: CompileWord = "off",
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        layers = ("model.", "dense.") if any(name.startswith("dense.") for name in start) else ("model.",)
        expected = {name for name in classifier.state_dict() if name.startswith(layers)}
        assert start.keys() == expected, f"the starting weights differ in {min(start.keys() ^ expected)}"
        self.classifier = classifier.to(device)
        self.encoded = encoded
        self.protocol = protocol
        self.device = device
        self.layout: ExampleLayout = layout or PackedLayout()
        self.compile: CompileWord = compile
        self.backend = backend
        self.compiled = False
        self._eager_updates = 0
        self._start = {name: tensor.to(device, copy=True) for name, tensor in start.items()}
        self._train = encoded.train(protocol.train_examples)
        self._labels = encoded.labels
        self._validation = {
            name: [
                (examples, self.layout.collate(split, examples, device))
                for examples in evaluation_batches(split, device)
            ]
            for name, split in encoded.validation.items()
        }

    def schedule(self, point: Point) -> FineTuningSchedule:
        """Return the updates, evaluations and rates of a run at a point; patience may end it earlier."""
        return FineTuningSchedule.of(self.protocol, len(self._train), point.batch_size)

    def run(
        self,
        point: Point,
        seed: int,
        stop: StopRequest | None = None,
        report: Callable[[int, float | None], None] = lambda step, value: None,
        keeper: SavedProgress | None = None,
    ) -> FineTuningResult:
        """Fine-tune at one point and return the outcome; `report` is called with step and value of each evaluation."""
        evaluations = self.evaluations(point, seed, stop, keeper)
        while True:
            try:
                evaluation = next(evaluations)
            except StopIteration as end:
                outcome: FineTuningResult = end.value
                return outcome
            report(evaluation.step, evaluation.value)

    def evaluations(
        self, point: Point, seed: int, stop: StopRequest | None = None, keeper: SavedProgress | None = None
    ) -> Generator[EvaluatedStep, None, FineTuningResult]:
        """Fine-tune at one point: yield every evaluation, return the outcome. Closing the generator ends the run.

        A run goes on from the progress that `keeper` loads, and yields its evaluations again. On a CPU, equal arguments
        and thread counts give equal bits, regardless of earlier runs and of interruptions. On CUDA the summation order
        of gradients varies.

        Raises:
            RunFailed: a loss or prediction is not finite; the message names the step.
            Stopped: `stop` was requested; what `keeper` has saved is kept.
        """
        schedule, optimizer = self.schedule(point), self._optimizer(point)
        if not self.compiled:
            self.compiled = self._compiles(schedule.steps)
        initialize_classifier(self.classifier, self.protocol.classifier_scale, seed)
        self.classifier.load_state_dict(self._start, strict=False)  # absent head tensors stay as initialised
        metric = self.encoded.task.decisive_metric(self.protocol)
        course = self._resumed(optimizer, keeper)
        yield from course.evaluations
        losses: list[Tensor] = []
        for step, batch in enumerate(self._batches(point.batch_size, seed, course.step), start=course.step + 1):
            if stop is not None and stop.requested:
                message = f"fine-tuning on {self.encoded.task.title} was asked to stop before step {step}"
                raise Stopped(message, progressed=keeper is not None and keeper.saved_step > 0)
            set_learning_rate(optimizer, schedule.learning_rate(step, point.learning_rate))
            seed_step(seed, step, process=0)
            with compiling_in_one_sentence():
                losses.append(self._update(optimizer, batch))
            if not schedule.evaluates_after(step):
                continue
            loss = _mean_loss(losses, step)
            losses.clear()
            predictions = self.predict()
            if not all(np.isfinite(values).all() for values in predictions.values()):
                raise RunFailed(f"step {step}: a prediction is not finite")
            scores = evaluate(self.encoded.task, predictions, self._labels)
            course.evaluations.append(EvaluatedStep(step, scores.value(metric), loss))
            if scores.is_better_than(course.best, metric):
                course.best, course.best_step = scores, step
                course.predictions, course.weights = predictions, self._copy_of_weights()
            yield course.evaluations[-1]
            if course.evaluations_since_best >= self.protocol.patience_evaluations:
                break
            if keeper is not None and step < schedule.steps:
                keeper.keep(lambda: self._progress(course, optimizer))
        best = course.best
        assert best is not None
        curve = tuple((each.step, each.value) for each in course.evaluations)
        return FineTuningResult(
            best.score, best.metrics, course.best_step, step, curve, course.predictions, course.weights
        )

    def _resumed(self, optimizer: torch.optim.AdamW, keeper: SavedProgress | None) -> Course:
        """Return the course so far, with weights and optimizer as they were then; an empty one without progress."""
        progress = None if keeper is None else keeper.load()
        if progress is None:
            return Course()
        self.classifier.load_state_dict(dict(progress.weights))
        restore_optimizer(optimizer, self.classifier, progress.optimizer)
        course = progress.course
        course.weights = {name: tensor.to(self.device) for name, tensor in course.weights.items()}
        return course

    def _progress(self, course: Course, optimizer: torch.optim.AdamW) -> FineTuningState:
        moments = optimizer_tensors(optimizer, self.classifier, numbers_beside_state(optimizer))
        return FineTuningState(course, self.classifier.state_dict(), moments)

    def _batches(self, batch_size: int, seed: int, after: int = 0) -> Iterator[Any]:
        """Yield the batches of all steps after one. Each is collated and sent to the device before the previous
        update."""
        fixed_rows = batch_size if self.compiled else None
        ahead = None
        for examples in islice(training_batches(self._train, batch_size, self.protocol.epochs, seed), after, None):
            batch, ahead = ahead, self.layout.collate(self._train, examples, self.device, fixed_rows)
            if batch is not None:
                yield batch
        yield ahead

    def _compiles(self, updates: int) -> bool:
        """Let the encoder be compiled for batches of fixed sizes if the next `updates` are worth it; return whether."""
        if not self.layout.has_fixed_sizes:
            return False
        if not wants_compiling(self.compile, self.device, self._eager_updates + updates):
            return False
        is_gpu = self.device.type == "cuda"
        mode = "reduce-overhead" if is_gpu and self.backend == "inductor" else None
        compile_model(
            [(self.classifier.model, "forward")], self.device, backend=self.backend, mode=mode, dynamic=is_gpu
        )
        return True

    def _optimizer(self, point: Point) -> torch.optim.AdamW:
        """Build AdamW, without clipping as in the released code. Weight decay applies to norms too, and to biases if
        the protocol says so."""
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

    def _update(self, optimizer: torch.optim.AdamW, batch: Any) -> Tensor:
        self.classifier.train()
        if self.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        else:
            self._eager_updates += 1
        optimizer.zero_grad(set_to_none=True)
        loss = self._loss(self._logits(batch), batch.labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def _logits(self, batch: Any) -> Tensor:
        with autocast(self.device, self.protocol.precision):
            return self.layout.logits(self.classifier, batch, self.protocol.pooling).float()

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the batch mean of the squared error (regression) or the cross-entropy."""
        if self.encoded.task.is_regression:
            return functional.mse_loss(logits.squeeze(1), labels)
        return functional.cross_entropy(logits, labels)

    @torch.no_grad()
    def predict(self) -> Predictions:
        """Return the current predictions on the validation splits, as `FineTuningResult.predictions`."""
        self.classifier.eval()
        predictions = {}
        for name, batches in self._validation.items():
            values = np.empty((len(self._labels[name]), self.encoded.task.labels), np.float32)
            with torch.compiler.set_stance("force_eager") if self.compiled else nullcontext():
                logits = torch.cat([self._logits(batch) for _, batch in batches])
            values[np.concatenate([examples for examples, _ in batches])] = logits.cpu().numpy()
            predictions[name] = values.squeeze(1) if self.encoded.task.is_regression else values
        return predictions

    def _copy_of_weights(self) -> dict[str, Tensor]:
        """Return a copy on the device, which an improvement every few updates can afford; the host waits for none."""
        return {name: tensor.clone() for name, tensor in self.classifier.state_dict().items()}


def _mean_loss(losses: list[Tensor], last_step: int) -> float:
    """Return the mean loss of the updates up to `last_step`. Raises RunFailed, with the step, if a loss is not
    finite."""
    values: list[float] = torch.stack(losses).tolist()
    for step, value in enumerate(values, start=last_step - len(values) + 1):
        if not np.isfinite(value):
            raise RunFailed(f"step {step}: the loss is {value}")
    return sum(values) / len(values)
