"""Where a process that serves one point of the grid spends its time before the first step.

python -m benchmarks.start_up RUNS REFERENCE      prints {part: seconds} as JSON; run it in a fresh process.
"""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path


def laps(root: Path, reference: str) -> dict[str, float]:
    """Seconds of each part, in the order in which a worker meets them: imports, weights, task, model, optimizer."""
    marks = [("", time.perf_counter())]

    def lap(name: str) -> None:
        marks.append((name, time.perf_counter()))

    import torch

    lap("import torch")
    import neobert.glue.metrics

    lap("import scikit-learn and scipy")
    import neobert.training.pretraining
    import neobert.work
    from neobert.glue.encoding import load_encoded
    from neobert.layout import Layout
    from neobert.model.build import build_classifier
    from neobert.specifications import read_run_file
    from neobert.training import checkpoints

    neobert.work.open_units(Layout(root), reference)
    lap("import the rest and read the study")
    study = read_run_file(root / reference).study
    assert study is not None
    folder = Layout(root).pretraining(study.weights)
    pretraining = read_run_file(folder).pretraining
    newest = checkpoints.newest(folder / "checkpoints")
    assert pretraining is not None and newest is not None
    newest.weights()
    lap("weights")
    (cached,) = (root / "data" / "glue").glob(f"{study.task}-*.safetensors")
    task = load_encoded(cached).task
    lap("tokenised task from its cache")
    protocol = study.protocol
    shape, context = pretraining.recipe.model, pretraining.context
    classifier = build_classifier(shape, context, task.labels, protocol.pooling, protocol.dropout)
    lap("build the model")
    torch.optim.AdamW(classifier.parameters(), fused=True)
    lap("first optimizer (torch imports its compiler)")
    return {name: now - before for (_, before), (name, now) in pairwise(marks)}


if __name__ == "__main__":
    print(json.dumps(laps(Path(sys.argv[1]), sys.argv[2])))
