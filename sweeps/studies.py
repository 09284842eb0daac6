"""What the sweeps that are studies of Optuna share: their flags, and opening the storage."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from neobert.runs.work import Work


def add_study_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a study."""
    add = parser.add_argument
    add("--storage", metavar="WHERE", help="storage of the Optuna studies: journal (default), sqlite, or a URL")
    add("--retry-failed", action="store_true", help="run failed points again")


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
