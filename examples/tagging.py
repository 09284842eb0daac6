"""Parts of speech: what the first steps from BERT do for labels of words (UD English EWT).

python ablations/run.py --ladder examples/tagging.py --variant all --seed 0 1 2 --scale study --data DIR
python sweeps/glue_grid.py --ladder examples/tagging.py --task upos --model DIR_OR_ID
python reports/make_figures.py --ladder examples/tagging.py

The treebank (CC BY-SA 4.0, github.com/UniversalDependencies/UD_English-EWT) is in UD_English-EWT/train.jsonl and
dev.jsonl, with two lists for each sentence: {"form": ["I", "see"], "upos": ["PRON", "VERB"]}. Every word counts in the
score, whatever pieces a tokenizer makes of it, so that arms with other tokenizers are compared on the same words.
"""

from dataclasses import replace

from ablations.ladder import M0, M1, M2  # noqa: F401  (the arms)
from ablations.scales import SMOKE
from neobert.glue.tasks import Task

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

SHAPES = {(12, 768): (2, 32)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200, precision="fp32")
SCALES = {"tiny": replace(TINY, contexts={512: 64}, tokens_per_step={131_072: 512}, steps={1_000_000: 6})}
