"""M0, M1 and M2 of the paper's ladder, small enough to train and fine-tune in minutes on a laptop: `make demo`.

python ablations/run.py --ladder examples/demo.py --variant all --cluster here
python reports/make_figures.py --ladder examples/demo.py
"""

from dataclasses import replace

from ablations.ladder import M0, M1, M2
from ablations.scales import SMOKE

__all__ = ["M0", "M1", "M2"]

TITLE = "M0, M1 and M2 at demo size"
TASKS = ("mnli", "rte", "cola")
SCALES = {
    "demo": replace(
        SMOKE,
        contexts={512: 32, 1024: 48, 2048: 64, 4096: 96},
        steps={1_000_000: 1500, 50_000: 75},
        # With short contexts and embeddings that start small, learned positions train within these steps.
        model={"initialization": {**SMOKE.model["initialization"], "embedding_scale": 0.05}},
        documents=4000,
        # Few processors have fast products in bf16.
        precision="fp32",
    )
}
