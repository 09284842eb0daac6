"""Pre-training as a kind of work: resume a claimed stage from its newest checkpoint, train it, publish its record."""

import logging
import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from neobert.data.batches import Batch
from neobert.data.preparation import measured_corpora, open_specified, text_tokenizer, tokenized_corpus
from neobert.data.shards import TokenizedCorpus, open_shards, share_arrays
from neobert.errors import MissingData
from neobert.evaluation.heldout import (
    HeldoutText,
    choose_heldout_texts,
    measure_heldout,
)
from neobert.evaluation.losses import BATCH_TOKENS
from neobert.files import is_file, sha256_of
from neobert.identity import plain
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.heads import MaskedLanguageModel
from neobert.processes import StopRequest
from neobert.recipe import Stage
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import RunFile, read_run_file
from neobert.runs.work import Part
from neobert.starts import RUN, TOKENIZER, folder_of, misfit, start_files
from neobert.tensors import load_tensors
from neobert.training.accounting import TrainResult, accounts, machine_record
from neobert.training.compiling import (
    COMPILED_BLOCKS,
    LEAST_SECONDS_LEFT,
    Remainder,
    TrialStep,
    compile_model,
    compiling_pays,
    make_eager,
    parts_of,
)
from neobert.training.distributed import Process, broadcast_from_rank0, default_device, sum_over_ranks
from neobert.training.loop import StepBatches
from neobert.training.stage_batches import StageBatches
from neobert.training.trainer import (
    Trainer,
    engine_class,
    last_checkpoint,
    merge_metrics,
    train,
    training_loss,
)

logger = logging.getLogger(__name__)

SIZED_STEPS = 16
"""First steps of a stage, whose batch sizes are compiled before training; later steps rarely have others."""


def summed_loss(network: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy summed over the predicted tokens of a micro-batch."""
    loss: torch.Tensor = network(batch.token_ids, batch.plan, batch.gather, batch.targets)
    return loss


class PretrainingTrainer(Trainer[Batch]):
    """A stage of pre-training in one rank. If no `corpus` is given, only rank 0 verifies it."""

    model: MaskedLanguageModel

    def __init__(
        self,
        layout: Layout,
        run_file: RunFile,
        process: Process,
        corpus: TokenizedCorpus | None = None,
    ) -> None:
        self.run = run_file.specification(PretrainingRun)
        recipe = self.run.recipe
        super().__init__(layout, run_file, process, recipe.optimization, recipe.seed)
        self.stage: Stage = recipe.stages[-1]
        if corpus is None and not process.writes:
            corpus = open_shards(layout.data(self.run.data_id), verify=False)
        self.corpus = corpus or tokenized_corpus(layout, self.run, self.run.corpus, run_file.source)
        most_tokens = run_file.execution.micro_batch_tokens
        self.batches = StageBatches(self.run, self.corpus, self.device, most_tokens, process)
        self.model = build_masked_language_model(recipe.model, self.run.context, recipe.precision)
        self.engine = engine_class(run_file.execution.engine, process.count)(
            self.model,
            summed_loss,
            lambda batch: batch.predicted_tokens,
            recipe.optimization,
            recipe.precision,
            self.device,
        )
        self.rows = self.batches.rows()
        self.data_state = self.rows.state()

    @cached_property
    def heldout(self) -> list[HeldoutText]:
        """The held-out documents of each measured corpus, at the run's own context and at the common one."""
        corpora = {self.run.corpus.corpus: self.corpus}
        for each in measured_corpora(self.run_file)[1:]:
            corpora[each.corpus] = tokenized_corpus(self.layout, self.run, each, self.run_file.source)
        common = self.run_file.execution.heldout_context or self.stage.context
        contexts = sorted({self.stage.context, common})
        most = BATCH_TOKENS[self.device.type]
        rows = {context: min(self.batches.rows_of(context), max(1, most // context)) for context in contexts}
        long, frequencies = self.run.recipe.data.long_documents, self.batches.frequencies()
        return choose_heldout_texts(corpora, rows, frequencies, long)

    def begin(self) -> None:
        """Load weights and optimizer state of the previous stage or of the start, or initialize the weights."""
        start = self.run.recipe.start
        if self.run.previous is None and start is not None:
            weights, state = start_files(start)
            self.model.load_state_dict(load_tensors(weights), strict=False)  # `_require_start` compared the names
            self.engine.restore_optimizer({} if state is None else load_tensors(state))
            return
        if self.run.previous is None:
            initialize(self.model, self.run.recipe.model.initialization, self.run.recipe.seed)
            self.engine.restore_optimizer({})
            return
        previous = self.newest_checkpoint(self.layout.pretraining(self.run.previous) / "checkpoints")
        if previous is None or previous.step != self.run.recipe.stages[-2].steps:
            if self.process.writes:
                last_checkpoint(self.layout, self.run.previous)
            raise MissingData(f"run {self.run.id} continues {self.run.previous}, whose last checkpoint is not there")
        self.model.load_state_dict(previous.weights())
        self.engine.restore_optimizer(previous.optimizer())

    def restore_data(self, state: Mapping[str, Any]) -> None:
        self.rows.restore(dict(state))

    def data(self) -> Iterator[StepBatches[Batch]]:
        return self.batches.steps(self.rows, few_sizes=self.compiled)

    def compile(self, began_compiled: bool | None) -> None:
        word = self.run_file.execution.compile
        if began_compiled is None:
            self.compiled = word == "on" if word != "auto" else self._compiling_pays()
        else:
            self.compiled = began_compiled
            if self.process.writes and word == ("off" if began_compiled else "on"):
                form = "compiled" if began_compiled else "without compiling"
                logger.info(
                    f"run {self.run.id} continues {form}, as it began: --compile {word} applies to new runs only"
                )
        if self.compiled:
            first, *others = self._trials()
            compiled = compile_model(first, word, parts=parts_of(self.model, self.device))
            # All or none: the others would wait for an eager rank, and its padding differs.
            self.compiled = sum_over_ranks(int(compiled), self.process, self.device) == self.process.count
            if not self.compiled:
                make_eager(self.model)
            for trial in others if self.compiled else ():
                trial.run()
            self.count_compile_seconds()

    def _compiling_pays(self) -> bool:
        """Let rank 0 measure whether compiling pays, and return its answer in all ranks."""
        decided = False
        if self.process.writes:
            micro_batches = math.ceil(self.stage.tokens_per_step / self.run_file.execution.micro_batch_tokens)
            passes = self.stage.steps * max(1, micro_batches // self.process.count)
            left = Remainder(passes, next(self._trials()).seconds())
            recipe, least_seconds = self.run.recipe, LEAST_SECONDS_LEFT[self.device.type]
            layers = COMPILED_BLOCKS if self.device.type == "cuda" else recipe.model.layers
            decided = compiling_pays([left], layers, self.device, recipe.precision, least_seconds)
        return bool(broadcast_from_rank0(int(decided), self.process, self.device))

    def _trials(self) -> Iterator[TrialStep]:
        """Yield a micro-batch of each size in the first steps of the stage, in the same order in all ranks.

        Otherwise ranks would meet new sizes at different steps, and all would wait for each compilation.
        """
        for batch in self.batches.of_each_size(SIZED_STEPS, few_sizes=self.compiled):
            loss = partial(summed_loss, self.model, batch)
            yield TrialStep(self.model, loss, self.run.recipe.precision, self.device)

    def heldout_scores(self) -> dict[str, Any]:
        """Return the loss in nats on the held-out documents of the run's own corpus and of each measured corpus, at the
        run's own context; `heldout` has all measurements."""
        precision = self.run.recipe.precision
        scores = [measure_heldout(self.model, text, precision, self.device) for text in self.heldout]
        losses = {score.corpus: score.loss for score in scores if score.context == self.stage.context}
        own = losses[self.run.recipe.data.corpus]
        return {"heldout_loss": own, "heldout_losses": losses, "heldout": plain(scores)}


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Train the stage from its current step to its end, then publish its record."""
    _require_start(layout, run_file)
    run, measured = run_file.specification(PretrainingRun), measured_corpora(run_file)
    corpus, *_ = [tokenized_corpus(layout, run, each, run_file.source, stop) for each in measured]
    share_arrays(corpus)  # the other ranks are still to come
    result = train(layout, run_file, partial(PretrainingTrainer, layout, corpus=corpus), claim, stop)
    metrics = merge_metrics(part.record.parent)
    curve = {"sha256": {"metrics": sha256_of(part.record.with_name("metrics.jsonl"))}}
    publish_record(part.record, _record(run_file, result, metrics) | curve)


def _require_start(layout: Layout, run_file: RunFile) -> None:
    """Check that a run can start from its weights, if it has any: tensors and tokens are those of its own model."""
    run = run_file.specification(PretrainingRun)
    recipe = run.recipe
    if recipe.start is None or run.previous is not None:
        return
    with torch.device("meta"):
        network = build_masked_language_model(recipe.model, run.context)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    if sentence := misfit(recipe.start, shapes, is_tied=recipe.model.tied_embeddings):
        raise ValueError(sentence)
    tokenizer = text_tokenizer(layout, run, open_specified(run_file.source)).tokenizer
    _require_vocabulary(run, tokenizer.get_vocab(with_added_tokens=True))


def _require_vocabulary(run: PretrainingRun, vocabulary: Mapping[str, int]) -> None:
    """Raise ValueError if tokens of the start have other ids than in the run's `vocabulary`, or if the run to start
    from has another tokenizer or optimizer."""
    start = run.recipe.start
    folder = Path(str(folder_of(start)))
    if is_file(folder / RUN):
        before = read_run_file(folder).specification(PretrainingRun)
        if before.tokenizer_origin != run.tokenizer_origin:
            raise ValueError(
                f"cannot start from {folder}: its tokenizer is {before.tokenizer_origin}, and that of this run "
                f"{run.tokenizer_origin}; take the same data, or start from its export, whose tokens are compared"
            )
        ours, theirs = run.recipe.optimization.optimizer, before.recipe.optimization.optimizer
        if start is not None and start.optimizer_state is not None and ours != theirs:
            raise ValueError(f"cannot restore the state of {theirs} of {folder} for {ours}: start with a fresh one")
        return
    theirs_of = Tokenizer.from_file(str(folder / TOKENIZER)).get_vocab(with_added_tokens=True)
    if other := sorted(token for token, number in vocabulary.items() if theirs_of.get(token) != number):
        raise ValueError(
            f"cannot start from {folder}: its tokenizer has other ids for {len(other):,} of {len(vocabulary):,} "
            f"tokens, such as {other[0]!r}: take data with the tokenizer that it was trained with"
        )


def _record(run_file: RunFile, result: TrainResult, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    run = run_file.specification(PretrainingRun)
    stage = run.recipe.stages[-1]
    assert result.heldout is not None
    device = default_device()
    return {
        "kind": "pretraining",
        "id": run.id,
        "state": "done",
        "inputs": {"data": run.data_id, "previous": run.previous},
        "config": {
            "recipe": plain(run.recipe),
            "stage": run.stage,
            "origins": {"corpus": run.corpus_origin, "tokenizer": run.tokenizer_origin},
        },
        "labels": run_file.labels,
        "scores": {
            "heldout_loss": result.heldout["heldout_losses"],
            "heldout": result.heldout["heldout"],
            "training_loss": training_loss(metrics, stage.steps),
        },
        "seed": run.recipe.seed,
        "steps": stage.steps,
        "tokens": stage.tokens,
        "real_tokens": result.totals.real_tokens,
        **accounts(result.totals, run.recipe, result.execution.processes, device, metrics),
        "compiled": result.compiled,
        **machine_record(result, device),
    }
