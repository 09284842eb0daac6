"""Smoke scale shrunk once more, for tests that train: runs of seconds, planned and executed as any other."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from ablations import scales

SHAPES = {(12, 768): (2, 16), (16, 1056): (3, 24), (16, 1008): (3, 16), (28, 768): (5, 16)}


@contextmanager
def toy(**changes: Any) -> Iterator[None]:
    """Within, smoke scale has a few steps and examples, and `changes`; workers read it from run.json. Reports compare
    what did not train, too."""
    rules = replace(
        scales.SMOKE,
        shapes={"trained": SHAPES, "published": SHAPES},
        heads=2,
        precision="fp32",
        documents=600,
        steps={1_000_000: 6, 50_000: 3},
        grid={
            "batch_sizes": {32: 16},
            "learning_rates": {2e-5: 1e-3, 3e-5: 2e-3},
            "weight_decays": {1e-2: 1e-2, 1e-5: 0.0},
        },
        finetuning={**scales.SMOKE.finetuning, "epochs": 1, "train_examples": 64, "evaluations_per_epoch": 1},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reports.scores.LEAST_GAIN", -math.inf)  # nothing is learned in so few steps
        patch.setattr(scales, "SMOKE", replace(rules, **changes))
        patch.setitem(scales.RULES, "smoke", scales.SMOKE)  # type: ignore[arg-type]
        yield


@pytest.fixture
def toy_scale() -> Iterator[None]:
    """`toy` for one test."""
    with toy():
        yield


@pytest.fixture(scope="module")
def toy_scale_of_module() -> Iterator[None]:
    """`toy` for a whole module."""
    with toy():
        yield
