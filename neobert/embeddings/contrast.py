"""A run of contrastive fine-tuning in one process: encoder, pairs and optimizer at some step of it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from neobert.data.preparation import open_specified
from neobert.embeddings.caching import CachedContrast, TextBatch, gathered, query_count
from neobert.embeddings.feeding import StepTexts, TextFeeding, step_texts
from neobert.embeddings.loss import contrastive_losses, cosine_scores
from neobert.embeddings.preparation import prepared_pairs
from neobert.embeddings.sampling import Sampling, split_heldout
from neobert.embeddings.specification import ContrastiveRun
from neobert.embeddings.starting import starting_point
from neobert.layout import Layout
from neobert.specifications import RunFile
from neobert.stopping import StopRequest
from neobert.training.course import Course, engine_class
from neobert.training.engine import autocast
from neobert.training.loop import StepBatches
from neobert.training.tasks import Process


class ContrastiveCourse(Course[TextBatch]):
    """Contrastive fine-tuning of an encoder whose weights are named as in pre-training ("model.…")."""

    def __init__(self, layout: Layout, run_file: RunFile, process: Process, stop: StopRequest | None = None) -> None:
        assert run_file.contrastive is not None
        self.run: ContrastiveRun = run_file.contrastive
        protocol = self.protocol = self.stage = self.run.protocol
        super().__init__(
            layout, run_file, process, layout.contrastive(self.run.id), protocol.optimization, protocol.seed
        )
        source = run_file.source
        self.start = starting_point(layout, self.run, source, self.device)
        self.sets = prepared_pairs(layout, self.run, open_specified(source), self.start.framing, stop or StopRequest())
        self.members, self.heldout_members = zip(*(split_heldout(len(pairs)) for pairs in self.sets), strict=True)
        self.model = self.start.model
        contrast = CachedContrast(protocol.temperature, summed=protocol.reduction == "sum")
        self.engine = engine_class(run_file.execution.engine, process.count)(
            self.model,
            contrast.loss,
            query_count,
            protocol.optimization,
            protocol.precision,
            self.device,
            contrast.prepare,
        )
        self.done = 0
        self.data_state = {"step": 0}

    @property
    def sampling(self) -> Sampling:
        """Which pairs each step holds."""
        return Sampling(
            sizes=tuple(map(len, self.members)),
            pairs_per_step=tuple(self._pairs_per_step(number) for number in range(len(self.sets))),
            exponent=self.protocol.sampling_exponent,
            seed=self.protocol.seed,
            steps=self.protocol.steps,
        )

    def _pairs_per_step(self, number: int) -> int:
        declared = self.run.sets[number].texts_per_pair
        texts = declared or self.sets[number].texts_per_pair(self.protocol.most_negatives)
        return max(2, self.protocol.texts_per_step // texts)

    @property
    def feeding(self) -> TextFeeding:
        """How this process gets its micro-batches."""
        tokens = self.run_file.execution.micro_batch_tokens
        return TextFeeding(self.start.form, tokens, self.process, self.device)

    def begin(self) -> None:
        self.start.load()
        self.engine.adopt({})

    def go_to(self, data_state: Mapping[str, Any]) -> None:
        self.done = int(data_state["step"])

    def data(self) -> Iterator[StepBatches[TextBatch]]:
        return self.feeding.steps(self.sets, self.sampling, self.members, self.protocol, self.done)

    def heldout_scores(self) -> dict[str, Any]:
        """For each data set the loss in nats on its held-out pairs, and the share of queries that find their document;
        where a set is too small to hold any out, on all of its pairs. `heldout_loss` is the mean over data sets."""
        measured = {pairs.name: self._measured(number) for number, pairs in enumerate(self.run.sets)}
        losses = {name: loss for name, (loss, _) in measured.items()}
        return {
            "heldout_loss": float(np.mean(list(losses.values()))),
            "heldout_losses": losses,
            "heldout_accuracies": {name: accuracy for name, (_, accuracy) in measured.items()},
        }

    @torch.no_grad()
    def _measured(self, number: int) -> tuple[float, float]:
        pairs = self.heldout_members[number] if len(self.heldout_members[number]) else self.members[number]
        of_step: StepTexts = step_texts(self.sets[number], pairs, self.protocol)
        batches = self.feeding.whole(of_step)
        training = self.model.training
        self.model.eval()
        with autocast(self.device, self.protocol.precision):
            vectors = gathered([self.model(batch.inputs) for batch in batches], batches)
        self.model.train(training)
        comparison = batches[0].comparison
        losses = contrastive_losses(vectors, comparison, self.protocol.temperature)
        found = cosine_scores(vectors, comparison).argmax(dim=1) == comparison.targets
        return float(losses.mean()), float(found.float().mean())
