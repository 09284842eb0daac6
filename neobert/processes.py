"""Signals, child processes and their environments: signals reach workers, and no worker outlives its command.

A child has the reading end of a pipe, and only its parent has the other end. When the parent ends, even by kill −9, the
pipe closes; the child then sends itself SIGTERM, and SIGKILL after `GRACE_SECONDS`.
"""

import ctypes
import logging
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TypeVar

from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED, RunFailed

logger = logging.getLogger(__name__)

GRACE_SECONDS = 30.0
POLL_SECONDS = 0.1
VARIABLE = "NEOBERT_LIFELINE"
ENDING = (signal.SIGTERM, signal.SIGHUP)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameter numbers of glibc's mallopt."""
KEPT_BYTES = 1 << 30
MAPPED_BYTES = 64 << 20
"""Larger arrays, such as logits, get memory of their own: their sizes vary, and the heap would fragment."""
OLDER_MOST_BYTES = 32 << 20
"""Largest M_MMAP_THRESHOLD that older versions of glibc accept."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived. Like KeyboardInterrupt, it may only be caught by the command itself."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Context in which the first SIGTERM or SIGHUP raises Terminated in the main thread; later ones have no effect.

    Signals that are ignored, such as SIGHUP under nohup, stay ignored.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, lambda *_: None)
        raise Terminated(signal.Signals(number).name)

    is_main = threading.current_thread() is threading.main_thread()
    caught = [number for number in ENDING if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@cache
def _pipe() -> tuple[int, int]:
    """Return the ends of this process's pipe. It is never closed, and children only inherit the reading end."""
    return os.pipe()


def start_child(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | None = None
) -> "subprocess.Popen[bytes]":
    """Start a process that ends when this one ends, provided that it calls `end_with_parent`."""
    reading, _ = _pipe()
    variables = {**environment, VARIABLE: str(reading)}
    return subprocess.Popen(command, env=variables, pass_fds=[reading], stdout=stdout)


def end_with_parent() -> None:
    """Send this process SIGTERM, and SIGKILL thereafter, once the parent that started it has ended."""
    with suppress(KeyError, ValueError, OSError):  # not a child, or the inherited descriptor was closed
        descriptor = int(os.environ.pop(VARIABLE))
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            threading.Thread(target=_end_at_the_end_of, args=(descriptor,), daemon=True).start()


def _end_at_the_end_of(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def keep_freed_memory() -> None:
    """Make glibc's malloc keep up to 1 GiB of the memory that this process frees, of arrays of up to 64 MiB.

    By default the tensors of a step are returned to the kernel and faulted in again in the next step: on a CPU 4,000
    pages for a step of 4 × 144, a seventh of its time.
    """
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        # Either threshold alone would keep malloc from raising the other by itself, so that less is kept than before.
        if any(mallopt(M_MMAP_THRESHOLD, size) for size in (MAPPED_BYTES, OLDER_MOST_BYTES)):
            mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def allow_many_files() -> None:
    """Raise the soft limit on open files to the hard one: each mapped shard of a corpus holds a descriptor."""
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def wait_for(
    children: Sequence["subprocess.Popen[bytes]"], watch: Callable[[], None] = lambda: None, interval: float = 1.0
) -> list[int]:
    """Wait until all children have ended, calling `watch` every `interval` seconds. Returns their exit codes.

    A system error of `watch` has no effect.

    Ctrl-C, SIGTERM and SIGHUP are passed on at once, and the children save their state before they end. A second Ctrl-C
    kills them.
    """
    try:
        try:
            while any(child.poll() is None for child in children):
                with suppress(OSError):  # of a file server that is away: the children work on
                    watch()
                deadline = time.monotonic() + interval
                while time.monotonic() < deadline and any(child.poll() is None for child in children):
                    time.sleep(min(POLL_SECONDS, interval))
        except (KeyboardInterrupt, Terminated):
            for child in children:
                child.terminate()
            raise
        finally:
            codes = [child.wait() for child in children]
    except KeyboardInterrupt:
        for child in children:
            child.kill()
        raise
    return codes


WARNINGS = frozenset({signal.SIGUSR1, signal.SIGUSR2})
Result = TypeVar("Result")


class Stopped(RunFailed):
    """The work was asked to stop and saved its state; the same command continues it (exit code 75).

    `progressed` is whether this attempt got further than where it began, so that starting it again makes sense.
    """

    def __init__(self, message: str, *, progressed: bool = False) -> None:
        super().__init__(message)
        self.progressed = progressed


class StopRequest:
    """Whether SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2 has arrived since `listen`."""

    def __init__(self) -> None:
        self.signals: set[int] = set()
        self._asked = False

    @property
    def requested(self) -> bool:
        """Whether a signal arrived or `request` was called."""
        return self._asked or bool(self.signals)

    @property
    def was_warned(self) -> bool:
        """Whether a scheduler announced the end of the job by SIGUSR1 or SIGUSR2."""
        return not self.signals.isdisjoint(WARNINGS)

    def listen(self) -> None:
        """Install the signal handlers. Only the main thread of a process may call this."""
        for number in (signal.SIGINT, signal.SIGTERM, *WARNINGS):
            signal.signal(number, self._note)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup
            signal.signal(signal.SIGHUP, self._note)

    def request(self) -> None:
        """Request a stop, for example because another process of the same run got a signal."""
        self._asked = True

    def check(self, waiting_for: str) -> None:
        """Raise Stopped if a stop was requested. Called in waits and between work that needs no checkpoint."""
        if self.requested:
            raise Stopped(f"asked to stop while waiting for {waiting_for}")

    def outlive(self, action: Callable[[], Result], waiting_for: str) -> Result:
        """Return the result of a long library call that does not react to signals.

        If a stop is requested before it is done, raises Stopped and abandons the call in a thread that ends with the
        process. Only for calls that may be killed at any moment.
        """
        called: Future[Result] = Future()

        def call() -> None:
            try:
                called.set_result(action())
            except BaseException as error:
                called.set_exception(error)

        threading.Thread(target=call, daemon=True).start()
        while not called.done():
            self.check(waiting_for)
            wait([called], POLL_SECONDS)
        return called.result()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.add(number)


REPOSITORY = Path(__file__).resolve().parent.parent
GPU_DEVICES = ("nvidia[0-9]*", "kfd", "dxg")
KEY_VARIABLE = "NEOBERT_RENDEZVOUS"
"""The variable that says to which attempt of a job a rank belongs."""
RANK_VARIABLES = frozenset(
    (KEY_VARIABLE, "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
)
PLACE_VARIABLES = RANK_VARIABLES | {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_LOCALID"}


def available_cores() -> int:
    """Return the number of cores that this process may use: all, or its share if a scheduler or a container limits
    it."""
    from joblib import cpu_count

    own: int = cpu_count()  # of the affinity and the quotas of control groups
    return min(own, read_count(os.environ, "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE") or own)


def read_count(environment: Mapping[str, str], *names: str, least: int = 1) -> int | None:
    """Return the whole number in the first of the variables that is set and not empty, None if none is. Raises
    ValueError if it is no whole number or less than `least`."""
    name = next((name for name in names if environment.get(name)), None)
    if name is None:
        return None
    text = environment[name].strip()
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise ValueError(
            f"the environment variable {name} is {text!r}, and must be a whole number from {least}: correct or unset it"
        )
    return int(text)


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that pin the number of threads of a process, so that equal runs are bit-identical.

    Waiting threads sleep instead of spinning, which would take cores from other runs on the machine.
    """
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}


def gpu_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `environment` for CUDA's libraries, with values for those that are not set.

    cuBLAS needs a fixed workspace for deterministic products, and looks for it only once in a process, which may work
    on other runs before. Batches differ in size, so the allocator's memory would fragment unless its segments grow.
    """
    chosen = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if "PYTORCH_CUDA_ALLOC_CONF" not in environment:  # an older name of the same variable
        chosen["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    return {name: environment.get(name, value) for name, value in chosen.items()}


@cache
def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that a worker would see, named as in CUDA_VISIBLE_DEVICES.

    If the system has a device that may be a GPU, torch counts them in a separate process.
    """
    if not any(path.exists() for pattern in GPU_DEVICES for path in Path("/dev").glob(pattern)):
        return ()
    count = _ask_torch("torch.cuda.device_count()")
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",") if named else [str(index) for index in range(count)]
    return tuple(name.strip() for name in names[:count])


@cache
def gpu_memory_bytes() -> int:
    """Return the memory of the smallest GPU that a worker would see."""
    return _ask_torch("min(torch.cuda.mem_get_info(gpu)[1] for gpu in range(torch.cuda.device_count()))")


def _ask_torch(expression: str) -> int:
    """Return the value of an expression in another process, so that this one keeps no memory of a GPU."""
    command = [sys.executable, "-P", "-c", f"import torch; print({expression})"]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])


def worker_environment(threads: int) -> dict[str, str]:
    """Return the environment of a worker: pinned threads, CUDA's variables, this copy of the code first, no tokenizer
    parallelism, and not this process's rank."""
    known = os.environ.get("PYTHONPATH")
    return {name: value for name, value in os.environ.items() if name not in PLACE_VARIABLES} | {
        **thread_variables(threads),
        **gpu_variables(os.environ),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *([known] if known else [])]),
    }


def work_here(
    runs: Path, arguments: Sequence[str], *, environments: Sequence[Mapping[str, str]], watch: Callable[[], None]
) -> int:
    """Run a worker on the folder `runs` in each environment until all end, calling `watch` every second.

    `arguments` are the flags and references of the worker command. Ctrl-C, SIGTERM and SIGHUP are passed on: workers
    save their state, and the same command continues later. Returns 0 if any worker did, else their highest code, in
    which a process that a signal killed, as a warning says, counts as 1.
    The working folder is not on the path of workers: what lies there may have the names of packages.
    """
    command = [sys.executable, "-P", "-m", "neobert.runs.worker", "--runs", str(runs), *arguments]
    children = [start_child(command, environment) for environment in environments]
    codes = wait_for(children, watch)
    for signal_number, count in sorted(Counter(-code for code in codes if code < 0).items()):
        why = " (out of memory?)" if signal_number == signal.SIGKILL else ""
        logger.warning(f"{count} of {len(codes)} processes killed by signal {signal_number}{why}")
    return EXIT_DONE if EXIT_DONE in codes else max(EXIT_RUN_FAILED if code < 0 else code for code in codes)


def offline_environment() -> dict[str, str]:
    """Return the variables that keep huggingface_hub, datasets and transformers offline."""
    return dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
