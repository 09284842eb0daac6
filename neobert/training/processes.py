"""Processes that train one model together: who they are, and how they meet."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from neobert.errors import RunFailed

MEETING_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Process:
    """Place of this process among `count`; the one of rank 0 owns the claim and writes."""

    rank: int
    count: int

    @property
    def writes(self) -> bool:
        """Whether this process publishes."""
        return self.rank == 0


@contextmanager
def group(process: Process, meeting: Path) -> Iterator[None]:
    """Meet the other processes at a file that all can see, and part when done. One process needs no group."""
    if process.count == 1:
        yield
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{meeting}", rank=process.rank, world_size=process.count, timeout=MEETING_TIMEOUT
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def helpers(runs: Path, run_id: str, meeting: Path, count: int) -> Iterator[None]:
    """Start the processes of rank 1 … count − 1 on this machine, and make sure that none outlives the first.

    Raises:
        RunFailed: a helper ended with an error.
    """
    started = [_start_helper(runs, run_id, meeting, rank, count) for rank in range(1, count)]
    try:
        yield
        codes = [helper.wait() for helper in started]
    finally:
        for helper in started:
            helper.kill()
    if any(codes):
        raise RunFailed(f"helper processes of run {run_id} ended with exit codes {codes}")


def _start_helper(runs: Path, run_id: str, meeting: Path, rank: int, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "neobert.training.pretraining", str(runs), run_id, str(meeting)]
    environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    return subprocess.Popen(command, env=environment)
