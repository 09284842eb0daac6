"""A worker: takes parts of runs that are ready, one after the other, until nothing is left. Jobs run this command.

    python -m neobert.runs.worker --runs RUNS pretraining/<id> glue/<task>/studies/<id> …

Any number of workers may be given the same references, be killed and started again: claims and records on disk decide
who does what, and a finished part is never done twice. Of the tasks of a SLURM step the first is the worker; the others
join every training run that it starts.
"""

import logging
import math
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from neobert import executors
from neobert.command_line import Parser, guarded, set_up_logging
from neobert.errors import EXIT_DONE, EXIT_REQUEUE, EXIT_RUN_FAILED, MissingData, RunFailed
from neobert.executors import Execute
from neobert.files import append_line, reason_of, refresh, status_of
from neobert.processes import Stopped, StopRequest, allow_many_files, end_with_parent, keep_freed_memory, read_count
from neobert.runs.claims import LEASE_SECONDS, Claim, ClaimLost, acquire, is_claimed, last_owner, measure_file_time
from neobert.runs.kinds import KINDS, RUN_KINDS, is_done, kind_of
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile, read_checked_run_file
from neobert.runs.tracking import track_scores
from neobert.runs.work import Part, Work, name_attempt, write_failure

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
IDLE_POLLS = 8
GPU_VARIABLES = ("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS")
FOLDERS = tuple(KINDS[kind].folder_pattern.replace("{", "<").replace("}", ">") for kind in RUN_KINDS)
REFERENCES = " or ".join(("corpus/<data id>/<pretraining id>", *FOLDERS))


OpenPart = tuple[RunFile, Part]
"""Part to execute, with the run file of its run."""


@dataclass
class Worker:
    """Works through parts, those of work that grows included.

    A part that failed after `failures_since` (default: the worker's start, by the file system's clock), in any process,
    is skipped, and with `leave_failed` also one that failed before.
    If other workers hold all remaining parts, the worker waits for `patience_seconds` and ends. `progressed` is whether
    anything was finished or saved.
    """

    layout: Layout
    parts: Sequence[OpenPart]
    stop: StopRequest
    lease_seconds: float = LEASE_SECONDS
    failures_since: float | None = None
    leave_failed: bool = False
    patience_seconds: float = math.inf
    execute: Execute = executors.execute
    ask: Callable[[Layout, Work], tuple[Part, Claim] | None] = executors.ask
    progressed: bool = False

    def __post_init__(self) -> None:
        if self.failures_since is None:
            self.failures_since = measure_file_time(self.layout.claims(""))

    def run(self) -> int:
        """Work until every part is finished or cannot be. Returns the exit code."""
        idle_polls, taken = 0, time.monotonic()
        while not self.stop.requested:
            pending = [(run_file, part) for run_file, part in self._known_parts() if not part.is_done]
            if not pending:
                return EXIT_DONE
            candidates = [(run_file, part) for run_file, part in pending if not self._has_failed(part)]
            claimed = next(self._claimable(candidates), None)
            if claimed is not None:
                self._execute(*claimed)
                idle_polls, taken = 0, time.monotonic()
            elif any(is_claimed(self.layout.claims(part.id), self.lease_seconds) for _, part in candidates):
                if time.monotonic() - taken > self.patience_seconds:
                    return EXIT_DONE
                idle_polls = 0
                time.sleep(POLL_SECONDS)
            elif idle_polls == IDLE_POLLS:
                return EXIT_RUN_FAILED
            else:  # a part that was claimed a moment ago may just have been released
                idle_polls += 1
                time.sleep(POLL_SECONDS)
        return EXIT_REQUEUE

    @cached_property
    def _growing(self) -> list[tuple[RunFile, Work]]:
        """The work that grows, each once."""
        return list({part.work.id: (run_file, part.work) for run_file, part in self.parts if part.work.grows}.values())

    def _known_parts(self) -> list[OpenPart]:
        """Return all parts; of work that grows, those that there are now."""
        fixed = [(run_file, part) for run_file, part in self.parts if not part.work.grows]
        return [*fixed, *((run_file, part) for run_file, work in self._growing for part in work.parts(self.layout))]

    def _has_failed(self, part: Part) -> bool:
        assert self.failures_since is not None
        status = status_of(part.error)
        return status is not None and (status.st_mtime > self.failures_since or self.leave_failed)

    def _claimable(self, candidates: Sequence[OpenPart]) -> Iterator[tuple[RunFile, Part, Claim]]:
        """Claim the parts that are ready and free, and yield them one after the other. New ones of work that grows
        follow.

        Parts whose last owner was lost come last: they may have killed it, and would kill one worker after the other.
        """
        lost: list[OpenPart] = []
        for is_last_resort, parts in ((False, candidates), (True, lost)):
            if is_last_resort:
                yield from self._asked()
            for run_file, part in parts:
                owner = last_owner(self.layout.claims(part.id), self.lease_seconds)
                if owner is not None and owner.is_lost and not is_last_resort:
                    lost.append((run_file, part))
                elif is_ready(self.layout, part):
                    claim = acquire(self.layout.claims(part.id), self.lease_seconds)
                    if claim is not None:
                        yield run_file, part, claim

    def _asked(self) -> Iterator[tuple[RunFile, Part, Claim]]:
        """Yield new parts of the work that grows, claimed."""
        for run_file, work in self._growing:
            if all(is_done(self.layout, each) for each in work.after):
                while (asked := self.ask(self.layout, work)) is not None:
                    yield run_file, *asked

    def _execute(self, run_file: RunFile, part: Part, claim: Claim) -> None:
        """Execute a claimed part, unless it was done meanwhile, and note how it ended."""
        with claim:
            for folder in (part.record.parent.parent, part.record.parent):
                refresh(folder)
            if part.is_done:
                return
            append_line(self.layout.starts, {**name_attempt(part, claim), "at": time.time()})
            try:
                self.execute(self.layout, run_file, part, claim, self.stop)
                track_scores(self.layout, run_file, part)
            except (ClaimLost, Stopped) as reason:
                self.progressed |= isinstance(reason, Stopped) and reason.progressed
                logger.warning(f"{part.title}: {reason}")
            except Exception as error:
                logger.error(f"{part.title} failed: {reason_of(error)}")
                write_failure(part, claim, error)
                if loss := _gpu_loss():  # every other part would fail too
                    raise RunFailed(f"CUDA failed for good ({loss}): this worker ends") from error
            else:
                self.progressed = True
                part.error.unlink(missing_ok=True)


def from_own_block(parts: Sequence[OpenPart], environment: Mapping[str, str]) -> list[OpenPart]:
    """Return the parts in an order that begins, in element i of n of a SLURM array, with the i-th of n blocks.

    Neighbouring trials share a task, a batch size and so what was loaded and compiled for them; if all elements began
    with the first part, each would run one trial of every task.
    """
    count = read_count(environment, "SLURM_ARRAY_TASK_COUNT") or 1
    first = read_count(environment, "SLURM_ARRAY_TASK_MIN", least=0) or 0
    index = (read_count(environment, "SLURM_ARRAY_TASK_ID", least=0) or 0) - first
    start = len(parts) * (index % count) // count
    return [*parts[start:], *parts[:start]]


def is_ready(layout: Layout, part: Part) -> bool:
    """Return whether everything that must be done before a part is done."""
    return all(is_done(layout, each) for each in part.work.after) and all(each.is_done for each in part.after)


def _gpu_loss() -> str | None:
    """Return why CUDA fails in this process from now on, as after an illegal access; None if it does not."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            return str(error).partition("\n")[0]
    return None


def _refuse_missing_gpu() -> None:
    """Refuse a job whose GPUs torch cannot use, unless they are hidden by an empty CUDA_VISIBLE_DEVICES."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return
    given = next((name for name in GPU_VARIABLES if os.environ.get(name, "0") != "0"), None)
    if given and not sys.modules["torch"].cuda.is_available():
        raise MissingData(
            f"SLURM gave this job GPUs ({given}={os.environ[given]}), but torch can use none on "
            f"{socket.gethostname()}: look at the node's driver, and whether torch is its build for CUDA; to train on "
            "the CPU, set CUDA_VISIBLE_DEVICES to an empty value"
        )


def open_parts(layout: Layout, reference: str) -> list[OpenPart]:
    """Return the parts of the work that a reference names.

    Raises:
        ValueError: the reference has no known form.
        MissingData, DamagedFile: see `read_checked_run_file`.
    """
    is_corpus = re.fullmatch("corpus/[^/]*/[^/]*", reference) is not None
    folder = f"pretraining/{reference.rsplit('/', maxsplit=1)[-1]}" if is_corpus else reference
    if kind_of(folder) is None:
        raise ValueError(f"{reference!r} names no run: expected {REFERENCES}")
    run_file = read_checked_run_file(layout.root / folder)
    works: tuple[Work, ...] = run_file.run.preparation if is_corpus else (run_file.run,)
    named = [work for work in works if not is_corpus or work.reference == reference]
    return [(run_file, part) for work in named for part in work.parts(layout)]


@dataclass(frozen=True)
class Ended:
    """How a worker ended: its exit code, and whether it finished or saved anything."""

    code: int
    progressed: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code (0 done, 1 failed, 2 refused, 3 no run or GPU, 75 to be continued)."""
    return guarded("neobert.runs.worker", lambda: run(arguments, StopRequest()).code, Path())


def build_parser() -> Parser:
    """Return the command's parser."""
    parser = Parser(prog="python -m neobert.runs.worker", description="Work on the runs of a folder, part by part.")
    parser.add_argument("--runs", type=Path, required=True, help="folder of runs")
    parser.add_argument("--leave-failed", action="store_true", help="skip parts that failed before")
    parser.add_argument("--failures-since", type=float, metavar="TIME", help="skip parts that failed after this time")
    parser.add_argument("--patience", type=float, default=math.inf, metavar="SECONDS", help="longest wait for others")
    parser.add_argument("references", nargs="+", help=REFERENCES)
    return parser


def run(arguments: Sequence[str] | None, stop: StopRequest) -> Ended:
    """Run the command until it is done, or until `stop` or a signal ends it."""
    options = build_parser().parse_args(arguments)
    layout = Layout(options.runs)
    stop.listen()
    end_with_parent()
    keep_freed_memory()
    allow_many_files()
    from neobert.executors.ranks import JobRank, host_ranks
    from neobert.training.distributed import set_up_device  # only now: it imports torch

    needs_device = not all(reference.startswith("corpus/") for reference in options.references)
    if needs_device:
        _refuse_missing_gpu()
    place = JobRank.of_environment(os.environ)
    if place is not None:
        set_up_logging(place.process.rank, place.process.count)
    if place is not None and not place.process.writes:
        from neobert.executors.training import join_runs

        return Ended(join_runs(layout, place, stop, executors.make_trainer), progressed=False)
    if needs_device:
        set_up_device()
    parts = [part for reference in options.references for part in open_parts(layout, reference)]
    with ExitStack() as resources:
        if place:
            resources.enter_context(host_ranks(place))
        worker = Worker(
            layout,
            from_own_block(parts, os.environ),
            stop,
            failures_since=options.failures_since,
            leave_failed=options.leave_failed,
            patience_seconds=options.patience,
        )
        return Ended(worker.run(), worker.progressed)


if __name__ == "__main__":
    sys.exit(main())
