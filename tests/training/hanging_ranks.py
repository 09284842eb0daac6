"""A worker whose collectives hang as NCCL's do when a rank is gone, and one of whose ranks fails."""

import threading
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from neobert.runs import worker
from neobert.training import distributed
from neobert.training.engine import Engine

FAILING_STEP = 3


def main(arguments: Sequence[str]) -> int:
    """Work on a run; arguments: root, reference, the rank that fails, whether an abort ends a collective."""
    root, reference, failing, can_be_aborted = arguments
    distributed.WATCH_SECONDS = distributed.ABORT_SECONDS = 0.5
    aborted, steps = threading.Event(), iter(range(1, 1000))
    all_reduce, step, destroy = dist.all_reduce, Engine.step, dist.destroy_process_group

    def hang(*arguments: Any, **named: Any) -> Any:
        try:
            return all_reduce(*arguments, **named)
        except RuntimeError:
            while not aborted.wait(0.1):
                pass
            raise RuntimeError("aborted") from None

    def fail(engine: Engine, *arguments: Any, **named: Any) -> Any:
        if next(steps) == FAILING_STEP and dist.get_rank() == int(failing):
            raise RuntimeError("the gradient is lost")
        return step(engine, *arguments, **named)

    def destroy_once_aborted() -> None:
        assert aborted.wait(20), "destroying the group hangs"
        destroy()

    dist.all_reduce, Engine.step = hang, fail
    if can_be_aborted == "True":
        dist.ProcessGroup.abort = lambda group: aborted.set()
        dist.destroy_process_group = destroy_once_aborted
    return worker.main(["--runs", root, reference])
