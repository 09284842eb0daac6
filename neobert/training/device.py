"""Where a process computes."""

import os

import torch


def default_device() -> torch.device:
    """The GPU of this process where there is one, else the CPU.

    A process takes the GPU of its local rank; where it sees fewer (SLURM may show each task its own alone), the first.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
    return torch.device("cuda", local_rank % torch.cuda.device_count())
