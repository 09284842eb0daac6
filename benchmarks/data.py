"""Random documents for the other benchmarks, some as long as web pages."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from neobert.data.shards import FRAME_TOKENS, Integers, TokenizedCorpus
from neobert.data.tokenizers import TOKENIZER_FILE, TOKENIZER_FOLDERS, SpecialIds
from neobert.recipe import Masking

NEOBERT_MASKING = Masking(rate=0.2, mask_share=1.0, random_share=0.0, final_rate=None, drawn_up_to=None)
IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, first_text_id=5, end_text_id=30_000)
SHORTEST = 8
"""Number of tokens of the shortest document, specials included."""


def random_corpus(lengths: Integers, vocabulary_size: int) -> TokenizedCorpus:
    """Return documents of random tokens with `lengths`, in memory."""
    ids = replace(IDS, end_text_id=vocabulary_size)
    generator = np.random.default_rng(0)
    tokens = generator.integers(ids.first_text_id, ids.end_text_id, size=int(lengths.sum())).astype(np.uint16)
    hashes = generator.integers(0, 2**63, size=len(lengths)).astype(np.uint64)
    return TokenizedCorpus(ids, lengths, 4 * lengths, hashes, (tokens,), {})


WEB_MEAN, WEB_SIGMA = 620.0, 1.0
"""Log-normal lengths of web pages: 600 billion tokens in 968 million documents (RefinedWeb, Penedo et al. 2023)."""


def web_lengths(count: int, at_least: int = SHORTEST) -> Integers:
    """Return lengths (count,) distributed as those of web pages, uncut, with at least `at_least` tokens."""
    generator = np.random.default_rng(0)
    kept = np.empty(0, dtype=np.int64)
    while len(kept) < count:
        drawn = generator.lognormal(np.log(WEB_MEAN) - WEB_SIGMA**2 / 2, WEB_SIGMA, size=4 * count)
        kept = np.concatenate([kept, drawn[drawn >= at_least].astype(np.int64)])
    return kept[:count]


def write_web_pages(folder: Path, count: int, vocabulary_size: int) -> None:
    """Write a folder for `--data`: `count` texts of random words as long as web pages (corpus
    "web"), and a tokenizer with one token for each word."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = np.array([*special, *(f"w{number}" for number in range(vocabulary_size - len(special)))])
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizers = folder / "tokenizers" / TOKENIZER_FOLDERS["wordpiece"]
    tokenizers.mkdir(parents=True)
    tokenizer.save(str(tokenizers / TOKENIZER_FILE))
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words[len(special) :], length)) for length in web_lengths(count) - FRAME_TOKENS]
    (folder / "corpora" / "web").mkdir(parents=True)
    pq.write_table(pa.table({"text": texts}), folder / "corpora" / "web" / "pages.parquet")
