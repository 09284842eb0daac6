"""A ladder with a task of its own, and made-up texts for it."""

import json
import random
from pathlib import Path

TOPICS_LADDER = '''"""Topics: what the first steps from BERT do for them."""

from dataclasses import replace

from ablations.ladder import M0, M1  # noqa: F401  (the arms)
from ablations.scales import SMOKE
from neobert.glue.tasks import Task

TASKS = [
    Task(name="topics", kind="classification", folder="topics", columns=("text",), label_column="topic",
         classes=("animals", "weather"), validation_splits=("dev",), metrics=("accuracy", "f1_macro"))
]
SHAPES = {(12, 768): (2, 32)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200, precision="fp32")
SCALES = {"tiny": replace(TINY, contexts={512: 64}, tokens_per_step={131_072: 512}, steps={1_000_000: 6})}
'''
WORDS = {"animals": ("cat", "dog", "old", "the"), "weather": ("rain", "wind", "cold", "the")}


def topics(folder: Path, texts: int = 40) -> Path:
    """Made-up texts of words of one topic."""
    folder.mkdir()
    for split, seed in (("train", 1), ("dev", 2)):
        rng = random.Random(seed)
        chosen = [rng.choice(list(WORDS)) for _ in range(texts)]
        rows = [{"text": " ".join(rng.choices(WORDS[topic], k=4)), "topic": topic} for topic in chosen]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
