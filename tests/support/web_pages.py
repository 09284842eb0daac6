"""Settings of NeoBERT's own shape with documents as long as web pages."""

import numpy as np
import torch

from benchmarks.contenders import Setting, masked_documents
from benchmarks.data import SHORTEST
from neobert.data.shards import Integers
from neobert.recipe import Pretraining

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


TOKENS_PER_STEP = 1 << 16
STEPS_PER_PASS = 64
"""Enough that no step has a padding row, and that documents pack as in a window of training."""
SHORTEST_DOCUMENTS = {1024: SHORTEST, 4096: 1024}
"""Tokens of the shortest document, by context. The paper's second stage mostly draws documents of at least 1,024
tokens (§3.2)."""


def gpu_setting(recipe: Pretraining, context: int, tokens_per_step: int, device: torch.device) -> Setting:
    """Return a setting with documents as long as web pages, in steps of about `tokens_per_step` slots."""
    rows = tokens_per_step // context
    lengths = web_lengths(STEPS_PER_PASS * rows, SHORTEST_DOCUMENTS.get(context, SHORTEST))
    documents = masked_documents(lengths, recipe.model.vocabulary_size, context)
    return Setting(recipe, documents, round(rows / documents.padded_fill), device)
