"""Picking the tokens at which something is computed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


def take(values: Tensor, columns: Tensor) -> Tensor:
    """Entries of `values` (rows, tokens, …) at `columns` (rows, slots) of their rows: (rows, slots, …)."""
    return take_places(values, _places(columns, values.shape[1]))


def take_places(values: Tensor, places: Tensor) -> Tensor:
    """Entries of `values` (rows, tokens, …) at `places` of the flattened rows, in the shape of `places`."""
    return values.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape)


def _places(columns: Tensor, tokens: int) -> Tensor:
    first = torch.arange(columns.shape[0], device=columns.device).unsqueeze(1) * tokens
    return columns + first


@dataclass(frozen=True, eq=False)
class Slots:
    """The tokens at which alone the last block computes more than keys and values.

    queries: int64 places in the flattened rows × tokens. For kernels that work row by row (rows, most), those of a row
        in its own line and any place of the row where it has fewer; for variable-length kernels (1, slots), ascending.
    used: (slots,) int64, which of the flattened queries are wanted, in the order of the result; all where it is None.
    boundaries: int32 cumulated slots of the documents, for variable-length kernels.
    """

    queries: Tensor
    used: Tensor | None = None
    boundaries: Tensor | None = None

    @classmethod
    def at(cls, columns: Tensor, tokens: int, used: Tensor | None = None) -> Self:
        """Those at `columns` (rows, most) of rows of `tokens`."""
        return cls(_places(columns, tokens), used)

    @property
    def places(self) -> Tensor:
        """(slots,) places in the flattened rows × tokens."""
        return self.wanted(self.queries)

    def wanted(self, values: Tensor) -> Tensor:
        """What is wanted of `values`, one entry for each query, (rows, most, …): (slots, …)."""
        flat = values.flatten(0, 1)
        return flat if self.used is None else flat.index_select(0, self.used)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same with `change` done to each tensor."""
        used = None if self.used is None else change(self.used)
        boundaries = None if self.boundaries is None else change(self.boundaries)
        return type(self)(change(self.queries), used, boundaries)
