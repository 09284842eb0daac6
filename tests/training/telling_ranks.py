"""A worker whose ranks say how many bytes of the optimizer's state each of them holds."""

import sys
from collections.abc import Sequence
from typing import Any

from neobert.runs import worker
from neobert.training.accounting import TrainResult
from neobert.training.trainer import Trainer


def main(arguments: Sequence[str]) -> int:
    """Work on runs; the arguments are those of a worker."""
    fit = Trainer.fit

    def fit_and_tell(trainer: Trainer[Any], *words: Any, **named: Any) -> TrainResult:
        result = fit(trainer, *words, **named)
        print(f"rank {trainer.process.rank}: {result.optimizer_state_bytes} bytes", file=sys.stderr)
        return result

    Trainer.fit = fit_and_tell  # type: ignore[method-assign]
    return worker.main(arguments)
