"""Encoders on a device, timed step by step."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.batch_search import Found
from benchmarks.measuring import Timing, timed
from benchmarks.peers import parameters
from benchmarks.throughput_models import EncoderShape, Forward, real_tokens, sequences
from neobert.embeddings.encoders import DTYPES
from neobert.recipe import Precision

WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Speed:
    """Time of a real token in each timed step of one model at one length, at the best batch size found."""

    encoder: EncoderShape
    parameters: int
    tokens: int
    found: Found
    per_token: tuple[Timing, ...]

    @property
    def tokens_per_second(self) -> list[float]:
        """The speed of each step by the clock."""
        return [1 / timing.wall for timing in self.per_token]

    @property
    def median(self) -> float:
        """The speed that counts."""
        return statistics.median(self.tokens_per_second)


@dataclass(frozen=True, eq=False)
class Running:
    """An encoder that is ready, its forward pass, and how many parameters it has without a head."""

    encoder: EncoderShape
    forward: Forward
    parameters: int
    device: torch.device

    @classmethod
    def of(cls, encoder: EncoderShape, attention: str, device: torch.device, precision: Precision) -> "Running":
        """Built, with all weights in the precision of computing.

        Raises:
            ImportError: the attention wants a package that is not installed.
        """
        module, forward = encoder.build(attention)
        module.to(device, DTYPES[precision])
        return cls(encoder, forward, parameters(module), device)

    @torch.inference_mode()
    def timed(self, rows: int, tokens: int, steps: int) -> list[Timing]:
        """Time of a real token in each of `steps` forward passes of (rows, tokens), after some that do not count.

        Raises:
            torch.OutOfMemoryError: they do not fit; what was taken is given back.
        """
        try:
            token_ids = sequences(rows, tokens, self.encoder.vocabulary_size).to(self.device)
            read = real_tokens(token_ids)
            timings = [timed(lambda: self._step(token_ids)) for _ in range(WARM_UP_STEPS + steps)]
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return [Timing(timing.wall / read, timing.processor / read) for timing in timings[WARM_UP_STEPS:]]

    def _step(self, token_ids: Tensor) -> None:
        self.forward(token_ids)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def timed_in_turns(
    models: Sequence[Running], found: Sequence[Found], tokens: int, steps: int, turns: int
) -> list[Speed]:
    """At least `steps` steps of each model at its best batch size, in `turns`; who goes first changes each time."""
    timings: list[list[Timing]] = [[] for _ in models]
    for turn in range(turns):
        for number in range(len(models)) if turn % 2 == 0 else reversed(range(len(models))):
            rows = found[number].best
            assert rows is not None
            timings[number] += models[number].timed(rows, tokens, -(-steps // turns))
    return [
        Speed(model.encoder, model.parameters, tokens, search, tuple(own))
        for model, search, own in zip(models, found, timings, strict=True)
    ]
