"""Learned positions or RoPE on M0: the two arms of `make demo`, each with two seeds.

python ablations/run.py --ladder examples/demo.py --variant all --seed 0 1 --stages pretrain --cluster here
python -m reports.demo
"""

from dataclasses import replace

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant

FP32 = Modification("fp32", source="this study: few processors have fast products in bf16", precision="fp32")
BASE = Variant("learned", "Learned positions", "this study", FP32.apply(ladder.M0.recipe))
ARM = BASE.derive("rope", ladder.ROTARY)

SCALES = {"demo": replace(SMOKE, steps={1_000_000: 1000}, documents=4000)}
