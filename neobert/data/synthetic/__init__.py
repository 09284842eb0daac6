"""A seeded micro-world of English-like text: two corpora for pre-training, tasks in GLUE's format, pairs, and embedding
tasks.

Its functions are pure: the same seed gives the same bytes in every process. Only the standard library is used.
"""

from neobert.data.synthetic.tasks import (
    EMBEDDING_TASKS,
    PAIR_SETS,
    embedding_tables,
    pair_instruction,
    pairs,
    task_examples,
)
from neobert.data.synthetic.world import CORPORA, corpus_documents

__all__ = [
    "CORPORA",
    "EMBEDDING_TASKS",
    "PAIR_SETS",
    "VERSION",
    "corpus_documents",
    "embedding_tables",
    "pair_instruction",
    "pairs",
    "task_examples",
]

VERSION: int = 3
"""Incremented when generated text changes; part of the origin of synthetic data."""
