"""Grid points that share batch size and seed, trained as one stacked model: an experiment, evidence for or against it.

Every parameter gets a leading axis of trials. One forward pass, vectorised over that axis, sees one batch; the losses
of the trials are independent, so the gradient of their sum is each trial's own. Optimizers stay per trial: parameter
groups of one fused AdamW on slices of the stacked tensors, with the trial's learning rate and weight decay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from neobert.glue.batching import ExampleBatch, batch_logits, evaluation_batches, lay_out, training_batches
from neobert.glue.encoding import EncodedTask
from neobert.model.build import initialize_classifier
from neobert.model.heads import SequenceClassifier
from neobert.recipe import FineTuning, Point
from neobert.training.engine import autocast
from neobert.training.loop import seed_step
from neobert.training.schedule import FineTuningSchedule

Stacked = dict[str, Tensor]


@dataclass(frozen=True)
class StackedOutcome:
    """`losses` (trials), each the mean over all updates; `predictions` at the end of the course, by split (trials,
    examples, classes)."""

    losses: Tensor
    predictions: Mapping[str, Tensor]


class _Logits(nn.Module):
    """`batch_logits` as a module, so that its parameters can be replaced."""

    def __init__(self, classifier: SequenceClassifier, protocol: FineTuning, device: torch.device) -> None:
        super().__init__()
        self.classifier = classifier
        self.protocol = protocol
        self.device = device

    def forward(self, batch: ExampleBatch) -> Tensor:
        """(examples, classes), fp32."""
        with autocast(self.device, self.protocol.precision):
            return batch_logits(self.classifier, batch, self.protocol.pooling).float()


class StackedTuner:
    """As `FineTuner`, for several points at once. Classification only; the course is run to its end."""

    def __init__(
        self,
        classifier: SequenceClassifier,
        start: Mapping[str, Tensor],
        encoded: EncodedTask,
        protocol: FineTuning,
        device: torch.device,
    ) -> None:
        self.logits = _Logits(classifier.to(device), protocol, device)
        self.start = start
        self.protocol = protocol
        self.device = device
        self.train = encoded.train(protocol.train_examples)
        self.validation = {
            name: [(examples, lay_out(split, examples, device)) for examples in evaluation_batches(split)]
            for name, split in encoded.validation.items()
        }
        self.examples = {name: len(split) for name, split in encoded.validation.items()}

    def run(self, points: Sequence[Point], seed: int) -> StackedOutcome:
        """Train all points, which share their batch size, side by side; evaluate when the course says so."""
        (batch_size,) = {point.batch_size for point in points}
        course = FineTuningSchedule.of(self.protocol, len(self.train), batch_size)
        weights = self._initial(len(points), seed)
        optimizer = self._optimizer(weights, points)
        losses: list[Tensor] = []
        predictions: Mapping[str, Tensor] = {}
        for step, batch in enumerate(self._batches(batch_size, seed), start=1):
            for group, point in zip(optimizer.param_groups, points, strict=True):
                group["lr"] = course.learning_rate(step, point.learning_rate)
            seed_step(seed, step, process=0)
            losses.append(self._update(weights, optimizer, batch))
            if course.evaluates_after(step):
                predictions = self._predict(weights)
        return StackedOutcome(torch.stack(losses).mean(dim=0).cpu(), predictions)

    def _initial(self, trials: int, seed: int) -> Stacked:
        """Equal weights for all trials: those of the encoder, and a head drawn from the seed."""
        self.logits.classifier.load_state_dict(self.start, strict=False)
        initialize_classifier(self.logits.classifier, self.protocol.classifier_scale, seed)
        return {
            name: parameter.detach().expand(trials, *parameter.shape).clone().requires_grad_()
            for name, parameter in self.logits.named_parameters()
        }

    def _optimizer(self, weights: Stacked, points: Sequence[Point]) -> torch.optim.AdamW:
        groups = [
            {
                "params": [nn.Parameter(tensor.detach()[trial]) for tensor in weights.values()],
                "lr": point.learning_rate,
                "weight_decay": point.weight_decay,
            }
            for trial, point in enumerate(points)
        ]
        betas = (self.protocol.beta1, self.protocol.beta2)
        return torch.optim.AdamW(groups, betas=betas, eps=self.protocol.epsilon, fused=True)

    def _batches(self, batch_size: int, seed: int) -> Iterator[ExampleBatch]:
        for examples in training_batches(self.train, batch_size, self.protocol.epochs, seed):
            yield lay_out(self.train, examples, self.device)

    def _forward(self, weights: Stacked, batch: ExampleBatch) -> Tensor:
        """(trials, examples, classes). "same": equal seeds mean equal dropout masks, as when trained one by one."""
        return vmap(lambda own: functional_call(self.logits, own, (batch,)), randomness="same")(weights)

    def _update(self, weights: Stacked, optimizer: torch.optim.AdamW, batch: ExampleBatch) -> Tensor:
        self.logits.train()
        logits = self._forward(weights, batch)
        labels = batch.labels.expand(logits.shape[0], -1)
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        losses = losses.view(labels.shape).mean(dim=1)
        # torch's fused AdamW on CPU takes gradients for laid out like their parameters and does not look.
        gradients = [found.contiguous() for found in torch.autograd.grad(losses.sum(), list(weights.values()))]
        for trial, group in enumerate(optimizer.param_groups):
            for own, gradient in zip(group["params"], gradients, strict=True):
                own.grad = gradient[trial]
        optimizer.step()
        return losses.detach()

    @torch.no_grad()
    def _predict(self, weights: Stacked) -> dict[str, Tensor]:
        self.logits.eval()
        trials = len(next(iter(weights.values())))
        predictions = {}
        for name, batches in self.validation.items():
            values = torch.empty(trials, self.examples[name], self.logits.classifier.classifier.out_features)
            for examples, batch in batches:
                values[:, torch.from_numpy(examples)] = self._forward(weights, batch).cpu()
            predictions[name] = values
        return predictions
