"""Render, submit, look up and cancel SLURM jobs, by submitit."""

import logging
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neobert.errors import RunFailed
from neobert.files import children, temporary_sibling
from neobert.processes import PLACE_VARIABLES
from neobert.runs.work import JobKind
from neobert.slurm.job import Payload
from neobert.slurm.profile import Resources, mask_export

logger = logging.getLogger(__name__)

CLIENT_SECONDS = 60
CONTROLLER_RETRIES = 3
RETRY_SECONDS = 5.0
REGISTRATION_SECONDS = 60.0
"""How long to wait for nodes to register with a controller that has just started."""
DEFAULT_LARGEST_ARRAY = 1001
SETUP = "setup.sh"
MOST_TIMEOUTS = 3
"""How often submitit would requeue a job itself. Payloads requeue theirs."""
OVERRIDING = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SCANCEL_", "SINFO_", "SQUEUE_", "SCONTROL_", "SUBMITIT_"),
    *sorted(PLACE_VARIABLES),
)
"""Beginnings of variables with options for SLURM's clients, which override a batch script or narrow an answer, and of
those that say what a process of a job is. sbatch hands the caller's variables to the job, where srun reads them."""
HANDED_ON = {
    "SLURM_CPU_FREQ_REQ": "cpu-freq",
    "SLURM_MEM_PER_NODE": "mem",
    **{
        f"SLURM_{option.upper().replace('-', '_')}": option
        for option in (
            *("cpus-per-gpu", "distribution", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket"),
            *("gpus-per-task", "hint", "mem-per-cpu", "mem-per-gpu", "network", "ntasks-per-core", "ntasks-per-gpu"),
            *("ntasks-per-socket", "overcommit", "profile", "threads-per-core", "tres-per-task"),
        )
    },
}
"""Variables of srun's options, by which sbatch hands its own options on to srun; and these options."""
OTHER_OPTIONS = re.findall(
    "[A-Z_]+",
    "SLURM_ACCOUNT SLURM_ACCTG_FREQ SLURM_BCAST SLURM_CLUSTERS SLURM_CLUSTER_CONSTRAINT SLURM_COMPRESS "
    "SLURM_CONSTRAINT SLURM_CORE_SPEC SLURM_CPU_BIND SLURM_DEBUG SLURM_DEPENDENCY SLURM_EPILOG SLURM_EXACT "
    "SLURM_EXCLUSIVE SLURM_GRES SLURM_GRES_FLAGS SLURM_IMMEDIATE SLURM_LABELIO SLURM_MEM_BIND SLURM_MPI_TYPE "
    "SLURM_NO_KILL SLURM_OVERLAP SLURM_PARTITION SLURM_POWER SLURM_PROLOG SLURM_QOS SLURM_REMOTE_CWD SLURM_REQ_SWITCH "
    "SLURM_RESERVATION SLURM_SPREAD_JOB SLURM_STDERRMODE SLURM_STDINMODE SLURM_STDOUTMODE SLURM_STEP_GRES "
    "SLURM_TASK_EPILOG SLURM_TASK_PROLOG SLURM_TEST_EXEC SLURM_THREAD_SPEC SLURM_THREADS SLURM_TIMELIMIT "
    "SLURM_TRES_BIND SLURM_USE_MIN_NODES SLURM_WAIT SLURM_WCKEY SLURM_WORKING_DIR "
    "SRUN_CPUS_PER_TASK SRUN_ERROR SRUN_INPUT SRUN_OUTPUT",
)
"""Variables of srun's options that sbatch never sets. What srun is not told it takes from the job."""
ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET")
"""Variables by which clients find the controller and are let in."""
OWN_OPTIONS = ("array", "clusters", "dependency", "error", "job-name", "open-mode", "output", "parsable", "signal")
"""Options of sbatch that are set for every job, to find, order and signal it. Profiles may not set them."""


@dataclass(frozen=True)
class Job:
    """Job to submit: an array of `elements` workers with the same references, or a single worker (None).

    The name is unique among all jobs of the cluster, so that a lost job can be found by it.
    """

    name: str
    kind: JobKind
    references: tuple[str, ...]
    flags: tuple[str, ...]
    resources: Resources
    environment: Mapping[str, str] = field(default_factory=dict)
    elements: int | None = None
    most_running: int | None = None


def is_inside_job() -> bool:
    """Return whether this process runs inside a job."""
    return "SLURM_JOB_ID" in os.environ


def answers() -> bool:
    """Return whether SLURM is installed and its controller answers."""
    if shutil.which("sbatch") is None:
        return False
    try:
        return _client(["sinfo", "--noheader", "--format=%P"], seconds=10).returncode == 0
    except RunFailed:
        return False


def live_jobs() -> dict[str, str]:
    """Return the names of all pending and running jobs of this user, by id (for arrays, the array's id). Raises
    RunFailed if the controller does not answer."""
    answer = _client(["squeue", "--noheader", "--me", "--format=%F %j"])
    if answer.returncode:
        raise RunFailed(f"squeue does not answer ({answer.stderr.strip()}): nothing was submitted, try again later")
    parted = (line.partition(" ") for line in answer.stdout.splitlines() if line.strip())
    return {job: name for job, _, name in parted}  # a name may be blank


def release_stranded(jobs: Iterable[str]) -> list[str]:
    """Release those jobs that SLURM requeued and then held, as it does when a start fails. Returns their ids."""
    ours = set(jobs)
    answer = _client(["squeue", "--noheader", "--me", "--states=PENDING", "--format=%F %i %r"])
    lines = [line.split(maxsplit=2) for line in answer.stdout.splitlines()]
    stranded = re.compile("requeued.held", re.IGNORECASE)
    held = [job for family, job, reason in lines if family in ours and stranded.search(reason)]
    if held:
        _client(["scontrol", "release", *held])
    return held


def largest_array() -> int:
    """Return how many elements the cluster allows in one array."""
    answer = _client(["scontrol", "show", "config"])
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", answer.stdout)
    return max(1, int(found.group(1))) if found else DEFAULT_LARGEST_ARRAY  # 0 where arrays are disabled


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs, which save their state within the cluster's grace time. Raises RunFailed if SLURM refuses."""
    answer = _client(["scancel", *jobs])
    if answer.returncode:
        raise RunFailed(f"scancel {' '.join(jobs)}: {answer.stderr.strip()}")


def refuse_folder(folder: Path) -> None:
    """Raise ValueError if a path has a character that SLURM's logs or Python's imports interpret even when quoted."""
    wrong = next((letter for letter in str(folder) if letter in "%\\:" or unicodedata.category(letter) == "Cc"), None)
    if wrong is not None:
        raise ValueError(
            f"--runs {str(folder)!r}: jobs on SLURM cannot use a path with {wrong!r} in it (%, backslash, colon, "
            "control characters): choose another folder"
        )


def sbatch_text(job: Job, snapshot: Path, logs: Path, after: Sequence[str]) -> str:
    """Return the sbatch file of a job, as submitit writes it when the job is submitted."""
    text: str = _submitit().slurm.slurm._make_sbatch_string(
        command=shlex.join([sys.executable, "-u", "-m", "submitit.core._submit", str(logs)]),
        folder=logs,
        map_count=job.elements,
        **_parameters(job, snapshot, logs, after),
    )
    return text


def test(job: Job, snapshot: Path, logs: Path) -> None:
    """Check that SLURM would accept a job, without submitting it. Waits for nodes that are about to register.

    Raises:
        ValueError: SLURM would refuse; the message quotes it.
        RunFailed: the controller or its nodes do not answer.
    """
    text = sbatch_text(job, snapshot, logs, ())
    deadline, told = time.monotonic() + REGISTRATION_SECONDS, False
    while (answer := _client(["sbatch", "--test-only"], text=text)).returncode:
        reason = _last_words(answer.stderr) or f"sbatch ended with {answer.returncode} and said nothing"
        if not _waits_for_nodes(reason):
            raise _refusal(job, reason)
        if time.monotonic() > deadline:
            raise RunFailed(
                f"SLURM's nodes have not registered with its controller yet ({reason}): {job.kind} jobs were not "
                "submitted, try again later"
            )
        if not told:
            logger.info("SLURM's nodes have not registered with its controller yet: waiting for them")
            told = True
        time.sleep(RETRY_SECONDS)


def submit(job: Job, runs: Path, snapshot: Path, logs: Path, after: Sequence[str]) -> str:
    """Submit a job and return its id. If that fails, for whatever reason, no job is left in the queue.

    Raises:
        ValueError: SLURM refuses the request; the message quotes it.
        RunFailed: the controller does not answer.
    """
    logs.mkdir(parents=True, exist_ok=True)
    if job.resources.setup:  # may contain secrets, which only the user can read
        (logs / SETUP).touch(mode=0o600)
        (logs / SETUP).write_text("".join(f"{line}\n" for line in job.resources.setup))
    executor = _submitit().SlurmExecutor(folder=logs, max_num_timeout=MOST_TIMEOUTS)
    executor.update_parameters(**_parameters(job, snapshot, logs, after))
    payload = Payload(str(snapshot), ("--runs", str(runs), *job.flags, *job.references))
    try:
        return _submit(executor, payload, job, logs)
    except BaseException:
        try:
            if lost := _jobs_named(job.name):  # nobody would know it
                cancel(lost)
        except (OSError, RunFailed) as error:
            logger.warning(f"{error}; if {job.name} is in the queue, the next command for this folder cancels it")
        raise


def _submit(executor: Any, payload: Payload, job: Job, logs: Path) -> str:
    """Call sbatch until SLURM has the job or refuses it, and see that the job has its payload. Returns the job's id."""
    utils = _submitit().core.utils
    reason = ""
    for attempt in range(CONTROLLER_RETRIES):
        read, is_known = None, False
        if attempt:
            time.sleep(RETRY_SECONDS)
            is_known = bool(_jobs_named(job.name))  # submitted, but the answer was lost
        try:
            read = None if is_known else _send(executor, payload, job.elements)
        except utils.FailedJobError as error:
            reason = _last_words(str(error)) or "sbatch failed and said nothing"
        except utils.FailedSubmissionError as error:
            reason = f"sbatch did not say which job it made: {error}"
        number = _job_made(job.name, read)
        if number is not None:
            if number != read:
                _write_payload(payload, job, number, logs)
            return number
        if not _is_silence(reason) and not _waits_for_nodes(reason):
            break
    raise _refusal(job, reason)


def _send(executor: Any, payload: Payload, elements: int | None) -> str:
    """Submit a payload by submitit, as an array if there are several elements. Returns the id that submitit reads."""
    with _without_options(), _private_files():
        if elements is None:
            return str(executor.submit(payload).job_id)
        with executor.batch():
            jobs = [executor.submit(payload) for _ in range(elements)]
    return str(jobs[0].job_id).partition("_")[0]


def _job_made(name: str, said: str | None) -> str | None:
    """Return the id of the job of a name. If it has ended, or the controller is busy, it is what sbatch `said`. The
    queue is asked first, as sites print sentences of their own."""
    try:
        return next(iter(_jobs_named(name)), said)
    except RunFailed:
        return said


def _jobs_named(name: str) -> list[str]:
    """Return the pending and running jobs of a name. Raises as `live_jobs`."""
    return [job for job, own in live_jobs().items() if own == name]


def _write_payload(payload: Payload, job: Job, number: str, logs: Path) -> None:
    """Write what each element of a job runs to where submitit looks for it in the job, and nowhere else."""
    utils = _submitit().core.utils
    for path in children(logs, "*.pkl"):
        path.unlink()
    delayed = utils.DelayedSubmission(payload)
    delayed.set_timeout(math.ceil(job.resources.hours * 60), MOST_TIMEOUTS)
    for element in [number] if job.elements is None else [f"{number}_{index}" for index in range(job.elements)]:
        path = utils.JobPaths(logs, element).submitted_pickle
        temporary = temporary_sibling(path)
        delayed.dump(temporary)
        temporary.rename(path)


def _is_silence(reason: str) -> bool:
    return re.search(r"contact|socket|timed out|connect|said nothing", reason, re.IGNORECASE) is not None


def _waits_for_nodes(reason: str) -> bool:
    """Return whether a controller that has just started may refuse because it does not know its nodes yet."""
    if "node configuration is not available" not in reason:
        return False
    states = _client(["sinfo", "--noheader", "--Node", "--format=%T"]).stdout.split()
    return any(state.startswith("unk") or re.fullmatch(r"(?!down|drain).*\*", state) for state in states)


def _refusal(job: Job, reason: str) -> RunFailed | ValueError:
    if _is_silence(reason) or _waits_for_nodes(reason):
        return RunFailed(
            f"SLURM does not answer as it should ({reason}): {job.name} was not submitted, try again later"
        )
    given = job.resources.with_masked_exports().model_dump(exclude={"setup"}, exclude_defaults=True)
    asked = ", ".join(f"{key} = {value}" for key, value in given.items()) or "nothing requested"
    return ValueError(f"SLURM refuses {job.kind} jobs: {reason}; change the profile or flags ({asked})")


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ValueError("SLURM is reached through submitit: pip install 'submitit>=1.5.4'") from error
    return submitit


@contextmanager
def _without_options() -> Iterator[None]:
    """Context without the environment's options for SLURM's clients: only those of the batch script count."""
    named = [name for name in os.environ if name.startswith(OVERRIDING) and name not in ACCESS]
    hidden = {name: os.environ.pop(name) for name in named}
    try:
        yield
    finally:
        os.environ.update(hidden)


@contextmanager
def _private_files() -> Iterator[None]:
    """Context in which new files are for the user alone: `export` lines put their values into the batch script."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _parameters(job: Job, snapshot: Path, logs: Path, after: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of submitit, which are named as in sbatch. What decides who pays and where a job waits is
    the environment's where the profile is silent, as users of sbatch expect."""
    resources = job.resources
    of_site = {key: os.environ.get(f"SBATCH_{key.upper()}") for key in ("partition", "account", "qos")}
    parameters: dict[str, Any] = {
        "job_name": job.name,
        "time": math.ceil(resources.hours * 60),
        "nodes": resources.nodes,
        "ntasks_per_node": resources.tasks_on_a_node,
        "partition": resources.partition or of_site["partition"],
        "account": resources.account or of_site["account"],
        "qos": resources.qos or of_site["qos"],
        "constraint": resources.constraint,
        "cpus_per_task": resources.cpus_per_task,
        "gpus_per_node": resources.gpus_per_node or None,
        "mem": None if resources.memory_gb is None else f"{math.ceil(resources.memory_gb * 1024)}M",
        "signal_delay_s": resources.grace_seconds,
        "dependency": f"afterany:{':'.join(after)}" if after else None,
        "array_parallelism": job.most_running or job.elements,
        "setup": [*_exports(job, snapshot), *([f"source {shlex.quote(str(logs / SETUP))}"] if resources.setup else [])],
        # If a task dies, the others are killed. Under --export=NONE tasks would lack what setup exports. srun does not
        # take over --cpus-per-task from sbatch by itself.
        "srun_args": [
            "--kill-on-bad-exit=1",
            "--export=ALL",
            *([f"--cpus-per-task={resources.cpus_per_task}"] if resources.cpus_per_task else []),
        ],
        "wckey": None,
        "additional_parameters": {"requeue": True, **_extra_lines(resources.sbatch)},
    }
    given = {key: value for key, value in parameters.items() if value is not None or key == "wckey"}
    options = {key.replace("_", "-") for key in (*given, *given["additional_parameters"])}
    # Under --export=NONE the variables of a login shell come into the job.
    unwanted = [name for name, option in HANDED_ON.items() if option not in options]
    return given | {"setup": [f"unset {' '.join([*unwanted, *OTHER_OPTIONS])}", *given["setup"]]}


def _exports(job: Job, snapshot: Path) -> list[str]:
    """Return export lines that put the snapshot's code first and keep out the folder that `python -m` would add."""
    return [
        f"export PYTHONPATH={shlex.quote(str(snapshot))}${{PYTHONPATH:+:$PYTHONPATH}}",
        "export PYTHONSAFEPATH=1",
        "export PYTHONDONTWRITEBYTECODE=1",  # a snapshot holds nothing but what was copied
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(job.environment.items())),
    ]


def _extra_lines(lines: Iterable[str]) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    for line in lines:
        name, equals, value = line.removeprefix("#SBATCH").strip().lstrip("-").partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise ValueError(f"sbatch line {mask_export(line)!r} is not of the form --name or --name=value")
        if name in OWN_OPTIONS:
            raise ValueError(f"sbatch line {line!r}: --{name} is set for every job, by which it is found: leave it out")
        extra[name] = value if equals else True
    return extra


def _last_words(text: str) -> str:
    """Return the last error line of a client's output, or else its last line; empty if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    words = (errors or lines or [""])[-1]
    return re.sub(r"^.*?sbatch: error:\s*", "", words).rstrip(".")


def _client(
    command: Sequence[str], *, text: str | None = None, seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a SLURM command. Raises RunFailed if it does not end in time."""
    seconds = seconds or CLIENT_SECONDS
    try:
        with _without_options():
            return subprocess.run(command, check=False, capture_output=True, input=text, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RunFailed(
            f"{command[0]} did not answer within {seconds:g} s: SLURM's controller may be busy or down, try again later"
        ) from error
