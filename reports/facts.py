"""What reports read of one record: its labels and facts, checked and typed, by kind of record.

Missing facts are None, or NaN in numeric columns of a frame.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    AliasPath,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ablations.ladders import Ladder
from ablations.scales import Scale, Vocabulary
from ablations.scaling import trained_vocabulary_size
from neobert.errors import did_you_mean
from neobert.evaluation.scores import HeldoutScore
from neobert.glue.tasks import Task, declared_task
from neobert.identity import canonical
from neobert.kinds.glue import GlueStudy
from neobert.kinds.mteb import EmbeddingConfig, EmbeddingScores
from neobert.kinds.pretraining import PretrainingRun
from neobert.kinds.readouts import ReadoutConfig, ReadoutScore
from neobert.recipe import FineTuning, Point, Pretraining, Value
from neobert.runs import records

ValueType = TypeVar("ValueType", bound=Value)

Facts = dict[str, Any]
SPREAD = ("labels", "config", "scores")
"""Parts of records whose fields become separate columns."""


class Labels(Value):
    """What reports read of a record's labels: names, which decide nothing. They are read with a ladder, which
    says what scales there are."""

    model_config = ConfigDict(extra="ignore")

    scale: Scale
    data: str
    variants: tuple[str, ...] = ()
    unavailable_tasks: dict[str, str] = Field({})
    model: str | None = None
    ladder: str = ""

    @field_validator("scale")
    @classmethod
    def _is_known(cls, scale: Scale, info: ValidationInfo) -> Scale:
        known = _ladder_of(info).known_scales
        if scale not in known:
            raise ValueError(f"there is no such scale: {did_you_mean(scale, known)}")
        return scale


def _ladder_of(info: ValidationInfo) -> Ladder:
    """Return the ladder that a record is read with."""
    ladder: Ladder = info.context.about  # type: ignore[union-attr]
    return ladder


def _at(*path: str, default: Any = ...) -> Any:
    """Return a field that is nested in the record."""
    return Field(default, validation_alias=AliasPath(*path))


class _Facts(Value):
    """Facts read from every record. Its fields, and those of the parts in `SPREAD`, are the columns of its frame.
    docs/records.md explains those that are named as in the records. They are read with the ladder of the reports.

    `version` identifies the data and numerics of a run or trial, as JSON: only records of the same version are averaged
    or paired.
    """

    model_config = ConfigDict(extra="ignore", frozen=False)

    id: str
    numerics: dict[str, int] = Field({})
    version: str = ""

    @classmethod
    def columns(cls) -> list[str]:
        fields = cls.model_fields
        parts: list[Any] = [fields[name].annotation for name in SPREAD if name in fields]
        return [
            *(name for name in fields if name not in SPREAD),
            *(name for part in parts for name in part.model_fields),
        ]

    def by_column(self) -> Facts:
        own = dict(self)
        parts = [own.pop(name) for name in SPREAD if name in own]
        return own | {name: value for part in parts for name, value in part}


def _version(origins: Mapping[str, str | None], numerics: Mapping[str, int], mechanisms: Iterable[str]) -> str:
    versions = {f"version of {name}": numerics[name] for name in mechanisms if name in numerics}
    return json.dumps({**origins, **versions}, sort_keys=True)


def weights_up_to(pretraining: Pretraining, stage: int) -> Pretraining:
    """Return the recipe up to a stage, with seed 0: all that determines a checkpoint's weights except the seed."""
    return pretraining.model_copy(update={"seed": 0, "stages": pretraining.stages[: stage + 1]})


@lru_cache(maxsize=4096)
def share_weights(weights: Pretraining) -> tuple[Pretraining, str]:
    """Return one shared object for all equal recipes, and its JSON."""
    return weights, weights.model_dump_json()


class _Run(_Facts):
    labels: Labels
    seed: int
    stage: NonNegativeInt = _at("config", "stage")
    weights: Pretraining = _at("config", "recipe")
    recipe: str = ""
    previous: str | None = _at("inputs", "previous")
    vocabulary: Vocabulary = "published"
    origins: dict[str, str] = _at("config", "origins", default={})
    heldout_loss: dict[str, NonNegativeFloat] = _at("scores", "heldout_loss")
    heldout: tuple[HeldoutScore, ...] = _at("scores", "heldout", default=())
    curve_sha256: str | None = _at("sha256", "metrics", default=None)

    @model_validator(mode="after")
    def _derive_weights(self, info: ValidationInfo) -> Self:
        if self.previous == self.id:
            raise ValueError("it continues itself")
        self.version = _version(self.origins, self.numerics, PretrainingRun.mechanisms)
        self.weights, self.recipe = share_weights(weights_up_to(self.weights, self.stage))
        if self.weights.model.vocabulary_size == trained_vocabulary_size(_ladder_of(info), self.labels.scale):
            self.vocabulary = "trained"
        return self


class _Trial(_Facts):
    labels: Labels
    state: Literal["done", "failed", "undefined"]
    seed: int
    task: str = _at("config", "task")
    own_task: Task | None = _at("config", "own_task", default=None)
    run: str = _at("inputs", "pretraining")
    start: str | None = _at("inputs", "starts_from", "study")
    fallback: str | None = _at("inputs", "starts_from", "reason")
    point: Point
    protocol: str
    score: float | None
    decisive: float | None
    task_origin: str | None = _at("inputs", "task", default=None)

    @model_validator(mode="after")
    def _derive_version(self) -> Self:
        if (self.own_task or declared_task(self.task)).name != self.task:
            raise ValueError(f"it is of {self.task} and declares another task")
        own = {} if self.own_task is None else {"declared": canonical(self.own_task)}
        self.version = _version({"task": self.task_origin, **own}, self.numerics, GlueStudy.mechanisms)
        return self

    @model_validator(mode="before")
    @classmethod
    def _derive_scores(cls, record: dict[str, Any]) -> dict[str, Any]:
        """Add the score, and the one that selects the best point. Scores of GLUE are from -1 to 1."""
        config = record["config"]
        protocol, key = _part_of(config, FineTuning)
        facts = {**record, "point": _part_of(config, Point)[0], "protocol": key, "score": None, "decisive": None}
        if record["state"] != "done":
            return facts
        about, scores = declared_task(config.get("own_task") or config["task"]), record["scores"]
        score, metric = scores["score"], about.decisive_metric(protocol)
        if score is None:
            return facts | {"state": "undefined"}
        decisive = score if metric is None else scores["metrics"][metric]
        if not about.is_own and any(each is not None and abs(each) > 1 for each in (score, decisive)):
            raise ValueError(f"the scores {score} and {decisive} are not from -1 to 1")
        return facts | {"score": score, "decisive": decisive}


class _Embedding(_Facts):
    labels: Labels
    config: EmbeddingConfig
    state: Literal["done", "failed"]
    seed: int
    run: str = _at("inputs", "pretraining")
    weights: str = _at("inputs", "weights")
    score: float | None

    @model_validator(mode="before")
    @classmethod
    def _derive_score(cls, record: dict[str, Any]) -> dict[str, Any]:
        scores = EmbeddingScores.read(record.get("scores")) if record.get("state") == "done" else None
        return {**record, "score": scores and scores.score}


class _Readout(_Facts):
    labels: Labels
    config: ReadoutConfig
    state: Literal["done"]
    seed: int
    run: str = _at("inputs", "pretraining")
    answers: dict[str, ReadoutScore] = _at("scores")


class Measurement(_Facts):
    """Facts of a record of a kind of work that has no reader of its own."""

    labels: Labels
    state: Literal["done"]
    seed: int
    run: str = _at("inputs", "pretraining")
    values: dict[str, Any] = _at("scores")


class _Throughput(_Facts):
    config: records.ThroughputConfig
    scores: records.ThroughputScores
    state: Literal["done"]
    device: str
    date: str


READERS: Mapping[str, type[_Facts]] = {
    "pretraining": _Run,
    "glue": _Trial,
    "mteb": _Embedding,
    "readouts": _Readout,
    "throughput": _Throughput,
}
BY_LABEL = frozenset({"mteb"})
"""Kinds of records that are shown under the variant names in their labels."""


def _part_of(config: Mapping[str, Any], part: type[ValueType]) -> tuple[ValueType, str]:
    """Read a value whose fields are mixed with others in a record's config; return it and its JSON."""
    return _read_part(part, json.dumps({name: config[name] for name in part.model_fields if name in config}))


@lru_cache(maxsize=4096)
def _read_part(part: type[ValueType], text: str) -> tuple[ValueType, str]:
    value = part.read(json.loads(text))
    return value, value.model_dump_json()
