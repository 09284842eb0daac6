"""InfoNCE on cosines (paper §5.2.1): each query has to find its document among the documents and hard negatives of its
step."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from neobert.data.preparation import open_specified
from neobert.embeddings.encoders import Form, Text, is_there, slices, starting_point
from neobert.embeddings.pairs import Draw, EncodedPairs, Sampling, open_pairs, prepared_pairs, split_heldout
from neobert.identity import plain
from neobert.processes import StopRequest
from neobert.recipe import Contrastive
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.optuna_view import Report
from neobert.runs.records import is_published, publish_record
from neobert.runs.specifications import ContrastiveRun, RunFile, read_checked_run_file
from neobert.training.distributed import Process
from neobert.training.engine import autocast
from neobert.training.loop import StepBatches
from neobert.training.trainer import (
    Trainer,
    TrainResult,
    engine_class,
    merge_metrics,
    train,
    training_loss,
)

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Who is compared with whom among the texts of a step.

    queries: (pairs,) numbers of texts. candidates: (candidates,) numbers of texts. targets: (pairs,) which candidate is
        the query's document. hidden: (pairs, candidates) bool, candidates that a query does not see.
    """

    queries: Tensor
    candidates: Tensor
    targets: Tensor
    hidden: Tensor

    def to(self, device: torch.device) -> Self:
        """The comparison on a device."""
        moved = {name: value.to(device, non_blocking=True) for name, value in vars(self).items()}
        return replace(self, **moved)


def compared(queries: Array, documents: Array, negatives: Array, *, keep_false_negatives: bool) -> Comparison:
    """The comparison of pairs (`queries`, `documents`), each (pairs,) numbers of texts, and of `negatives`, (any,).

    Equal texts have one number. Unless false negatives are kept, no candidate comes twice, and a query does not see the
    documents of other pairs with the same query.
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
    return Comparison(
        queries=torch.from_numpy(queries.astype(np.int64)),
        candidates=torch.from_numpy(candidates.astype(np.int64)),
        targets=torch.from_numpy(targets.astype(np.int64)),
        hidden=torch.from_numpy(hidden),
    )


def contrastive_losses(vectors: Tensor, comparison: Comparison, temperature: float) -> Tensor:
    """The loss of each query in nats, (pairs,), from the `vectors` (texts, width) of all texts; at least fp32."""
    with torch.autocast(vectors.device.type, enabled=False):
        cosines = cosine_scores(vectors, comparison)
        return functional.cross_entropy(cosines / temperature, comparison.targets, reduction="none")


def cosine_scores(vectors: Tensor, comparison: Comparison) -> Tensor:
    """(pairs, candidates) cosines, −∞ where a candidate is hidden from a query."""
    units = functional.normalize(vectors if vectors.dtype == torch.float64 else vectors.float(), dim=-1)
    cosines = units[comparison.queries] @ units[comparison.candidates].T
    return cosines.masked_fill(comparison.hidden, float("-inf"))


@dataclass(frozen=True, eq=False)
class Cached:
    """What the first pass leaves for the second: the randomness of the micro-batch, the gradient (texts, width) of its
    vectors, and the sum of the losses of its queries."""

    seed: int
    gradient: Tensor
    loss: Tensor


@dataclass(frozen=True, eq=False)
class TextBatch:
    """A micro-batch: some texts of a step. `numbers` (texts,) says which ones; what `inputs` holds beyond is filler.

    texts: how many the step has over all processes, and `comparison` what becomes of them. queries: (pairs,) 1 where a
    query of the comparison stands in this micro-batch, else 0; `query_count` of them.
    """

    inputs: Any
    numbers: Tensor
    texts: int
    comparison: Comparison
    queries: Tensor
    query_count: int
    cached: Cached | None = None


def query_count(batch: TextBatch) -> int:
    """What the loss is normalised by."""
    return batch.query_count


@dataclass(frozen=True)
class CachedContrast:
    """The objective of contrastive fine-tuning as the engine wants it: `prepare` is the first pass, `loss` the second.

    A step in a single micro-batch needs no cache and is computed once, unless `always` is set. The engine takes the
    mean over queries; a loss that is `summed` over them is given to it as many times.
    """

    temperature: float
    always: bool = False
    summed: bool = False

    def prepare(self, model: nn.Module, batches: Sequence[TextBatch]) -> list[TextBatch]:
        """The first pass over all micro-batches of a step; all processes must come together."""
        processes = dist.get_world_size() if dist.is_initialized() else 1
        if len(batches) == 1 and processes == 1 and not self.always:
            return list(batches)
        seeds = torch.randint(1 << 62, (len(batches),)).tolist()
        with torch.no_grad():
            vectors = gathered(
                [_seeded(model, batch, seed) for batch, seed in zip(batches, seeds, strict=True)], batches
            )
        if processes > 1:
            dist.all_reduce(vectors)  # a text's row is zero in all processes but its own
        losses, gradient = self._vector_gradient(vectors, batches[0].comparison)
        return [
            replace(batch, cached=Cached(seed, gradient[batch.numbers], (losses * batch.queries).sum()))
            for batch, seed in zip(batches, seeds, strict=True)
        ]

    def _vector_gradient(self, vectors: Tensor, comparison: Comparison) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = vectors.requires_grad_()
            losses = self._losses(leaf, comparison)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradient

    def _losses(self, vectors: Tensor, comparison: Comparison) -> Tensor:
        losses = contrastive_losses(vectors, comparison, self.temperature)
        return losses * len(losses) if self.summed else losses

    def loss(self, network: nn.Module, batch: TextBatch) -> Tensor:
        """The sum of the losses of the micro-batch's queries, with the gradient that its texts have in all losses."""
        if batch.cached is None:
            vectors = gathered([network(batch.inputs)], [batch])
            return self._losses(vectors, batch.comparison).sum()
        vectors = _seeded(network, batch, batch.cached.seed)
        carrier = (vectors * batch.cached.gradient).sum()
        return batch.cached.loss + carrier - carrier.detach()


def _seeded(network: nn.Module, batch: TextBatch, seed: int) -> Tensor:
    """The vectors (texts, width) of a micro-batch without filler."""
    torch.manual_seed(seed)
    vectors: Tensor = network(batch.inputs)
    return vectors[: len(batch.numbers)]


def gathered(parts: Sequence[Tensor], batches: Sequence[TextBatch]) -> Tensor:
    """(texts, width) the vectors of a step in the order of its texts, zero where they are another process's."""
    vectors = torch.cat(list(parts))
    numbers = torch.cat([batch.numbers for batch in batches])
    empty = vectors.new_zeros(batches[0].texts, vectors.shape[1])
    return empty.index_copy(0, numbers, vectors)


@dataclass(frozen=True, eq=False)
class StepTexts:
    """The different texts of a step, and who of them is compared with whom."""

    texts: Sequence[Text]
    comparison: Comparison

    @property
    def lengths(self) -> Array:
        """Tokens of each text, (texts,) int64."""
        return np.array([len(ids) for ids, _ in self.texts], np.int64)


def step_texts(pairs: EncodedPairs, numbers: Array, protocol: Contrastive) -> StepTexts:
    """The texts of some pairs of one data set; equal ones are one."""
    texts: list[Text] = []
    seen: dict[bytes, int] = {}

    def number_of(text: Text) -> int:
        number = seen.setdefault(text[0].tobytes(), len(texts))
        if number == len(texts):
            texts.append(text)
        return number

    queries = [number_of(pairs.queries.text(pair)) for pair in numbers]
    documents = [number_of(pairs.documents.text(pair)) for pair in numbers]
    hard = (one for pair in numbers for one in pairs.negatives_of(pair, protocol.most_negatives))
    negatives = [number_of(pairs.negatives.text(one)) for one in hard]
    arrays = (np.array(values, np.int64) for values in (queries, documents, negatives))
    return StepTexts(texts, compared(*arrays, keep_false_negatives=protocol.false_negatives == "kept"))


@dataclass(frozen=True)
class TextFeeding:
    """How the texts of a step become micro-batches of at most `micro_batch_tokens` tokens, and who computes which."""

    form: Form
    micro_batch_tokens: int
    process: Process
    device: torch.device

    def steps(
        self,
        sets: Sequence[EncodedPairs],
        sampling: Sampling,
        members: Sequence[Array],
        protocol: Contrastive,
        done: int,
    ) -> Iterator[StepBatches[TextBatch]]:
        """This process's share of every step behind `done`; `members` are the pairs of each set to draw from."""
        for step in range(done + 1, sampling.steps + 1):
            draw: Draw = sampling.draw(step)
            of_step = step_texts(sets[draw.of_set], members[draw.of_set][draw.pairs], protocol)
            groups = self._groups(of_step.lengths)
            real_tokens = int(of_step.lengths.sum())
            slots = sum(self.form.slots(of_step.lengths[group]) for group in groups)
            attended = int((of_step.lengths**2).sum())
            batches = self._batches(of_step, groups, self.process)
            yield StepBatches(batches, real_tokens, slots, attended, {"step": step})

    def whole(self, of_step: StepTexts) -> list[TextBatch]:
        """All micro-batches of a step in this process."""
        return self._batches(of_step, self._groups(of_step.lengths), Process(0, 1))

    def _groups(self, lengths: Array) -> list[Array]:
        """Numbers of texts, neighbours in length, with about equally many tokens and at least one group a process."""
        order = np.argsort(-lengths, kind="stable")
        most = min(self.micro_batch_tokens, -(-int(lengths.sum()) // self.process.count))
        return [order[members] for members in slices(lengths[order], most)]

    def _batches(self, of_step: StepTexts, groups: Sequence[Array], process: Process) -> list[TextBatch]:
        """A process's share: every `count`-th group, and without texts where there are no more, to take part."""
        comparison = of_step.comparison.to(self.device)
        rounds = -(-len(groups) // process.count)
        mine = range(process.rank, rounds * process.count, process.count)
        shares = (groups[number] if number < len(groups) else groups[-1][:0] for number in mine)
        return [self._batch(of_step, share, comparison) for share in shares]

    def _batch(self, of_step: StepTexts, share: Array, comparison: Comparison) -> TextBatch:
        queries = np.isin(of_step.comparison.queries.numpy(), share)
        filled = share if len(share) else np.zeros(1, np.int64)
        return TextBatch(
            inputs=self.form.lay_out([of_step.texts[number] for number in filled.tolist()]),
            numbers=torch.from_numpy(share).to(self.device, non_blocking=True),
            texts=len(of_step.texts),
            comparison=comparison,
            queries=torch.from_numpy(queries.astype(np.float32)).to(self.device, non_blocking=True),
            query_count=int(queries.sum()),
        )


class ContrastiveTrainer(Trainer[TextBatch]):
    """Contrastive fine-tuning of an encoder whose weights are named as in pre-training ("model.…")."""

    def __init__(self, layout: Layout, run_file: RunFile, process: Process, stop: StopRequest | None = None) -> None:
        assert run_file.contrastive is not None
        self.run: ContrastiveRun = run_file.contrastive
        protocol = self.protocol = self.stage = self.run.protocol
        super().__init__(layout, run_file, process, protocol.optimization, protocol.seed)
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
        self.engine.restore_optimizer({})

    def restore_data(self, state: Mapping[str, Any]) -> None:
        self.done = int(state["step"])

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


@dataclass(frozen=True)
class ContrastiveUnit:
    """A run of contrastive fine-tuning that a worker may take."""

    layout: Layout
    run_file: RunFile

    @classmethod
    def open(cls, layout: Layout, run_id: str) -> "ContrastiveUnit":
        """The unit of a folder with run.json."""
        return cls(layout, read_checked_run_file(layout.contrastive(run_id)))

    @property
    def run_specification(self) -> ContrastiveRun:
        assert self.run_file.contrastive is not None
        return self.run_file.contrastive

    @property
    def id(self) -> str:
        return self.run_file.id

    @property
    def name(self) -> str:
        return f"contrastive fine-tuning {self.id} of {self.run_specification.weights}"

    @property
    def folder(self) -> Path:
        return self.layout.contrastive(self.id)

    @property
    def error_path(self) -> Path:
        return self.folder / "error.json"

    @property
    def grid_point(self) -> None:
        """None: contrastive fine-tuning is no point of a grid."""

    def is_finished(self) -> bool:
        return is_published(self.folder / "done.json")

    def is_ready(self) -> bool:
        """Whether the encoder is there."""
        return is_there(self.layout, self.run_specification)

    def run(self, claim: Claim, stop: StopRequest, report: Report) -> None:
        """Train from wherever the run stands to its end, then publish done.json."""
        self._prepare(stop)

        def make_trainer(run_file: RunFile, process: Process) -> ContrastiveTrainer:
            return ContrastiveTrainer(self.layout, run_file, process, stop)

        result = train(self.layout, self.run_file, make_trainer, claim, stop)
        publish_record(self.folder / "done.json", self._record(result, merge_metrics(self.folder)))

    def _prepare(self, stop: StopRequest) -> None:
        """Encode the pairs before any other process waits for this one."""
        run, source = self.run_specification, self.run_file.source
        if not all(self.layout.pairs(run.pairs_id(pairs)).exists() for pairs in run.sets):
            framing = starting_point(self.layout, run, source, torch.device("cpu")).framing
            prepared_pairs(self.layout, run, open_specified(source), framing, stop)

    def _record(self, result: TrainResult, metrics: list[dict[str, Any]]) -> dict[str, Any]:
        run, totals = self.run_specification, result.totals
        heldout = [line for line in metrics if "heldout_loss" in line][-1]
        counts = {pairs.name: open_pairs(self.layout.pairs(run.pairs_id(pairs))).counts for pairs in run.sets}
        return {
            "kind": "contrastive",
            "id": self.id,
            "state": "done",
            "inputs": {"weights": run.weights, "pairs": [run.pairs_id(pairs) for pairs in run.sets]},
            "config": {"protocol": plain(run.protocol), "sets": plain(run.sets), "max_tokens": run.max_tokens},
            "labels": self.run_file.labels,
            "scores": {
                "heldout_loss": heldout["heldout_losses"],
                "heldout_accuracy": heldout["heldout_accuracies"],
                "training_loss": training_loss(metrics, run.protocol.steps),
            },
            "pairs": {name: asdict(count) for name, count in counts.items()},
            "seed": run.protocol.seed,
            "steps": run.protocol.steps,
            "real_tokens": totals.real_tokens,
            "slots": totals.slots,
            "seconds": round(totals.seconds, 3),
            **result.machine_record(),
        }
