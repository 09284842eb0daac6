"""Contrastive fine-tuning as a kind of work: encode the pairs once for all ranks, train, publish the record."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial

from neobert.data.pairs import Pair
from neobert.data.sources import Source
from neobert.data.tokenizers import Framing
from neobert.embeddings.contrastive import ContrastiveTrainer
from neobert.embeddings.pairs import FEWEST_PAIRS, EncodedPairs, alike, encode_pairs, open_pairs, save_pairs
from neobert.errors import DamagedFile
from neobert.executors.encoders import base_model
from neobert.executors.preparation import open_specified, prepare_once, require_origin
from neobert.executors.training import last_checkpoint, machine_record, merge_metrics, train, training_loss
from neobert.files import clear_temporaries, is_there, set_aside
from neobert.identity import plain
from neobert.kinds.contrastive import ContrastiveRun, PairSet
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record
from neobert.runs.run_file import RunFile
from neobert.runs.work import Part
from neobert.training.distributed import Process, default_device


def open_trainer(
    layout: Layout, run_file: RunFile, process: Process, stop: StopRequest | None = None
) -> ContrastiveTrainer:
    """Return the trainer of a run in one rank, with its pairs encoded."""
    run = run_file.specification(ContrastiveRun)
    model, tokenizer = base_model(layout, run.weights, run_file.source, run.max_tokens, stop)
    encoded = prepare_pairs(layout, run, open_specified(run_file.source), tokenizer, stop or StopRequest())
    return ContrastiveTrainer(
        layout.trained(run.id),
        run.protocol,
        model,
        {pairs.name: each for pairs, each in zip(run.sets, encoded, strict=True)},
        run_file.execution,
        process,
        texts_per_pair={each.name: each.texts_per_pair for each in run.sets if each.texts_per_pair},
        initial_weights=None if run.is_external else lambda: last_checkpoint(layout, run.weights).weights(),
    )


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Fine-tune from the last checkpoint to the end, then publish the record."""
    run = run_file.specification(ContrastiveRun)
    if not all(layout.pairs(run.pairs_id(pairs)).exists() for pairs in run.sets):
        # Encode the pairs before other ranks start, which would wait for them.
        _, tokenizer = base_model(layout, run.weights, run_file.source, run.max_tokens, stop)
        prepare_pairs(layout, run, open_specified(run_file.source), tokenizer, stop)
    result = train(layout, run_file, partial(open_trainer, layout, stop=stop), claim, stop)
    totals, metrics = result.totals, merge_metrics(layout.root / run.folder)
    heldout = result.heldout
    assert heldout is not None
    counts = {pairs.name: open_pairs(layout.pairs(run.pairs_id(pairs))).counts for pairs in run.sets}
    record = {
        "kind": "contrastive",
        "id": run.id,
        "state": "done",
        "inputs": {"weights": run.weights, "pairs": [run.pairs_id(pairs) for pairs in run.sets]},
        "config": {"protocol": plain(run.protocol), "sets": plain(run.sets), "max_tokens": run.max_tokens},
        "labels": run_file.labels,
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
        **machine_record(result, default_device()),
    }
    publish_record(part.record, record)


def prepare_pairs(
    layout: Layout, run: ContrastiveRun, source: Source, tokenizer: Framing, stop: StopRequest
) -> list[EncodedPairs]:
    """Return every data set of a run, from disk or encoded now. One worker encodes a set while the others wait.

    Raises:
        MissingData: the source has no such set, or not the planned one.
        ValueError: a set has fewer than two pairs with text.
        Stopped: a stop was requested while a set was encoded.
    """
    return [_prepare(layout, run, pairs, source, tokenizer, stop) for pairs in run.sets]


def _prepare(
    layout: Layout, run: ContrastiveRun, pairs: PairSet, source: Source, tokenizer: Framing, stop: StopRequest
) -> EncodedPairs:
    folder = layout.pairs(run.pairs_id(pairs))

    def make(damage: DamagedFile | None, claim: Claim) -> None:
        if damage is not None and is_there(folder):
            set_aside(folder, str(damage))
        if folder.parent.is_dir():
            clear_temporaries(folder.parent, folder.name)
        encoded = _encode(run, pairs, source, tokenizer, stop)
        claim.check()
        save_pairs(folder, encoded)

    claims = layout.claims(f"pairs-{folder.name}")
    encoded = prepare_once(claims, f"the pairs of {pairs.name}", stop, lambda: open_pairs(folder), make)
    if len(encoded) < FEWEST_PAIRS:
        raise ValueError(
            f"data set {pairs.name} has {len(encoded)} pairs with text (of {encoded.counts.read}): a pair needs "
            "another one to be told from, so leave the set out or fill it"
        )
    return encoded


def _encode(run: ContrastiveRun, pairs: PairSet, source: Source, tokenizer: Framing, stop: StopRequest) -> EncodedPairs:
    name, instructed = f"data set {pairs.name} of {source.label}", run.protocol.instructed
    require_origin(name, pairs.origin, source.pair_origin(pairs.name))
    encoded = encode_pairs(
        _until_stopped(alike(source.pairs(pairs.name), run.protocol.similar_above), pairs.name, stop),
        tokenizer,
        run.max_tokens,
        query_instruction=None if instructed == "nothing" else pairs.instruction,
        document_instruction=pairs.instruction if instructed == "queries_and_documents" else None,
    )
    require_origin(name, pairs.origin, source.pair_origin(pairs.name))
    return encoded


def _until_stopped(pairs: Iterable[Pair], name: str, stop: StopRequest) -> Iterator[Pair]:
    for pair in pairs:
        if stop.requested:
            raise Stopped(f"encoding {name} was asked to stop")
        yield pair
