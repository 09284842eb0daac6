"""Made-up files of BLiMP: every paradigm, with sentences of the synthetic world."""

import json
import random
from pathlib import Path

from neobert.data.synthetic import corpus_documents
from neobert.data.task_files import BLIMP_FOLDER, PARADIGMS


def write_blimp(data: Path, pairs: int) -> None:
    """Write `pairs` pairs of each paradigm: the first different words of a document, and these with two exchanged."""
    documents = corpus_documents("web", documents=len(PARADIGMS) * pairs)
    order = random.Random(0)
    (data / BLIMP_FOLDER).mkdir(parents=True)
    for name in PARADIGMS:
        lines = []
        for number in range(pairs):
            good = list(dict.fromkeys(next(documents).split()))[:4]
            first, second = order.sample(range(len(good)), 2)
            bad = list(good)
            bad[first], bad[second] = good[second], good[first]
            line = {"sentence_good": " ".join(good), "sentence_bad": " ".join(bad), "UID": name, "pairID": str(number)}
            lines.append(json.dumps(line) + "\n")
        (data / BLIMP_FOLDER / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
