"""How many novels should be among web pages? Shares of two corpora in one run.

python ablations/run.py --ladder examples/mixtures.py --variant all --scale study --data DIR
python ablations/run.py --ladder examples/mixtures.py --variant all --scale tiny --stages pretrain --cluster here

The web pages are those of --data, and the novels 1 MB in this repository (examples/slice/README.md). Each row of a step
draws its corpus, and all arms are measured on held-out texts of both. The tokenizer is trained on both, whatever the
shares, so that all arms have the same.
"""

from dataclasses import replace

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant
from neobert.recipe import Subset

CORPORA = {"novels": "slice/corpora/wikibook"}


def novels(share: float) -> Modification:
    """Novels at a share, and for the rest the corpus of the data."""
    mixture = (
        Subset(minimum_tokens=0, share=round(1 - share, 3)),
        Subset(minimum_tokens=0, share=share, corpus="novels"),
    )
    return Modification(f"{share:.0%} novels", source="this study", stages=({"mixture": mixture},))


WEB = Modification("Web pages", source=ladder.WEB.source, data={"corpus": "web"}, packing="packed")
BASE = Variant("few", "10% novels", "this study", novels(0.1).apply(WEB.apply(ladder.M1.recipe)))
ARMS = [BASE.derive("half", novels(0.5), kept=False), BASE.derive("most", novels(0.9), kept=False)]

SHAPES = {(12, 768): (2, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200, contexts={512: 64})
SCALES = {"tiny": replace(TINY, tokens_per_step={131_072: 1024}, steps={1_000_000: 6})}
