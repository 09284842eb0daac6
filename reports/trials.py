"""Records as typed values: pre-training runs and GLUE trials, with one sentence for each that is left out."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from neobert.errors import DamagedFile, MissingData
from neobert.files import read_json
from neobert.glue.tasks import TASKS
from neobert.identity import canonical
from neobert.layout import Layout
from neobert.recipe import FineTuning, Point, Pretraining
from neobert.records import RECORD_STATES, read_records


@dataclass(frozen=True)
class Run:
    """A finished stage of pre-training. `weights` is its recipe up to this stage without the seed."""

    id: str
    weights: Pretraining
    stage: int
    seed: int
    scale: str
    data: str
    variants: tuple[str, ...]
    heldout_loss: Mapping[str, float]
    unavailable_tasks: Mapping[str, str]


@dataclass(frozen=True)
class Trial:
    """One fine-tuning on one point of a grid. `score` is 0..1; None unless the trial is done.

    `mnli_study` is the study whose best trial it started from, None where it started from pre-training;
    `fallback` says why a trial that should have started from MNLI did not.
    """

    id: str
    task: str
    state: str
    run_id: str
    point: Point
    seed: int
    protocol: FineTuning
    mnli_study: str | None
    fallback: str | None
    scale: str
    data: str
    variants: tuple[str, ...]
    score: float | None


@dataclass(frozen=True)
class Evidence:
    """Everything readable below a folder of runs, in a stable order, and what was left out and why."""

    runs: tuple[Run, ...]
    trials: tuple[Trial, ...]
    study_points: Mapping[str, frozenset[Point]]
    problems: tuple[str, ...]

    def groups(self) -> list[tuple[str, str]]:
        """Every (scale, data) that has records."""
        of_runs = {(run.scale, run.data) for run in self.runs}
        return sorted(of_runs | {(trial.scale, trial.data) for trial in self.trials})


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Identified)


def weights_up_to(pretraining: Pretraining, stage: int) -> Pretraining:
    """What decides a checkpoint's weights apart from the seed: the recipe cut behind a stage."""
    return pretraining.model_copy(update={"seed": 0, "stages": pretraining.stages[: stage + 1]})


def _run(record: dict[str, Any]) -> Run:
    config, labels = record["config"], record["labels"]
    stage = int(config["stage"])
    pretraining = Pretraining.model_validate(config["recipe"])
    return Run(
        id=str(record["id"]),
        weights=weights_up_to(pretraining, stage),
        stage=stage,
        seed=int(record["seed"]),
        scale=str(labels["scale"]),
        data=str(labels["data"]),
        variants=tuple(labels["variants"]),
        heldout_loss={str(corpus): float(loss) for corpus, loss in record["scores"]["heldout_loss"].items()},
        unavailable_tasks=dict(labels.get("unavailable_tasks", {})),
    )


def _score(record: dict[str, Any]) -> float | None:
    if record["state"] != "done":
        return None
    score = float(record["scores"]["score"])
    if not (math.isfinite(score) and -1 <= score <= 1):
        raise ValueError(f"its score {score} is not between −1 and 1")
    return score


def _trial(record: dict[str, Any]) -> Trial:
    config, labels, starts = record["config"], record["labels"], record["inputs"]["starts_from"]
    if config["task"] not in TASKS or record["state"] not in RECORD_STATES:
        raise ValueError(f"unknown task {config['task']!r} or state {record['state']!r}")
    return Trial(
        id=str(record["id"]),
        task=config["task"],
        state=record["state"],
        run_id=str(record["inputs"]["pretraining"]),
        point=Point.model_validate({name: config[name] for name in Point.model_fields}),
        seed=int(record["seed"]),
        protocol=FineTuning.model_validate({name: config[name] for name in FineTuning.model_fields}),
        mnli_study=str(starts["study"]) if starts["kind"] == "mnli" else None,
        fallback=starts.get("reason"),
        scale=str(labels["scale"]),
        data=str(labels["data"]),
        variants=tuple(labels["variants"]),
        score=_score(record),
    )


def _without_duplicates(records: Iterable[dict[str, Any]], problems: list[str]) -> list[dict[str, Any]]:
    """One record an id; of several the first in canonical order, so that the order of files decides nothing."""
    kept: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
    for record in records:
        name, text = (str(record["kind"]), str(record["id"])), canonical(record)
        if name not in kept:
            kept[name] = (text, record)
            continue
        same = text == kept[name][0]
        what = "the same" if same else "another content"
        problems.append(f"a second file holds {name[0]} record {name[1]} with {what}: it is counted once")
        kept[name] = min(kept[name], (text, record), key=lambda pair: pair[0])
    return [record for _, record in kept.values()]


def _parsed(
    records: Iterable[dict[str, Any]], parse: Callable[[dict[str, Any]], Item], problems: list[str]
) -> tuple[Item, ...]:
    values = []
    for record in records:
        try:
            values.append(parse(record))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problems.append(f"{record['kind']} record {record['id']} is left out: {_finding(error)}")
    return tuple(sorted(values, key=lambda value: value.id))


def _finding(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def _points_of_study(folder: Path) -> frozenset[Point]:
    return frozenset(Point.model_validate(point) for point in read_json(folder / "run.json")["points"])


def _study_points(root: Path, trials: Iterable[Trial], problems: list[str]) -> dict[str, frozenset[Point]]:
    points = {}
    for study in sorted({trial.mnli_study for trial in trials if trial.mnli_study is not None}):
        try:
            points[study] = _points_of_study(Layout(root).study("mnli", study))
        except (OSError, DamagedFile, KeyError, TypeError, ValueError) as error:
            problems.append(
                f"trials that start from MNLI study {study} are left out: its run.json is unusable ({error})"
            )
    return points


def read_evidence(root: Path) -> Evidence:
    """The records below a folder of runs.

    Raises:
        MissingData: the folder is not there or holds no usable record.
    """
    if not root.is_dir():
        raise MissingData(f"there is no folder of runs at {root}: run python ablations/run.py first or give --runs")
    records, problems = read_records(root)
    records = _without_duplicates(records, problems)
    runs = _parsed([record for record in records if record["kind"] == "pretraining"], _run, problems)
    trials = _parsed([record for record in records if record["kind"] == "glue"], _trial, problems)
    if not runs and not trials:
        found = f"only {len(problems)} unusable one(s), the first: {sorted(problems)[0]}" if problems else "none"
        raise MissingData(f"{root} holds no finished record ({found}): run python ablations/run.py first")
    study_points = _study_points(root, trials, problems)
    return Evidence(runs, trials, study_points, tuple(sorted(problems)))
