"""A treebank of made-up sentences for examples/tagging.py."""

import json
import random
from pathlib import Path

WORDS = {"the": "DET", "old": "ADJ", "cat": "NOUN", "dog": "NOUN", "sees": "VERB", "in": "ADP", ".": "PUNCT"}


def treebank(folder: Path, sentences: int = 40) -> Path:
    """Made-up sentences in which a word always has the same tag."""
    folder.mkdir()
    for split, seed in (("train", 1), ("dev", 2)):
        rng = random.Random(seed)
        chosen = [rng.choices(list(WORDS), k=rng.randint(2, 6)) for _ in range(sentences)]
        rows = [{"form": words, "upos": [WORDS[word] for word in words]} for words in chosen]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
