"""Where a process computes."""

import os

import torch


def default_device() -> torch.device:
    """The GPU of this process (by its local rank) where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")
