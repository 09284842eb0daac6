"""M9 in its own shape, for the speed of a GPU: 300 steps of 65,536 tokens at each of its contexts.

python ablations/run.py --ladder benchmarks/speed.py --scale speed --variant M9 --stages pretraining --compile on
"""

from dataclasses import replace

from ablations.ladder import M0, M1, M2, M3, M4, M5, M6, M7, M8, M9
from ablations.scales import PROXY

__all__ = ["M0", "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M9"]

SHAPES = {(28, 768): (28, 768)}
SPEED = replace(
    PROXY,
    shapes={"trained": SHAPES, "published": SHAPES},
    heads=12,
    contexts={1024: 1024, 2048: 2048, 4096: 4096},
    tokens_per_step={2_097_152: 65_536},
    steps={1_000_000: 300, 50_000: 300},
    peak_learning_rates={6e-4: 6e-4},
    documents=4000,
)
SCALES = {"speed": SPEED, "initial": replace(SPEED, steps={1_000_000: 1, 50_000: 1})}
"""`initial` leaves the initial weights almost as they are."""
