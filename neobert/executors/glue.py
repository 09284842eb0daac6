"""Trials of fine-tuning: load the model and the tokenised task, fine-tune, and write one record per trial."""

import hashlib
import io
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neobert.data.sources import Source
from neobert.data.tokenizers import Framing
from neobert.errors import DamagedFile
from neobert.execution import utc_now
from neobert.executors.corpus import text_tokenizer
from neobert.executors.external import read_model_file
from neobert.executors.preparation import open_specified, prepare_once, require_origin
from neobert.executors.search import run_search_trial
from neobert.executors.selection import best_weights, drop_beaten_weights, may_become_best, select
from neobert.executors.training import last_checkpoint
from neobert.files import replace_file, set_aside, sha256_of, temporary_sibling
from neobert.glue.batching import ExampleLayout, PackedLayout, PaddedLayout
from neobert.glue.encoding import EncodedTask, encode_task, load_encoded, save_encoded
from neobert.glue.finetuning import FineTuner, FineTuningResult, SavedProgress
from neobert.glue.task_data import data_origin, read_examples
from neobert.identity import plain
from neobert.kinds.glue import GlueStudy, SearchTrial, Trial
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.build import build_classifier
from neobert.model.heads import Classifier, Weights, all_but_classifier, encoder_part
from neobert.processes import StopRequest
from neobert.runs.claims import Claim, ClaimLost
from neobert.runs.layout import Layout
from neobert.runs.records import publish_record, timed_provenance
from neobert.runs.run_file import RunFile, read_checked_run_file, read_run_file
from neobert.runs.work import Part
from neobert.search.storages import address_of_environment
from neobert.search.study import optuna_study_of
from neobert.search.subjects import Report, by_tenths
from neobert.tensors import load_tensors, save_tensors
from neobert.training.accounting import attention_record
from neobert.training.distributed import choose_kernels, default_device


@dataclass(frozen=True, eq=False)
class StudyModel:
    """A classifier whose encoder is to be fine-tuned.

    weights: reads the pre-trained tensors of the encoder, named as in the classifier ("model.…").
    tokenizer: returns the encoder's tokenizer, given a source of text in case it has to be trained.
    layout: the batch layout for the encoder.
    """

    classifier: Classifier
    weights: Callable[[], Weights]
    tokenizer: Callable[[Source], Framing]
    layout: ExampleLayout


def load_model(layout: Layout, study: GlueStudy, stop: StopRequest | None = None) -> StudyModel:
    """Load the model of a study; a `stop` also ends the training of its tokenizer.

    Raises:
        MissingData, DamagedFile: its files are missing, or differ from those that the study names.
    """
    return _load_external(layout, study) if study.is_external else _load_own(layout, study, stop)


def _load_own(layout: Layout, study: GlueStudy, stop: StopRequest | None) -> StudyModel:
    run = read_run_file(layout.pretraining(study.weights)).specification(PretrainingRun)
    return StudyModel(
        classifier=build_classifier(run.recipe.model, run.context, study.about.labels, study.protocol.dropout),
        weights=lambda: encoder_part(last_checkpoint(layout, study.weights).weights()),
        tokenizer=lambda source: text_tokenizer(layout, run, source, stop),
        layout=PackedLayout(),
    )


def _load_external(layout: Layout, study: GlueStudy) -> StudyModel:
    from neobert.hub.external import load_external

    model = read_model_file(layout, study.weights)
    encoder, tokenizer = load_external(model.require_unchanged(), model.name, model.trusts_code)
    classifier = Classifier(encoder, encoder.width, study.about.labels, study.protocol.dropout)
    return StudyModel(
        classifier=classifier,
        weights=lambda: encoder_part(classifier.state_dict()),
        tokenizer=lambda source: tokenizer,
        layout=PaddedLayout(encoder.pad_id, study.protocol.max_tokens),
    )


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Run one part of a study: a trial, that of a search, or the selection of the best one."""
    study = run_file.specification(GlueStudy)
    if part.id == study.closing(layout).id:
        select(layout, study, claim)
        return
    choose_kernels(run_file.execution.deterministic)
    optuna_study = optuna_study_of(layout, study, address_of_environment(layout.root))
    if isinstance(part, SearchTrial):
        run_search_trial(optuna_study, part, claim, stop, partial(_run_trial, layout, run_file, stop))
    else:
        assert isinstance(part, Trial)
        with optuna_study.running(part, claim) as reports:
            _run_trial(layout, run_file, stop, part, claim, reports)
    drop_beaten_weights(layout, study)


def _run_trial(
    layout: Layout, run_file: RunFile, stop: StopRequest, trial: Trial, claim: Claim, report: Report
) -> None:
    """Run a trial and publish its record. `report` gets the values of its evaluations by tenths of an epoch."""
    study = run_file.specification(GlueStudy)
    started_at, started = utc_now(), time.perf_counter()
    tuner = _fine_tuner(layout, study.task, study.id, stop)
    steps = tuner.schedule(trial.point).steps
    reported, keeper = by_tenths(report, steps, study.protocol.epochs), SavedProgress(trial.progress, claim.check)
    outcome = tuner.run(trial.point, trial.study.seed, stop, reported, keeper)
    record = _written(layout, run_file, trial, claim, outcome, tuner) | {
        **timed_provenance(started_at),
        "seconds": round(time.perf_counter() - started, 3),
    }
    claim.check()
    if not publish_record(trial.record, record):
        raise ClaimLost(f"trial {trial.id} was recorded by another process; this result is dropped")
    shutil.rmtree(trial.progress, ignore_errors=True)


def _written(
    layout: Layout, run_file: RunFile, trial: Trial, claim: Claim, outcome: FineTuningResult, tuner: FineTuner
) -> dict[str, Any]:
    """Write the predictions of a trial, and its weights if they may be needed; return its record."""
    contents = io.BytesIO()
    np.savez_compressed(contents, allow_pickle=False, **outcome.predictions)
    predictions = contents.getvalue()
    result = _record(run_file, trial, outcome)
    claim.check()
    replace_file(trial.predictions, predictions)
    digests = {"predictions": hashlib.sha256(predictions).hexdigest()}
    if may_become_best(layout, trial, result["scores"]):
        digests["weights"] = write_weights(trial.weights, outcome.weights)
    return {
        **result,
        "claim": claim.number,
        "course_steps": tuner.schedule(trial.point).steps,
        "sha256": digests,
        "compiled": tuner.compiled,
    }


def write_weights(path: Path, weights: Weights) -> str:
    """Write the tensors to a safetensors file, and return its SHA-256."""
    temporary = temporary_sibling(path)
    try:
        save_tensors({name: tensor.cpu().contiguous() for name, tensor in weights.items()}, temporary)
        digest = sha256_of(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return digest


def _record(run_file: RunFile, trial: Trial, outcome: FineTuningResult) -> dict[str, Any]:
    study = trial.study
    return {
        "kind": "glue",
        "id": trial.id,
        "inputs": {
            "pretraining": study.weights,
            "stage": study.stage,
            "study": run_file.run.id,
            "starts_from": plain(study.starts_from),
            "task": study.task_origin,
            "tokenizer": study.tokenizer_origin,
        },
        "config": {
            **plain(study.protocol),
            **plain(trial.point),
            "task": study.task,
            "seed": study.seed,
            "context": study.context,
            "starts_from": study.starts_from.name,
            **({} if study.own_task is None else {"own_task": plain(study.own_task)}),
        },
        "labels": run_file.labels,
        "seed": study.seed,
        "threads": torch.get_num_threads(),
        **attention_record(default_device(), by_row=study.is_external),
        "state": "done",
        "scores": {
            "score": outcome.score,
            "metrics": outcome.metrics,
            "curve": [list(pair) for pair in outcome.curve],
        },
        "steps": outcome.steps,
        "best_step": outcome.best_step,
    }


@lru_cache(maxsize=1)
def _fine_tuner(layout: Layout, task_name: str, study_id: str, stop: StopRequest) -> FineTuner:
    """Build the fine-tuner of a study, once per process and for all of its points."""
    run_file = read_checked_run_file(layout.study(task_name, study_id))
    study = run_file.specification(GlueStudy)
    model = load_model(layout, study, stop)
    start = _starting_weights(layout, study, model)
    encoded = _encoded_task(layout, run_file, model, stop)
    word, device = run_file.execution.compile, default_device()
    return FineTuner(model.classifier, start, encoded, study.protocol, device, model.layout, word)


def _starting_weights(layout: Layout, study: GlueStudy, model: StudyModel) -> Weights:
    """Load the tensors that a trial does not initialise at random, named as in a classifier: the encoder's ("model.…")
    and, if the study starts from another task and the protocol transfers the layer, "dense.…"."""
    start = study.starts_from
    if start.task is None or start.study is None:
        return model.weights()
    weights = load_tensors(best_weights(layout, start.task, start.study))
    return encoder_part(weights) if study.protocol.transferred == "encoder" else all_but_classifier(weights)


def _encoded_task(layout: Layout, run_file: RunFile, model: StudyModel, stop: StopRequest) -> EncodedTask:
    """Load the encoded task from disk, or encode it; a damaged file is replaced."""
    study = run_file.specification(GlueStudy)
    path, task = study.encoded_task(layout), study.about
    if task.is_own:  # the folder of its data is no part of the study
        task = task.model_copy(update={"folder": run_file.source.task_folders[task.name]})
    what = f"the tokens of {task.title}"

    def make(damage: DamagedFile | None, claim: Claim) -> None:
        if damage is not None:
            set_aside(path, str(damage))
        source = open_specified(run_file.source)
        name = f"{'task' if task.is_own else 'GLUE task'} {study.task} of {task.folder or run_file.source.name}"
        require_origin(name, study.task_origin, data_origin(task, source))
        splits = {split: read_examples(task, split, source) for split in task.splits}
        require_origin(name, study.task_origin, data_origin(task, source))
        tokenizer, most = model.tokenizer(source), study.protocol.max_tokens
        encoded = stop.outlive(lambda: encode_task(task, splits, tokenizer, most), what)
        claim.check()
        save_encoded(path, encoded)

    claims = layout.claims(f"encoded-{path.stem}")
    return prepare_once(claims, what, stop, lambda: load_encoded(path), make)
