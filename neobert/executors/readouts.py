"""Readouts of a finished stage of pre-training as a kind of work: each part is one readout with one record.

Items of held-out text are drawn once for a source and context, and kept in the folder of runs. Torch is imported to
measure.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch

from neobert.errors import DamagedFile
from neobert.evaluation.items import (
    DOCUMENTS_FROM_BYTES,
    HELDOUT_BYTES,
    Items,
    choose_documents,
    choose_stretches,
    cut_stretches,
    read_items,
    survey,
    write_items,
)
from neobert.evaluation.readouts import Measured, MeasuredModel, measure
from neobert.execution import utc_now
from neobert.executors.corpus import text_tokenizer
from neobert.executors.preparation import open_specified, prepare_once, require_origin
from neobert.executors.training import last_checkpoint
from neobert.files import set_aside
from neobert.identity import plain
from neobert.kinds.pretraining import PretrainingRun
from neobert.kinds.readouts import BLIMP, ReadoutConfig, ReadoutEvaluation, ReadoutRun, ReadoutScore
from neobert.model.build import build_masked_language_model
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import Claim, ClaimLost
from neobert.runs.layout import Layout
from neobert.runs.records import pack_numbers, publish_record, timed_provenance
from neobert.runs.run_file import RunFile, SourceSpecification, read_run_file
from neobert.runs.work import Part
from neobert.training.distributed import choose_kernels, default_device


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Measure one readout of an evaluation, then publish the record."""
    started_at, started = utc_now(), time.perf_counter()
    choose_kernels(deterministic=False)
    evaluation = run_file.specification(ReadoutEvaluation)
    run = next(run for run in evaluation.runs() if run.id == part.id)
    items = items_of(layout, run, run_file.source, stop)
    subject = _open_subject(layout, run.weights, run.context, default_device())
    measured = measure(run.readout, items, subject, stop)
    claim.check()
    config = ReadoutConfig(readout=run.readout, stage=evaluation.stage, context=run.context, items=items.name)
    record = {
        "kind": evaluation.kind,
        "id": part.id,
        "state": "done",
        "inputs": {
            "pretraining": run.weights,
            "evaluation": run_file.id,
            "corpora": run.corpora,
            "tokenizer": run.tokenizer_origin,
        },
        "config": plain(config),
        "labels": run_file.labels,
        "scores": {corpus: plain(_score(own)) for corpus, own in measured.items()},
        "seed": evaluation.seed,
        "precision": subject.precision,
        "threads": torch.get_num_threads(),
        "device": subject.device.type,
        "seconds": round(time.perf_counter() - started, 3),
        **timed_provenance(started_at),
    }
    if not publish_record(part.record, record):
        raise ClaimLost(f"readout {part.id} was recorded by another process; this result is dropped")


def _score(measured: Measured) -> ReadoutScore:
    return ReadoutScore(
        value=measured.value,
        units=len(measured.numerators),
        numerators=pack_numbers(measured.numerators, "<f4"),
        denominators=pack_numbers(measured.denominators, "<i4"),
        groups=dict(measured.groups),
        ties=measured.ties,
    )


@lru_cache(maxsize=1)
def _open_subject(layout: Layout, weights: str, context: int, device: torch.device) -> MeasuredModel:
    """Open the model of a finished stage with its tokenizer, once per process for all of its readouts."""
    run_file = read_run_file(layout.pretraining(weights))
    run = run_file.specification(PretrainingRun)
    model = build_masked_language_model(run.recipe.model, run.context, run.recipe.precision)
    model.load_state_dict(last_checkpoint(layout, weights).weights())
    tokenizer = text_tokenizer(layout, run, open_specified(run_file.source))
    return MeasuredModel(model.to(device).eval(), tokenizer, context, run.recipe.precision, device)


def items_of(layout: Layout, run: ReadoutRun, specification: SourceSpecification, stop: StopRequest) -> Items:
    """Return the items of a source, from disk or drawn now by one process while others wait; those of BLiMP as its
    files have them.

    Raises:
        ChangedData: a corpus, or BLiMP, is not the planned one.
        DamagedFile: a file of BLiMP has too few pairs.
        MissingData: a corpus is missing or has no text.
        Stopped: a stop was requested.
    """
    if run.pairs_per_paradigm is not None:
        source, planned = open_specified(specification), run.corpora[BLIMP]
        require_origin("BLiMP", planned, source.blimp_origin())
        pairs = source.minimal_pairs(run.pairs_per_paradigm)
        require_origin("BLiMP", planned, open_specified(specification).blimp_origin())
        return Items(pairs={BLIMP: pairs})
    path = layout.readout_items(run.items_id)

    def make(damage: DamagedFile | None, claim: Claim) -> None:
        if damage is not None:
            set_aside(path, str(damage))
        drawn: defaultdict[str, dict[str, Sequence[Any]]] = defaultdict(dict)
        for corpus, origin in run.corpora.items():
            for kind, own in _draw_of_corpus(corpus, origin, specification, run, stop).items():
                drawn[kind][corpus] = own
        items = Items(**drawn)
        claim.check()
        write_items(path, items)

    return prepare_once(
        layout.claims(f"readouts-{run.items_id}"), "items of readouts", stop, lambda: read_items(path), make
    )


def _draw_of_corpus(
    corpus: str, origin: str, specification: SourceSpecification, run: ReadoutRun, stop: StopRequest
) -> dict[str, Sequence[Any]]:
    require_origin(f"corpus {corpus}", origin, open_specified(specification).corpus_origin(corpus))

    def texts() -> Iterator[str]:
        for text in open_specified(specification).documents(corpus):
            if stop.requested:
                raise Stopped("asked to stop while items of readouts were drawn", progressed=False)
            yield text

    heldout = survey(texts(), DOCUMENTS_FROM_BYTES if run.reads_documents else HELDOUT_BYTES)
    require_origin(f"corpus {corpus}", origin, open_specified(specification).corpus_origin(corpus))
    if run.reads_documents:
        return {"documents": choose_documents(heldout, run.context)}
    return {"stretches": choose_stretches(cut_stretches(heldout))}
