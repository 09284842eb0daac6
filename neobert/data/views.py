"""Views of a tokenised corpus: which documents, and how much of each. No token is copied. Torch-free."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neobert.data.tokenized import TokenizedCorpus

FRAME_TOKENS = 2
"""Every document stands between two specials, [CLS] and [SEP]."""

HELDOUT_SHARE = 0.01
_SHARE_BOUND = np.uint64(int(HELDOUT_SHARE * 2**64))
HELDOUT_LEAST_TEXTS = 32
"""A small corpus holds out this many different texts, but never more than a tenth of them (and at least one)."""


@dataclass(frozen=True, eq=False)
class Documents:
    """A choice of documents of a corpus.

    `numbers` (documents,) int64: places in the corpus; `lengths` (documents,) int64: tokens shown, without specials.
    """

    corpus: TokenizedCorpus
    numbers: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def framed_lengths(self) -> NDArray[np.int64]:
        """(documents,) tokens with both specials; a new array of all."""
        return self.lengths + FRAME_TOKENS

    def framed(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(indices,) tokens with both specials of some documents of the view."""
        return self.lengths[indices] + FRAME_TOKENS

    def truncated(self, context: int) -> "Documents":
        """The documents cut to `context` tokens, specials included; the rest is never seen, as in the released code.

        Raises:
            ValueError: the context has no room for a token beside the specials.
        """
        if context <= FRAME_TOKENS:
            raise ValueError(f"a context of {context} tokens has no room beside {FRAME_TOKENS} special tokens")
        return Documents(self.corpus, self.numbers, np.minimum(self.lengths, context - FRAME_TOKENS))

    def at_least(self, minimum_tokens: int) -> "Documents":
        """The documents of at least `minimum_tokens` shown tokens, specials included.

        The paper says "> 1,024" (§3.2), the released longer_seq.py keeps ">=" of the framed length: as here.

        Raises:
            ValueError: no document is that long.
        """
        long_enough = self.framed_lengths >= minimum_tokens
        if not long_enough.any():
            longest = int(self.framed_lengths.max(initial=0))
            raise ValueError(
                f"no document has {minimum_tokens} tokens, the longest has {longest}: lower the mixture's "
                f"minimum_tokens or take more text"
            )
        return self._where(long_enough)

    def split_heldout(self) -> tuple["Documents", "Documents"]:
        """(training, held-out): a fixed share by hash of the text.

        Equal texts stay on one side, and the tokenizer has no say, so that variants are compared on the same texts.

        Raises:
            ValueError: there are fewer than two different texts.
        """
        hashes = self.corpus.text_hashes[self.numbers]
        bound = _heldout_bound(hashes)
        return self._where(hashes > bound), self._where(hashes <= bound)

    def at(self, indices: NDArray[np.int64]) -> "Documents":
        """Some documents of the view, in the order of `indices`."""
        return Documents(self.corpus, self.numbers[indices], self.lengths[indices])

    def _where(self, chosen: NDArray[np.bool_]) -> "Documents":
        return self.at(np.flatnonzero(chosen))


def _heldout_bound(hashes: NDArray[np.uint64]) -> np.uint64:
    """The largest hash of a held-out text, given the hashes of all."""
    in_share = hashes[hashes <= _SHARE_BOUND]
    if len(in_share) < len(hashes) and len(np.unique(in_share)) >= HELDOUT_LEAST_TEXTS:
        return np.uint64(in_share.max())
    return _bound_of_few(np.unique(hashes))


def _bound_of_few(hashes: NDArray[np.uint64]) -> np.uint64:
    """The same where the share holds too few texts; `hashes` are sorted and different."""
    if len(hashes) < 2:
        raise ValueError(f"the corpus has {len(hashes)} different texts, too few to hold one out: take more text")
    in_share = int(np.searchsorted(hashes, _SHARE_BOUND, side="right"))
    least = max(1, min(HELDOUT_LEAST_TEXTS, len(hashes) // 10))
    return np.uint64(hashes[min(max(in_share, least), len(hashes) - 1) - 1])


def all_documents(corpus: TokenizedCorpus) -> Documents:
    """Every document of a corpus, uncut."""
    return Documents(corpus, np.arange(corpus.documents, dtype=np.int64), corpus.lengths)
