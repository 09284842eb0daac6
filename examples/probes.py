"""Questions of one's own to trained models: agreement, words that fit, and a digit named many words before.

python ablations/run.py --ladder examples/probes.py --variant all --scale study --data DIR --stages pretrain readouts
python reports/make_figures.py --ladder examples/probes.py

`agreement` has the columns of any file of minimal pairs. Without --scale the ladder runs at a scale that only shows the
commands: nothing is learned in its few steps.
"""

from dataclasses import replace

from ablations.ladder import M0, M1  # noqa: F401  (the arms)
from ablations.scales import SMOKE
from neobert.data.own_readouts import ClozeItems, MinimalPairs, PassKeys

READOUTS = [
    MinimalPairs(name="agreement", file="probes/agreement.jsonl", columns=("good", "bad"), group_column="kind"),
    ClozeItems(name="places", file="probes/places.csv"),
    PassKeys(name="pass-keys", words=(24, 48, 96), items_per_length=50),
]

SHAPES = {(12, 768): (2, 32)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200, precision="fp32")
SCALES = {"tiny": replace(TINY, contexts={512: 64}, tokens_per_step={131_072: 512}, steps={1_000_000: 6})}
