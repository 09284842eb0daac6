"""A folder of runs → tidy frames: one row a record, one column a fact, and a sentence for each record that is left out.

Missing facts are None, or NaN in columns of numbers. Whatever a record holds, reading it ends in a row or a sentence.
"""

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pydantic import ValidationError

from ablations.scales import SCALES, Scale, Vocabulary, trained_vocabulary_size
from neobert.errors import DamagedFile, MissingData, did_you_mean
from neobert.glue.tasks import TASKS, decisive_score
from neobert.recipe import FineTuning, Point, Pretraining, Value
from neobert.runs.records import (
    RECORD_STATES,
    EmbeddingConfig,
    EmbeddingScores,
    HeldoutScore,
    PerplexityConfig,
    PerplexityScores,
    ThroughputConfig,
    ThroughputScores,
    read_record,
    record_paths,
)
from neobert.runs.run_file import RunFile, read_run_file
from neobert.runs.specifications import GlueStudy

ValueType = TypeVar("ValueType", bound=Value)
Facts = dict[str, Any]

SECONDS_PER_HOUR = 3600
LISTED = 3
UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, OverflowError)
"""What reading a record raises where a field is missing, of another type or impossible."""

COSTS = ("seconds", "gpu_hours", "tokens", "real_tokens", "flops")
PROVENANCE = ("code", "commit", "dirty", "data_id", "processes", "hours", *COSTS)
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "pretraining": (
        *("id", "stage", "seed", "scale", "data", "weights", "recipe", "previous", "vocabulary"),
        *("origins", "planned_for", "unavailable_tasks", "heldout_loss", "heldout", *PROVENANCE),
    ),
    "glue": (
        *("id", "task", "state", "run", "point", "seed", "protocol", "start", "fallback", "scale", "data"),
        *("score", "decisive", "model", *PROVENANCE),
    ),
    "mteb": (
        *("id", "run", "weights", "task", "category", "suite", "protocol", "metric", "split", "revision"),
        *("score", "seed", "scale", "data", "model", "variants", *PROVENANCE),
    ),
    "pseudo_perplexity": (
        *("id", "run", "stage", "text", "sampled_positions", "same_documents", "lengths", "scale", "data", "model"),
        *PROVENANCE,
    ),
    "throughput": (
        *("id", "model", "parameters", "sequence_tokens", "batch_size", "precision", "compiled", "steps"),
        *("tokens_per_second", "spread", "device", "date", *PROVENANCE),
    ),
}
"""The facts of each kind of record; docs/records.md explains those that have the names of the records' own."""
HELDOUT = ("run", "seed", "corpus", "context", "loss", "bits_per_byte", "texts")
NUMBERS = ("score", "decisive", "hours", "loss", "bits_per_byte", *COSTS)


@dataclass(frozen=True)
class Evidence:
    """Everything readable below a folder of runs.

    `runs` are finished stages of pre-training: `weights` is the recipe up to the stage without the seed, `recipe` the
    same as JSON, `origins` identifies the bytes of corpus and tokenizer, `previous` is the stage before. `heldout` has
    one row a run, corpus and context of a held-out loss; `context` is None for the run's own.

    `trials` are fine-tunings on one point of a grid. `score` is 0..1. `state` is that of the record, "undefined" for a
    done trial whose metric has no value, "failed" for one that left an error and no record. `decisive` is what the
    best point is chosen by. `start` is the study whose best trial it started from, None for pre-training; `fallback`
    says why it did so although its task starts from another one. `model` is the name of an external model.

    `studies` are the grids that were begun, by id.
    """

    runs: pd.DataFrame
    heldout: pd.DataFrame
    trials: pd.DataFrame
    embeddings: pd.DataFrame
    perplexities: pd.DataFrame
    throughputs: pd.DataFrame
    studies: Mapping[str, GlueStudy]
    problems: tuple[str, ...]

    def groups(self) -> list[tuple[Scale, str]]:
        """Every (scale, data) that has records; throughput has neither."""
        frames = (self.runs, self.trials, self.embeddings, self.perplexities)
        return sorted({group for frame in frames for group in zip(frame.scale, frame.data, strict=True)})

    def vocabulary(self, scale: Scale, data: str) -> Vocabulary:
        """Whether the tokenizers of most runs were trained on their data."""
        own = select_group(self.runs, scale, data).vocabulary
        return "trained" if 2 * (own == "trained").sum() > len(own) else "published"


def select_group(frame: pd.DataFrame, scale: Scale, data: str) -> pd.DataFrame:
    """The rows of one scale and source of data."""
    return frame[(frame.scale == scale) & (frame.data == data)]


def make_frame(rows: Iterable[Facts], columns: Iterable[str]) -> pd.DataFrame:
    """Facts as a frame; columns of `NUMBERS` are floats, all others keep the values as they are."""
    names = list(columns)
    frame = pd.DataFrame([[row.get(name) for name in names] for row in rows], columns=names, dtype=object)
    return frame.astype({name: float for name in names if name in NUMBERS})


def weights_up_to(pretraining: Pretraining, stage: int) -> Pretraining:
    """What decides a checkpoint's weights apart from the seed: the recipe cut behind a stage."""
    return pretraining.model_copy(update={"seed": 0, "stages": pretraining.stages[: stage + 1]})


def read_evidence(root: Path) -> Evidence:
    """The records below a folder of runs, each file read once.

    Raises:
        MissingData: the folder is not there or holds no usable record.
    """
    if not root.is_dir():
        raise MissingData(f"there is no folder of runs at {root}: run python ablations/run.py first or give --runs")
    problems: list[str] = []
    rows = _read_rows(root, problems)
    if not any(rows.values()):
        found = f"only {len(problems)} unusable one(s), the first: {sorted(problems)[0]}" if problems else "none"
        raise MissingData(f"{root} holds no finished record ({found}): run python ablations/run.py first")
    run_files = _read_studies(root, problems)
    problems += _unfinished_runs(root)
    rows["glue"] += _failed_trials(root, run_files, {row["id"] for row in rows["glue"]})
    frames = {kind: make_frame(sorted(rows[kind], key=lambda row: row["id"]), COLUMNS[kind]) for kind in COLUMNS}
    return Evidence(
        runs=frames["pretraining"].drop(columns=["heldout_loss", "heldout"]),
        heldout=make_frame(_heldout_rows(rows["pretraining"]), HELDOUT),
        trials=frames["glue"],
        embeddings=frames["mteb"],
        perplexities=frames["pseudo_perplexity"],
        throughputs=frames["throughput"],
        studies={run_file.id: run_file.study for run_file in run_files if run_file.study is not None},
        problems=tuple(sorted(problem.replace(f"{root}{os.sep}", "") for problem in problems)),
    )


def _read_rows(root: Path, problems: list[str]) -> dict[str, list[Facts]]:
    """The facts of every record by kind. Of several files with one id the first by content counts, so that the order
    of files decides nothing."""
    paths: dict[tuple[str, str], Path] = {}
    found: dict[tuple[str, str], Facts | str] = {}
    for path in record_paths(root):
        try:
            record = read_record(path)
        except (DamagedFile, OSError) as error:
            problems.append(str(error))
            continue
        name = str(record["kind"]), str(record["id"])
        if name in paths:
            first = read_record(paths[name])
            what = "the same" if record == first else "another content"
            problems.append(f"a second file holds {name[0]} record {name[1]} with {what}: it is counted once")
            if json.dumps(record, sort_keys=True) >= json.dumps(first, sort_keys=True):
                continue
        paths[name] = path
        if name[0] in READERS:
            found[name] = _read_facts(record)
    rows: dict[str, list[Facts]] = defaultdict(list)
    for (kind, _), facts in found.items():
        if isinstance(facts, str):
            problems.append(facts)
        else:
            rows[kind].append(facts)
    return rows


def _read_facts(record: dict[str, Any]) -> Facts | str:
    """The facts of a record, or why it is left out."""
    try:
        return READERS[record["kind"]](record) | _provenance(record)
    except UNREADABLE as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            reason = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        elif isinstance(error, KeyError):
            reason = f"it lacks {error}"
        return f"{record['kind']} record {record['id']} is left out: {reason}"


def _read_run(record: dict[str, Any]) -> Facts:
    config, labels, id_ = record["config"], record["labels"], str(record["id"])
    stage, scale, previous = int(config["stage"]), _scale(labels), _text_or_none(record["inputs"]["previous"])
    weights, recipe = _share_weights(weights_up_to(Pretraining.read(config["recipe"]), stage))
    if previous == id_:
        raise ValueError("it continues itself")
    is_trained = weights.model.vocabulary_size == trained_vocabulary_size(scale)
    return {
        "id": id_,
        "stage": stage,
        "seed": int(record["seed"]),
        "scale": scale,
        "data": _text(labels["data"]),
        "weights": weights,
        "recipe": recipe,
        "previous": previous,
        "vocabulary": "trained" if is_trained else "published",
        "origins": _texts(config.get("origins", {})),
        "planned_for": tuple(map(_text, labels.get("variants", ()))),
        "unavailable_tasks": _texts(labels.get("unavailable_tasks", {})),
        "heldout_loss": {corpus: _loss(loss) for corpus, loss in record["scores"]["heldout_loss"].items()},
        "heldout": [HeldoutScore.read(score) for score in record["scores"].get("heldout", ())],
    }


@lru_cache(maxsize=4096)
def _share_weights(weights: Pretraining) -> tuple[Pretraining, str]:
    """One object for all equal recipes, and the same as JSON."""
    return weights, weights.model_dump_json()


def _heldout_rows(runs: Iterable[Facts]) -> Iterator[Facts]:
    for run in runs:
        own = {"run": run["id"], "seed": run["seed"]}
        yield from (own | {"corpus": corpus, "loss": loss} for corpus, loss in run["heldout_loss"].items())
        for score in run["heldout"]:
            yield own | {name: getattr(score, name) for name in HELDOUT if name not in own}


def _read_trial(record: dict[str, Any]) -> Facts:
    config, labels, start = record["config"], record["labels"], record["inputs"]["starts_from"]
    if config["task"] not in TASKS or record["state"] not in RECORD_STATES:
        raise ValueError(f"unknown task {config['task']!r} or state {record['state']!r}")
    protocol, key = _part_of(config, FineTuning)
    score = _score(record["scores"]["score"]) if record["state"] == "done" else None
    return {
        "id": str(record["id"]),
        "task": config["task"],
        "state": "undefined" if record["state"] == "done" and score is None else record["state"],
        "run": str(record["inputs"]["pretraining"]),
        "point": _part_of(config, Point)[0],
        "seed": int(record["seed"]),
        "protocol": key,
        "start": _text_or_none(start.get("study")),
        "fallback": _text_or_none(start.get("reason")),
        "scale": _scale(labels),
        "data": _text(labels["data"]),
        "score": score,
        "decisive": None if score is None else _score(decisive_score(config["task"], protocol, record["scores"])),
        "model": _text_or_none(labels.get("model")),
    }


def _read_embedding(record: dict[str, Any]) -> Facts:
    if record["state"] not in RECORD_STATES:
        raise ValueError(f"unknown state {record['state']!r}")
    labels = record["labels"]
    return {
        "id": str(record["id"]),
        "run": str(record["inputs"]["pretraining"]),
        "weights": str(record["inputs"]["weights"]),
        **EmbeddingConfig.read(record["config"]).model_dump(),
        "score": EmbeddingScores.read(record["scores"]).score if record["state"] == "done" else None,
        "seed": int(record["seed"]),
        "scale": _scale(labels),
        "data": _text(labels["data"]),
        "model": _text_or_none(labels.get("model")),
        "variants": tuple(map(_text, labels.get("variants", ()))),
    }


def _read_perplexity(record: dict[str, Any]) -> Facts:
    _refuse_unfinished(record)
    labels = record["labels"]
    return {
        "id": str(record["id"]),
        "run": str(record["inputs"]["pretraining"]),
        **PerplexityConfig.read(record["config"]).model_dump(),
        "lengths": PerplexityScores.read(record["scores"]).lengths,
        "scale": _scale(labels),
        "data": _text(labels["data"]),
        "model": _text_or_none(labels.get("model")),
    }


def _read_throughput(record: dict[str, Any]) -> Facts:
    _refuse_unfinished(record)
    return {
        "id": str(record["id"]),
        **ThroughputConfig.read(record["config"]).model_dump(),
        **ThroughputScores.read(record["scores"]).model_dump(),
        "device": str(record["device"]),
        "date": str(record["date"]),
    }


READERS: Mapping[str, Callable[[dict[str, Any]], Facts]] = {
    "pretraining": _read_run,
    "glue": _read_trial,
    "mteb": _read_embedding,
    "pseudo_perplexity": _read_perplexity,
    "throughput": _read_throughput,
}


def _provenance(record: Mapping[str, Any]) -> Facts:
    """Which code and data made a record, and what it cost. `data_id` is the id of a tokenised corpus, or a task and its
    tokenizer; `tokens` counts slots, `real_tokens` leaves padding out; `hours` are by the clock, times processes."""
    inputs = record.get("inputs", {})
    of_task = ", ".join(str(inputs[name]) for name in ("task", "tokenizer") if inputs.get(name))
    commit, dirty, processes = record.get("commit"), record.get("dirty"), int(record.get("processes", 1))
    costs = {name: _cost(record, name) for name in COSTS}
    code = None if commit is None else f"{commit} with uncommitted changes" if dirty else str(commit)
    return {
        "code": code,
        "commit": None if commit is None else str(commit),
        "dirty": None if dirty is None else bool(dirty),
        "data_id": str(inputs["data"]) if inputs.get("data") else of_task or None,
        "processes": processes,
        "hours": None if costs["seconds"] is None else costs["seconds"] * processes / SECONDS_PER_HOUR,
        **costs,
    }


def _cost(record: Mapping[str, Any], name: str) -> float | None:
    if record.get(name) is None:
        return None
    value = float(record[name])
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"its {name} {value} is no cost")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} stands where a text belongs")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value) for name, value in values.items()}


def _scale(labels: Mapping[str, Any]) -> Scale:
    name = str(labels["scale"])
    for known in SCALES:
        if known == name:
            return known
    raise ValueError(f"it is labelled with the unknown scale {name!r}: {did_you_mean(name, SCALES)}")


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


def _refuse_unfinished(record: dict[str, Any]) -> None:
    if record["state"] != "done":
        raise ValueError(f"its state is {record['state']!r}, not done")


def _part_of(config: Mapping[str, Any], part: type[ValueType]) -> tuple[ValueType, str]:
    """A value whose fields lie among others in a record's config, and the same as JSON."""
    return _read_part(part, json.dumps({name: config[name] for name in part.model_fields if name in config}))


@lru_cache(maxsize=4096)
def _read_part(part: type[ValueType], text: str) -> tuple[ValueType, str]:
    value = part.read(json.loads(text))
    return value, value.model_dump_json()


def _read_studies(root: Path, problems: list[str]) -> list[RunFile]:
    """Every study's run.json; one that cannot be read is a problem."""
    run_files = []
    for path in sorted(root.glob("glue/*/studies/*/run.json")):
        try:
            run_file = read_run_file(path.parent)
            _scale(run_file.labels)
            run_files.append(run_file)
        except (DamagedFile, OSError, *UNREADABLE) as error:
            problems.append(f"the study of {path} is left out: {error}")
    return run_files


def _unfinished_runs(root: Path) -> list[str]:
    """One sentence where stages of pre-training were begun and have no record."""
    begun = sorted(root.glob("pretraining/*/run.json"))
    names = [path.parent.name for path in begun if not (path.parent / "done.json").exists()]
    if not names:
        return []
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    listed = ", ".join(names[:LISTED])
    return [f"{len(names)} stage(s) of pre-training are not finished and not counted: {listed}{more}"]


def _failed_trials(root: Path, run_files: Iterable[RunFile], recorded: set[str]) -> Iterator[Facts]:
    """Trials that left an error and no record, from the studies that planned them."""
    errors = {(path.parent.parent.name, path.stem) for path in root.glob("glue/*/errors/*.json")}
    lost = {(task, trial) for task, trial in errors if trial not in recorded}
    for run_file in run_files:
        study, labels = run_file.study, run_file.labels
        if study is None or study.task not in {task for task, _ in lost}:
            continue
        for point in study.points:
            trial = study.trial_id(point)
            if (study.task, trial) in lost:
                lost.remove((study.task, trial))
                yield {
                    "id": trial,
                    "task": study.task,
                    "state": "failed",
                    "run": study.weights,
                    "point": point,
                    "seed": study.seed,
                    "protocol": study.protocol.model_dump_json(),
                    "start": study.starts_from.study,
                    "fallback": study.starts_from.reason,
                    "scale": _scale(labels),
                    "data": str(labels["data"]),
                    "model": labels.get("model"),
                    "processes": 1,
                }
