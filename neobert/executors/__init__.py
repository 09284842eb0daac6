"""What executes each kind of work, in a module of its name. Specifications know nothing of it.

A module is imported when the first part of its kind is executed, since most need torch.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from neobert.processes import StopRequest
from neobert.runs.claims import Claim
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile
from neobert.runs.work import Part, Work

if TYPE_CHECKING:
    from neobert.training.distributed import Process
    from neobert.training.trainer import Trainer

Execute = Callable[[Layout, RunFile, Part, Claim, StopRequest], None]
"""Executes one claimed part. The run file is that of the run, or of the run that needs the work as a preparation.

`claim.check()` is called before every publish, and `part.record` is written last.

Raises:
    MissingData, DamagedFile, ChangedData: inputs of the run are missing, damaged or changed.
    RunFailed: a loss, gradient, prediction or score is not finite.
    Stopped: a stop was requested; training is saved, any other part starts over.
    ClaimLost: another process took over the part or recorded it.
"""


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Execute one claimed part of any kind of work, as `Execute` says."""
    import_module(f"{__name__}.{part.work.kind}").execute(layout, run_file, part, claim, stop)


def make_trainer(layout: Layout, run_file: RunFile, process: "Process") -> "Trainer[Any]":
    """Return the trainer of a training run in one of the ranks that train it."""
    trainer: Trainer[Any] = import_module(f"{__name__}.{run_file.run.kind}").open_trainer(layout, run_file, process)
    return trainer


def ask(layout: Layout, work: Work) -> tuple[Part, Claim] | None:
    """Ask Optuna for a new part of work that grows, and claim it; None if there will be no more.

    Raises RunFailed if the storage of the study cannot be used.
    """
    from neobert.search.storages import address_of_environment
    from neobert.search.study import optuna_study_of

    return optuna_study_of(layout, work, address_of_environment(layout.root)).take()
