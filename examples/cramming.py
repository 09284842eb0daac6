"""Cramming (Geiping and Goldstein 2022, arXiv 2212.14034): BERT in a day on one GPU, step by step.

python ablations/run.py --ladder examples/cramming.py --list
python ablations/run.py --ladder examples/cramming.py --variant all --scale tiny --stages pretrain --cluster here

Numbers are those of the released code (JonasGeiping/cramming: config/arch/crammed-bert.yaml, config/train/bert-o4.yaml,
config/eval/GLUE_sane.yaml). Not here: sinusoidal positions, tied embeddings, the growing batch,
the budget in hours (the number of steps is a choice), fine-tuning with a cosine.
"""

from dataclasses import replace

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant
from neobert.recipe import Grid

CODE = "github.com/JonasGeiping/cramming"
DAY = Modification(
    "A day's budget",
    source=f"{CODE} config/data/pile-readymade.yaml, config/train/bert-o4.yaml, config/eval/GLUE_sane.yaml",
    model={"vocabulary_size": 32_768, "norm_epsilon": 1e-12},
    stages=(
        {"context": 128, "tokens_per_step": 1_048_576, "steps": 12_500, "warmup_steps": 125, "decay_steps": 12_500},
    ),
    finetuning={"epochs": 5, "max_tokens": 128, "decay_fraction": 1.0, "floor_fraction": 0.0, "warmup_fraction": 0.1},
    grid=Grid(batch_sizes=(16,), learning_rates=(4e-5,), weight_decays=(1e-2,)),
)
GLU = Modification("GELU gated", source=f"{CODE} crammed-bert.yaml nonlin", model={"feedforward": "geglu"})
LAYERS = Modification("16 layers", source=f"{CODE} crammed-bert.yaml", model={"layers": 16})
PACKED = Modification("Packed sequences", source="arXiv 2212.14034 §4", packing="packed_across_documents")
ADAM = Modification(
    "Adam of cramming",
    source=f"{CODE} config/train/optim/adam.yaml, bert-o4.yaml",
    optimization={"beta2": 0.98, "epsilon": 1e-12, "clip_norm": 0.5, "peak_learning_rate": 1e-3},
)
TRIANGLE = Modification(
    "One cycle",
    source="arXiv 2212.14034 §4",
    stages=({"warmup_steps": 6_250},),  # half of the steps up, half down
    optimization={"floor_fraction": 0},
)
MASKING = Modification("25% masking", source=f"{CODE} bert-o4.yaml mlm_probability", masking={"rate": 0.25})

BERT = Variant("BERT-day", "BERT in a day", "arXiv 2212.14034 §3", DAY.apply(ladder.M0.recipe))
C1 = BERT.derive("C1", GLU)
C2 = C1.derive("C2", LAYERS)
C3 = C2.derive("C3", ladder.WEB, PACKED)
C4 = C3.derive("C4", ladder.ADAMW, ADAM, TRIANGLE)
CRAMMED = C4.derive("crammed", MASKING)

SHAPES = {(12, 768): (2, 16), (16, 768): (3, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200, contexts={128: 32})
RATES = {1e-4: 1e-3, 1e-3: 2e-3}
TINY = replace(TINY, tokens_per_step={1_048_576: 256}, peak_learning_rates=RATES, warmup_fraction=0.01)
SCALES = {"tiny": replace(TINY, steps={12_500: 6})}
