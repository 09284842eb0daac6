"""Muon against AdamW on M2.

python ablations/run.py --ladder examples/muon.py --list
python ablations/run.py --ladder examples/muon.py --variant all --scale tiny --stages pretrain --cluster here

Names can give another rate (muon@rate4e-3). docs/muon.md has a measurement at the scale study.
"""

from dataclasses import replace

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant

ADAMW = Modification("AdamW", source=ladder.ADAMW.source, optimization={"optimizer": "adamw", "weight_decay": 0.01})
FP32 = Modification("fp32", source="this study: products in bf16 are slow with AVX2", precision="fp32")
MUON = Modification(
    "Muon",
    source="Jordan et al. 2024, kellerjordan.github.io/posts/muon; arXiv 2502.16982 §2.2: rate and decay of AdamW",
    optimization={"optimizer": "muon"},  # momentum is M2's beta1
)

BASE = Variant("adamw", "AdamW on M2", "this study", FP32.apply(ADAMW.apply(ladder.M2.recipe)))
ARM = BASE.derive("muon", MUON)

SHAPES = {(12, 768): (2, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200)
SCALES = {"tiny": replace(TINY, contexts={512: 64}, tokens_per_step={131_072: 256}, steps={1_000_000: 6})}
