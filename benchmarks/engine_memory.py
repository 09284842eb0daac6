"""From which size on memory asks for ZeRO: what each engine holds on one of eight GPUs, by the plan's own formula.

python -m benchmarks.engine_memory
"""

import sys
from typing import Any

from ablations.ladder import variants
from benchmarks.results import Goal, write_result
from neobert import recipe
from neobert.model.size import MicroBatch, parameter_count, training_memory
from neobert.specifications import EngineWord

GPUS, GPU_GB = 8, 80
ENGINES: tuple[EngineWord, ...] = ("ddp", "zero1", "zero2")
SHAPES = ((28, 768), (28, 1536), (28, 2048), (28, 2304), (32, 2560))
"""Layers and width: NeoBERT's own, then larger ones."""

HEAD_SIZE, CONTEXT, ROWS = 64, 1024, 16
GOAL = Goal(1.0, "at most", f"memory that NeoBERT takes under DDP on each of {GPUS} GPUs / their {GPU_GB} GB")


def held_gb(pretraining: recipe.Pretraining, layers: int, width: int) -> dict[str, Any]:
    """Gigabytes on each GPU under every engine, for this shape."""
    parts = {"layers": layers, "width": width, "heads": width // HEAD_SIZE, "feedforward_width": 4 * width}
    scaled = pretraining.model_copy(update={"model": pretraining.model.model_copy(update=parts)})
    batch = MicroBatch.of(ROWS, CONTEXT, scaled.masking.rate)
    step_tokens = scaled.stages[0].tokens_per_step

    def held(engine: EngineWord) -> float:
        return round(training_memory(scaled, CONTEXT, batch, engine, GPUS, step_tokens).total / 1e9, 1)

    parameters = parameter_count(scaled.model, CONTEXT).total
    gb: dict[str, float] = {engine: held(engine) for engine in ENGINES}
    return {"layers": layers, "width": width, "parameters": parameters, "gigabytes": gb, "needs": _needed(gb)}


def _needed(gb: dict[str, float]) -> str | None:
    """The first engine that fits; None where none does."""
    return next((engine for engine in ENGINES if gb[engine] <= GPU_GB), None)


def main() -> int:
    """The command."""
    pretraining = variants()["M10"].recipe.pretraining
    shapes = [held_gb(pretraining, layers, width) for layers, width in SHAPES]
    figures = {"rows of a micro-batch": ROWS, "context": CONTEXT, "by shape": shapes}
    print(write_result("engine_memory", shapes[0]["gigabytes"]["ddp"] / GPU_GB, GOAL, figures).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
