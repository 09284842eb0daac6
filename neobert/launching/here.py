"""Start workers on this machine and wait for them."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from neobert.errors import EXIT_DONE, EXIT_RUN_FAILED
from neobert.layout import Layout
from neobert.lifeline import start_child, wait_for

REPOSITORY = Path(__file__).resolve().parent.parent.parent
GPU_DEVICES = ("nvidia[0-9]*", "kfd", "dxg")
PLACE_VARIABLES = frozenset(
    ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_LOCALID", "NEOBERT_MEETING", "RANK", "LOCAL_RANK", "WORLD_SIZE")
)


def available_cores() -> int:
    """Cores that this process may use: of the machine, or of its share where a scheduler limits it."""
    share = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE")
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(own, int(share)) if share else own


def thread_variables(threads: int) -> dict[str, str]:
    """The variables that pin the threads of a process, so that equal runs are equal to the bit.

    Threads that wait sleep: spinning, they would keep other runs on the machine off its cores.
    """
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}


@cache
def visible_gpus() -> tuple[str, ...]:
    """The GPUs that a worker would see, as CUDA_VISIBLE_DEVICES names them. Where the system has a device that may be
    one, torch is asked, in a process of its own."""
    if not any(path.exists() for pattern in GPU_DEVICES for path in Path("/dev").glob(pattern)):
        return ()
    command = [sys.executable, "-P", "-c", "import torch; print(torch.cuda.device_count())"]
    count = int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",") if named else [str(index) for index in range(count)]
    return tuple(name.strip() for name in names[:count])


def without_place(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose processes do not take the place of this one, in a step of SLURM or a group of processes."""
    return {name: value for name, value in environment.items() if name not in PLACE_VARIABLES}


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of a worker: pinned threads, this copy of the code first, no talk from tokenizers."""
    known = os.environ.get("PYTHONPATH")
    return without_place(os.environ) | {
        **thread_variables(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *([known] if known else [])]),
    }


def work_here(
    layout: Layout,
    arguments: Sequence[str],
    *,
    environments: Sequence[Mapping[str, str]],
    watch: Callable[[], None],
    interval_seconds: float,
) -> int:
    """Run a worker in each environment until all end, calling `watch` now and then; the worst of their exit codes.

    `arguments` are flags and references of their command. Ctrl-C, SIGTERM and SIGHUP are passed on: workers save what
    they have and the same command goes on later.
    """
    command = [sys.executable, "-m", "neobert.work", "--runs", str(layout.root), *arguments]
    codes = wait_for([start_child(command, environment) for environment in environments], watch, interval_seconds)
    return EXIT_DONE if EXIT_DONE in codes else max((code for code in codes if code > 0), default=EXIT_RUN_FAILED)
