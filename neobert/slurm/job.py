"""Payload of a SLURM job, and the snapshot of the code that it runs: edits while jobs queue have no effect.

The pickled payload only contains references and flags; everything else is in run.json.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from neobert.command_line import guarded
from neobert.errors import EXIT_DONE, EXIT_REQUEUE, EXIT_RUN_FAILED, DamagedFile, RunFailed
from neobert.files import TEMPORARY_MARK, json_bytes, publish_folder, replace_file, set_aside, temporary_sibling
from neobert.identity import IDENTITY_DIGITS
from neobert.processes import KEY_VARIABLE, RANK_VARIABLES, REPOSITORY, StopRequest, read_count
from neobert.runs.records import SNAPSHOT_FILE, code_state, git

logger = logging.getLogger(__name__)

PACKAGES = ("neobert", "ablations", "sweeps")
PATCH = "dirty.patch"


def take_snapshot(folder: Path) -> Path:
    """Copy the packages that jobs import into `folder`/<id>, once for equal code. Returns that folder.

    Beside the packages, snapshot.json has the commit and whether the tree differs from it; dirty.patch has the diff.
    The id is a digest of the packages. A snapshot that was changed since is set aside, and the code is copied again.

    Raises RunFailed if the code changes while it is copied.
    """
    final = folder / code_id(REPOSITORY)
    if code_id(final) != final.name:
        _copy(final)
    return final


def code_id(root: Path) -> str:
    """Return the id of the code below a folder: a digest of the names and contents of the packages' files."""
    digest = hashlib.sha256()
    for path in sorted(_source_files(root)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:IDENTITY_DIGITS]


def _source_files(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        for path in (root / package).rglob("*"):
            hidden = "__pycache__" in path.relative_to(root).parts or TEMPORARY_MARK in path.name
            if path.is_file() and not hidden:
                yield path


def _copy(final: Path) -> None:
    temporary = temporary_sibling(final)
    for path in _source_files(REPOSITORY):
        target = temporary / path.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    patch = git("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color") or b""
    replace_file(temporary / SNAPSHOT_FILE, json_bytes({"id": final.name, **code_state()}))
    (temporary / PATCH).write_bytes(patch)
    if code_id(temporary) != final.name:
        shutil.rmtree(temporary)
        raise RunFailed(f"files of {REPOSITORY} were changed while they were copied: give the command again")
    if os.path.lexists(final):
        set_aside(final, f"{final} was changed since the code was copied")
    try:
        publish_folder(temporary, final)
    except OSError:  # another launcher was faster
        shutil.rmtree(temporary)
        if not final.exists():
            raise


def refuse_another_code(snapshot: Path) -> None:
    """Check that this process imported neobert from the snapshot, and that the snapshot is unchanged.

    Raises:
        ValueError: neobert comes from another folder.
        DamagedFile: files of the snapshot were changed or removed.
    """
    if snapshot.resolve() != REPOSITORY:
        raise ValueError(
            f"this job was submitted with the code in {snapshot} but imports {REPOSITORY}: an environment that puts "
            f"another copy first (a .pth file, PYTHONPATH, {sys.executable}'s own site) must not; nothing was run"
        )
    if code_id(snapshot) != snapshot.name:
        raise DamagedFile(
            f"the code in {snapshot} was changed since this job was submitted; nothing was run: give the command that "
            "submitted it again, which copies the code again"
        )


SCONTROL_SECONDS = 120
LOWEST_PORT, PORTS = 20_000, 12_768
"""The ports of `attempt_variables`, below those that Linux gives to outgoing connections."""


@dataclass(frozen=True)
class Payload:
    """Flags and references for `python -m neobert.runs.worker`, and the snapshot whose code is to run."""

    snapshot: str
    arguments: tuple[str, ...]

    def __call__(self) -> int:
        """Work until nothing is left or the job is asked to stop. Ends the task with the worker's exit code."""
        code = guarded("job", self._work, Path(self.snapshot))
        if code != EXIT_DONE:
            sys.exit(code)
        return code

    def _work(self) -> int:
        refuse_another_code(Path(self.snapshot))
        from neobert.runs.worker import run  # only now: it imports what the snapshot must bring

        set_rank_variables()
        stop = StopRequest()
        ended = run(self.arguments, stop)
        is_first_task = os.environ.get("SLURM_PROCID", "0") == "0"
        if ended.code == EXIT_REQUEUE and stop.was_warned and is_first_task:
            return _come_back(progressed=ended.progressed)
        return ended.code


def attempt_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the key and the port of this attempt of a step of SLURM, the same for all of its tasks. Of attempts with
    equal restart counts each runs on other nodes."""
    nodes = environment.get("SLURM_JOB_NODELIST", "")
    restarts = environment.get("SLURM_RESTART_COUNT") or "0"
    key = f"slurm-{environment['SLURM_JOB_ID']}-{environment['SLURM_STEP_ID']}-{restarts}-{nodes}"
    port = LOWEST_PORT + int(hashlib.sha256(key.encode()).hexdigest(), 16) % PORTS
    return {KEY_VARIABLE: key, "MASTER_PORT": str(port)}


def set_rank_variables() -> None:
    """Set torch's variables for this task of a step, and remove those that the user's shell handed on."""
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    if (read_count(os.environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") or 1) > 1:
        from submitit.helpers import TorchDistributedEnvironment

        os.environ.update(attempt_variables(os.environ))
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)


def _come_back(*, progressed: bool) -> int:
    """Requeue this job unless it was cancelled or made no progress, since it would make none the next time either.

    Only called after a warning (SIGUSR1 or SIGUSR2: time limit, preemption). A bare SIGTERM means that the job was
    cancelled, or preempted and requeued by SLURM itself.
    """
    job = os.environ["SLURM_JOB_ID"]
    if not progressed:
        logger.error("the time limit came before any progress: not requeued; give the job more hours")
        return EXIT_RUN_FAILED
    shown = _scontrol("show", "job", job)
    if shown is not None and "JobState=CANCELLED" in shown:
        logger.warning(f"job {job} was cancelled: not requeued")
        return EXIT_REQUEUE
    is_requeued = _scontrol("requeue", job) is not None
    now = "is requeued" if is_requeued else "could not be requeued: the command that submitted it submits it again"
    logger.info(f"job {job} was warned, saved and {now}")
    return EXIT_REQUEUE


def _scontrol(*arguments: str) -> str | None:
    """Return the answer of scontrol; None, and the reason on stderr, if it fails."""
    command = ["scontrol", *arguments]
    try:
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SCONTROL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning(error)
        return None
    if answer.returncode:
        logger.warning(f"{' '.join(command)}: {answer.stderr.strip()}")
        return None
    return answer.stdout
