"""What the sweeps that are studies of Optuna share: how points are chosen, and opening the storage."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ablations.launch.flags import Flags
from neobert.command_line import count
from neobert.search.space import SamplerName

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from neobert.runs.work import Work


@dataclass(frozen=True)
class StudyRequest:
    """How a sweep chooses points: a grid, the rule for rates, or a sampler of Optuna, which tries `trials` of them.

    `storage` is where Optuna's studies are; None means a journal. Points that failed run again if `retry_failed`.
    """

    sampler: SamplerName | Literal["rule"]
    trials: int | None
    storage: str | None
    retry_failed: bool


def add_study_flags(parser: argparse.ArgumentParser, samplers: Sequence[str], chooses: str) -> None:
    """Add the flags of a study; the first of `samplers` is the default."""
    add = parser.add_argument
    add("--sampler", choices=samplers, default=samplers[0], help=f"what chooses points: {chooses}")
    add("--trials", type=count, metavar="N", help="number of points that a sampler chooses")
    add("--storage", metavar="WHERE", help="storage of the Optuna studies: journal (default), sqlite, or a URL")
    add("--retry-failed", action="store_true", help="run failed points again")


def study_from(flags: Flags, samplers: Sequence[str]) -> StudyRequest:
    """Return what the flags of `add_study_flags` request. Raises ValueError if the sampler has no --trials; the first
    of `samplers` needs none."""
    sampler, trials = flags["sampler"], flags["trials"]
    if sampler != samplers[0] and trials is None:
        raise ValueError(f"--sampler {sampler} needs --trials N: the number of points to try")
    return StudyRequest(sampler, trials, flags["storage"], flags["retry_failed"])


def open_storage(workspace: "Workspace", storage: str | None, works: "Sequence[Work]") -> dict[str, str]:
    """Open the storage of the Optuna studies before anything is written, and make those agree that have begun. Returns
    the variable that names the storage for workers and jobs.

    Raises ValueError if the storage cannot be used, or if SQLite is to serve jobs on several nodes.
    """
    from neobert.console import logs
    from neobert.search.storages import STORAGE_VARIABLE, address_of_environment, storage_address
    from neobert.search.study import open_studies

    layout = workspace.layout
    address = storage_address(storage, layout.root) if storage else address_of_environment(layout.root)
    if address.startswith("sqlite:") and workspace.place.decided().cluster == "slurm":
        raise ValueError("--storage sqlite cannot serve jobs on several nodes: leave it out for a journal")
    open_studies(layout, works, address)
    if address.startswith("journal:"):
        logs().print(f"watch the studies with: optuna-dashboard {address.removeprefix('journal:')}", markup=False)
    return {STORAGE_VARIABLE: address}
