"""How much held-out text is measured, and which documents. Without torch."""

import numpy as np

from neobert.data.shards import Documents

HELDOUT_BYTES = 2**22
"""Amount of text to measure, if the corpus has that much held out. At 4.5 bytes per token and 15 % masked tokens, this
is at least 140,000 predicted tokens. With a thirtieth of that, the difference of two models had a standard error of
0.013 to 0.048 nats, which corresponds to 0.002 to 0.009 here. At paper scale, four measurements take up to 6 M tokens,
compared with 131 G or more of training."""

COUNTED_BYTES = 512
"""Largest number of bytes of a cut document that count towards `HELDOUT_BYTES`: about 128 tokens."""


def sample(
    heldout: Documents, wanted_bytes: int = HELDOUT_BYTES, counted_bytes: int | None = COUNTED_BYTES
) -> Documents:
    """Return the documents with the smallest hashes, `wanted_bytes` of text in total, or all. At most `counted_bytes`
    of each document count.

    Counting bytes rather than documents evens out sentences and books. Counting bytes rather than tokens selects the
    same texts for all tokenizers and contexts.
    """
    order = np.argsort(heldout.corpus.text_hashes[heldout.numbers], kind="stable")
    counted = heldout.corpus.text_bytes[heldout.numbers[order]]
    if counted_bytes is not None:
        counted = np.minimum(counted, counted_bytes)
    enough = int(np.searchsorted(np.cumsum(counted), wanted_bytes)) + 1
    return heldout.at(order[:enough])
