"""Where a process computes."""

import os

import torch


def default_device() -> torch.device:
    """The GPU of this process, which becomes its current one, or the CPU where there is none.

    A process takes the GPU of its local rank, or the only one that it sees (SLURM may show each task its own alone).

    Raises:
        ValueError: it sees several GPUs, all of which are those of processes before it.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
    count = torch.cuda.device_count()
    if 1 < count <= local_rank:
        raise ValueError(f"process {local_rank} of this machine sees {count} GPUs, one for each of those before it")
    index = local_rank if count > 1 else 0
    torch.cuda.set_device(index)  # streams, events and memory are those of the current one
    return torch.device("cuda", index)
