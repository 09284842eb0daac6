"""The part of a process that is not the first of its job: it trains along in whatever the first one takes up."""

import sys
import traceback
from datetime import timedelta
from typing import Any

from neobert.data.shards import open_shards
from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED, RunFailed
from neobert.processes import StopRequest
from neobert.runs.layout import Layout
from neobert.runs.specifications import RunFile, read_run_file
from neobert.training.distributed import TIMEOUT, Meeting, Process, Task, Waiting, joined
from neobert.training.pretraining import PretrainingTrainer
from neobert.training.trainer import Trainer, attempt


def help_along(layout: Layout, task: Task, stop: StopRequest, timeout: timedelta = TIMEOUT) -> int:
    """Go to one meeting after the other until the first process says that all is over; the exit code.

    What all processes agree on (a loss that is not finite, a save that failed) ends a run, not this process. Any other
    error does: only its end closes the connections, without which the others would wait for it until their time-out.
    A request to stop is told to the others within a step, and between meetings waited out: the first process ends all.
    """
    waiting = Waiting(layout, task, timeout)
    try:
        while meeting := waiting.next_meeting():
            _attend(layout, task, meeting, stop)
    except RunFailed as error:
        print(error, file=sys.stderr, flush=True)
        return EXIT_RUN_FAILED
    return EXIT_DONE


def _attend(layout: Layout, task: Task, meeting: Meeting, stop: StopRequest) -> None:
    where = f"process {task.process.rank} of {task.process.count}, run {meeting.run}"
    try:
        _train_along(layout, task, meeting, stop)
    except Exception as error:
        if type(error) is not RunFailed:
            traceback.print_exception(error)
            raise RunFailed(f"{where} ends: {error}") from error
        print(f"{where}: {error}", file=sys.stderr, flush=True)


def _train_along(layout: Layout, task: Task, meeting: Meeting, stop: StopRequest) -> None:
    folder = layout.trained(meeting.run)
    run_file = read_run_file(folder).model_copy(update={"execution": meeting.execution})
    with joined(meeting, task):
        attempt(_course(layout, run_file, task.process), stop, None, folder)


def _course(layout: Layout, run_file: RunFile, process: Process) -> Trainer[Any]:
    if run_file.contrastive is not None:
        from neobert.embeddings.contrastive import ContrastiveTrainer

        return ContrastiveTrainer(layout, run_file, process)
    assert run_file.pretraining is not None
    corpus = open_shards(layout.data(run_file.pretraining.data_id), verify=False)  # the first process has verified
    return PretrainingTrainer(layout, run_file, process, corpus)
