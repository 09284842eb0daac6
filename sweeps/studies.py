"""What the sweeps that are studies of Optuna share: their flags, and opening the storage."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neobert.errors import did_you_mean

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from neobert.runs.work import Work

STORAGE_HELP = "storage of the Optuna studies: journal (default), sqlite, or a URL"


def refuse_sampler(options: argparse.Namespace, samplers: Sequence[str]) -> None:
    """Raise ValueError if --sampler is none of these, or has no --trials; the first of them needs none."""
    if options.sampler == "cmaes":
        raise ValueError(
            "--sampler cmaes keeps pickles in the storage, with which somebody else's storage could run code here: "
            "choose tpe or gp"
        )
    if options.sampler not in samplers:
        raise ValueError(f"--sampler {options.sampler!r}: {did_you_mean(options.sampler, samplers)}")
    if options.sampler != samplers[0] and options.trials is None:
        raise ValueError(f"--sampler {options.sampler} needs --trials N: the number of points to try")


def open_storage(workspace: "Workspace", works: "Sequence[Work]") -> dict[str, str]:
    """Open the storage of the Optuna studies before anything is written, and make those agree that have begun. Returns
    the variable that names the storage for workers and jobs.

    Raises ValueError if the storage cannot be used, or if SQLite is to serve jobs on several nodes.
    """
    from ablations.launch.submit import place_of
    from neobert.console import logs
    from neobert.search.storages import STORAGE_VARIABLE, address_of_environment, storage_address
    from neobert.search.study import open_studies

    options, layout = workspace.options, workspace.layout
    address = storage_address(options.storage, layout.root) if options.storage else address_of_environment(layout.root)
    if address.startswith("sqlite:") and place_of(options) == "slurm":
        raise ValueError("--storage sqlite cannot serve jobs on several nodes: leave it out for a journal")
    open_studies(layout, works, address)
    if address.startswith("journal:"):
        logs().print(f"watch the studies with: optuna-dashboard {address.removeprefix('journal:')}", markup=False)
    return {STORAGE_VARIABLE: address}
