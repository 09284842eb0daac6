"""GLUE trials and studies as units of work: claims before; predictions, weights and one record after."""

import io
import math
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from neobert.data.preparation import open_specified, text_tokenizer
from neobert.errors import DamagedFile
from neobert.files import json_bytes, publish_once, read_json, replace_file, sync_file, temporary_sibling
from neobert.glue.encoding import EncodedTask, encode_task, load_encoded, save_encoded
from neobert.glue.finetuning import FineTuner, Outcome
from neobert.glue.tasks import task_named
from neobert.grid.claims import Claim
from neobert.identity import identity, plain
from neobert.layout import Layout
from neobert.model.build import build_classifier
from neobert.progress import TrialFiles, selection_path, trial_files
from neobert.recipe import Point
from neobert.records import provenance, publish_record, read_record
from neobert.specifications import GlueStudy, RunFile, read_run_file, run_folder
from neobert.stopping import StopRequest
from neobert.training import checkpoints
from neobert.training.device import default_device

Weights = dict[str, Tensor]


def trials_of_study(layout: Layout, task: str, study_id: str) -> "list[TrialUnit | SelectionUnit]":
    """The units of a study: its trials, and its closing."""
    run_file = read_run_file(layout.study(task, study_id))
    study = run_file.study
    assert study is not None
    trials = [TrialUnit(layout, run_file, study, files.point) for files in trial_files(layout, study)]
    return [*trials, SelectionUnit(layout, study)]


@dataclass(frozen=True)
class TrialUnit:
    """Fine-tuning at one point of a study's grid."""

    layout: Layout
    run_file: RunFile
    study: GlueStudy
    point: Point

    @property
    def files(self) -> TrialFiles:
        return TrialFiles(self.layout, self.study, self.point)

    @property
    def id(self) -> str:
        return self.files.id

    @property
    def name(self) -> str:
        point = self.point
        cell = f"batch {point.batch_size}, rate {point.learning_rate:g}, decay {point.weight_decay:g}"
        return f"{self.study.task} on {self.study.weights} ({cell})"

    @property
    def error_path(self) -> Path:
        return self.files.error

    def is_finished(self) -> bool:
        return self.files.record.exists()

    def is_ready(self) -> bool:
        """Whether the weights it starts from are there."""
        if not (self.layout.pretraining(self.study.weights) / "done.json").exists():
            return False
        start = self.study.starts_from
        return start.task is None or start.study is None or _selection(self.layout, start.task, start.study).exists()

    def run(self, claim: Claim, stop: StopRequest) -> None:
        """Fine-tune, then publish predictions, weights and, last, the record."""
        started = time.perf_counter()
        outcome = _fine_tuner(self.layout, self.study.task, self.study.id).run(self.point, self.study.seed, stop)
        claim.check()
        self._publish_predictions(outcome)
        self._publish_weights(outcome.weights)
        claim.check()
        publish_record(self.files.record, self._record(outcome, time.perf_counter() - started))
        drop_beaten_weights(self.layout, self.study)

    def _publish_predictions(self, outcome: Outcome) -> None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **outcome.predictions)
        replace_file(self.files.predictions, buffer.getvalue())

    def _publish_weights(self, weights: Weights) -> None:
        temporary = temporary_sibling(self.files.weights)
        save_file(weights, temporary)
        sync_file(temporary)
        temporary.replace(self.files.weights)

    def _record(self, outcome: Outcome, seconds: float) -> dict[str, Any]:
        study = self.study
        curve = [list(pair) for pair in outcome.curve]
        return {
            "kind": "glue",
            "id": self.id,
            "state": "done",
            "inputs": {
                "pretraining": study.weights,
                "stage": study.stage,
                "study": study.id,
                "starts_from": plain(study.starts_from),
                "task": study.task_origin,
                "tokenizer": study.tokenizer_origin,
            },
            "config": {
                **plain(study.protocol),
                **plain(self.point),
                "task": study.task,
                "seed": study.seed,
                "context": study.context,
                "starts_from": study.starts_from.name,
            },
            "labels": self.run_file.labels,
            "scores": {
                "score": outcome.score,
                "metrics": outcome.metrics,
                "curve": curve,
            },
            "seed": study.seed,
            "steps": outcome.steps,
            "best_step": outcome.best_step,
            "seconds": round(seconds, 3),
            "threads": torch.get_num_threads(),
            **provenance(),
        }


@dataclass(frozen=True)
class SelectionUnit:
    """The closing of a study: which point is best, written once when every point is recorded."""

    layout: Layout
    study: GlueStudy

    @property
    def id(self) -> str:
        return f"{self.study.id}-selection"

    @property
    def name(self) -> str:
        return f"selection of {self.study.task} on {self.study.weights}"

    @property
    def error_path(self) -> Path:
        return run_folder(self.layout, self.study) / "error.json"

    def is_finished(self) -> bool:
        return selection_path(self.layout, self.study).exists()

    def is_ready(self) -> bool:
        return all(files.record.exists() for files in trial_files(self.layout, self.study))

    def run(self, claim: Claim, stop: StopRequest) -> None:
        """Choose by the study's rule and publish the choice."""
        best, score = _best(self.layout, self.study)
        claim.check()
        content = {"study": self.study.id, "trial": best.id, "point": plain(best.point), "score": score}
        publish_once(selection_path(self.layout, self.study), json_bytes(content))


def _best(layout: Layout, study: GlueStudy) -> tuple[TrialFiles, float | None]:
    """The recorded trial with the highest score; of equal ones the first of the grid. An undefined score is lowest."""
    recorded = [files for files in trial_files(layout, study) if files.record.exists()]
    scored = [(files, read_record(files.record)["scores"]["score"]) for files in recorded]
    return max(scored, key=lambda pair: -math.inf if pair[1] is None else pair[1])


def drop_beaten_weights(layout: Layout, study: GlueStudy) -> None:
    """Keep weights only of trials that are the best so far in some study; grids share trials, so all studies count."""
    # Listed before the best is looked up: a record that another worker publishes in between must not count as beaten.
    finished = [files for files in trial_files(layout, study) if files.record.exists()]
    studies = [other for other in _studies(layout, study.task) if other.weights == study.weights]
    kept = {_best(layout, other)[0].id for other in studies if _has_records(layout, other)}
    for files in finished:
        if files.id not in kept:
            files.weights.unlink(missing_ok=True)


def _studies(layout: Layout, task: str) -> list[GlueStudy]:
    folders = (layout.root / "glue" / task / "studies").glob("*/run.json")
    return [study for path in folders if (study := read_run_file(path.parent).study) is not None]


def _has_records(layout: Layout, study: GlueStudy) -> bool:
    return any(files.record.exists() for files in trial_files(layout, study))


def _selection(layout: Layout, task: str, study_id: str) -> Path:
    return layout.study(task, study_id) / "selection.json"


@lru_cache(maxsize=1)
def _fine_tuner(layout: Layout, task_name: str, study_id: str) -> FineTuner:
    """Model and encoded task of a study, built once a process and used for all of its points."""
    run_file = read_run_file(layout.study(task_name, study_id))
    study = run_file.study
    assert study is not None
    pretraining = read_run_file(layout.pretraining(study.weights)).pretraining
    assert pretraining is not None
    task, protocol = task_named(study.task), study.protocol
    model = pretraining.recipe.model
    classifier = build_classifier(model, pretraining.context, task.labels, protocol.pooling, protocol.dropout)
    start = _starting_weights(layout, study)
    encoded = _encoded(layout, run_file, pretraining.recipe.data.tokenizer, model.vocabulary_size)
    return FineTuner(classifier, start, encoded, protocol, default_device())


def _starting_weights(layout: Layout, study: GlueStudy) -> Weights:
    """The encoder's tensors, named as in a classifier ("model.…")."""
    start = study.starts_from
    if start.task is None or start.study is None:
        newest = checkpoints.newest(layout.pretraining(study.weights) / "checkpoints")
        if newest is None:
            raise DamagedFile(f"run {study.weights} is done but has no valid checkpoint: remove its folder to redo it")
        weights = newest.weights()
    else:
        trial = read_json(_selection(layout, start.task, start.study))["trial"]
        weights = load_file(layout.trial(start.task, trial).with_suffix(".safetensors"))
    return {name: tensor for name, tensor in weights.items() if name.startswith("model.")}


def _encoded(layout: Layout, run_file: RunFile, tokenizer: str, vocabulary_size: int) -> EncodedTask:
    """The task in token ids, encoded by whichever process comes first."""
    study = run_file.study
    assert study is not None
    decisive = {"task": study.task_origin, "tokenizer": study.tokenizer_origin, "max_tokens": study.protocol.max_tokens}
    path = layout.root / "data" / "glue" / f"{study.task}-{identity(decisive)}.safetensors"
    if not path.exists():
        source = open_specified(run_file.source)
        task = task_named(study.task)
        splits = {split: source.task_examples(study.task, split) for split in task.splits}
        opened = text_tokenizer(layout, source, tokenizer, vocabulary_size)
        save_encoded(path, encode_task(task, splits, opened, study.protocol.max_tokens))
    return load_encoded(path)
