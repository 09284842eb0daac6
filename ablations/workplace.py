"""What a command works with, and the two ways in which it gets work done: by processes here, or by jobs on SLURM."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ablations.cluster import execution_on, print_submissions, profile_of
from ablations.dispatch import Dispatch
from ablations.execution import carry_out
from ablations.pieces import NamedRun, pieces_of
from ablations.scales import groups_here, sharing_cores, synthetic_documents, workers_here
from neobert.console import logs
from neobert.data.preparation import open_specified, specify
from neobert.data.sources import Source
from neobert.errors import EXIT_DONE, EXIT_REQUEUE
from neobert.processes import visible_gpus
from neobert.runs.layout import Layout
from neobert.runs.specifications import ContrastiveRun, Execution, PretrainingRun, Run
from neobert.runs.specifications import Source as SourceSpecification


@dataclass(frozen=True)
class Workplace:
    """A command's flags, its folder of runs, and the data that it opened, with what run files say of them. `execution`
    is how the scale executes on this machine."""

    options: argparse.Namespace
    layout: Layout
    specification: SourceSpecification
    source: Source
    execution: Execution


class Work(Protocol):
    """A plan that can be carried out."""

    def unfinished(self, layout: Layout) -> Sequence[Run]:
        """What is left to do, in the order in which it is begun."""

    def named_runs(self) -> Sequence[NamedRun]:
        """All runs with words for the names of jobs."""

    def write(self, layout: Layout, source: Source, specification: SourceSpecification, execution: Execution) -> None:
        """Write the run.json of every run, before anything starts."""


def open_workplace(options: argparse.Namespace, execution: Execution, unseen: Sequence[str] = ()) -> Workplace:
    """The folder and the data that the flags name; `unseen` are the places of `--without-texts-of`.

    Raises:
        MissingData, ValueError: as `open_source`.
    """
    layout = Layout(options.runs.resolve())
    options.data = _chosen_data(options)
    specification = specify(options.data, synthetic_documents(options.scale), unseen)
    return Workplace(options, layout, specification, open_specified(specification), execution)


def _chosen_data(options: argparse.Namespace) -> str:
    """The word or folder of `--data`; synthetic text where none was given, and never so at the paper's scale."""
    if options.data is not None:
        if not options.data.strip():
            raise ValueError("--data is empty: give synthetic, hub or a folder")
        return str(options.data)
    only_shows = options.dry_run or any(vars(options).get(flag) for flag in ("list", "cancel"))
    if options.scale == "paper" and not only_shows:
        raise ValueError(
            "--scale paper needs --data, for synthetic text would be no reproduction: bring the paper's with `python "
            "ablations/prefetch.py --variant NAME --scale paper --data-dir DIR`, then run this with --data DIR (or say "
            "--data synthetic)"
        )
    return "synthetic"


def work_here(
    workplace: Workplace,
    work: Work,
    runs: Sequence[Run],
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Work on the runs that are left with processes of this machine; the exit code.

    What trains in several processes comes first, so that thereafter each worker has a GPU of its own.
    """
    if not runs:
        return EXIT_DONE
    gpus = visible_gpus()
    execution = execution_on(profile_of(workplace.options), workplace.execution)
    workers = workers_here(workplace.options.workers, execution, len(gpus))
    groups = groups_here(workers, execution, len(gpus))
    execution = sharing_cores(execution, max(workers, groups * execution.processes))
    work.write(workplace.layout, workplace.source, workplace.specification, execution)
    together = [run for run in runs if execution.processes > 1 and isinstance(run, PretrainingRun | ContrastiveRun)]
    alone = [run for run in runs if run not in together]
    if together and not gpus:
        logs().print(f"no GPU here: {execution.processes} processes train together on its cores", markup=False)
    codes = [EXIT_DONE]
    for part, count, size in ((together, groups, execution.processes), (alone, workers, 1)):
        if part and codes[-1] != EXIT_REQUEUE:
            code = carry_out(
                workplace.layout,
                part,
                workers=count,
                threads=execution.threads,
                gpus=gpus[: count * size],
                flags=flags,
                environment=environment,
            )
            codes.append(code)
    return next((code for code in codes if code != EXIT_DONE), EXIT_DONE)


def send(workplace: Workplace, work: Work, dispatch: Dispatch, execution: Execution) -> int:
    """Send what is missing to SLURM, to execute so there, and return at once; the exit code."""
    work.write(workplace.layout, workplace.source, workplace.specification, execution)
    pieces = pieces_of(workplace.layout, work.named_runs(), dispatch.profile)
    print_submissions(dispatch.send(pieces) if pieces else [], as_json=workplace.options.json)
    return EXIT_DONE
