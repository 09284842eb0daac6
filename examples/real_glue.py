"""M0 to M8 of the paper's ladder on real text and five GLUE tasks, in half an hour a run on one core.

python ablations/run.py --ladder examples/real_glue.py --scale real --variant all --seed 0 1 2 --data DIR
python reports/make_figures.py --ladder examples/real_glue.py --scale real

DIR holds corpora/wikibook, corpora/web and glue (docs/data.md), and no tokenizers, so that tokenizers of 8,192 tokens
are trained: with the published 30,522 a run takes twice the time.

reports/real_glue has the records so far: M0, seed 0. Put them into a folder of runs, where they are not repeated, by
`python reports/collect.py --restore reports/real_glue --runs RUNS`; DIR must then be named real_text.
"""

from dataclasses import replace

from ablations.ladder import M0, M1, M2, M3, M4, M5, M6, M7, M8
from ablations.scales import STUDY

__all__ = ["M0", "M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8"]

TITLE = "M0 to M8 with 2 M parameters"
TASKS = ("cola", "rte", "mrpc", "stsb", "sst2")
REAL = replace(
    STUDY,
    contexts={512: 128, 1024: 192, 2048: 256, 4096: 384},
    steps={1_000_000: 12_000, 50_000: 600},
    # Of a sweep of M0 at these steps on one pilot seed: the lowest held-out loss, ahead of 2e-3 and 4e-3.
    peak_learning_rates={1e-4: 1e-3, 6e-4: 1.25e-3},
    grid={
        "batch_sizes": {32: 32},
        "learning_rates": {1e-5: 3e-4, 2e-5: 1e-3, 3e-5: 3e-3},
        "weight_decays": {1e-2: 1e-2, 1e-5: 1e-5},
    },
    finetuning={**STUDY.finetuning, "train_examples": 8000, "epochs": 4},
)
SCALES = {
    "real": REAL,
    # For sweeps of learning rates: a quarter of the steps.
    "real-rates": replace(REAL, steps={1_000_000: 3000, 50_000: 150}),
}
