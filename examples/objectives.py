"""Masked, causal, or causal and then masked pre-training of M2 (arXiv 2507.00994), and mask rates that are drawn.

python ablations/run.py --ladder examples/objectives.py --list
python ablations/run.py --ladder examples/objectives.py --variant all --stages pretrain --cluster here

Every arm has two stages, read as many tokens, and has one course of the learning rate: warm-up, peak to 80 % of all
steps, decay. Fine-tuning reads both sides after every arm. The held-out loss is of masked tokens; an arm that ends
causal has none. What the arms gave at the scale `small`: docs/objectives.md.
"""

from dataclasses import replace

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant
from declarations import parts

PAPER, MASKING_PAPER = "Gisserot-Boukhlef et al. 2025, arXiv 2507.00994", "arXiv 2406.07524, without its weights"
STEPS, WARMUP, DECAY_BEGINS = 1_000_000, 40_000, 800_000
EQUAL = "this study: scales bound the half-life by the first stage, whose length differs here"
BETA2 = Modification("beta2 0.995", source=EQUAL, unscaled=True, optimization={"beta2": 0.995})
MASKS = {"rate": 0.4, "mask_share": 1.0, "random_share": 0.0}


def course(first: str, percent: int, last: str, **masking: float) -> Modification:
    """The objective `first` for some percent of the steps, then `last`; the rate stays at its peak between both."""
    steps = STEPS * percent // 100
    left = STEPS - steps
    one = {"objective": first, "steps": steps, "warmup_steps": WARMUP, "stable_steps": steps, "decay_steps": 2 * STEPS}
    two = {
        "objective": last,
        "steps": left,
        "warmup_steps": 0,
        "stable_steps": DECAY_BEGINS - steps,
        "decay_steps": left,
    }
    return Modification(f"{percent}% {first}, then {last}", source=PAPER, masking=masking, stages=(one, two))


BASE = Variant("masked", "Masked", PAPER, course("masked", 75, "masked", **MASKS).apply(BETA2.apply(ladder.M2.recipe)))
CAUSAL = BASE.derive("causal", course("causal", 75, "causal"), kept=False)
TWO_STAGES = [BASE.derive(f"causal{part}", course("causal", part, "masked"), kept=False) for part in (25, 50, 75)]
BERT = {"rate": 0.15, "mask_share": 0.8, "random_share": 0.1}
MASKED15 = BASE.derive("masked15", Modification("15%, 80/10/10", source="arXiv 1810.04805", masking=BERT), kept=False)
RATES = Modification("Rates of 15% to 65%", source=MASKING_PAPER, masking={"rate": 0.15, "drawn_up_to": 0.65})
DRAWN = BASE.derive("drawn", RATES, kept=False)

SHAPES = {(12, 768): (2, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200)
SCALES = {
    "tiny": replace(TINY, contexts={512: 64}, tokens_per_step={131_072: 256}, steps={1_000_000: 8}),
    "small": replace(parts.SCALES["parts"], steps={1_000_000: 4000}),
}
SCALE = "tiny"
TASKS = [task.model_copy(update={"folder": "../declarations/UD_English-EWT"}) for task in parts.TASKS]
