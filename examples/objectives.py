"""Masked, causal, or causal and then masked pre-training of M2 (arXiv 2507.00994), and mask rates that are drawn.

python ablations/run.py --ladder examples/objectives.py --list
python ablations/run.py --ladder examples/objectives.py --variant all --stages pretrain --cluster here

All arms see as many tokens, and the learning rate has one course, whether it lies in one stage or in two. Fine-tuning
reads both sides after every arm. The held-out loss is of masked tokens; an arm that ends causal has none. What the arms
gave at the scale `small`: docs/objectives.md.
"""

from dataclasses import replace

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant
from declarations import parts

PAPER = "Gisserot-Boukhlef et al. 2025, arXiv 2507.00994"
STEPS, WARMUP, DECAY = 1_000_000, 100_000, 200_000
RATE = Modification(
    "40% masking, all [MASK]", source=PAPER, masking={"rate": 0.4, "mask_share": 1.0, "random_share": 0.0}
)
PLATEAU = Modification(
    "Warm-up, stable, decay",
    source="this study: a tenth and a fifth of the steps, which last at every scale",
    stages=({"warmup_steps": WARMUP, "stable_steps": STEPS - WARMUP - DECAY, "decay_steps": STEPS},),
)
BASE = Variant("masked", "Masked", PAPER, PLATEAU.apply(RATE.apply(ladder.M2.recipe)))
CAUSAL = BASE.derive("causal", Modification("Causal", source=PAPER, stages=({"objective": "causal"},)), kept=False)


def two_stages(percent: int) -> Variant:
    """Causal for some percent of the steps, at the peak rate; then masked to the end of the decay."""
    causal = STEPS * percent // 100
    masked = STEPS - causal
    first = {"objective": "causal", "steps": causal, "stable_steps": 0, "decay_steps": 0}
    second = {"objective": "masked", "steps": masked, "warmup_steps": 0, "decay_steps": masked}
    change = Modification(
        f"{percent}% causal, then masked",
        source=PAPER,
        stages=(first, second | {"stable_steps": masked - DECAY}),
    )
    return BASE.derive(f"causal{percent}", change, kept=False)


TWO_STAGES = [two_stages(percent) for percent in (25, 50, 75)]
RATES = Modification(
    "Rates of 15% to 65%", source="arXiv 2406.07524, without its weights", masking={"rate": 0.15, "drawn_up_to": 0.65}
)
DRAWN = BASE.derive("drawn", RATES, kept=False)

SHAPES = {(12, 768): (2, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200)
SCALES = {
    "tiny": replace(TINY, contexts={512: 64}, tokens_per_step={131_072: 256}, steps={1_000_000: 8}),
    "small": replace(parts.SCALES["parts"], steps={1_000_000: 4000}),
}
SCALE = "tiny"
TASKS = [task.model_copy(update={"folder": "../declarations/UD_English-EWT"}) for task in parts.TASKS]
