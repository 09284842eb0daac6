"""Words that pre-training has seen, and the checkpoints that are kept by them. Without torch.

Words are whitespace-separated, as those of BabyLM's budgets, and counted in each document when it is tokenised. They
are seen again in each epoch. Of a document that is cut or split, a part counts in proportion to its tokens, rounded
down from the document's beginning, so that the parts of a whole document add up to its words. The numbers are a
function of the run's rows, of which no token is read here.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from neobert.data.packing import Integers
from neobert.data.rows import PackedRows
from neobert.data.shards import FRAME_TOKENS, TokenizedCorpus

MILLION = 1_000_000


def words_by_step(steps: Iterable[PackedRows], corpus: TokenizedCorpus, words: Integers) -> Integers:
    """Return the words seen until the end of each step, (steps,) int64; `words` are those of each document."""
    return np.cumsum([_seen(rows, corpus, words) for rows in steps], dtype=np.int64)


def _seen(rows: PackedRows, corpus: TokenizedCorpus, words: Integers) -> int:
    spans = rows.spans
    text = spans.framed_lengths - FRAME_TOKENS  # [CLS] stands before it
    first, last = (spans.begins + np.clip(place - 1, 0, text) for place in (spans.first, spans.first + spans.tokens))
    own, tokens = words[spans.documents].astype(np.int64), np.maximum(corpus.lengths[spans.documents], 1)
    return int((own * last // tokens - own * first // tokens).sum())


def kept_steps(words: Integers, unit: int, before: int) -> dict[str, int]:
    """Return the steps after which checkpoints are kept, by the names that BabyLM's evaluation has for them: the first
    step (from 1) until whose end `unit`, 2 `unit`, … 10 `unit`, 20 `unit`, … words were seen.

    words: (steps,) as of `words_by_step`; `before` were seen in earlier stages, whose checkpoints have their names.
    """
    seen = before + words
    marks = [mark for mark in _marks(unit, int(seen[-1])) if mark > before]
    return {checkpoint_name(mark): int(np.searchsorted(seen, mark)) + 1 for mark in marks}


def checkpoint_name(words: int) -> str:
    """Return `chck_1M` of a million words; numbers that are no millions are written out."""
    return f"chck_{words}" if words % MILLION else f"chck_{words // MILLION}M"


def _marks(unit: int, most: int) -> Iterator[int]:
    """Yield 1 to 9, 10 to 90, 100 to 900, … times `unit`, up to `most`."""
    while unit <= most:
        yield from range(unit, min(most + 1, 10 * unit), unit)
        unit *= 10
