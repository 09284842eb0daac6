"""The kinds of work. A new kind is a class in `specifications`, a module that carries it out, and a row here."""

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
    """A kind: its class, and the module that carries it out, which is imported when work is taken, since it imports
    torch. It has a function `execute` and, for kinds whose runs several ranks may train together, `make_trainer`."""

    specification: type[Work]
    module: str

    def execute(self, layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
        """Carry out one part of a run. `run_file.run` is the specification.

        The module's `execute` holds `claim.check()` against every publish and writes `part.record` last.

        Raises:
            MissingData, DamagedFile, ChangedData: what the run starts from or reads is not there, or not what it names.
            RunFailed: a loss, gradient, prediction or score is not finite.
            Stopped: `stop` was requested; what training did is saved, any other part is done anew.
            ClaimLost: another process took the part over or recorded it.
        """
        import_module(self.module).execute(layout, run_file, part, claim, stop)

    def make_trainer(self, layout: Layout, run_file: RunFile, process: "Process") -> "Trainer[Any]":
        """A run in one of the ranks that train it."""
        trainer: Trainer[Any] = import_module(self.module).make_trainer(layout, run_file, process)
        return trainer

    @property
    def folders(self) -> str:
        """The folders of all runs of the kind, as a glob."""
        return re.sub("<.*?>", "*", self.specification.form)

    def names_in(self, folder: str) -> dict[str, str] | None:
        """What stands for each `<name>` in the folder of a run; None where the folder is no such."""
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
    """The kind of the work whose result lies in a folder, relative to the folder of runs."""
    return next((kind for kind, row in KINDS.items() if row.names_in(folder) is not None), None)
