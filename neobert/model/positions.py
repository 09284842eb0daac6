"""How a model knows where a token stands: learned vectors added to the embeddings, or rotated queries and keys.

Every kind has three hooks: `add` changes the embeddings, `rotation` gives what is done to queries and keys in each
block, `score_bias` what is added to the attention scores. A kind that works by one leaves the others empty.
"""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from neobert import recipe
from neobert.model.attention import take_places


class Rotation:
    """What one forward pass does to queries and keys because of where they stand: nothing here.

    tables: (rows, tokens, …) what the tokens are turned by.
    even_first: it wants the numbers of a head with the even ones first; scores of queries and keys do not change by it.
    """

    even_first = False

    def __init__(self, *tables: Tensor) -> None:
        self.tables = tables

    def at(self, places: Tensor) -> Self:
        """The same for the tokens at `places` (rows, slots) of the flattened rows alone."""
        return type(self)(*(take_places(table, places) for table in self.tables))

    def turn(self, vectors: Tensor) -> Tensor:
        """`vectors` (rows, tokens, heads, parts, head size) turned in fp32, in their own dtype."""
        return vectors


class ComplexRotation(Rotation):
    """Adjacent pairs as complex numbers times phases (rows, tokens, head size / 2): three times as fast in eager."""

    def turn(self, vectors: Tensor) -> Tensor:
        (phases,) = self.tables
        pairs = torch.view_as_complex(vectors.float().unflatten(-1, (-1, 2)))
        turned = pairs * phases[:, :, None, None]
        return torch.view_as_real(turned).flatten(-2).to(vectors.dtype)


class RealRotation(Rotation):
    """The same in real numbers, which exporters understand: cosine and sine (rows, tokens, head size)."""

    def turn(self, vectors: Tensor) -> Tensor:
        cosine, sine = (table[:, :, None, None] for table in self.tables)
        straight = vectors.float()
        swapped = straight.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return (straight * cosine + swapped * sine).to(vectors.dtype)


class HalvesRotation(Rotation):
    """The same on heads with their even numbers first: cosine and sine (rows, tokens, head size / 2).

    Both halves are runs of neighbours, which a compiler turns into vector instructions; adjacent pairs it does not.
    """

    even_first = True

    def turn(self, vectors: Tensor) -> Tensor:
        cosine, sine = (table[:, :, None, None] for table in self.tables)
        even, odd = vectors.float().chunk(2, dim=-1)
        return torch.cat((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1).to(vectors.dtype)


class Positions(nn.Module):
    """All hooks, empty. A new kind overrides those that it needs and is a row of `POSITIONS`."""

    def add(self, embeddings: Tensor, positions: Tensor, longest: int) -> Tensor:
        """`embeddings` (rows, tokens, width), changed by `positions` (rows, tokens), −1 at padding; no document has
        more than `longest` tokens."""
        return embeddings

    def rotation(self, positions: Tensor, real: bool = False) -> Rotation:
        """What the blocks do to queries and keys at `positions` (rows, tokens); `real` keeps to real numbers and to
        the order of the numbers in a head."""
        return Rotation()

    def score_bias(self, positions: Tensor) -> Tensor | None:
        """What is added to the scores of all blocks, (rows, heads, tokens, tokens) of query and key, for `positions`
        (rows, tokens), −1 at padding. Numbers between documents that do not see each other are without effect."""
        return None


class LearnedPositions(nn.Embedding, Positions):
    """A table of context + 1 vectors, as in RoBERTa: row 0 is padding's, row i + 1 that of place i."""

    def __init__(self, model: recipe.Model, context: int) -> None:
        super().__init__(context + 1, model.width)

    def add(self, embeddings: Tensor, positions: Tensor, longest: int) -> Tensor:
        """`embeddings` (rows, tokens, width) plus the vectors of `positions` (rows, tokens), −1 at padding.

        Raises:
            ValueError: a document is longer than the table.
        """
        context = self.num_embeddings - 1
        # The values are looked at only where the bound does not do, for a GPU would have to be waited for.
        if longest > context and int(positions.max()) >= context:
            raise ValueError(
                f"a document has {int(positions.max()) + 1} tokens, but the learned position table holds {context}: "
                f"truncate it to {context} tokens, or take a model with rotary positions or a longer context"
            )
        return embeddings + self(positions + 1)


class RotaryPositions(Positions):
    """Queries and keys turned by angles that grow with their place (Su et al. 2021), in adjacent pairs.

    Holds neither parameters nor buffers, so nothing is lost when a model is built without memory and loaded later, and
    no length is too long. Eager and exported models compute the angles once in each forward pass. A compiler would fuse
    that into every block, forward and backward, so a compiled model reads a table that was computed while it was
    traced. Angles are fp32, as in the released code.
    """

    def __init__(self, model: recipe.Model, context: int) -> None:
        super().__init__()
        self.head_size = model.width // model.heads
        self.base = model.rotary_base
        self.context = context

    def table(self, tokens: int, device: torch.device) -> Tensor:
        """(2, tokens, head size / 2): cosine and sine of every place, a constant of the graph that is being traced."""
        return _rotary_table(self.head_size, self.base, tokens, device)

    def rotation(self, positions: Tensor, real: bool = False) -> Rotation:
        """The turn of each token of `positions` (rows, tokens), in `real` numbers where asked or traced."""
        if not real and torch.compiler.is_compiling():
            # No place lies beyond its row, and −1 is padding, whose turn nobody sees.
            tokens = max(self.context, positions.shape[1])
            table = self.table(tokens, positions.device)
            return HalvesRotation(*table[:, positions.clamp(min=0)].unbind())
        angles = _angles(positions, self.head_size, self.base)
        if real or torch.jit.is_tracing():
            sine = torch.stack((-angles.sin(), angles.sin()), dim=-1).flatten(-2)
            return RealRotation(angles.cos().repeat_interleave(2, dim=-1), sine)
        return ComplexRotation(torch.polar(torch.ones_like(angles), angles))


class LocalRotaryPositions(RotaryPositions):
    """The same with the base of local blocks."""

    def __init__(self, model: recipe.Model, context: int) -> None:
        super().__init__(model, context)
        assert model.local_rotary_base is not None
        self.base = model.local_rotary_base

    def table(self, tokens: int, device: torch.device) -> Tensor:
        # torch names a constant of a graph by its function, so that two tables need two.
        return _local_rotary_table(self.head_size, self.base, tokens, device)


def _angles(positions: Tensor, head_size: int, base: float) -> Tensor:
    """(…, head size / 2) fp32 angles of `positions` (…)."""
    exponents = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    return positions.unsqueeze(-1) * (1.0 / base**exponents)


@torch.compiler.assume_constant_result
def _rotary_table(head_size: int, base: float, tokens: int, device: torch.device) -> Tensor:
    return _cosine_and_sine(head_size, base, tokens, device)


@torch.compiler.assume_constant_result
def _local_rotary_table(head_size: int, base: float, tokens: int, device: torch.device) -> Tensor:
    return _cosine_and_sine(head_size, base, tokens, device)


def _cosine_and_sine(head_size: int, base: float, tokens: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # training may use a graph that an evaluation traced first
        angles = _angles(torch.arange(tokens, device=device), head_size, base)
        return torch.stack((angles.cos(), angles.sin()))


POSITIONS: dict[str, Callable[[recipe.Model, int], Positions]] = {
    "learned": LearnedPositions,
    "rotary": RotaryPositions,
}
