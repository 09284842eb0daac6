"""The steps M0 to M8 on small models, with the parts of M1 and M4, and M9's larger batch at equal tokens.

python ablations/run.py --ladder declarations/parts.py --list

The steps are those of the paper's ladder. M1 and M4 change three things each: every one of them is also an arm by
itself, and every one of M1's is left out once. These arms are children of the step's parent, so that a part and its
step have the same baseline. M4's third change, beta2, is the same half-life in tokens at this scale, and no arm.
`M8+batch` reads eight times as many tokens per step and as many in all.

Every run is also fine-tuned to parts of speech (UD English EWT, CC BY-SA 4.0), which is read from beside this file:
git clone https://github.com/UniversalDependencies/UD_English-EWT declarations/UD_English-EWT

The scale has rows of 32 tokens, and learned positions that start larger than at `study`, so that M0 leaves the plateau
of word frequencies within a fifth of its run. Its peak rate was 4e-3 until the pilots of M1, M2, M7 and M8 had lower
losses and earlier transitions at 2e-3.
"""

from dataclasses import replace
from pathlib import Path

from ablations import ladder
from ablations.scales import STUDY
from ablations.variant import Modification
from neobert.glue.tasks import Task

M0, M1, M2, M3, M4 = ladder.M0, ladder.M1, ladder.M2, ladder.M3, ladder.M4
M5, M6, M7, M8 = ladder.M5, ladder.M6, ladder.M7, ladder.M8

WEIGHT_DECAY = Modification(
    "AdamW's weight decay",
    source=ladder.ADAMW.source,
    optimization={"optimizer": "adamw", "weight_decay": ladder.ADAMW.optimization["weight_decay"]},
)
LARGER_BATCH = Modification(
    "8 × the batch, equal tokens",
    source="arXiv 2502.19587 Table 2, smaller: the paper's batch is 16 × as large, and so are the tokens in all",
    stages=({"tokens_per_step": 8 * M8.recipe.pretraining.stages[0].tokens_per_step, "steps": 125_000},),
)

PARTS = [
    M0.derive("M0+rotary", ladder.ROTARY, kept=False),
    M0.derive("M0+swiglu", ladder.SWIGLU, kept=False),
    M0.derive("M0+rmsnorm", ladder.RMS_NORM, kept=False),
    M0.derive("M1-rotary", ladder.SWIGLU, ladder.RMS_NORM, kept=False),
    M0.derive("M1-swiglu", ladder.ROTARY, ladder.RMS_NORM, kept=False),
    M0.derive("M1-rmsnorm", ladder.ROTARY, ladder.SWIGLU, kept=False),
    M2.derive("M2+cosine", ladder.COSINE, kept=False),
    M2.derive("M2+decay", WEIGHT_DECAY, kept=False),
    M8.derive("M8+batch", LARGER_BATCH, kept=False),
]

UPOS = ("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ")
TASKS = [
    Task(
        name="upos",
        kind="token_classification",
        folder="UD_English-EWT",
        columns=("form",),
        label_column="upos",
        classes=(*UPOS, "SYM", "VERB", "X"),
        validation_splits=("dev",),
        metrics=("accuracy", "f1_macro"),
    )
]

SHAPES = {(12, 768): (2, 64), (16, 1056): (3, 72), (28, 768): (5, 64)}
SCALES = {
    "parts": replace(
        STUDY,
        shapes={"trained": SHAPES, "published": SHAPES},
        contexts={512: 32},
        tokens_per_step={131_072: 1024},
        steps={1_000_000: 8000},
        warmup_fraction=0.04,
        peak_learning_rates={1e-4: 2e-3},
        model={"initialization": {**STUDY.model["initialization"], "position_scale": 0.2}},
        trained_vocabulary_size=4096,
    ),
}
END = M8
PUBLISHED, PUBLISHED_AS = Path("published"), "the paper"
