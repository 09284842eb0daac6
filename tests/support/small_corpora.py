"""Small texts, tables, tokenizers and tokenised corpora."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from neobert.data.shards import Documents, TokenizedCorpus, all_documents
from neobert.data.tokenizers import SpecialIds, TextTokenizer, wrap_tokenizer
from neobert.recipe import Stage, Subset

IDS = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4, first_text_id=5, end_text_id=5000)
REAL_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

_SENTENCES = "the old cat sees a small green bird under 7 trees and quick dogs eat near 42 stones over the river"
WORDS = tuple(_SENTENCES.split())


def texts(count: int, seed: int = 0) -> list[str]:
    """`count` different texts of a few to a few dozen words."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, 40, size=count)
    return [f"{number} " + " ".join(generator.choice(WORDS, size=length)) for number, length in enumerate(lengths)]


def with_ids(tokenizer: TextTokenizer, renumber: Callable[[int], int]) -> TextTokenizer:
    """A tokenizer with other ids for the words of its vocabulary."""
    content = json.loads(tokenizer.content)
    content["model"]["vocab"] = {word: renumber(number) for word, number in content["model"]["vocab"].items()}
    return wrap_tokenizer(Tokenizer.from_str(json.dumps(content)), "a tokenizer with other ids")


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """A parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), path)


def corpus_of(lengths: Sequence[int], seed: int = 0) -> TokenizedCorpus:
    """A corpus in memory whose documents have these lengths; about one token in fifty is unknown."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(IDS.first_text_id, IDS.end_text_id, size=sum(lengths)).astype(np.uint16)
    tokens[generator.random(len(tokens)) < 0.02] = IDS.unk
    half = sum(lengths[: len(lengths) // 2])
    return TokenizedCorpus(
        ids=IDS,
        lengths=np.array(lengths, dtype=np.int64),
        text_bytes=4 * np.array(lengths, dtype=np.int64),
        text_hashes=generator.integers(0, 2**63, size=len(lengths)).astype(np.uint64),
        shards=(tokens[:half], tokens[half:]),
        manifest={},
    )


def realistic_lengths(count: int, mean: float = 400, seed: int = 0) -> list[int]:
    """Log-normal lengths, as web pages have them."""
    generator = np.random.default_rng(seed)
    drawn = generator.lognormal(np.log(mean) - 0.5, 1.0, size=count)
    return [int(length) for length in np.clip(drawn, 1, 20_000)]


def small_documents(count: int = 200, mean: float = 30, seed: int = 0) -> Documents:
    """Uncut documents of a corpus in memory."""
    return all_documents(corpus_of(realistic_lengths(count, mean, seed), seed))


def stage(
    context: int, rows: int, steps: int = 1000, mixture: tuple[Subset, ...] = (Subset(minimum_tokens=0, share=1.0),)
) -> Stage:
    """A stage of `rows` rows of `context` tokens per step."""
    return Stage(
        context=context,
        tokens_per_step=context * rows,
        steps=steps,
        warmup_steps=0,
        stable_steps=0,
        decay_steps=0,
        mixture=mixture,
    )
