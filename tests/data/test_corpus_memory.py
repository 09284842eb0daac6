"""Claim of tokenising: memory is bounded by a constant, whatever the size of the corpus."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WARM_UP_TEXTS, TEXTS, LETTERS = 700, 5300, 2000
BOUND_BYTES = 10 * 2**20

SCRIPT = """
import json, resource, sys
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from neobert.data import shards
from neobert.data.shards import prepare
from neobert.data.tokenizers import wrap_tokenizer

shards.BATCH_CHARACTERS = 2**18
letters = list("abcdefghij")
words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters])}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = wrap_tokenizer(tokenizer, "letters")
warm_up, texts, length = map(int, sys.argv[2:])
line = " ".join(letters * (length // len(letters)))
for number, count in enumerate((warm_up, texts)):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder = Path(sys.argv[1]) / str(number)
    corpus = prepare((f"{line} {text}" for text in range(count)), tokenizer, folder, origins={}, shard_tokens=2**20)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps({"tokens": corpus.tokens, "documents": corpus.documents, "growth": (after - before) * unit}))
"""


def test_a_corpus_of_twice_the_bound_is_tokenised_within_it(tmp_path: Path) -> None:
    """A first small corpus brings the memory to its height; texts (or tokens) held of the second would be seen."""
    arguments = [str(tmp_path), *map(str, (WARM_UP_TEXTS, TEXTS, LETTERS))]
    command = [sys.executable, "-W", "error", "-c", SCRIPT, *arguments]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT, text=True).stdout)
    assert answer["documents"] == TEXTS and answer["tokens"] == TEXTS * (LETTERS + 1)
    # Two bytes per token on the disk, two characters per token as text.
    assert 2 * answer["tokens"] > 2 * BOUND_BYTES
    assert answer["growth"] < BOUND_BYTES
