"""Claims of the held-out loss: the same texts for all, enough of them, and what bits per byte compare."""

import math
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from neobert.data.shards import Documents, TokenizedCorpus, all_documents
from neobert.errors import MissingData
from neobert.evaluation import heldout
from neobert.evaluation.heldout import (
    COUNTED_BYTES,
    HeldoutText,
    batch_losses,
    choose_heldout_texts,
    measure_heldout,
    sample,
    token_frequencies,
    token_losses,
)
from tests.support.small_corpora import IDS, corpus_of, realistic_lengths
from tests.support.small_models import language_model

CPU = torch.device("cpu")
VOCABULARY = IDS.end_text_id


def frequencies_of(documents: Documents) -> NDArray[np.float64]:
    return token_frequencies(documents, VOCABULARY)


def held_out(documents: Documents, context: int, rows: int) -> HeldoutText:
    return HeldoutText("web", documents, context, rows, "cut", frequencies_of(documents))


def texts_of(documents: Documents) -> set[int]:
    return set(documents.corpus.text_hashes[documents.numbers].tolist())


def other_tokens(documents: Documents) -> Documents:
    """The same texts in the order of their numbers, as a tokenizer of shorter tokens has them."""
    lengths = 2 * documents.corpus.lengths
    finer = replace(corpus_of(lengths.tolist()), text_hashes=documents.corpus.text_hashes)
    return all_documents(replace(finer, text_bytes=documents.corpus.text_bytes))


def test_the_sample_is_the_same_for_every_tokenizer_and_grows_with_what_is_wanted() -> None:
    documents = all_documents(corpus_of(realistic_lengths(400, 60)))
    few, more = sample(documents, 5000), sample(documents, 20_000)
    assert texts_of(few) < texts_of(more) < texts_of(documents)
    assert max(texts_of(more)) < min(texts_of(documents) - texts_of(more))
    assert texts_of(sample(other_tokens(documents), 5000)) == texts_of(few)
    assert texts_of(sample(documents)) == texts_of(documents), "all where a corpus holds out less"


def test_a_book_counts_no_more_than_what_the_shortest_context_reads_of_it() -> None:
    documents = all_documents(corpus_of([100_000] * 40))
    assert len(sample(documents, 10 * COUNTED_BYTES)) == 10


def test_bits_per_byte_of_a_model_that_knows_nothing_is_the_price_of_its_tokens() -> None:
    model = language_model(context=16)
    torch.nn.init.zeros_(model.decoder.weight)
    torch.nn.init.zeros_(model.decoder.bias)
    corpus = corpus_of([10, 30, 0, 7])
    corpus = with_tokens_of(corpus)
    score = measure_heldout(model, held_out(all_documents(corpus), 16, 3), "fp32", CPU)
    assert score.loss == pytest.approx(math.log(50), rel=1e-6)
    # 14 of 30 tokens are shown of the second document, and as many of its bytes; the third has none.
    assert (score.documents, score.tokens, score.text_bytes) == (4, 10 + 14 + 7, 5 * (10 + 14 + 7))
    assert score.bits_per_byte == pytest.approx(math.log2(50) / 5, rel=1e-6)
    assert 0 < score.predicted_tokens < score.tokens


def with_tokens_of(corpus: TokenizedCorpus) -> TokenizedCorpus:
    """The same lengths, with tokens that the small model knows and bytes."""
    return replace(corpus, shards=tuple(shard % 45 + 5 for shard in corpus.shards), text_bytes=corpus.lengths * 5)


def test_the_loss_of_frequencies_is_that_of_their_best_mixture_counted_by_hand() -> None:
    corpus = corpus_of(realistic_lengths(60, 20))
    corpus = replace(corpus, shards=tuple((shard**2 // 40) % 45 + 5 for shard in corpus.shards))
    text = held_out(all_documents(corpus), 24, 4)
    counts = Counter(dict.fromkeys(set(range(VOCABULARY)) - set(IDS.never_predicted), 0.5))
    counts.update(token for shard in corpus.shards for token in shard.tolist() if token not in IDS.never_predicted)
    found: list[tuple[float, float]] = []
    for batch in text.batches():
        context = batch.token_ids.shape[1]
        for place, target in zip(batch.gather.indices.tolist(), batch.targets.tolist(), strict=True):
            if target != -100:
                row = place // context
                own = batch.plan.doc_ids[row] == batch.plan.doc_ids[row, place % context]
                seen = [token for token in batch.token_ids[row, own].tolist() if token >= IDS.first_text_id]
                found.append((counts[target] / counts.total(), seen.count(target) / max(1, len(seen))))
    training, document = np.array(found).T
    best = minimize_scalar(
        lambda weight: -np.log(weight * training + (1 - weight) * document).mean(), bounds=(1e-6, 1), method="bounded"
    )
    assert text.frequency_loss == pytest.approx(best.fun, abs=1e-4)
    assert text.frequency_loss < -np.log(training).mean()


def test_a_shorter_context_measures_the_same_texts_under_the_same_masks() -> None:
    corpus = corpus_of(realistic_lengths(200, 30))
    short, long = choose_heldout_texts({"web": corpus}, {12: 4, 40: 2}, frequencies_of(all_documents(corpus)))
    assert short.texts == long.texts and (short.context, long.context) == (12, 40)
    masked: list[dict[int, list[int]]] = []
    for text in (short, long):
        found = {}
        for batch in text.batches():
            for row in range(len(batch.token_ids)):
                for number in range(int(batch.plan.doc_ids[row].max()) + 1):
                    tokens = batch.token_ids[row, batch.plan.doc_ids[row] == number].tolist()
                    found[len(found)] = tokens
        masked.append(found)
    beginnings = [sorted(tuple(tokens[:11]) for tokens in found.values()) for found in masked]
    assert beginnings[0] == beginnings[1] and any(IDS.mask in tokens for tokens in beginnings[0])


def test_nothing_of_a_batch_is_kept_while_the_next_one_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors that stay between large ones would make a worker's memory grow by the logits of every batch."""
    text = held_out(all_documents(corpus_of(realistic_lengths(60, 30))), 40, 2)
    before: list[weakref.ref[torch.Tensor]] = []

    def watched(*given: Any) -> torch.Tensor:
        assert all(each() is None for each in before)
        losses = batch_losses(*given)
        before.append(weakref.ref(losses))
        return losses

    monkeypatch.setattr(heldout, "batch_losses", watched)
    found = token_losses(language_model(context=40, vocabulary_size=VOCABULARY), text, "fp32", CPU)
    assert len(before) > 5 and len(found) == sum(batch.predicted_tokens for batch in text.batches())


def test_texts_without_a_predicted_token_are_told_in_a_sentence() -> None:
    corpus = corpus_of([0, 0])
    (text,) = choose_heldout_texts({"web": corpus}, {12: 4}, frequencies_of(all_documents(corpus)))
    with pytest.raises(MissingData, match="the web corpus holds out 1 texts, in which no token is predicted"):
        measure_heldout(language_model(context=12), text, "fp32", CPU)
