"""Preparation of data, once for all workers: one makes them under a claim, the others wait."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from neobert.data.sources import SOURCES, Source, open_source
from neobert.errors import ChangedData, DamagedFile, MissingData
from neobert.files import refresh
from neobert.processes import StopRequest
from neobert.runs.claims import Claim, ClaimLost, acquire
from neobert.runs.run_file import SourceSpecification

Prepared = TypeVar("Prepared")

POLL_SECONDS = 0.2


def specify(
    data: str,
    synthetic_documents: int,
    task_folders: Mapping[str, str] | None = None,
    corpora: Mapping[str, tuple[str, str]] | None = None,
) -> SourceSpecification:
    """Convert `--data` for run.json, with an absolute path, as jobs may start elsewhere."""
    name = data if data in SOURCES else str(Path(data).resolve())
    return SourceSpecification(
        name=name,
        synthetic_documents=synthetic_documents,
        task_folders=dict(task_folders or {}),
        corpora=dict(corpora or {}),
    )


def open_specified(specification: SourceSpecification) -> Source:
    """Open the source named in a run.json."""
    return open_source(
        specification.name,
        synthetic_documents=specification.synthetic_documents,
        corpora=specification.corpora,
    )


def require_origin(what: str, planned: str, found: str) -> None:
    """Raise ChangedData if the data differ from those that a run was planned on. Call it before and after reading."""
    if found != planned:
        raise ChangedData(
            f"{what} changed since this was planned (from {planned} to {found}): restore the earlier data, or run "
            "the same command again, which plans on those that are here now"
        )


def prepare_once(
    claims: Path,
    what: str,
    stop: StopRequest,
    open_whole: Callable[[], Prepared],
    make: Callable[[DamagedFile | None, Claim], None],
) -> Prepared:
    """Open prepared data, or make them: one process does so under a claim while all others wait.

    Args:
        what: name of the data in the message of `Stopped`, if a stop is requested while waiting.
        open_whole: opens the data; raises MissingData if absent, DamagedFile if damaged or incomplete.
        make: makes the data, given the damage found, if any, and the claim, which it checks before each publish. If the
            claim is lost, the data of the new owner are waited for.
    """
    while True:
        with suppress(MissingData, DamagedFile, FileNotFoundError):
            return open_whole()
        claim = acquire(claims)
        if claim is None:
            stop.check(what)
            time.sleep(POLL_SECONDS)
            continue
        with claim, suppress(ClaimLost):
            for folder in (data := claims.parents[1] / "data", *data.glob("*/")):
                refresh(folder)
            try:
                open_whole()
            except (MissingData, FileNotFoundError):
                make(None, claim)
            except DamagedFile as error:
                make(error, claim)
