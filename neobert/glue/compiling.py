"""Whether fine-tuning runs compiled: decided once for a study, by what the points that are left to run can gain."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from neobert.glue.batching import Form, fixed_row_tokens, training_batches
from neobert.glue.encoding import EncodedSplit
from neobert.model.encoder import Encoder
from neobert.recipe import Point, Precision
from neobert.specifications import CompileWord
from neobert.training.compiling import COMPILE_SECONDS, COMPILE_SECONDS_PER_LAYER, SAVED_SHARE, Trial, compiled


@dataclass(frozen=True)
class Compiling:
    """What is asked for. `auto` weighs the `points` that are left to run; `backend` is one of torch.compile's."""

    word: CompileWord = "off"
    points: tuple[Point, ...] = ()
    backend: str | Callable[..., Any] = "inductor"


NEVER = Compiling()


@dataclass(frozen=True)
class Remainder:
    """What is left to do at one batch size.

    steps: updates. seconds: of an eager forward and backward pass. slots_ratio: slots of a batch in fixed sizes to
    those of an eager one, which has less padding. shapes: sizes that would be compiled.
    """

    steps: int
    seconds: float
    slots_ratio: float
    shapes: int


def pays(left: Iterable[Remainder], layers: int, device: torch.device, precision: Precision) -> bool:
    """Whether compiling earns itself back in what is left to do."""
    kept = 1 - SAVED_SHARE[device.type, precision]
    gain_seconds, cost_seconds = 0.0, 0.0
    for part in left:
        gain_seconds += part.steps * part.seconds * (1 - kept * part.slots_ratio)
        cost_seconds += part.shapes * (COMPILE_SECONDS + COMPILE_SECONDS_PER_LAYER * layers)
    return gain_seconds > cost_seconds


@dataclass(frozen=True, eq=False)
class Candidate:
    """An encoder that is to be fine-tuned: its examples, how they come to it, the mean loss of a batch, and the updates
    of a run."""

    encoder: nn.Module
    train: EncodedSplit
    form: Form[Any]
    loss: Callable[[Any], Tensor]
    course_steps: Callable[[Point], int]
    precision: Precision
    device: torch.device

    def compiled(self, compiling: Compiling, batch_size: int) -> bool:
        """Compile the encoder in place for fixed sizes, if that is asked for or pays, and try it; whether it is.

        On CUDA its forward and backward pass become CUDA graphs, as steps of small batches wait for launches alone.

        Raises:
            RunFailed: compiling was asked for, and there is no compiler that works.
        """
        if compiling.word == "off" or self.form.fixed is None:
            return False
        if compiling.word == "auto" and not self._pays(compiling.points):
            return False
        mode = "reduce-overhead" if self.device.type == "cuda" and compiling.backend == "inductor" else None
        trial = self._trial(self._first_batches(batch_size)[1])
        return compiled(trial, compiling.word, backend=compiling.backend, mode=mode)

    def _pays(self, points: Sequence[Point]) -> bool:
        sizes = sorted({point.batch_size for point in points})
        left = [self._left(size, [point for point in points if point.batch_size == size]) for size in sizes]
        return pays(left, len(cast(Encoder, self.encoder).transformer_encoder), self.device, self.precision)

    def _left(self, batch_size: int, points: Sequence[Point]) -> Remainder:
        eager, fixed = self._first_batches(batch_size)
        trial = self._trial(eager)
        trial.seconds()  # the first one is slower
        return Remainder(
            steps=sum(map(self.course_steps, points)),
            seconds=trial.seconds(),
            slots_ratio=fixed.token_ids.numel() / eager.token_ids.numel(),
            shapes=len({fixed_row_tokens(length) for length in self.train.lengths.tolist()}),
        )

    def _first_batches(self, batch_size: int) -> tuple[Any, Any]:
        """The same examples as they are laid out for an eager encoder and for a compiled one."""
        assert self.form.fixed is not None
        examples = next(training_batches(self.train, batch_size, epochs=1, seed=0))
        eager = self.form.lay_out(self.train, examples, self.device)
        return eager, self.form.fixed(self.train, examples, self.device, batch_size)

    def _trial(self, batch: Any) -> Trial:
        return Trial(self.encoder, lambda: self.loss(batch), self.precision, self.device)
