"""Records as typed values: pre-training runs and GLUE trials, with one sentence for each that is left out."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ablations.scales import Scale, Vocabulary, trained_vocabulary_size
from neobert.errors import MissingData
from neobert.glue.tasks import TASKS, decisive_score
from neobert.recipe import FineTuning, Point, Pretraining, Value
from neobert.runs.records import RECORD_STATES, HeldoutScore, read_records
from neobert.runs.specifications import GlueStudy
from reports.made import NOTHING_SAID, Made, known_scale, made
from reports.measurements import NOTHING_MEASURED, Measurements, measurements
from reports.parsing import parsed, text_of, text_or_none, without_duplicates
from reports.unfinished import FailedTrial, begun_studies, failed_trials, unfinished_runs

ValueType = TypeVar("ValueType", bound=Value)


@dataclass(frozen=True)
class Run:
    """A finished stage of pre-training. `weights` is its recipe up to this stage without the seed, `origins` is what
    identifies the bytes of its corpus and tokenizer, `labelled` are the variants that it was planned for, `previous` is
    the stage before it."""

    id: str
    weights: Pretraining
    stage: int
    seed: int
    scale: Scale
    data: str
    heldout_loss: Mapping[str, float]
    heldout: tuple[HeldoutScore, ...]
    unavailable_tasks: Mapping[str, str]
    origins: Mapping[str, str]
    labelled: tuple[str, ...]
    previous: str | None
    made: Made

    @property
    def vocabulary(self) -> Vocabulary:
        """Whether its tokenizer has the size of those that its scale trains."""
        size = trained_vocabulary_size(self.scale)
        return "trained" if self.weights.model.vocabulary_size == size else "published"


@dataclass(frozen=True)
class Trial:
    """One fine-tuning on one point of a grid. `score` is 0..1; None unless the trial is done.

    `state` is that of the record; "undefined" for a done trial whose metric has no value, "failed" for a trial that
    left an error and no record. `decisive` is what the best point of a grid is chosen by: the score, or by another
    protocol a metric; None where `score` is. `start` is the study whose best trial it started from, None where it
    started from pre-training; `fallback` says why it did so although its task starts from another one. `model` is the
    name of a model that was pre-trained elsewhere, None for the runs of this study.
    """

    id: str
    task: str
    state: str
    run_id: str
    point: Point
    seed: int
    protocol: FineTuning
    start: str | None
    fallback: str | None
    scale: Scale
    data: str
    score: float | None
    decisive: float | None
    model: str | None = None
    made: Made = NOTHING_SAID


@dataclass(frozen=True)
class Evidence:
    """Everything readable below a folder of runs, in a stable order, and what was left out and why."""

    runs: tuple[Run, ...]
    trials: tuple[Trial, ...]
    studies: Mapping[str, GlueStudy]
    problems: tuple[str, ...]
    measurements: Measurements = NOTHING_MEASURED

    def groups(self) -> list[tuple[Scale, str]]:
        """Every (scale, data) that has records."""
        of_runs = {(run.scale, run.data) for run in self.runs} | self.measurements.groups()
        return sorted(of_runs | {(trial.scale, trial.data) for trial in self.trials})

    def vocabulary(self, scale: Scale, data: str) -> Vocabulary:
        """Whether the tokenizers of most runs were trained on their data."""
        own = [run.vocabulary for run in self.runs if (run.scale, run.data) == (scale, data)]
        return "trained" if 2 * own.count("trained") > len(own) else "published"


def weights_up_to(pretraining: Pretraining, stage: int) -> Pretraining:
    """What decides a checkpoint's weights apart from the seed: the recipe cut behind a stage."""
    return pretraining.model_copy(update={"seed": 0, "stages": pretraining.stages[: stage + 1]})


def _run(record: dict[str, Any]) -> Run:
    config, labels = record["config"], record["labels"]
    stage = int(config["stage"])
    pretraining = Pretraining.read(config["recipe"])
    return Run(
        id=str(record["id"]),
        weights=weights_up_to(pretraining, stage),
        stage=stage,
        seed=int(record["seed"]),
        scale=known_scale(str(labels["scale"])),
        data=text_of(labels["data"]),
        heldout_loss={corpus: _loss(loss) for corpus, loss in record["scores"]["heldout_loss"].items()},
        heldout=tuple(map(HeldoutScore.read, record["scores"].get("heldout", ()))),
        unavailable_tasks=_texts(labels.get("unavailable_tasks", {})),
        origins=_texts(config.get("origins", {})),
        labelled=tuple(map(text_of, labels.get("variants", ()))),
        previous=_previous(record),
        made=made(record),
    )


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: text_of(value) for name, value in values.items()}


def _previous(record: dict[str, Any]) -> str | None:
    previous = text_or_none(record["inputs"]["previous"])
    if previous == str(record["id"]):
        raise ValueError("it continues itself")
    return previous


def _loss(value: Any) -> float:
    loss = float(value)
    if not (math.isfinite(loss) and loss >= 0):
        raise ValueError(f"its held-out loss {loss} is no cross-entropy: the record is damaged")
    return loss


def _score(value: Any) -> float | None:
    if value is None:
        return None
    score = float(value)
    if not (math.isfinite(score) and -1 <= score <= 1):
        raise ValueError(f"its score {score} is not between −1 and 1")
    return score


def _part_of(config: Mapping[str, Any], part: type[ValueType]) -> ValueType:
    """A value whose fields lie among others in a record's config."""
    return part.read({name: config[name] for name in part.model_fields if name in config})


def _trial(record: dict[str, Any]) -> Trial:
    config, labels, start = record["config"], record["labels"], record["inputs"]["starts_from"]
    if config["task"] not in TASKS or record["state"] not in RECORD_STATES:
        raise ValueError(f"unknown task {config['task']!r} or state {record['state']!r}")
    protocol, scores = _part_of(config, FineTuning), record["scores"]
    score = _score(scores["score"]) if record["state"] == "done" else None
    decisive = None if score is None else _score(decisive_score(config["task"], protocol, scores))
    return Trial(
        id=str(record["id"]),
        task=config["task"],
        state="undefined" if record["state"] == "done" and score is None else record["state"],
        run_id=str(record["inputs"]["pretraining"]),
        point=_part_of(config, Point),
        seed=int(record["seed"]),
        protocol=protocol,
        start=text_or_none(start.get("study")),
        fallback=text_or_none(start.get("reason")),
        scale=known_scale(str(labels["scale"])),
        data=text_of(labels["data"]),
        score=score,
        decisive=decisive,
        model=text_or_none(labels.get("model")),
        made=made(record),
    )


def _failed(trial: FailedTrial) -> Trial:
    study = trial.study
    return Trial(
        id=trial.id,
        task=study.task,
        state="failed",
        run_id=study.weights,
        point=trial.point,
        seed=study.seed,
        protocol=study.protocol,
        start=study.starts_from.study,
        fallback=study.starts_from.reason,
        scale=trial.scale,
        data=str(trial.labels["data"]),
        score=None,
        decisive=None,
        model=trial.labels.get("model"),
    )


def read_evidence(root: Path) -> Evidence:
    """The records below a folder of runs.

    Raises:
        MissingData: the folder is not there or holds no usable record.
    """
    if not root.is_dir():
        raise MissingData(f"there is no folder of runs at {root}: run python ablations/run.py first or give --runs")
    records, problems = read_records(root)
    records = without_duplicates(records, problems)
    runs = parsed([record for record in records if record["kind"] == "pretraining"], _run, problems)
    trials = parsed([record for record in records if record["kind"] == "glue"], _trial, problems)
    measured = measurements(records, problems)
    if not runs and not trials and measured == NOTHING_MEASURED:
        found = f"only {len(problems)} unusable one(s), the first: {sorted(problems)[0]}" if problems else "none"
        raise MissingData(f"{root} holds no finished record ({found}): run python ablations/run.py first")
    run_files = begun_studies(root, problems)
    problems += unfinished_runs(root)
    failed = tuple(map(_failed, failed_trials(root, run_files, {trial.id for trial in trials})))
    studies = {run_file.id: run_file.study for run_file in run_files if run_file.study is not None}
    everything = tuple(sorted(trials + failed, key=lambda trial: trial.id))
    named = sorted(problem.replace(f"{root}{os.sep}", "") for problem in problems)  # the same wherever the folder lies
    return Evidence(runs, everything, studies, tuple(named), measured)
