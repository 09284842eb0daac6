"""Steps of pre-training at a small scale, in the checkout that PYTHONPATH names; prints their counts and times as JSON.

PYTHONPATH=CHECKOUT python -P small_scale_steps.py VARIANT SCALE DATA RUNS STEPS

`benchmarks.small_scale` runs it for two checkouts. It imports only what both have: the plan and the trainer.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from ablations.ladders import variants
from ablations.plan import plan
from ablations.scales import execution_at
from neobert.data.preparation import open_specified, specify
from neobert.identity import NUMERICS
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.layout import Layout
from neobert.runs.run_file import RunFile
from neobert.training.distributed import Process
from neobert.training.pretraining import PretrainingTrainer

WARM_UP_STEPS = 5
DOCUMENTS = 20_000
"""Number of synthetic documents; a scale has more, of the same lengths."""


def measure(variant: str, scale: str, data: str, runs: Path, steps: int) -> dict[str, object]:
    """Train `steps` steps of a fresh run and time them, without the first few."""
    source = specify(data, DOCUMENTS, ())
    layout = Layout(runs)
    (row,) = plan([variants()[variant]], [0], scale, open_specified(source), layout, ["pretraining"])
    run = PretrainingRun.among(row.runs)[0]
    execution = execution_at(scale).model_copy(update={"compile": "off"})
    run_file = RunFile(id=run.id, numerics=NUMERICS, run=run, source=source, execution=execution, labels={})
    trainer = PretrainingTrainer(layout, run_file, Process(0, 1))
    trainer.begin()
    training = trainer.steps(0)
    for _ in range(WARM_UP_STEPS):
        next(training)
    wall, processor = time.perf_counter(), time.process_time()
    taken = [next(training) for _ in range(steps)]
    loss = taken[-1].measured().loss
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    digest = hashlib.sha256()
    for weights in trainer.model.state_dict().values():
        digest.update(weights.numpy().tobytes())
    return {
        "id": run.id,
        "precision": run.recipe.precision,
        "real_tokens": sum(step.real_tokens for step in taken),
        "wall_seconds": wall,
        "processor_seconds": processor,
        "loss": loss,
        "weights_sha256": digest.hexdigest(),
    }


if __name__ == "__main__":
    variant, scale, data, runs, steps = sys.argv[1:]
    print(json.dumps(measure(variant, scale, data, Path(runs), int(steps))), flush=True)
    os._exit(0)  # the thread that prepares batches would be joined while the interpreter ends
