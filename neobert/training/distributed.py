"""Ranks: the processes that train one model together, their device, and their process group."""

import gc
import logging
import os
import socket
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from neobert.errors import EXIT_RUN_FAILED
from neobert.model.attention import choose_flash_attention
from neobert.processes import gpu_variables, read_count

logger = logging.getLogger(__name__)

COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""How long a collective waits for a live rank, which may be compiling for minutes if the model is deep."""

WATCH_SECONDS = 2.0
"""Interval between a rank's heartbeats, and between its checks for failures of others."""

VANISHED_SECONDS = 60.0
"""A rank without a heartbeat for this long counts as dead."""

ABORT_SECONDS = 10.0
"""How long a rank may take to leave an aborted collective before its process ends."""

FAILURE = "failure"


@dataclass(frozen=True)
class Process:
    """Rank of this process among `count` processes; rank 0 owns the claim and writes."""

    rank: int
    count: int

    @property
    def writes(self) -> bool:
        """Whether this process publishes."""
        return self.rank == 0


ALONE = Process(0, 1)
"""The only process."""


def choose_kernels(deterministic: bool) -> None:
    """Choose deterministic or fast GPU kernels for the work that follows.

    Every operation used in training here has a deterministic form; torch raises an error for one that has none.
    """
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs writes
    os.environ.update(gpu_variables(os.environ))  # read once, by the first product of the process


def default_device() -> torch.device:
    """Return the current GPU, which `set_up_device` chose, or the CPU if there is no GPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def set_up_device() -> torch.device:
    """Make the GPU of this process the current one, choose its kernels of attention, and return it; without a GPU
    return the CPU. Processes call it once, before their first tensor.

    A process uses the GPU of its local rank, or the only visible one (SLURM may show each task only its own).

    Raises:
        ValueError: several GPUs are visible, but all of them belong to lower local ranks.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = read_count(os.environ, "LOCAL_RANK", "SLURM_LOCALID", least=0) or 0
    count = torch.cuda.device_count()
    if 1 < count <= local_rank:
        raise ValueError(f"local rank {local_rank} sees {count} GPUs, which belong to the ranks before it")
    device = torch.device("cuda", local_rank if count > 1 else 0)
    torch.cuda.set_device(device)  # streams, events and memory belong to the current device
    # torch prefers cuDNN's attention on a Hopper (after 2.13 for variable lengths too), which is planned anew, in tens
    # of milliseconds or more, for every new shape. Without it torch takes flash kernels, or with a mask others.
    torch.backends.cuda.enable_cudnn_sdp(False)
    choose_flash_attention(device)
    return device


@contextmanager
def process_group(
    store: Store, process: Process, on_peer_failure: Callable[[str], None] = lambda reason: None
) -> Iterator[None]:
    """Form the process group of a run and destroy it afterwards, once no wrapped model refers to it any more; otherwise
    the process may abort at exit.

    After an error the others are told first, and the group is aborted, because destroying it waits for them.
    """
    try:
        device = set_up_device()
        is_gpu = device.type == "cuda"
        dist.init_process_group(
            "nccl" if is_gpu else "gloo",
            store=PrefixStore("group", store),
            rank=process.rank,
            world_size=process.count,
            timeout=COLLECTIVE_TIMEOUT,
            device_id=device if is_gpu else None,
        )
        with _watch(store, process, on_peer_failure):
            yield
            dist.barrier()  # all ranks leave the collectives before the first one closes its connections
    except Exception as error:
        with suppress(dist.DistError):  # rank 0 may be gone, and the store with it
            tell_failure(store, f"process {process.rank} on {socket.gethostname()}: {error}")
        traceback.clear_frames(error.__traceback__)
        _abort_group()
        raise
    finally:
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()


def _abort_group() -> None:
    """End the collectives of NCCL, which block the host until their time-out when another rank is gone."""
    with suppress(RuntimeError):  # gloo has no abort, and needs none
        if (group := dist.group.WORLD) is not None:
            group.abort()


def tell_failure(store: Store, reason: str) -> str:
    """Tell the other ranks why this one fails; return the first reason of any rank, which is kept."""
    return store.compare_set(FAILURE, "", reason).decode()


@contextmanager
def _watch(store: Store, process: Process, on_peer_failure: Callable[[str], None]) -> Iterator[None]:
    """End this rank soon after another one has failed or died, while the context is active.

    Torch does this for gloo alone, whose collectives fail when a connection is closed. NCCL's block the host until
    their time-out, so they are aborted; if the main thread still does not leave them, the process ends.
    """
    ended, peers = threading.Event(), store.clone()  # type: ignore[attr-defined]  # its stubs lack it

    def watch() -> None:
        reason = _wait_for_failure(peers, process, ended)
        if reason is None:
            return
        _abort_group()
        if not ended.wait(ABORT_SECONDS):
            logger.warning(f"process {process.rank} of {process.count} ends: {reason}")
            on_peer_failure(reason)
            os._exit(EXIT_RUN_FAILED)

    thread = threading.Thread(target=watch, name="peer watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(WATCH_SECONDS)


def _wait_for_failure(store: Store, process: Process, ended: threading.Event) -> str | None:
    """Send heartbeats, and in rank 0 check the others', until `ended`; return why this rank has to end, if it has to.

    Checks without a heartbeat are counted, not seconds, so that ranks that were suspended together are not taken for
    dead.
    """
    beats, missed = Counter[int](), Counter[int]()
    while not ended.wait(WATCH_SECONDS):
        try:
            store.add(f"alive {process.rank}", 1)
            for rank in range(1, process.count) if process.writes else ():
                before, beats[rank] = beats[rank], store.add(f"alive {rank}", 0)
                missed[rank] = missed[rank] + 1 if beats[rank] == before else 0
                if missed[rank] * WATCH_SECONDS > VANISHED_SECONDS:
                    tell_failure(store, f"rank {rank} sent no heartbeat for {VANISHED_SECONDS:g} s")
            if store.check([FAILURE]):
                return store.get(FAILURE).decode()
        except dist.DistError as error:
            return f"rank 0 died ({error})"
    return None


def sum_over_ranks(value: int, process: Process, device: torch.device) -> int:
    """Return the sum of `value` over all ranks, which must call it together.

    In an all-reduce every rank notices when another one is gone. A broadcast to a process that was just killed may
    block until the time-out.
    """
    if process.count == 1:
        return value
    total = torch.tensor(value, device=device)
    dist.all_reduce(total)
    return int(total.item())


def broadcast_from_rank0(value: int, process: Process, device: torch.device) -> int:
    """Return rank 0's `value` in all ranks, which must call it together."""
    return sum_over_ranks(value if process.writes else 0, process, device)
