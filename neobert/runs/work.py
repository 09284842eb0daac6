"""Work: the one interface behind which the kinds of work stand, and the parts that workers do one at a time.

State, readiness, listing, clean-up and jobs are generic over it; `neobert.runs.kinds` lists the kinds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from neobert.runs.layout import Layout
from neobert.runs.records import is_published, read_sealed

Kind = Literal["corpus", "pretraining", "glue", "contrastive", "mteb"]
JobKind = Literal["prepare", "pretrain", "glue", "mteb"]
"""Kinds of work whose jobs ask a cluster for the same resources share a word."""
Counted = Literal["steps", "points", "shards", "tasks"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one worker does at a time: a whole run, a trial or the selection of a study, or one task.

    Its claim is named `id`. `record` is published last, so that the part is done once `read` finds it whole; `error`
    holds the last failure. `after` are the parts of the same work that come first.
    """

    id: str
    title: str
    record: Path
    error: Path
    after: "tuple[Part, ...]" = ()
    read: Callable[[Path], Any] = read_sealed

    @property
    def is_done(self) -> bool:
        """Whether the record is there and whole."""
        return is_published(self.record, self.read)


class Work(Protocol):
    """All that decides a result, and where it lies below a folder of runs. Frozen; equal work has an equal id."""

    kind: ClassVar[Kind]
    job: ClassVar[JobKind]
    counted: ClassVar[Counted]

    @property
    def id(self) -> str:
        """The hash of what decides the result."""

    @property
    def reference(self) -> str:
        """What a worker is given, relative to the folder of runs: where run.json lies."""

    @property
    def folder(self) -> str:
        """Where the result lies, relative to the folder of runs; the reference but for a corpus."""

    @property
    def title(self) -> str:
        """The words for it in listings: "pretraining stage 1", "glue cola"."""

    @property
    def seed(self) -> int | None: ...

    @property
    def steps(self) -> int | None:
        """Steps of training; None for what trains no model that later work starts from."""

    @property
    def total(self) -> int | None:
        """How many of `counted` there are; None where that is not known before."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """Further columns of its row in a listing, by their names."""

    @property
    def after(self) -> tuple[str, ...]:
        """The references of the work that must be done before any part of this begins."""

    @property
    def preparation(self) -> "tuple[Work, ...]":
        """Work that a job without a GPU may do before; whoever does this does it on the way otherwise."""

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        """Files and folders that clean-up keeps for it: data, and the runs whose weights it starts from."""

    def parts(self, layout: Layout) -> "tuple[Part, ...]":
        """Everything that is to be done."""

    def closing(self, layout: Layout) -> Part | None:
        """The part whose record says that all parts are done; None where each stands alone."""

    def result(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The columns that the record of the closing part adds to the row."""


def training_columns(record: Mapping[str, Any], heldout_loss: float | None) -> dict[str, Any]:
    """What a finished run of training adds to its row."""
    seconds = record["seconds"]
    return {
        "done": record["steps"],
        "tokens_per_second": record["real_tokens"] / seconds if seconds else None,
        "heldout_loss": heldout_loss,
        "seconds": seconds,
        "gpu_hours": record["gpu_hours"],
    }
