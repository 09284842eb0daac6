"""This project's contender: the engine's own step on the data package's own batches."""

from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np
import torch

from benchmarks.documents import MASKING, SEED, MaskedDocuments, rows_per_step
from neobert.data.batches import Batch, Exact, Fixed, collate, micro_batches
from neobert.data.rows import reordered, shuffled, whole_documents
from neobert.model.build import build_masked_language_model, initialize
from neobert.recipe import Pretraining
from neobert.training.engine import Engine
from neobert.training.pretraining import predicted_tokens, summed_loss

NAME = "ours, packed"


def own_batches(documents: MaskedDocuments, documents_per_step: int, *, fixed: bool = False) -> list[Batch]:
    """All documents once, packed with borders and masked by this project, in steps of about equally many tokens.

    With `fixed` sizes, as a compiled model gets them.
    """
    numbers = np.arange(len(documents), dtype=np.int64)
    packed = whole_documents(documents.view, numbers, documents.keys, documents.context)
    rows = reordered(packed, shuffled(packed.count, SEED))
    size = rows_per_step(rows.count, round(documents_per_step * documents.padded_fill))
    tokens = float(documents.view.framed_lengths.mean())
    shapes = Fixed(size, documents.context, MASKING.rate, tokens) if fixed else Exact(size)
    flat = torch.cuda.is_available()
    return [
        collate(part, documents.view.corpus, MASKING, shapes=shapes, flat=flat) for part in micro_batches(rows, size)
    ]


def own_engine(recipe: Pretraining, context: int, device: torch.device, *, compiled: bool) -> Engine[Batch]:
    """The engine as a run of the recipe has it, on fresh weights."""
    model = build_masked_language_model(recipe.model, context)
    initialize(model, recipe.model.initialization, recipe.seed)
    model.train()
    if compiled:
        model.compile(dynamic=False)
    return Engine(model, summed_loss, predicted_tokens, recipe.optimization, recipe.precision, device)


def own_step(
    recipe: Pretraining, batches: Sequence[Batch], device: torch.device, *, compiled: bool
) -> Callable[[], int]:
    """A function that makes one update on the next batch and returns the real tokens of it."""
    engine = own_engine(recipe, batches[0].token_ids.shape[1], device, compiled=compiled)
    turns = cycle([batch.to(device) for batch in batches])

    def step() -> int:
        batch = next(turns)
        engine.step([batch], recipe.optimization.peak_learning_rate).measured()
        return batch.real_tokens

    return step
