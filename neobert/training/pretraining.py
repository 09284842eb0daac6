"""Pre-training as a kind of work: resume a claimed stage from its newest checkpoint, train it, publish its record."""

import logging
import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from neobert.data.batches import Batch
from neobert.data.mixtures import join_corpora
from neobert.data.packing import Integers
from neobert.data.preparation import measured_corpora, open_specified, read_corpora, text_tokenizer, tokenized_corpus
from neobert.data.seen_words import kept_steps, words_by_step
from neobert.data.shards import TokenizedCorpus, document_words, open_shards, share_arrays
from neobert.data.streams import read_by_corpus
from neobert.errors import MissingData
from neobert.evaluation.heldout import (
    HeldoutText,
    choose_heldout_texts,
    mean_loss,
    measure_heldout,
    token_losses,
)
from neobert.evaluation.losses import BATCH_TOKENS
from neobert.files import sha256_of
from neobert.identity import plain
from neobert.kinds.pretraining import CurvePoint, PretrainingRun, Transition
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.heads import MaskedLanguageModel
from neobert.processes import StopRequest
from neobert.recipe import Stage
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import RunFile, read_run_file
from neobert.runs.work import Part
from neobert.starts import misfit, require_vocabulary, start_files
from neobert.tensors import load_tensors
from neobert.training import checkpoints
from neobert.training.accounting import HeldoutScores, TrainResult, accounts, machine_record
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
from neobert.training.transitions import SMALL_TEXT_LOSS, curve_steps, find_transition

logger = logging.getLogger(__name__)

SIZED_STEPS = 16
"""First steps of a stage, whose batch sizes are compiled before training; later steps rarely have others."""


def summed_loss(network: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy summed over the predicted tokens of a micro-batch."""
    loss: torch.Tensor = network(batch.token_ids, batch.plan, batch.gather, batch.targets)
    return loss


class PretrainingTrainer(Trainer[Batch]):
    """A stage of pre-training in one rank. If no `corpora` are given, by name, only rank 0 verifies them."""

    model: MaskedLanguageModel

    def __init__(
        self,
        layout: Layout,
        run_file: RunFile,
        process: Process,
        corpora: Mapping[str, TokenizedCorpus] | None = None,
    ) -> None:
        self.run = run_file.specification(PretrainingRun)
        recipe = self.run.recipe
        super().__init__(layout, run_file, process, recipe.optimization, recipe.seed)
        self.stage: Stage = recipe.stages[-1]
        if corpora is None and not process.writes:
            corpora = {each.corpus: open_shards(layout.data(each.id), verify=False) for each in self.run.corpora}
        self.corpora = corpora or read_corpora(layout, self.run, run_file.source)
        most_tokens = run_file.execution.micro_batch_tokens
        self.batches = StageBatches(self.run, self.corpora, self.device, most_tokens, process)
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
        corpora = dict(self.corpora)
        for each in measured_corpora(self.run_file)[len(corpora) :]:
            corpora[each.corpus] = tokenized_corpus(self.layout, self.run, each, self.run_file.source)
        common = self.run_file.execution.heldout_context or self.stage.context
        contexts = sorted({self.stage.context, common})
        most = BATCH_TOKENS[self.device.type]
        rows = {context: min(self.batches.rows_of(context), max(1, most // context)) for context in contexts}
        long, frequencies = self.run.recipe.data.long_documents, self.batches.frequencies()
        return choose_heldout_texts(corpora, rows, frequencies, long, self.stage.objective)

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

    @cached_property
    def kept_by_words(self) -> Mapping[str, int]:
        unit, before, previous = self.run_file.execution.checkpoint_words, 0, self.run.previous
        if not unit:
            return {}
        while previous is not None:
            run = read_run_file(self.layout.pretraining(previous)).specification(PretrainingRun)
            corpora = {each.corpus: open_shards(self.layout.data(each.id), verify=False) for each in run.corpora}
            before += int(self._words_by_step(run, corpora)[-1])
            previous = run.previous
        return kept_steps(self._words_by_step(self.run, self.corpora), unit, before)

    def _words_by_step(self, run: PretrainingRun, corpora: Mapping[str, TokenizedCorpus]) -> Integers:
        batches = StageBatches(run, corpora, self.device, self.batches.most_tokens, self.process)
        words = np.concatenate([document_words(self.layout.data(each.id)) for each in run.corpora])
        return words_by_step(batches.rows(), join_corpora(list(corpora.values())), words)

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

    def heldout_scores(self) -> HeldoutScores:
        """Return the loss in nats on the held-out documents of the run's own corpus and of each measured corpus, at the
        run's own context; `heldout` has all measurements, in `details` with the numbers of their units. In a causal
        stage it is the loss on next tokens, under names of its own."""
        precision = self.run.recipe.precision
        scores = [measure_heldout(self.model, text, precision, self.device) for text in self.heldout]
        losses = {score.corpus: score.loss for score in scores if score.context == self.stage.context}
        own = losses[self.run.recipe.data.corpus]
        summaries = plain([score.summary for score in scores])
        if self.stage.objective == "causal":
            return HeldoutScores({"next_token_loss": own, "next_token": summaries}, {"next_token": plain(scores)})
        return HeldoutScores(
            line={"heldout_loss": own, "heldout_losses": losses, "heldout": summaries},
            details={"heldout": plain(scores), "small_text_frequency_loss": self.curve_text.frequency_loss},
        )

    @cached_property
    def curve_text(self) -> HeldoutText:
        """The small text of the curve, from the run's own corpus at its own context."""
        own = (self.run.recipe.data.corpus, self.stage.context)
        return next(text for text in self.heldout if (text.corpus, text.context) == own).small

    @cached_property
    def curve_steps(self) -> frozenset[int]:
        """The steps after which the loss on the small text is measured."""
        return curve_steps(self.stage.steps)

    def curve_point(self, step: int) -> Mapping[str, Any] | None:
        if step not in self.curve_steps or self.stage.objective == "causal":
            return None
        losses = token_losses(self.model, self.curve_text, self.run.recipe.precision, self.device)
        return {SMALL_TEXT_LOSS: mean_loss(losses, self.curve_text), "trained_tokens": self.totals.real_tokens}


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Train the stage from its current step to its end, then publish its record."""
    _require_start(layout, run_file)
    run, measured = run_file.specification(PretrainingRun), measured_corpora(run_file)
    tokenized = [tokenized_corpus(layout, run, each, run_file.source, stop) for each in measured]
    corpora = {each.corpus: corpus for each, corpus in zip(run.corpora, tokenized, strict=False)}
    for corpus in corpora.values():  # the other ranks are still to come
        share_arrays(corpus)
    result = train(layout, run_file, partial(PretrainingTrainer, layout, corpora=corpora), claim, stop)
    metrics = merge_metrics(part.record.parent)
    curve = {"sha256": {"metrics": sha256_of(part.record.with_name("metrics.jsonl"))}}
    on_disk = checkpoints.steps_on_disk(layout.trained(run_file.id) / "checkpoints")
    kept = {name: step for name, step in result.kept_by_words.items() if step in on_disk}
    by_words = {"checkpoints_by_words": kept} if kept else {}
    publish_record(part.record, _record(run_file, result, metrics) | by_words | curve)


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
    require_vocabulary(run, tokenizer.get_vocab(with_added_tokens=True))


def _record(run_file: RunFile, result: TrainResult, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    run = run_file.specification(PretrainingRun)
    stage = run.recipe.stages[-1]
    assert result.heldout is not None
    device = default_device()
    data, *mixed = [corpus.id for corpus in run.corpora]
    read = read_by_corpus(stage, run.recipe.data.corpus, result.data_state)
    return {
        "kind": "pretraining",
        "id": run.id,
        "state": "done",
        "inputs": {"data": data, "previous": run.previous} | ({"mixed": mixed} if mixed else {}),
        "config": {
            "recipe": plain(run.recipe),
            "stage": run.stage,
            "origins": {"corpus": run.corpus_origin, "tokenizer": run.tokenizer_origin}
            | {f"corpus {name}": origin for name, origin in run.mixed_origins.items()},
        },
        "labels": run_file.labels,
        "scores": _scores(result.heldout, metrics, stage),
        "seed": run.recipe.seed,
        "steps": stage.steps,
        "tokens": stage.tokens,
        "real_tokens": result.totals.real_tokens,
        **({"read_by_corpus": read} if read else {}),
        **accounts(result.totals, run.recipe, result.execution.processes, device, metrics),
        "compiled": result.compiled,
        **machine_record(result, device),
    }


def _scores(heldout: HeldoutScores, metrics: list[dict[str, Any]], stage: Stage) -> dict[str, Any]:
    """Return the scores of a record: after a causal stage no held-out loss, but the loss on next tokens."""
    last = {"training_loss": training_loss(metrics, stage.steps)}
    if stage.objective == "causal":
        return {"heldout_loss": {}, "heldout": [], **last, "transition": None, **heldout.details}
    return {
        "heldout_loss": heldout.line["heldout_losses"],
        "heldout": heldout.details["heldout"],
        **last,
        "transition": plain(_transition(metrics, heldout.details["small_text_frequency_loss"])),
    }


def _transition(metrics: list[dict[str, Any]], frequency_loss: float) -> Transition:
    lines = [line for line in metrics if SMALL_TEXT_LOSS in line]
    curve = [CurvePoint(step=line["step"], tokens=line["trained_tokens"], loss=line[SMALL_TEXT_LOSS]) for line in lines]
    return find_transition(curve, frequency_loss)
