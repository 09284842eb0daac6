"""Position encodings: learned vectors added to the embeddings, or rotated queries and keys.

Every kind has three hooks: `add` changes the embeddings, `rotation` returns the rotation of queries and keys in each
block, and `score_bias` returns a bias for the attention scores. A kind overrides only those that it needs.
"""

from typing import Literal, Self

import torch
from torch import Tensor, nn

from neobert import recipe
from neobert.model.attention import gather_tokens, send
from neobert.own_code import Parts

RotationForm = Literal["complex", "real", "halves"]
"""How rotations are computed: `complex` is three times as fast as the others in eager mode, `real` can be exported,
`halves` can be vectorized by a compiler."""


def rotation_form(block: nn.Module) -> RotationForm:
    """Return the form for the way in which the model runs now: compiled or eagerly. `block` is any of its blocks: they
    may be compiled alone, which gives each a `forward` of its own."""
    return "halves" if torch.compiler.is_compiling() or "forward" in vars(block) else "complex"


class Rotation:
    """Rotation of queries and keys by their positions in one forward pass; this base class is the identity.

    tables: (rows, tokens, …) rotations of the tokens.
    wants_even_dimensions_first: whether the dimensions of a head are to come in the order 0, 2, …, 1, 3, …. This order
        does not change attention scores, and costs nothing if the rows of the projections' weights have it.
    """

    wants_even_dimensions_first = False

    def __init__(self, *tables: Tensor) -> None:
        self.tables = tables

    def at(self, indices: Tensor) -> Self:
        """Return the rotation of the tokens at `indices` (rows, slots) of the flattened rows."""
        return type(self)(*(gather_tokens(table, indices) for table in self.tables))

    def to(self, device: torch.device | str) -> Self:
        """Return a copy on a device."""
        return type(self)(*(send(table, device) for table in self.tables))

    def rotate(self, vectors: Tensor) -> Tensor:
        """Rotate `vectors` (rows, tokens, heads, head size) in fp32; return them in their own dtype."""
        return vectors

    def ordered(self, vectors: Tensor) -> Tensor:
        """Return `vectors` (…, head size) with the dimensions in the order that `rotate` wants."""
        if not self.wants_even_dimensions_first:
            return vectors
        return vectors.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


class ComplexRotation(Rotation):
    """Complex rotation of adjacent pairs by phases (rows, tokens, head size / 2)."""

    def rotate(self, vectors: Tensor) -> Tensor:
        (phases,) = self.tables
        pairs = torch.view_as_complex(vectors.float().unflatten(-1, (-1, 2)))
        rotated = pairs * phases[:, :, None]
        return torch.view_as_real(rotated).flatten(-2).to(vectors.dtype)


class RealRotation(Rotation):
    """The same rotation in real numbers: cosine and sine (rows, tokens, head size)."""

    def rotate(self, vectors: Tensor) -> Tensor:
        cosine, sine = (table[:, :, None] for table in self.tables)
        straight = vectors.float()
        swapped = straight.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return (straight * cosine + swapped * sine).to(vectors.dtype)


class HalvesRotation(Rotation):
    """The same rotation of heads with even dimensions first: cosine and sine (rows, tokens, head size / 2).

    Both halves are contiguous, so that a compiler vectorizes them; it does not vectorize adjacent pairs.
    """

    wants_even_dimensions_first = True

    def rotate(self, vectors: Tensor) -> Tensor:
        cosine, sine = (table[:, :, None] for table in self.tables)
        even, odd = vectors.float().chunk(2, dim=-1)
        return torch.cat((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1).to(vectors.dtype)


class Positions(nn.Module):
    """Base class whose hooks change nothing. A new kind overrides those that it needs, and is a row of `POSITIONS` or
    a class in a user's file."""

    def add(self, embeddings: Tensor, positions: Tensor, longest: int) -> Tensor:
        """Add `positions` (rows, tokens), −1 at padding, to `embeddings` (rows, tokens, width); no document has more
        than `longest` tokens."""
        return embeddings

    def rotation(self, positions: Tensor, form: RotationForm) -> Rotation:
        """Return the rotation of queries and keys at `positions` (rows, tokens), computed in a `form`."""
        return Rotation()

    def score_bias(self, positions: Tensor) -> Tensor | None:
        """Return the bias of all blocks' scores, (rows, heads, tokens, tokens) of query and key, for `positions`
        (rows, tokens), −1 at padding. Values between documents that do not see each other have no effect."""
        return None


class LearnedPositions(nn.Embedding, Positions):
    """Table of context + 1 vectors, as in RoBERTa: row 0 is for padding, row i + 1 for position i."""

    def __init__(self, model: recipe.Model, context: int) -> None:
        super().__init__(context + 1, model.width)

    def add(self, embeddings: Tensor, positions: Tensor, longest: int) -> Tensor:
        """Add the vectors of `positions` (rows, tokens), −1 at padding, to `embeddings` (rows, tokens, width). Raises
        ValueError if a document is longer than the table."""
        context = self.num_embeddings - 1
        # The values are read only if the bound is too large, because reading them needs a sync with a GPU.
        if longest > context and int(positions.max()) >= context:
            raise ValueError(
                f"a document has {int(positions.max()) + 1} tokens, but the learned position table has {context}: "
                f"truncate it to {context} tokens, or take a model with rotary positions or a longer context"
            )
        return embeddings + self(positions + 1)


class RotaryPositions(Positions):
    """Rotary position embedding (Su et al. 2021) of adjacent pairs.

    It has no parameters or buffers, so models can be built on the meta device and loaded later, and any length works.
    Eager and exported models compute the angles once per forward pass. A compiler would fuse that into every block,
    forward and backward, so a compiled model reads a table that is computed during tracing. Angles are fp32, as in the
    released code.
    """

    def __init__(self, model: recipe.Model, context: int) -> None:
        super().__init__()
        self.head_size = model.width // model.heads
        self.base = model.rotary_base
        self.context = context

    def rotation(self, positions: Tensor, form: RotationForm) -> Rotation:
        if form == "halves":
            # Positions are smaller than the row; padding (−1) may get any rotation, as it is masked.
            row = positions.shape[1]  # a symbol where sizes are dynamic, but the table is a constant
            tokens = self.context if row <= self.context else row
            table = _rotary_table(self.head_size, self.base, tokens, positions.device)
            return HalvesRotation(*table[:, positions.clamp(min=0)].unbind())
        angles = _angles(positions, self.head_size, self.base)
        if form == "real":
            sine = torch.stack((-angles.sin(), angles.sin()), dim=-1).flatten(-2)
            return RealRotation(angles.cos().repeat_interleave(2, dim=-1), sine)
        return ComplexRotation(torch.polar(torch.ones_like(angles), angles))


def _angles(positions: Tensor, head_size: int, base: float) -> Tensor:
    """Return the fp32 angles (…, head size / 2) of `positions` (…)."""
    exponents = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    return positions.unsqueeze(-1) * (1.0 / base**exponents)


@torch.compiler.assume_constant_result
def _rotary_table(head_size: int, base: float, tokens: int, device: torch.device) -> Tensor:
    """Return cosine and sine of every position, (2, tokens, head size / 2), as a constant of the traced graph."""
    with torch.inference_mode(False):  # training may reuse a graph traced in an evaluation
        angles = _angles(torch.arange(tokens, device=device), head_size, base)
        # A parameter, as a plain tensor would get symbolic sizes in a graph with dynamic ones, and guards on them fail.
        return nn.Parameter(torch.stack((angles.cos(), angles.sin())), requires_grad=False)


POSITIONS = Parts[Positions](
    "position encoding",
    "the recipe of the model and the context in tokens",
    {"learned": LearnedPositions, "rotary": RotaryPositions},
)
