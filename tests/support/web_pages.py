"""Settings of NeoBERT's own shape with documents as long as web pages."""

import torch

from benchmarks.contenders import Setting, masked_documents
from benchmarks.data import SHORTEST, web_lengths
from neobert.recipe import Pretraining

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
