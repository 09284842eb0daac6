"""How much to mask with ten million words (BabyLM, strict-small): rates that stay, rise and fall.

python ablations/run.py --ladder examples/babylm_masking.py --variant all --seed 0 1 2 3 4 --data DIR --scale as-written
python ablations/run.py --ladder examples/babylm_masking.py --variant all --scale tiny --stages pretrain --cluster here

DIR holds the text in corpora/wikibook/; the recipes are small, and as-written takes them as they are. Every
arm continues the same base, so that the table of deltas compares each with 15 %. Readouts ask all arms the same about
held-out text, whatever they mask (--stages pretrain readouts).
"""

from dataclasses import replace

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant

SMALL = Modification(
    "BabyLM size",
    source="BabyLM challenge 2023, strict-small: 10 M words",
    model={"vocabulary_size": 8_192, "layers": 6, "width": 256, "heads": 4, "feedforward_width": 1_024},
    data={"long_documents": "split"},
    packing="packed",
    stages=({"context": 128, "tokens_per_step": 16_384, "steps": 10_000, "warmup_steps": 500, "decay_steps": 10_000},),
    optimization={"optimizer": "adamw", "beta2": 0.98, "weight_decay": 0.01, "peak_learning_rate": 1e-3},
    finetuning={"max_tokens": 128},
)
BASE = Variant("mask15", "15% masking", "this study", SMALL.apply(ladder.M1.recipe))


def arm(name: str, rate: float, final: float | None = None) -> Variant:
    """The base with another rate, which goes to `final` in a straight line."""
    title = f"{rate:.0%}" if final is None else f"{rate:.0%} to {final:.0%}"
    source = "Wettig et al. 2023, arXiv 2202.08005" if final is None else "Yang et al. 2023, arXiv 2212.10650"
    masking = {"rate": rate} if final is None else {"rate": rate, "final_rate": final}
    return BASE.derive(name, Modification(f"{title} masking", source=source, masking=masking), kept=False)


ARMS = [arm("mask30", 0.30), arm("mask40", 0.40), arm("mask60", 0.60), arm("mask30to15", 0.30, 0.15)]
RISING = BASE.derive(
    "mask15to30",
    Modification("15% to 30% masking", source="this study, the other way round", masking={"final_rate": 0.30}),
    kept=False,
)

SHAPES = {(6, 256): (2, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200, contexts={128: 32})
SCALES = {"tiny": replace(TINY, tokens_per_step={16_384: 256}, steps={10_000: 6})}
