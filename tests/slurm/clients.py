"""What any user of a SLURM cluster can do and see: submit, signal, look at jobs and nodes."""

import os
import re
import secrets
import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import until


@dataclass(frozen=True)
class Job:
    """A job, or one element of an array, as the controller sees it."""

    job: str
    """``12``, or ``12_3`` for an element; the elements that wait together are one entry such as ``12_[4-7]``."""
    state: str
    nodes: str
    """Where it runs or ran last, as SLURM writes it (``node[1-2]``); empty when it has not run."""
    restarts: int
    reason: str


@dataclass
class Clients:
    """SLURM's commands, spoken to the cluster whose slurm.conf is in ``folder``."""

    folder: Path = field(init=False)
    """Of the cluster: ``log/``, ``jobs/`` (where :meth:`submit` runs its jobs), configuration; gone after close."""

    @property
    def environment(self) -> dict[str, str]:
        """For a process that is to use this cluster: ours, without what a job outside has left in it."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
        return ours | {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def client(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of SLURM's commands to its end, refused or not: the return code, ``stdout`` and ``stderr``."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder / "jobs",
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def submit(self, script: str, *options: str) -> str:
        """The id of a new job that runs ``script`` with sh in ``folder/jobs``.

        Raises RuntimeError with SLURM's words where it refuses the job.
        """
        done = self.client("sbatch", "--parsable", *options, "--wrap", script)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return done.stdout.strip().split(";")[0]

    def jobs(self) -> dict[str, Job]:
        """All jobs by id, those that ended in the last five minutes included; empty where the controller is down."""
        lines = self.client("scontrol", "--oneliner", "--all", "show", "jobs").stdout.splitlines()
        found = [_job(line) for line in lines if line.startswith("JobId=")]
        return {job.job: job for job in found}

    def states(self, job: str) -> set[str]:
        """The states of ``job``, of each of its elements where it is an array; empty for a job nobody knows."""
        return {found.state for name, found in self.jobs().items() if name == job or name.startswith(f"{job}_")}

    def wait_for(self, job: str, states: Collection[str], seconds: float) -> None:
        """Wait until ``job``, every element of it, is in one of ``states``. A state may be missed if it is short."""
        self._wait(
            lambda: bool(now := self.states(job)) and now <= set(states), seconds, f"job {job} {'|'.join(states)}"
        )

    def node_states(self) -> dict[str, str]:
        """By node: ``idle``, ``mixed``, ``allocated``, ``completing``, ``down*`` … (``*``: it does not answer)."""
        # Always of all nodes: asked for one, the controller answers with what it had counted before.
        command = ("sinfo", "--Node", "--noheader", "--partition=main", "--format=%N %T")
        return dict(line.split() for line in self.client(*command).stdout.splitlines())

    def signal(self, job: str, name: str) -> None:
        """Send a signal, such as USR2, to the tasks of ``job`` (not to its batch script), as a time limit would."""
        self.client("scancel", f"--signal={name}", job)

    def wait_until_saved(self, job: str) -> None:
        """Wait until the controller has written to disk what it knows of ``job`` now; it does so some 5 s late."""
        token = secrets.token_hex(8)
        self.client("scontrol", "update", f"JobId={job}", f"Comment={token}")
        state = self.folder / "state" / "job_state"
        until(lambda: state.exists() and token.encode() in state.read_bytes(), 60, f"saved state of job {job}")

    def log_tails(self, pattern: str = "slurm*.log", lines: int = 15) -> str:
        """The last lines of the daemons' logs, for a failed test to show."""
        logs = {path.name: path.read_text(errors="replace") for path in sorted((self.folder / "log").glob(pattern))}
        return "\n".join("\n".join([f"--- {name}", *text.splitlines()[-lines:]]) for name, text in logs.items() if text)

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """As ``until``; a TimeoutError comes with what the controller says."""
        try:
            until(condition, seconds, what)
        except TimeoutError as error:
            for line in (*self.jobs().values(), self.node_states()):
                error.add_note(str(line))
            raise


def _job(line: str) -> Job:
    """A line of ``scontrol --oneliner show jobs``."""
    fields = dict(re.findall(r"(\w+)=(\S*)", line))
    array = fields.get("ArrayJobId")
    element = fields.get("ArrayTaskId", "")
    waiting = f"[{element}]" if not element.isdigit() else element
    return Job(
        job=f"{array}_{waiting}" if array else fields["JobId"],
        state=fields["JobState"],
        nodes="" if fields["NodeList"] == "(null)" else fields["NodeList"],
        restarts=int(fields["Restarts"]),
        reason=fields["Reason"],
    )
