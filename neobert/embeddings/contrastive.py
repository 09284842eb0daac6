"""Contrastive fine-tuning: InfoNCE over all texts of a step with GradCache, its batches and its trainer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from neobert.data.tokenizers import Array, Text
from neobert.embeddings.encoders import EmbeddingModel
from neobert.embeddings.pairs import EncodedPairs, Sampling, split_heldout
from neobert.execution import Execution
from neobert.model.attention import Tensors, send
from neobert.model.heads import Weights, encoder_part
from neobert.recipe import Contrastive, Precision
from neobert.training.distributed import ALONE, Process
from neobert.training.engine import StepBatches, autocast
from neobert.training.trainer import Trainer, engine_class

NOT_DECLARED: Mapping[str, int] = {}


@dataclass(frozen=True, eq=False)
class Matching(Tensors):
    """The comparisons of a step: each query has to find its document among all candidates.

    queries: (pairs,) indices of texts. candidates: (candidates,) indices of texts. targets: (pairs,) index of the
        query's document among the candidates. hidden: (pairs, candidates) bool, candidates ignored for a query.
    """

    queries: Tensor
    candidates: Tensor
    targets: Tensor
    hidden: Tensor


def match_texts(queries: Array, documents: Array, negatives: Array, *, keep_false_negatives: bool) -> Matching:
    """Return the matching of `queries` and `documents`, both (pairs,) indices of texts, and of `negatives`, (any,).

    Equal texts have the same index. Unless false negatives are kept, candidates are unique, and the documents of other
    pairs with the same query are hidden from it.
    """
    if keep_false_negatives:
        candidates, targets = np.concatenate([documents, negatives]), np.arange(len(documents))
        hidden = np.zeros((len(queries), len(candidates)), bool)
    else:
        candidates = np.unique(np.concatenate([documents, negatives]))
        targets = np.searchsorted(candidates, documents)
        hidden = np.zeros((len(queries), len(candidates)), bool)
        first, second = np.nonzero(queries[:, None] == queries[None, :])
        hidden[first, targets[second]] = True
        hidden[np.arange(len(queries)), targets] = False
    return Matching(
        queries=torch.from_numpy(queries.astype(np.int64)),
        candidates=torch.from_numpy(candidates.astype(np.int64)),
        targets=torch.from_numpy(targets.astype(np.int64)),
        hidden=torch.from_numpy(hidden),
    )


def contrastive_losses(vectors: Tensor, matching: Matching, temperature: float) -> Tensor:
    """Return the InfoNCE loss on cosines (paper §5.2.1) of each query in nats, (pairs,). `vectors` (texts, width) are
    those of all texts; computed in fp32 or better."""
    with torch.autocast(vectors.device.type, enabled=False):
        cosines = cosine_scores(vectors, matching)
        return functional.cross_entropy(cosines / temperature, matching.targets, reduction="none")


def cosine_scores(vectors: Tensor, matching: Matching) -> Tensor:
    """Return cosines (pairs, candidates), −∞ where a candidate is hidden from a query."""
    units = functional.normalize(vectors if vectors.dtype == torch.float64 else vectors.float(), dim=-1)
    cosines = units[matching.queries] @ units[matching.candidates].T
    return cosines.masked_fill(matching.hidden, float("-inf"))


@dataclass(frozen=True, eq=False)
class CachedGradient:
    """Results of GradCache's first pass for a micro-batch: its random seed, the gradient (texts, width) of the loss
    with respect to its vectors, and the sum of the losses of its queries."""

    seed: int
    gradient: Tensor
    loss: Tensor


@dataclass(frozen=True, eq=False)
class TextBatch:
    """A micro-batch: some texts of a step, collated as `inputs`, padding texts last.

    numbers: (texts,) indices of the texts in the step. texts: number of texts of the step over all processes. matching:
    that of the whole step. queries: (pairs,) 1 where a query of the matching is in this micro-batch, else 0.
    query_count: number of these queries.
    """

    inputs: Any
    numbers: Tensor
    texts: int
    matching: Matching
    queries: Tensor
    query_count: int
    cached: CachedGradient | None = None


@dataclass(frozen=True)
class GradCache:
    """InfoNCE over all texts of a step with the memory of one micro-batch (Gao et al. 2021, Scaling Deep Contrastive
    Learning Batch Size under Memory Limited Setup).

    `prepare` computes all vectors without a graph, gathers them from all processes, and computes the gradient of the
    loss with respect to each vector. `loss` computes a micro-batch again with a graph and backpropagates these
    gradients. Both passes use the same dropout masks. A single micro-batch is computed once, unless `always` is set.

    The engine averages over queries, so with `summed` the losses are multiplied by the number of queries.
    """

    temperature: float
    always: bool = False
    summed: bool = False

    def prepare(self, model: nn.Module, batches: Sequence[TextBatch]) -> list[TextBatch]:
        """Run the first pass over all micro-batches of a step; a collective operation of all processes."""
        processes = dist.get_world_size() if dist.is_initialized() else 1
        if len(batches) == 1 and processes == 1 and not self.always:
            return list(batches)
        seeds = torch.randint(1 << 62, (len(batches),)).tolist()
        with torch.no_grad():
            parts = [_seeded_vectors(model, batch, seed) for batch, seed in zip(batches, seeds, strict=True)]
            vectors = gather(parts, batches)
        if processes > 1:
            dist.all_reduce(vectors)  # each text's row is nonzero in one process only
        matching = batches[0].matching
        with torch.enable_grad():
            leaf = vectors.requires_grad_()
            losses = self._losses(leaf, matching)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        losses = losses.detach()
        return [
            replace(batch, cached=CachedGradient(seed, gradient[batch.numbers], (losses * batch.queries).sum()))
            for batch, seed in zip(batches, seeds, strict=True)
        ]

    def loss(self, model: nn.Module, batch: TextBatch) -> Tensor:
        """Return the sum of the losses of the micro-batch's queries. Its gradient is that of all losses of the step
        with respect to the micro-batch's texts."""
        if batch.cached is None:
            return self._losses(gather([model(batch.inputs)], [batch]), batch.matching).sum()
        vectors = _seeded_vectors(model, batch, batch.cached.seed)
        carrier = (vectors * batch.cached.gradient).sum()
        return batch.cached.loss + carrier - carrier.detach()

    def _losses(self, vectors: Tensor, matching: Matching) -> Tensor:
        losses = contrastive_losses(vectors, matching, self.temperature)
        return losses * len(losses) if self.summed else losses


def _seeded_vectors(model: nn.Module, batch: TextBatch, seed: int) -> Tensor:
    """Return the vectors (texts, width) of a micro-batch, without those of padding texts."""
    torch.manual_seed(seed)
    vectors: Tensor = model(batch.inputs)
    return vectors[: len(batch.numbers)]


def gather(parts: Sequence[Tensor], batches: Sequence[TextBatch]) -> Tensor:
    """Return the vectors (texts, width) of a step in the order of its texts, zero for texts of other processes."""
    vectors = torch.cat(list(parts))
    numbers = torch.cat([batch.numbers for batch in batches])
    empty = vectors.new_zeros(batches[0].texts, vectors.shape[1])
    return empty.index_copy(0, numbers, vectors)


@dataclass(frozen=True, eq=False)
class StepTexts:
    """The distinct texts of a step and their matching."""

    texts: Sequence[Text]
    matching: Matching

    @classmethod
    def of(cls, pairs: EncodedPairs, numbers: Array, protocol: Contrastive) -> "StepTexts":
        """Return the texts of the pairs `numbers` of a data set; equal texts are merged."""
        texts: list[Text] = []
        seen: dict[bytes, int] = {}

        def number_of(text: Text) -> int:
            number = seen.setdefault(text[0].tobytes(), len(texts))
            if number == len(texts):
                texts.append(text)
            return number

        queries = [number_of(pairs.queries[pair]) for pair in numbers]
        documents = [number_of(pairs.documents[pair]) for pair in numbers]
        hard = (one for pair in numbers for one in pairs.negatives_of(pair, protocol.most_negatives))
        negatives = [number_of(pairs.negatives[one]) for one in hard]
        arrays = (np.array(values, np.int64) for values in (queries, documents, negatives))
        return cls(texts, match_texts(*arrays, keep_false_negatives=protocol.false_negatives == "kept"))

    @property
    def lengths(self) -> Array:
        """Number of tokens of each text, (texts,) int64."""
        return np.array([len(ids) for ids, _ in self.texts], np.int64)


@dataclass(frozen=True)
class StepCollator:
    """Splits the texts of a step into micro-batches of at most `micro_batch_tokens` tokens, padding included, and
    collates the micro-batches of a process for `model`."""

    model: EmbeddingModel
    micro_batch_tokens: int
    precision: Precision
    process: Process
    device: torch.device

    def split(self, lengths: Array) -> list[Array]:
        """Group the indices of texts of `lengths` (texts): similar lengths together, about equally many tokens in each.

        There are at least as many groups as processes, if there are enough texts.
        """
        order = np.argsort(-lengths, kind="stable")
        most = min(self.micro_batch_tokens, self.model.most_tokens(self.device, self.precision))
        if self.process.count > 1:
            most = min(most, -(-int(lengths.sum()) // self.process.count))
        return [order[members] for members in self.model.batches(lengths[order], most)]

    def collate(self, step: StepTexts, groups: Sequence[Array], process: Process) -> list[TextBatch]:
        """Return the micro-batches of a process: every `count`-th group. A process without a group gets one padding
        text, so that collectives do not hang."""
        matching = step.matching.to(self.device)
        rounds = -(-len(groups) // process.count)
        mine = range(process.rank, rounds * process.count, process.count)
        shares = (groups[number] if number < len(groups) else groups[-1][:0] for number in mine)
        return [self._batch(step, share, matching) for share in shares]

    def _batch(self, step: StepTexts, share: Array, matching: Matching) -> TextBatch:
        queries = np.isin(step.matching.queries.numpy(), share)
        texts = [step.texts[number] for number in share.tolist()] or [step.texts[0]]
        return TextBatch(
            inputs=self.model.collate(texts, self.device, self.precision),
            numbers=send(torch.from_numpy(share), self.device),
            texts=len(step.texts),
            matching=matching,
            queries=send(torch.from_numpy(queries.astype(np.float32)), self.device),
            query_count=int(queries.sum()),
        )


class ContrastiveTrainer(Trainer[TextBatch]):
    """Trainer of contrastive fine-tuning in one rank. Checkpoints name the weights as in pre-training ("model.…").

    Args:
        folder: where the checkpoints are.
        sets: data sets of pairs, by name.
        texts_per_pair: number of texts that a pair of a set counts as in a step, by default those it has.
        initial_weights: reads the weights to start from; by default those that the model has.
    """

    model: EmbeddingModel

    def __init__(
        self,
        folder: Path,
        protocol: Contrastive,
        model: EmbeddingModel,
        sets: Mapping[str, EncodedPairs],
        execution: Execution,
        process: Process = ALONE,
        *,
        texts_per_pair: Mapping[str, int] = NOT_DECLARED,
        initial_weights: Callable[[], Weights] | None = None,
    ) -> None:
        self.protocol = self.stage = protocol
        super().__init__(folder, execution, process, protocol.optimization, protocol.seed)
        self.model = model
        self.names, self.sets = list(sets), list(sets.values())
        self.texts_per_pair = texts_per_pair
        self.initial_weights = initial_weights
        self.members, self.heldout_members = zip(*(split_heldout(len(pairs)) for pairs in self.sets), strict=True)
        contrast = GradCache(protocol.temperature, summed=protocol.reduction == "sum")
        self.engine = engine_class(execution.engine, process.count)(
            self.model,
            contrast.loss,
            lambda batch: batch.query_count,
            protocol.optimization,
            protocol.precision,
            self.device,
            contrast.prepare,
        )
        tokens = execution.micro_batch_tokens
        self.collator = StepCollator(self.model, tokens, protocol.precision, process, self.device)
        self.done = 0
        self.data_state = {"step": 0}

    @property
    def sampling(self) -> Sampling:
        """The sampling of pairs for each step."""
        return Sampling(
            sizes=tuple(map(len, self.members)),
            pairs_per_step=tuple(self._pairs_per_step(number) for number in range(len(self.sets))),
            exponent=self.protocol.sampling_exponent,
            seed=self.protocol.seed,
            steps=self.protocol.steps,
        )

    def _pairs_per_step(self, number: int) -> int:
        declared = self.texts_per_pair.get(self.names[number])
        texts = declared or self.sets[number].texts_per_pair(self.protocol.most_negatives)
        return max(2, self.protocol.texts_per_step // texts)

    def begin(self) -> None:
        if self.initial_weights is not None:
            self.model.load_state_dict(encoder_part(self.initial_weights()))
        self.engine.restore_optimizer({})

    def restore_data(self, state: Mapping[str, Any]) -> None:
        self.done = int(state["step"])

    def data(self) -> Iterator[StepBatches[TextBatch]]:
        sampling = self.sampling
        for number in range(self.done + 1, sampling.steps + 1):
            draw = sampling.draw(number)
            step = StepTexts.of(self.sets[draw.of_set], self.members[draw.of_set][draw.pairs], self.protocol)
            lengths = step.lengths
            groups = self.collator.split(lengths)
            yield StepBatches(
                self.collator.collate(step, groups, self.process),
                real_tokens=int(lengths.sum()),
                slots=sum(self.model.slots(lengths[group]) for group in groups),
                attended_tokens=int((lengths**2).sum()),
                state={"step": number},
            )

    def heldout_scores(self) -> dict[str, Any]:
        """Return for each data set the loss in nats on its held-out pairs, and the share of queries that find their
        document. A set too small to hold out pairs is scored on all. `heldout_loss` is the mean over data sets."""
        scores = {name: self._heldout_score(number) for number, name in enumerate(self.names)}
        losses = {name: loss for name, (loss, _) in scores.items()}
        return {
            "heldout_loss": float(np.mean(list(losses.values()))),
            "heldout_losses": losses,
            "heldout_accuracies": {name: accuracy for name, (_, accuracy) in scores.items()},
        }

    @torch.no_grad()
    def _heldout_score(self, number: int) -> tuple[float, float]:
        pairs = self.heldout_members[number] if len(self.heldout_members[number]) else self.members[number]
        step = StepTexts.of(self.sets[number], pairs, self.protocol)
        batches = self.collator.collate(step, self.collator.split(step.lengths), Process(0, 1))
        training = self.model.training
        self.model.eval()
        with autocast(self.device, self.protocol.precision):
            vectors = gather([self.model(batch.inputs) for batch in batches], batches)
        self.model.train(training)
        matching = batches[0].matching
        losses = contrastive_losses(vectors, matching, self.protocol.temperature)
        found = cosine_scores(vectors, matching).argmax(dim=1) == matching.targets
        return float(losses.mean()), float(found.float().mean())
