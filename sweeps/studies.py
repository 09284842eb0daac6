"""What the sweeps that are studies of Optuna share: how points are chosen, and opening the journal."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ablations.launch.flags import Flags
from neobert.command_line import count
from neobert.errors import did_you_mean
from neobert.search.space import SamplerName

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from neobert.runs.work import Work


@dataclass(frozen=True)
class StudyRequest:
    """How a sweep chooses points: a grid, the rule for rates, or a sampler of Optuna, which tries `trials` of them.

    Points that failed run again if `retry_failed`.
    """

    sampler: SamplerName | Literal["rule"]
    trials: int | None
    retry_failed: bool


def add_study_flags(parser: argparse.ArgumentParser, samplers: Sequence[str], chooses: str) -> None:
    """Add the flags of a study; the first of `samplers` is the default."""
    add = parser.add_argument
    add("--sampler", default=samplers[0], metavar=f"{{{','.join(samplers)}}}", help=f"what chooses points: {chooses}")
    add("--trials", type=count, metavar="N", help="number of points that a sampler chooses")
    add("--retry-failed", action="store_true", help="run failed points again")


def study_from(flags: Flags, samplers: Sequence[str]) -> StudyRequest:
    """Return what the flags of `add_study_flags` request. Raises ValueError if the sampler is none of these, or has no
    --trials; the first of them needs none."""
    sampler, trials = flags["sampler"], flags["trials"]
    if sampler not in samplers:
        raise ValueError(f"--sampler {sampler!r}: {did_you_mean(sampler, samplers)}")
    if sampler != samplers[0] and trials is None:
        raise ValueError(f"--sampler {sampler} needs --trials N: the number of points to try")
    return StudyRequest(sampler, trials, flags["retry_failed"])


def open_journal(workspace: "Workspace", works: "Sequence[Work]") -> None:
    """Make the Optuna studies agree that have begun, and say where all of them are."""
    from neobert.console import logs
    from neobert.search.storages import journal_of
    from neobert.search.study import open_studies

    open_studies(workspace.layout, works)
    path = journal_of(workspace.layout.root).path
    logs().print(f"watch the studies with: optuna-dashboard {path}", markup=False)
