"""Where a micro-batch's predicted tokens lie, as the kernels of the last block want to know it."""

import numpy as np
import torch
from torch import Tensor

from neobert.data.rows import Integers
from neobert.data.shapes import Shapes
from neobert.model.attention import Slots

IGNORED = -100
"""Target of a slot without a predicted token, as torch's cross-entropy has it."""


def padded_targets(token_ids: Integers, slots: int) -> Tensor:
    """(slots,) the predicted ids, then unused slots."""
    targets = np.full(slots, IGNORED, dtype=np.int64)
    targets[: len(token_ids)] = token_ids
    return torch.from_numpy(targets)


def slots_by_row(places: Integers, rows: int, context: int, shapes: Shapes) -> Slots:
    """The slots of the tokens at ascending `places` of the flattened rows, for kernels that work row by row.

    An unused query asks at the first token of its row, an unused slot takes the first query.
    """
    firsts = np.searchsorted(places, np.arange(rows + 1) * context)
    counts = np.diff(firsts)
    row = np.repeat(np.arange(rows), counts)
    most = shapes.row_slots(int(counts.max(initial=0)), context)
    queries = np.repeat(np.arange(rows)[:, None] * context, most, axis=1)
    within = np.arange(len(places)) - firsts[row]
    queries[row, within] = places
    used = np.zeros(shapes.slots(len(places), rows), dtype=np.int64)
    used[: len(places)] = row * most + within
    return Slots(torch.from_numpy(queries), torch.from_numpy(used))


def slots_in_a_run(places: Integers, boundaries: Integers, rows: int, shapes: Shapes) -> Slots:
    """The slots of the tokens at ascending `places`, for variable-length kernels over documents with `boundaries`.

    Unused slots ask at the last token, so that they belong to a document like all others.
    """
    queries = np.full(shapes.slots(len(places), rows), int(boundaries[-1]) - 1, dtype=np.int64)
    queries[: len(places)] = places
    of_documents = np.searchsorted(queries, boundaries).astype(np.int32)
    return Slots(torch.from_numpy(queries[None]), boundaries=torch.from_numpy(of_documents))


def document_boundaries(documents: Integers, shapes: Shapes) -> Integers:
    """Cumulated lengths from 0 of the documents and fillers of the flattened `documents` (rows, context), with empty
    documents at the end up to the number that `shapes` wants."""
    starts = np.ones_like(documents, dtype=bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    begins = np.flatnonzero(starts)
    count = shapes.documents(len(begins), len(documents))
    return np.pad(begins, (0, count + 1 - len(begins)), constant_values=documents.size)
