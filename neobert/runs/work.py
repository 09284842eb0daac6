"""Work: the common interface of all kinds of work, and the parts that workers do one at a time.

State, readiness, listing, cleanup and jobs are generic over it. `neobert.runs.kinds` lists the kinds.
"""

import re
import traceback
from abc import abstractmethod
from collections.abc import Mapping
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
from neobert.runs.records import is_published

Kind = Literal["corpus", "pretraining", "glue", "contrastive", "mteb", "readouts"]
JobKind = Literal["prepare", "pretrain", "glue", "mteb"]
"""Kinds of jobs. Kinds of work whose jobs request the same resources share one."""
Counted = Literal["steps", "points", "shards", "tasks", "readouts"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Unit of work of one worker: a whole run, a trial or the selection of a study, or one task.

    Its claim is named `id`. `record` is published last: the part is done once it is intact. `error` is the
    file of the last failure. `after` are the parts of the same work that must be done first.
    """

    id: str
    title: str
    record: Path
    error: Path
    after: "tuple[Part, ...]" = ()

    @property
    def is_done(self) -> bool:
        """Whether the record exists and is intact."""
        return is_published(self.record)


def error_beside(record: Path) -> Path:
    """Return the error file of a part whose record shares a folder with others."""
    return record.parent / "errors" / record.name


def name_attempt(part: Part, claim: Claim) -> dict[str, Any]:
    """Return the keys that identify an attempt at a part in files."""
    return {"unit": part.id, "name": part.title, "claim": claim.number}


def write_failure(part: Part, claim: Claim, error: Exception) -> None:
    """Write the error of an attempt to the part's error file, for listings."""
    failure = {
        "error": f"{type(error).__name__}: {error}",
        "exit_code": exit_code(error),
        "traceback": "".join(traceback.format_exception(error)),
    }
    replace_file(part.error, json_bytes({**name_attempt(part, claim), **failure}))


class Work(Value):
    """Everything that determines a result, and its place in a folder of runs. Frozen; equal work has an equal id."""

    kind: ClassVar[Kind]
    job: ClassVar[JobKind]
    counted: ClassVar[Counted]
    form: ClassVar[str]
    """Pattern of the result's folder, relative to the folder of runs: "glue/<task>/studies/<id>"."""
    hashed_as: ClassVar[tuple[str, str]]
    """Keys of the kind and of the specification in the hash."""
    mechanisms: ClassVar[tuple[str, ...]]
    """Mechanisms whose numerics versions determine every result of this kind."""

    @property
    def own_mechanisms(self) -> tuple[str, ...]:
        """Mechanisms that determine this result, but not every result of this kind."""
        return ()

    @cached_property
    def id(self) -> str:
        """Hash of what determines the result."""
        return self.id_under(NUMERICS)

    def id_under(self, numerics: Mapping[str, int]) -> str:
        """Return the id under other numerics versions."""
        kind, key = self.hashed_as
        mechanisms = (*self.mechanisms, *self.own_mechanisms)
        return identity({"kind": kind, key: self, "numerics": chosen(numerics, mechanisms)})

    @property
    def folder(self) -> str:
        """Folder of the result, relative to the folder of runs."""
        return re.sub("<(.*?)>", lambda name: str(getattr(self, name[1])), self.form)

    @property
    def reference(self) -> str:
        """Reference for workers: the folder with run.json, except for a corpus."""
        return self.folder

    @property
    @abstractmethod
    def title(self) -> str:
        """Name in listings: "pretraining stage 1", "glue cola"."""

    @property
    def total(self) -> int | None:
        """Total number of `counted`; None if it is not known in advance."""
        return None

    @property
    def columns(self) -> Mapping[str, Any]:
        """Further columns of its row in a listing, by name."""
        return {}

    @property
    def after(self) -> tuple[str, ...]:
        """References of the work that must be done before any part of this starts."""
        return ()

    @property
    def preparation(self) -> "tuple[Work, ...]":
        """Work that a job without a GPU may do in advance; otherwise it is done as a part of this work."""
        return ()

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        """Return the files and folders that cleanup keeps for it, besides those of `after`."""
        return ()

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return all parts; by default the closing part alone."""
        return tuple(filter(None, (self.closing(layout),)))

    @abstractmethod
    def closing(self, layout: Layout) -> Part | None:
        """Return the part whose record marks the work as done; None if its parts are independent."""

    def result(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the columns that the record of the closing part adds to the row."""
        return {}


class Training(Work):
    """Training run, executed jointly by all its processes and counted in steps."""

    job = "pretrain"
    counted = "steps"

    @property
    @abstractmethod
    def total(self) -> int: ...

    @abstractmethod
    def heldout_loss(self, losses: Mapping[str, float]) -> float | None:
        """Return one number for the held-out losses, which the record has by corpus or data set."""

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
