"""A treebank of made-up sentences in the files of UD English EWT."""

import random
from pathlib import Path

WORDS = {"the": "DET", "old": "ADJ", "cat": "NOUN", "dog": "NOUN", "sees": "VERB", "in": "ADP", ".": "PUNCT"}


def treebank(folder: Path, sentences: int = 40) -> Path:
    """Made-up sentences in which a word always has the same tag."""
    folder.mkdir()
    for split, seed in (("train", 1), ("dev", 2)):
        rng, lines = random.Random(seed), []
        for _ in range(sentences):
            chosen = rng.choices(list(WORDS), k=rng.randint(2, 6))
            lines += [
                "\t".join([str(number), word, word, WORDS[word], *["_"] * 6])
                for number, word in enumerate(chosen, start=1)
            ]
            lines.append("")
        (folder / f"en_ewt-ud-{split}.conllu").write_text("# newdoc\n" + "\n".join(lines))
    return folder
