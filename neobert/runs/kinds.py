"""Registry of the kinds of work. A new kind is a class in `specifications`, a module that executes it, and a row."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from neobert.processes import StopRequest
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile
from neobert.runs.specifications import (
    ContrastiveRun,
    Corpus,
    EmbeddingEvaluation,
    GlueStudy,
    PretrainingRun,
    ReadoutEvaluation,
)
from neobert.runs.work import Kind, Part, Work

if TYPE_CHECKING:
    from neobert.training.distributed import Process
    from neobert.training.trainer import Trainer


@dataclass(frozen=True)
class KindOfWork:
    """Kind of work: its class, and the module that executes it.

    The module imports torch and is therefore imported only when needed. It has a function `execute` and, if several
    ranks may train a run together, `make_trainer`.
    """

    specification: type[Work]
    module: str

    def execute(self, layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
        """Execute one part of a run. `run_file.run` is the specification.

        The module's `execute` calls `claim.check()` before every publish and writes `part.record` last.

        Raises:
            MissingData, DamagedFile, ChangedData: inputs of the run are missing, damaged or changed.
            RunFailed: a loss, gradient, prediction or score is not finite.
            Stopped: `stop` was requested; training is saved, any other part starts over.
            ClaimLost: another process took over the part or recorded it.
        """
        import_module(self.module).execute(layout, run_file, part, claim, stop)

    def make_trainer(self, layout: Layout, run_file: RunFile, process: "Process") -> "Trainer[Any]":
        """Return the trainer of a run in one of the ranks that train it."""
        trainer: Trainer[Any] = import_module(self.module).make_trainer(layout, run_file, process)
        return trainer

    @property
    def folders(self) -> str:
        """Glob pattern of the folders of all runs of the kind."""
        return re.sub("<.*?>", "*", self.specification.form)

    def names_in(self, folder: str) -> dict[str, str] | None:
        """Return the value of each `<name>` in the folder of a run; None if the folder is not of this kind."""
        found = re.fullmatch(re.sub("<(.*?)>", r"(?P<\1>[^/]*)", self.specification.form), folder)
        return found and found.groupdict()


KINDS: Mapping[Kind, KindOfWork] = {
    "corpus": KindOfWork(Corpus, "neobert.data.preparation"),
    "pretraining": KindOfWork(PretrainingRun, "neobert.training.pretraining"),
    "contrastive": KindOfWork(ContrastiveRun, "neobert.embeddings.contrastive"),
    "glue": KindOfWork(GlueStudy, "neobert.glue.study"),
    "mteb": KindOfWork(EmbeddingEvaluation, "neobert.embeddings.evaluation"),
    "readouts": KindOfWork(ReadoutEvaluation, "neobert.evaluation.readouts"),
}


def kind_of(folder: str) -> Kind | None:
    """Return the kind of work whose result is in a folder, relative to the folder of runs; None if there is none."""
    return next((kind for kind, row in KINDS.items() if row.names_in(folder) is not None), None)
