"""From BERT to ModernBERT (Warner et al. 2024, arXiv 2412.13663), as far as the mechanisms here reach.

python ablations/run.py --ladder examples/modernbert.py --list
python ablations/run.py --ladder examples/modernbert.py --variant all --scale tiny --stages pretrain --cluster here

Budget and grid are those of M0, so that each step changes what it names. Not here: StableAdamW, the growing batch, the
OLMo tokenizer, 8,192 tokens. M0 has norms before its blocks and no biases, as ModernBERT.
"""

from dataclasses import replace

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification

PAPER = "arXiv 2412.13663"
ROPE = Modification(
    "RoPE",
    source=f"{PAPER} §2.1.1, Table 4",
    model={"positions": "rotary", "rotary_base": 160_000},  # of global blocks, after the context was extended
)
GEGLU = Modification("GeGLU", source=f"{PAPER} §2.1.1", model={"feedforward": "geglu"})
LOCAL = Modification(
    "Alternating attention",
    source=f"{PAPER} §2.1.2, Table 4",
    model={"attention_window": 128, "global_every": 3, "local_rotary_base": 10_000},
)
UNPADDED = Modification("Unpadding", source=f"{PAPER} §2.1.2", packing="packed")
MASKING = Modification(
    "30% masking",
    source=f"{PAPER} §2.2.1",
    masking={"rate": 0.3, "mask_share": 1.0, "random_share": 0.0},  # the shares are not printed
)
WSD = Modification(
    "Warm-up, stable, decay",
    source=f"{PAPER} §2.2.1, Table 3",
    optimization={"decay": "sqrt", "floor_fraction": 0},
    stages=({"stable_steps": 973_000, "decay_steps": 1_000_000},),  # the last 50 of 2,000 billion tokens decay
)
DEEP = Modification(
    "22 layers",
    source=f"{PAPER} Table 4",
    model={"layers": 22, "feedforward_width": 1728},  # a gated width of 1,152
)

BERT = replace(ladder.M0, name="BERT", title="BERT as M0")
B1 = BERT.derive("B1", ROPE)
B2 = B1.derive("B2", GEGLU)
B3 = B2.derive("B3", LOCAL)
B4 = B3.derive("B4", UNPADDED)
B5 = B4.derive("B5", ladder.WEB, MASKING)
B6 = B5.derive("B6", ladder.ADAMW, WSD)
B7 = B6.derive("B7", DEEP)

SHAPES = {(12, 768): (3, 16), (22, 768): (4, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200, warmup_fraction=0.002)
SCALES = {"tiny": replace(TINY, contexts={512: 64}, tokens_per_step={131_072: 256}, steps={1_000_000: 6})}
