"""Pre-training as a kind of work: resume a claimed stage from its newest checkpoint, train it, publish its record."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from neobert.data.shards import TokenizedCorpus, open_shards
from neobert.errors import MissingData
from neobert.executors.corpus import measured_corpora, text_tokenizer, tokenized_corpus
from neobert.executors.preparation import open_specified
from neobert.executors.training import last_checkpoint, machine_record, merge_metrics, train, training_loss
from neobert.files import is_file, sha256_of
from neobert.identity import plain
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import StopRequest
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import RunFile, read_run_file
from neobert.runs.work import Part
from neobert.starts import RUN, TOKENIZER, folder_of
from neobert.training.accounting import TrainResult, accounts
from neobert.training.distributed import Process, default_device
from neobert.training.pretraining import PretrainingTrainer


def open_trainer(
    layout: Layout,
    run_file: RunFile,
    process: Process,
    corpora: Mapping[str, TokenizedCorpus] | None = None,
) -> PretrainingTrainer:
    """Return the trainer of a run in one rank. If no `corpora` are given, rank 0 opens all that it measures."""
    run = run_file.specification(PretrainingRun)
    if corpora is None and process.writes:
        corpora = open_corpora(layout, run_file)
    elif corpora is None:
        corpora = {run.recipe.data.corpus: open_shards(layout.data(run.data_id))}
    return PretrainingTrainer(
        layout.pretraining(run.id),
        run.recipe,
        corpora,
        run_file.execution,
        process,
        previous=None if run.previous is None else layout.pretraining(run.previous),
        context=run.context,
    )


def open_corpora(layout: Layout, run_file: RunFile, stop: StopRequest | None = None) -> dict[str, TokenizedCorpus]:
    """Open or tokenise the corpora that a stage is measured on, the one that it reads first."""
    run = run_file.specification(PretrainingRun)
    return {
        corpus.corpus: tokenized_corpus(layout, run, corpus, run_file.source, stop)
        for corpus in measured_corpora(run_file)
    }


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Train the stage from its current step to its end, then publish its record."""
    _require_start(layout, run_file)
    run = run_file.specification(PretrainingRun)
    corpora = open_corpora(layout, run_file, stop)
    try:
        result = train(layout, run_file, partial(open_trainer, layout, corpora=corpora), claim, stop)
    except MissingData:
        if run.previous is not None:
            last_checkpoint(layout, run.previous)  # sets it aside and raises if it is damaged
        raise
    metrics = merge_metrics(part.record.parent)
    curve = {"sha256": {"metrics": sha256_of(part.record.with_name("metrics.jsonl"))}}
    publish_record(part.record, _record(run_file, result, metrics) | curve)


def _require_start(layout: Layout, run_file: RunFile) -> None:
    """Check that the tokens of the weights that a run starts from, if any, are those of its own model."""
    run = run_file.specification(PretrainingRun)
    if run.recipe.start is None or run.previous is not None:
        return
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
        **accounts(result.totals, run.recipe, result.execution.processes, device),
        "compiled": result.compiled,
        **machine_record(result, device),
    }
