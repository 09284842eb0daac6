"""Records of embeddings, pseudo-perplexity and throughput as typed values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ablations.scales import Scale
from neobert.runs.records import (
    RECORD_STATES,
    EmbeddingConfig,
    EmbeddingScores,
    PerplexityConfig,
    PerplexityScores,
    ThroughputConfig,
    ThroughputScores,
)
from reports.made import Made, known_scale, made
from reports.parsing import parsed, text_of, text_or_none


@dataclass(frozen=True)
class EmbeddingResult:
    """One embedding task on one encoder. `model` is the name of one that was pre-trained elsewhere; `score` is −1..1,
    None where the task failed. `variants` are those whose protocol it was measured by."""

    id: str
    run_id: str
    weights: str
    config: EmbeddingConfig
    score: float | None
    seed: int
    scale: Scale
    data: str
    model: str | None
    variants: tuple[str, ...]
    made: Made


@dataclass(frozen=True)
class PerplexityResult:
    """The pseudo-perplexity of one checkpoint over lengths."""

    id: str
    run_id: str
    config: PerplexityConfig
    scores: PerplexityScores
    scale: Scale
    data: str
    model: str | None
    made: Made


@dataclass(frozen=True)
class ThroughputResult:
    """The speed of one model at one length on one device."""

    id: str
    config: ThroughputConfig
    scores: ThroughputScores
    device: str
    date: str
    made: Made


@dataclass(frozen=True)
class Measurements:
    """Everything beside pre-training and GLUE, each by id."""

    embeddings: tuple[EmbeddingResult, ...]
    perplexities: tuple[PerplexityResult, ...]
    throughputs: tuple[ThroughputResult, ...]

    def groups(self) -> set[tuple[Scale, str]]:
        """Every (scale, data) that has some; throughput has neither."""
        of_embeddings = {(each.scale, each.data) for each in self.embeddings}
        return of_embeddings | {(each.scale, each.data) for each in self.perplexities}


NOTHING_MEASURED = Measurements((), (), ())


def measurements(records: Sequence[dict[str, Any]], problems: list[str]) -> Measurements:
    """The records of these kinds; one that cannot be read is a problem."""
    by_kind = {
        kind: [record for record in records if record["kind"] == kind]
        for kind in ("mteb", "pseudo_perplexity", "throughput")
    }
    return Measurements(
        parsed(by_kind["mteb"], _embedding, problems),
        parsed(by_kind["pseudo_perplexity"], _perplexity, problems),
        parsed(by_kind["throughput"], _throughput, problems),
    )


def _embedding(record: dict[str, Any]) -> EmbeddingResult:
    if record["state"] not in RECORD_STATES:
        raise ValueError(f"unknown state {record['state']!r}")
    is_done, labels = record["state"] == "done", record["labels"]
    return EmbeddingResult(
        id=str(record["id"]),
        run_id=str(record["inputs"]["pretraining"]),
        weights=str(record["inputs"]["weights"]),
        config=EmbeddingConfig.read(record["config"]),
        score=EmbeddingScores.read(record["scores"]).score if is_done else None,
        seed=int(record["seed"]),
        scale=known_scale(str(labels["scale"])),
        data=text_of(labels["data"]),
        model=text_or_none(labels.get("model")),
        variants=tuple(map(text_of, labels.get("variants", ()))),
        made=made(record),
    )


def _perplexity(record: dict[str, Any]) -> PerplexityResult:
    _refuse_unfinished(record)
    labels = record["labels"]
    return PerplexityResult(
        id=str(record["id"]),
        run_id=str(record["inputs"]["pretraining"]),
        config=PerplexityConfig.read(record["config"]),
        scores=PerplexityScores.read(record["scores"]),
        scale=known_scale(str(labels["scale"])),
        data=text_of(labels["data"]),
        model=text_or_none(labels.get("model")),
        made=made(record),
    )


def _throughput(record: dict[str, Any]) -> ThroughputResult:
    _refuse_unfinished(record)
    return ThroughputResult(
        id=str(record["id"]),
        config=ThroughputConfig.read(record["config"]),
        scores=ThroughputScores.read(record["scores"]),
        device=str(record["device"]),
        date=str(record["date"]),
        made=made(record),
    )


def _refuse_unfinished(record: dict[str, Any]) -> None:
    if record["state"] != "done":
        raise ValueError(f"its state is {record['state']!r}, not done")
