"""Work: the one interface behind which the kinds of work stand, and the parts that workers do one at a time.

State, readiness, listing, clean-up and jobs are generic over it; `neobert.runs.kinds` lists the kinds.
"""

import re
import traceback
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from neobert.errors import exit_code
from neobert.files import json_bytes, replace_file
from neobert.identity import NUMERICS, chosen, identity
from neobert.recipe import Value
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.records import is_published, read_sealed

Kind = Literal["corpus", "pretraining", "glue", "contrastive", "mteb", "readouts"]
JobKind = Literal["prepare", "pretrain", "glue", "mteb"]
"""Kinds of work whose jobs ask a cluster for the same resources share a word."""
Counted = Literal["steps", "points", "shards", "tasks", "readouts"]


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


def error_beside(record: Path) -> Path:
    """The error file of a part whose record lies in a folder with others."""
    return record.parent / "errors" / record.name


def name_attempt(part: Part, claim: Claim) -> dict[str, Any]:
    """The keys by which files name an attempt at a part."""
    return {"unit": part.id, "name": part.title, "claim": claim.number}


def write_failure(part: Part, claim: Claim, error: Exception) -> None:
    """Leave the error of an attempt for whoever lists the part."""
    failure = {
        "error": f"{type(error).__name__}: {error}",
        "exit_code": exit_code(error),
        "traceback": "".join(traceback.format_exception(error)),
    }
    replace_file(part.error, json_bytes({**name_attempt(part, claim), **failure}))


class Work(Value):
    """All that decides a result, and where it lies below a folder of runs. Frozen; equal work has an equal id."""

    kind: ClassVar[Kind]
    job: ClassVar[JobKind]
    counted: ClassVar[Counted]
    form: ClassVar[str]
    """Of the folder where the result lies, relative to the folder of runs: "glue/<task>/studies/<id>"."""
    hashed_as: ClassVar[tuple[str, str]]
    """The words in the hash for the kind and for the specification."""
    mechanisms: ClassVar[tuple[str, ...]]
    """Those whose numerics versions decide the result."""

    @cached_property
    def id(self) -> str:
        """The hash of what decides the result."""
        return self.id_under(NUMERICS)

    def id_under(self, numerics: Mapping[str, int]) -> str:
        """The id under the numerics versions of another time."""
        kind, key = self.hashed_as
        return identity({"kind": kind, key: self, "numerics": chosen(numerics, self.mechanisms)})

    @property
    def folder(self) -> str:
        """Where the result lies, relative to the folder of runs."""
        return re.sub("<(.*?)>", lambda name: str(getattr(self, name[1])), self.form)

    @property
    def reference(self) -> str:
        """What a worker is given: the folder, where run.json lies, but for a corpus."""
        return self.folder

    @property
    @abstractmethod
    def title(self) -> str:
        """The words for it in listings: "pretraining stage 1", "glue cola"."""

    @property
    def total(self) -> int | None:
        """How many of `counted` there are; None where that is not known before."""
        return None

    @property
    def columns(self) -> Mapping[str, Any]:
        """Further columns of its row in a listing, by their names."""
        return {}

    @property
    def after(self) -> tuple[str, ...]:
        """The references of the work that must be done before any part of this begins."""
        return ()

    @property
    def preparation(self) -> "tuple[Work, ...]":
        """Work that a job without a GPU may do before; whoever does this does it on the way otherwise."""
        return ()

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        """Files and folders that clean-up keeps for it beside those of `after`."""
        return ()

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Everything that is to be done: the closing part alone, unless the kind says otherwise."""
        return tuple(filter(None, (self.closing(layout),)))

    @abstractmethod
    def closing(self, layout: Layout) -> Part | None:
        """The part whose record says that all parts are done; None where each stands alone."""

    def result(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The columns that the record of the closing part adds to the row."""
        return {}


class Training(Work):
    """A run of training, which its processes do together; what is counted are its steps."""

    job = "pretrain"
    counted = "steps"

    @property
    @abstractmethod
    def total(self) -> int: ...

    @abstractmethod
    def heldout_loss(self, losses: Mapping[str, float]) -> float | None:
        """The one number for the losses on held-out texts, which the record has by corpus or data set."""

    def closing(self, layout: Layout) -> Part:
        folder = layout.root / self.folder
        return Part(
            id=self.id, title=f"{self.title} {self.id}", record=folder / "done.json", error=folder / "error.json"
        )

    def result(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        seconds = record["seconds"]
        return {
            "done": record["steps"],
            "tokens_per_second": record["real_tokens"] / seconds if seconds else None,
            "heldout_loss": self.heldout_loss(record["scores"]["heldout_loss"]),
            "seconds": seconds,
            "gpu_hours": record["gpu_hours"],
        }
