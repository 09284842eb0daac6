"""A seeded micro-world of English-like text: two corpora to pre-train on, tasks in GLUE's form, pairs, and tasks of
embeddings.

Pure functions of their arguments, standard library only: the same seed gives the same bytes in every process.
"""

from neobert.data.synthetic.corpora import CORPORA, corpus_documents
from neobert.data.synthetic.tasks import (
    EMBEDDING_TASKS,
    PAIR_SETS,
    embedding_tables,
    pair_instruction,
    pairs,
    task_examples,
)

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

VERSION: int = 2
"""Raised when generated text changes; part of the identity of synthetic data."""
