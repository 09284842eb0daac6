"""What claims and errors say of the units of a run."""

from collections.abc import Iterable
from pathlib import Path

from neobert.errors import DamagedFile
from neobert.files import read_json
from neobert.grid.claims import Owner, last_owner
from neobert.overview.row import Failure, Worker
from neobert.overview.tree import Tree


def owners_of(tree: Tree, units: Iterable[str]) -> dict[str, Owner]:
    """Who held each unit last."""
    claimed = (unit for unit in units if unit in tree.claimed)
    owners = {unit: last_owner(tree.layout.claims(unit)) for unit in claimed}
    return {unit: owner for unit, owner in owners.items() if owner is not None}


def workers_of(owners: dict[str, Owner]) -> tuple[Worker, ...]:
    """Those at work first, then those that never released their unit."""
    workers = [
        Worker(unit, owner.host, owner.pid, owner.job, round(owner.silent_seconds, 1), owner.is_live)
        for unit, owner in owners.items()
        if not owner.is_released
    ]
    return tuple(sorted(workers, key=lambda worker: (not worker.is_live, worker.heartbeat_seconds)))


def heartbeat_of(tree: Tree, owners: dict[str, Owner]) -> float | None:
    """When the last sign of anybody came, in Unix seconds."""
    return max((tree.now - owner.silent_seconds for owner in owners.values()), default=None)


def failure_at(path: Path, unit: str) -> Failure | None:
    """The failure that an error file tells of; a torn file is a failure too."""
    try:
        content = read_json(path)
        return Failure(unit, str(content["name"]), str(content["error"]), str(content.get("traceback", "")))
    except FileNotFoundError:
        return None
    except (DamagedFile, OSError, KeyError, TypeError, AttributeError):
        return Failure(unit, unit, f"{path.name} is torn or of another version", "")
