"""How work is executed; nothing in it affects a result."""

from datetime import UTC, datetime
from typing import ClassVar, Literal, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from neobert.identity import plain
from neobert.recipe import ANY, EngineWord, Value

HeldoutWord = Literal["own", "all"]
CompileWord = Literal["auto", "on", "off"]


class Execution(Value):
    """How a run is executed; nothing in it affects a result.

    `engine` is how processes share a model: not at all (single), each with a full copy (ddp), with the optimizer state
    sharded (zero1), or with the gradients sharded too (zero2). With one process all are the same. Every
    `checkpoint_interval_steps` a checkpoint is written if the last one is `checkpoint_interval_seconds` old. `compile`
    is whether models are compiled; auto compiles on a GPU. `deterministic` makes a GPU sum in a fixed order, at some
    cost. `heldout` is on which corpora of the source the held-out loss is measured, and `heldout_context` a second
    context (tokens) for it, so that runs with different contexts can be compared.
    """

    retired: ClassVar = {"checkpoint_words": ANY, "trace_steps": ANY}

    threads: PositiveInt
    processes: PositiveInt
    micro_batch_tokens: PositiveInt
    checkpoint_interval_steps: PositiveInt
    checkpoint_interval_seconds: NonNegativeInt = 0
    engine: EngineWord = "ddp"
    compile: CompileWord = "auto"
    deterministic: bool = False
    heldout: HeldoutWord = "own"
    heldout_context: PositiveInt | None = None

    @model_validator(mode="after")
    def _engine_serves_all_processes(self) -> Self:
        if self.engine == "single" and self.processes > 1:
            raise ValueError(
                f"engine 'single' trains in one process, not in {self.processes}: choose ddp, zero1 or zero2, "
                "or give the run one process"
            )
        return self

    def with_processes(self, processes: int) -> "Execution":
        """Return a copy with another number of processes. Raises ValueError if the engine cannot use so many."""
        return Execution.model_validate(plain(self) | {"processes": processes})


def utc_now() -> str:
    """Return the time in UTC, to the second, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
