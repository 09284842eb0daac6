"""The kinds of work. A new kind is a class in `specifications`, a module that carries it out, and a row here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from neobert.processes import StopRequest
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile
from neobert.runs.specifications import ContrastiveRun, Corpus, EmbeddingEvaluation, GlueStudy, PretrainingRun
from neobert.runs.work import Kind, Part, Work

if TYPE_CHECKING:
    from neobert.training.distributed import Process
    from neobert.training.trainer import Trainer


class Execute(Protocol):
    """Carries out one part of a run: `execute(layout, run_file, part, claim, stop)` of the kind's own module.

    It holds `claim.check()` against every publish and writes `part.record` last. `run_file.run` is the specification.

    Raises:
        Stopped: `stop` was requested; what was done is saved.
        ClaimLost: another process took the part over.
    """

    def __call__(self, layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None: ...


class MakeTrainer(Protocol):
    """A run in one of the ranks that train it: `make_trainer(layout, run_file, process)` of the kind's own module."""

    def __call__(self, layout: Layout, run_file: RunFile, process: "Process") -> "Trainer[Any]": ...


@dataclass(frozen=True)
class KindOfWork:
    """A kind: its class, the form of its references (`glue/<task>/studies/<id>`), and what carries it out.

    `make_trainer` is for kinds whose runs several ranks may train together. `folder` is the form of the path where the
    result lies, where that is not the reference.
    """

    specification: type[Work]
    reference: str
    execute: Execute
    make_trainer: MakeTrainer | None = None
    folder: str | None = None

    @property
    def folders(self) -> str:
        """The folders of all runs of the kind, as a glob."""
        return re.sub("<[^>]*>", "*", self.folder or self.reference)

    def names_in(self, folder: str) -> dict[str, str] | None:
        """What stands for each `<name>` in the folder of a run; None where the folder is no such."""
        forms, parts = (self.folder or self.reference).split("/"), folder.split("/")
        pairs = list(zip(forms, parts, strict=False))
        if len(forms) != len(parts) or any(form != part for form, part in pairs if form[0] != "<"):
            return None
        return {form[1:-1]: part for form, part in pairs if form[0] == "<"}


# The modules that carry work out import torch, so each is imported when its work is taken.


def _tokenize(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    from neobert.data.preparation import execute

    execute(layout, run_file, part, claim, stop)


def _pretrain(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    from neobert.training.pretraining import execute

    execute(layout, run_file, part, claim, stop)


def _pretraining_trainer(layout: Layout, run_file: RunFile, process: "Process") -> "Trainer[Any]":
    from neobert.training.pretraining import PretrainingTrainer

    return PretrainingTrainer(layout, run_file, process)


def _finetune(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    from neobert.glue.study import execute

    execute(layout, run_file, part, claim, stop)


def _contrast(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    from neobert.embeddings.contrastive import execute

    execute(layout, run_file, part, claim, stop)


def _contrastive_trainer(layout: Layout, run_file: RunFile, process: "Process") -> "Trainer[Any]":
    from neobert.embeddings.contrastive import ContrastiveTrainer

    return ContrastiveTrainer(layout, run_file, process)


def _measure(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    from neobert.embeddings.evaluation import execute

    execute(layout, run_file, part, claim, stop)


KINDS: Mapping[Kind, KindOfWork] = {
    "corpus": KindOfWork(Corpus, "corpus/<data id>/<pretraining id>", _tokenize, folder="data/<id>"),
    "pretraining": KindOfWork(PretrainingRun, "pretraining/<id>", _pretrain, _pretraining_trainer),
    "contrastive": KindOfWork(ContrastiveRun, "contrastive/<id>", _contrast, _contrastive_trainer),
    "glue": KindOfWork(GlueStudy, "glue/<task>/studies/<id>", _finetune),
    "mteb": KindOfWork(EmbeddingEvaluation, "mteb/evaluations/<id>", _measure),
}


def kind_of(folder: str) -> Kind | None:
    """The kind of the work whose result lies in a folder, relative to the folder of runs."""
    return next((kind for kind, row in KINDS.items() if row.names_in(folder) is not None), None)
