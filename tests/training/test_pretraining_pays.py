"""The claim of the smoke scale: what pre-training learns from the synthetic corpus decides its GLUE tasks."""

import json
import statistics
from pathlib import Path

import pytest
import torch

from ablations import run
from ablations.loading import papers
from ablations.names import chosen_variants
from ablations.plan import plan
from ablations.scaling import synthetic_documents
from neobert.data.sources import open_source
from neobert.executors.glue import _fine_tuner
from neobert.glue.finetuning import FineTuner
from neobert.kinds.glue import GlueStudy
from neobert.processes import StopRequest
from neobert.runs.layout import Layout
from neobert.training import checkpoints

SEEDS = (0, 1, 2)


def score_from_random_weights(layout: Layout, study: GlueStudy) -> float:
    """Best of the same grid from the untrained weights of step 0."""
    untrained = checkpoints.load(layout.pretraining(study.weights) / "checkpoints", 0).weights()
    start = {name: tensor for name, tensor in untrained.items() if name.startswith("model.")}
    prepared = _fine_tuner(layout, study.task, study.id, StopRequest())
    tuner = FineTuner(prepared.classifier, start, prepared.encoded, study.protocol, torch.device("cpu"))
    return max(tuner.run(point, study.seed).score or 0.0 for point in study.points)


@pytest.mark.slow
def test_the_pretrained_smoke_model_beats_random_weights_by_ten_points(tmp_path: Path) -> None:
    """Average of the eight tasks, best of the grid for both, over three seeds."""
    seeds = [str(seed) for seed in SEEDS]
    assert run.main(["--variant", "M5", "--seed", *seeds, "--runs", str(tmp_path)]) == 0
    torch.set_num_threads(1)
    layout = Layout(tmp_path)
    source = open_source("synthetic", synthetic_documents=synthetic_documents(papers(), "smoke"))
    gains = []
    for row in plan(papers(), chosen_variants(papers(), ["M5"]), SEEDS, "smoke", source, layout):
        studies = [unit.run for unit in row.planned if isinstance(unit.run, GlueStudy)]
        trained = {study.task: json.loads(study.closing(layout).record.read_text())["score"] for study in studies}
        random = {study.task: score_from_random_weights(layout, study) for study in studies}
        for task, score in trained.items():
            print(f"seed {row.seed} {task}: pre-trained {100 * score:.1f}, random {100 * random[task]:.1f}")
        gains.append(100 * (statistics.mean(trained.values()) - statistics.mean(random.values())))
        print(f"seed {row.seed} average gain {gains[-1]:.1f}")
    assert statistics.mean(gains) >= 10
