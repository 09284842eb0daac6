"""What runs inside a SLURM job: a worker on the submitted code, and the decision whether the job is to come back.

The payload that is pickled for the job holds references and flags alone; run.json on disk says the rest.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from neobert.command_line import guarded
from neobert.errors import EXIT_DONE, EXIT_REQUEUE, EXIT_RUN_FAILED
from neobert.launching.snapshot import refuse_another_copy
from neobert.stopping import StopRequest

SCONTROL_SECONDS = 120


@dataclass(frozen=True)
class Payload:
    """The flags and references of `python -m neobert.work`, and the folder whose code is to run."""

    snapshot: str
    arguments: tuple[str, ...]

    def __call__(self) -> int:
        """Work until nothing is left or the job is asked to stop; ends the task with the worker's exit code."""
        code = guarded("job", self._work, Path(self.snapshot))
        if code != EXIT_DONE:
            sys.exit(code)
        return code

    def _work(self) -> int:
        refuse_another_copy(Path(self.snapshot))
        from neobert.work import run  # only now: it imports what the snapshot must bring

        stop = StopRequest()
        ended = run(self.arguments, stop)
        if ended.code == EXIT_REQUEUE and stop.was_warned and is_first_task():
            return _come_back(progressed=ended.progressed)
        return ended.code


def is_first_task() -> bool:
    """Whether this process is task 0 of its job."""
    return os.environ.get("SLURM_PROCID", "0") == "0"


def _come_back(*, progressed: bool) -> int:
    """Requeue this job, unless it was cancelled or got nowhere: then the next time limit would be wasted as well.

    Only a warning (SIGUSR1 or SIGUSR2: time limit, preemption) leads here. A bare SIGTERM is a cancelled job, or a
    preempted one that SLURM itself puts back.
    """
    job = os.environ["SLURM_JOB_ID"]
    if not progressed:
        print("the time limit came before any progress: not requeued; give the job more hours", file=sys.stderr)
        return EXIT_RUN_FAILED
    shown = _scontrol("show", "job", job)
    if "JobState=CANCELLED" in shown:
        print(f"job {job} was cancelled: not requeued", file=sys.stderr)
        return EXIT_REQUEUE
    _scontrol("requeue", job)
    print(f"job {job} was warned, saved and is requeued", file=sys.stderr)
    return EXIT_REQUEUE


def _scontrol(*arguments: str) -> str:
    command = ["scontrol", *arguments]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SCONTROL_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(command)} did not answer within {SCONTROL_SECONDS} s", file=sys.stderr)
        return ""
    if answer.returncode:
        print(f"{' '.join(command)}: {answer.stderr.strip()}", file=sys.stderr)
    return answer.stdout
