"""Work: the common interface of all kinds of work, and the parts that workers do one at a time.

State, readiness, listing, cleanup and jobs are generic over it. `neobert.runs.kinds` lists the kinds.
"""

import re
import traceback
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from neobert.errors import exit_code
from neobert.files import json_bytes, reason_of, replace_file
from neobert.identity import NUMERICS, chosen, identity
from neobert.recipe import Start, Value
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.records import CLOSING_RECORD, is_published, read_record

PLACEHOLDER = re.compile(r"\{(\w+)\}")
"""A name in a `folder_pattern`."""

JobKind = Literal["prepare", "pretrain", "glue", "mteb"]
"""Kinds of jobs. Kinds of work whose jobs request the same resources share one."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one worker does at a time: a whole run, a trial or the selection of a study, one task or one readout.

    `work` is what it is a part of. Its claim is named `id`. `record` is published last: the part is done once `read`
    finds it intact. `error` is the file of the last failure. `after` are the parts of the same work that must be done
    first.
    """

    work: "Work" = field(compare=False, repr=False)
    id: str
    title: str
    record: Path
    error: Path
    after: "tuple[Part, ...]" = ()
    read: Callable[[Path], Any] = read_record

    @property
    def is_recorded(self) -> bool:
        """Whether the record exists and is intact."""
        return is_published(self.record, self.read)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do: it is recorded, and so is what its record is about."""
        return self.is_recorded


def error_beside(record: Path) -> Path:
    """Return the error file of a part whose record shares a folder with others."""
    return record.parent / f"errors/{record.name}"


def name_attempt(part: Part, claim: Claim) -> dict[str, Any]:
    """Return the keys that identify an attempt at a part in files."""
    return {"part": part.id, "name": part.title, "claim": claim.number}


def write_failure(part: Part, claim: Claim, error: Exception) -> None:
    """Write the error of an attempt to the part's error file, for listings."""
    failure = {
        "error": f"{type(error).__name__}: {reason_of(error)}",
        "exit_code": exit_code(error),
        "traceback": "".join(traceback.format_exception(error)),
    }
    replace_file(part.error, json_bytes({**name_attempt(part, claim), **failure}))


class Work(Value):
    """Everything that determines a result, and its place in a folder of runs. Frozen; equal work has an equal id.

    `kind` is the name of the kind in run.json, in records and as a stage of commands. It is no part of the hash, which
    has `hashed_as` instead.
    """

    kind: str

    job: ClassVar[JobKind]
    counted: ClassVar[str]
    """What its progress is counted in: "steps", "grid points"."""
    folder_pattern: ClassVar[str]
    """The result's folder, relative to the folder of runs: "glue/{task}/studies/{id}"."""
    closing_file: ClassVar[str] = CLOSING_RECORD
    """File in the folder that marks the work as done."""
    record_place: ClassVar[str | None] = None
    """Where a record lies below the folder of runs, by its content; None if there are no records."""
    hashed_as: ClassVar[tuple[str, str] | None] = None
    """Words for the kind and the specification in the hash, if they are not the kind and "run"."""
    mechanisms: ClassVar[tuple[str, ...]]
    """Mechanisms whose numerics versions determine every result of this kind."""

    @property
    def start(self) -> Start | None:
        """Weights of another run or of an exported folder that it starts from."""
        return None

    @cached_property
    def id(self) -> str:
        """Hash of what determines the result."""
        return self.id_under(NUMERICS)

    def id_under(self, numerics: Mapping[str, int]) -> str:
        """Return the id under other numerics versions."""
        kind, key = self.hashed_as or (self.kind, "run")
        return identity({"kind": kind, key: self, "numerics": chosen(numerics, self.mechanisms)})

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def folder(self) -> str:
        """Folder of the result, relative to the folder of runs."""
        return PLACEHOLDER.sub(lambda name: str(getattr(self, name[1])), self.folder_pattern)

    @classmethod
    def folders(cls) -> str:
        """Return the glob pattern of the folders of all runs of the kind."""
        return PLACEHOLDER.sub("*", cls.folder_pattern)

    @classmethod
    def names_in(cls, folder: str) -> dict[str, str] | None:
        """Return the value of each {name} in the folder of a run; None if the folder is not of this kind."""
        found = re.fullmatch(PLACEHOLDER.sub(r"(?P<\1>[^/]*)", cls.folder_pattern), folder)
        return None if found is None else found.groupdict()

    @classmethod
    def among(cls, runs: "Iterable[Work]") -> list[Self]:
        """Return the runs of this kind, in order."""
        return [run for run in runs if isinstance(run, cls)]

    @staticmethod
    def read_closing(path: Path) -> Any:
        """Read the closing file. Raises DamagedFile if it is damaged, or that of other work."""
        return read_record(path)

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

    def done(self, layout: Layout, pending: Sequence[Part]) -> int:
        """Return how many of `counted` are done if the `pending` parts are not. A part after others does not count."""
        assert self.total is not None
        return self.total - sum(not part.after for part in pending)

    def open_parts(self, layout: Layout) -> int:
        """Return how many parts are left that workers could do side by side."""
        return sum(not part.is_done for part in self.parts(layout) if not part.after)

    @property
    def columns(self) -> Mapping[str, Any]:
        """Further columns of its row in a listing, by name."""
        return {}

    @property
    def pretrained(self) -> str | None:
        """Id of the pre-training run, or of the external model, whose weights it goes back to; None without one."""
        return None

    @property
    def after(self) -> tuple[str, ...]:
        """References of the work that must be done before any part of this starts."""
        return ()

    @property
    def preparation(self) -> "tuple[Work, ...]":
        """Work that a job without a GPU may do in advance; otherwise it is done as a part of this work."""
        return ()

    @property
    def trains(self) -> "tuple[Work, ...]":
        """Work that it does itself, or of which it does the like: data, memory and models are checked for this."""
        return (self,)

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return all parts; by default the closing part alone."""
        return tuple(filter(None, (self.closing(layout),)))

    @property
    def grows(self) -> bool:
        """Whether its parts are not known in advance: workers ask Optuna for new ones, and `parts` has those so far."""
        return False

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
            work=self,
            id=self.id,
            title=f"{self.title} {self.id}",
            record=folder / self.closing_file,
            error=folder / "error.json",
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


class Evaluation(Work):
    """Measurements of one encoder. Each task or readout is a part with its own record."""

    job = "mteb"

    def closing(self, layout: Layout) -> None:
        return None

    def measurement(self, part_id: str, title: str, record: Path) -> Part:
        """Return the part that publishes a record."""
        return Part(work=self, id=part_id, title=title, record=record, error=error_beside(record))
