"""Picking the tokens at which something is computed."""

import torch
from torch import Tensor


def take(values: Tensor, slots: Tensor) -> Tensor:
    """Entries of `values` (rows, tokens, …) at `slots` (rows, slots): (rows, slots, …)."""
    rows, tokens = values.shape[:2]
    first = torch.arange(rows, device=slots.device).unsqueeze(1) * tokens
    return values.flatten(0, 1).index_select(0, (slots + first).flatten()).unflatten(0, (rows, -1))
