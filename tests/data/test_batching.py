"""Claims of batching: what a step holds, exact resumption, and tensors that are what the rows say."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice, pairwise
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.data import streams
from neobert.data.batches import (
    Batch,
    ExactSizes,
    PaddingBuckets,
    collate,
    heldout_batches,
    heldout_rows,
    micro_batches,
)
from neobert.data.packing import PackedRows, join_rows, pack_documents
from neobert.data.shards import Documents, TokenizedCorpus, all_documents
from neobert.data.streams import STREAMS, WINDOW_DOCUMENTS, PackingWord, StepIterator
from neobert.recipe import Masking, Subset
from tests.support.small_corpora import IDS, corpus_of, realistic_lengths, small_documents, stage

CONTEXT = 32
BERT = Masking(rate=0.15, mask_share=0.8, random_share=0.1)
UNMASKED = BERT.model_copy(update={"rate": 1e-12})
MIXTURE = (
    Subset(minimum_tokens=0, share=0.2),
    Subset(minimum_tokens=20, share=0.4),
    Subset(minimum_tokens=40, share=0.4),
)
PACKINGS = sorted(STREAMS)

packings = pytest.mark.parametrize("packing", PACKINGS)


def fields(rows: PackedRows) -> list[object]:
    spans = rows.spans
    return [rows.count, rows.context, rows.isolated, *(getattr(spans, name).tolist() for name in vars(spans))]


def framed(corpus: TokenizedCorpus, document: int) -> list[int]:
    """A document with its specials, read the slow way."""
    first = int(corpus.lengths[:document].sum())
    flat = np.concatenate(corpus.shards)[first : first + int(corpus.lengths[document])]
    return [IDS.cls, *flat.tolist(), IDS.sep]


def masks(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """(row, column, target) of each predicted token."""
    for place, target in zip(batch.gather.indices.tolist(), batch.targets.tolist(), strict=True):
        if target != -100:
            yield *divmod(place, batch.token_ids.shape[1]), target


def predicted_places(rows: PackedRows, batch: Batch) -> set[tuple[int, int, int]]:
    """(document, token offset, target) of each predicted token."""
    spans = rows.spans
    kept = (batch.targets != -100).numpy()
    places, targets = batch.gather.indices.numpy()[kept], batch.targets.numpy()[kept]
    begins = spans.rows * rows.context + spans.columns
    piece = np.searchsorted(begins, places, side="right") - 1
    offsets = spans.begins[piece] + spans.first[piece] + places - begins[piece] - 1
    return set(zip(spans.documents[piece].tolist(), offsets.tolist(), targets.tolist(), strict=True))


@given(
    packing=st.sampled_from(PACKINGS),
    count=st.integers(3, 60),
    rows=st.integers(1, 9),
    taken=st.integers(0, 12),
    mixed=st.booleans(),
)
@settings(max_examples=15)
def test_every_state_continues_with_exactly_the_rows_that_would_have_come(
    packing: PackingWord, count: int, rows: int, taken: int, mixed: bool
) -> None:
    documents = all_documents(corpus_of([50, *realistic_lengths(count, 30)]))
    recipe = stage(CONTEXT, rows, mixture=MIXTURE) if mixed else stage(CONTEXT, rows)
    with patch.object(streams, "WINDOW_DOCUMENTS", 40):
        steps = StepIterator(documents, recipe, packing, seed=3)
        for _ in range(taken):
            next(steps)
        state = json.loads(json.dumps(steps.state()))
        expected = [fields(next(steps)) for _ in range(6)]
        restored = StepIterator(documents, recipe, packing, seed=3)
        next(restored)
        restored.restore(state)
        assert [fields(next(restored)) for _ in range(6)] == expected


@given(count=st.integers(1, 30), context=st.integers(3, 40), seed=st.integers(0, 100))
@settings(max_examples=40)
def test_split_documents_are_read_whole_in_passages_of_nearly_equal_length(count: int, context: int, seed: int) -> None:
    documents = small_documents(count, seed=seed)
    corpus, passages = documents.corpus, documents.split(context)
    assert passages.framed_lengths.max() <= context
    rows = pack_documents(passages, np.arange(len(passages)), passages.numbers, context)
    batch = collate(rows, corpus, UNMASKED)
    read: dict[int, list[tuple[int, list[int]]]] = {}
    for span in range(len(rows.spans.rows)):
        row, column, tokens = (int(getattr(rows.spans, name)[span]) for name in ("rows", "columns", "tokens"))
        opening, *text, closing = batch.token_ids[row, column : column + tokens].tolist()
        assert (opening, closing) == (IDS.cls, IDS.sep)
        read.setdefault(int(rows.spans.documents[span]), []).append((int(rows.spans.begins[span]), text))
    for document in range(len(documents)):
        texts = [text for _, text in sorted(read[document])]
        assert [IDS.cls, *chain(*texts), IDS.sep] == framed(corpus, document)
        assert max(map(len, texts)) - min(map(len, texts)) <= 1


def test_the_passages_of_a_document_have_the_masks_of_the_whole() -> None:
    whole = all_documents(corpus_of([90]))
    predicted = []
    for documents, context in ((whole, 96), (whole.split(32), 32)):
        keys = np.full(len(documents), 3)
        rows = pack_documents(documents, np.arange(len(documents)), keys, context)
        found = predicted_places(rows, collate(rows, whole.corpus, BERT))
        predicted.append(found)
    assert predicted[0] == predicted[1] and len(predicted[0]) > 8


def test_a_padded_step_holds_a_fixed_number_of_documents_and_an_epoch_each_once() -> None:
    documents = small_documents(60)
    steps = StepIterator(documents, stage(CONTEXT, 12), "padded", seed=0)
    epochs = []
    for _ in range(3):
        seen = []
        for rows in islice(steps, 5):
            assert len(rows.spans.documents) == 12 and rows.count <= 12
            assert rows.spans.tokens.tolist() == np.minimum(rows.spans.framed_lengths, CONTEXT).tolist()
            seen.extend(rows.spans.documents.tolist())
        assert sorted(seen) == list(range(60))
        epochs.append(seen)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_packed_epoch_holds_each_document_once() -> None:
    documents = small_documents(100)
    steps = StepIterator(documents, stage(CONTEXT, 1, steps=10**6), "packed", seed=0)
    counts = np.zeros(100, dtype=np.int64)
    while (steps.state()["streams"][0]["document"]) == 0:
        rows = next(steps)
        assert rows.count == 1
        np.add.at(counts, rows.spans.documents, 1)
    # One window holds 40 epochs and 96 documents of the next.
    assert WINDOW_DOCUMENTS == 40 * 100 + 96
    assert set(counts.tolist()) == {40, 41} and (counts == 41).sum() == 96


def test_packed_steps_are_samples_of_all_lengths() -> None:
    documents = all_documents(corpus_of(realistic_lengths(WINDOW_DOCUMENTS, 60)))
    steps = StepIterator(documents, stage(128, 64), "packed", seed=0)
    means = [float(next(steps).spans.tokens.mean()) for _ in range(8)]
    assert max(means) < 1.5 * min(means)


@pytest.mark.parametrize("packing", ["padded", "packed"])
def test_all_ranks_meet_the_same_few_sizes(packing: PackingWord) -> None:
    """Else one rank compiles a shape while the others wait for it: packing alone would give the last rank's rows many
    short documents and the first one's few long ones."""
    documents = all_documents(corpus_of(realistic_lengths(WINDOW_DOCUMENTS, 60)))
    shapes = PaddingBuckets(8, 128, BERT.rate, float(np.minimum(documents.framed_lengths, 128).mean()))
    sizes = set()
    for rows in islice(StepIterator(documents, stage(128, 256), packing, seed=0), 8):
        for rank in range(8):
            for part in micro_batches(rows, 8, rank=rank, ranks=8):
                batch = collate(part, documents.corpus, BERT, sizes=shapes, varlen=True)
                assert batch.plan.cu_seqlens is not None and part.count
                sizes.add((*batch.token_ids.shape, len(batch.targets), len(batch.plan.cu_seqlens)))
    assert len(sizes) <= 4


@packings
def test_a_document_without_tokens_is_its_specials(packing: PackingWord) -> None:
    documents = all_documents(corpus_of([0, 9, 0, 0, 40, 3, 0]))
    for rows in islice(StepIterator(documents, stage(CONTEXT, 7), packing, seed=0), 5):
        batch = collate(rows, documents.corpus, BERT)
        assert batch.real_tokens == rows.real_tokens
        assert {framed(documents.corpus, number)[-1] for number, _, _ in predicted_places(rows, batch)} <= {IDS.sep}
        ends = (batch.token_ids == IDS.sep).sum() - (batch.token_ids == IDS.cls).sum()
        assert abs(int(ends)) <= (0 if rows.isolated else 1)


def test_rows_across_documents_are_the_stream_of_uncut_documents_cut_evenly() -> None:
    documents = small_documents(40, mean=50)
    corpus = documents.corpus
    steps = StepIterator(documents, stage(CONTEXT, 7), "packed_across_documents", seed=0)
    stream: list[int] = []
    order: list[int] = []
    for rows in islice(steps, 25):
        batch = collate(rows, corpus, UNMASKED)
        assert batch.token_ids.shape == (7, CONTEXT) and rows.real_tokens == 7 * CONTEXT
        assert (batch.plan.doc_ids == 0).all()
        assert (batch.plan.positions == torch.arange(CONTEXT)).all()
        stream.extend(batch.token_ids.flatten().tolist())
        order.extend(rows.spans.documents[rows.spans.first == 0].tolist())
    expected = [token for document in order for token in framed(corpus, document)]
    assert stream == expected[: len(stream)]
    assert sorted(order[:40]) == list(range(40))


@given(packing=st.sampled_from(PACKINGS), seed=st.integers(0, 100), rate=st.sampled_from([0.15, 0.9]))
@settings(max_examples=40)
def test_a_batch_is_what_its_rows_say(packing: PackingWord, seed: int, rate: float) -> None:
    documents = small_documents(50, seed=seed)
    rows = next(StepIterator(documents, stage(CONTEXT, 6), packing, seed=seed))
    batch = collate(rows, documents.corpus, BERT.model_copy(update={"rate": rate}), sizes=ExactSizes(8))
    token_ids = np.full((8, CONTEXT), IDS.pad)
    numbers, positions = np.full((8, CONTEXT), -1), np.full((8, CONTEXT), -1)
    seen_in_row = [0] * 8
    spans = rows.spans
    for piece in range(len(spans.rows)):
        row, column, tokens = int(spans.rows[piece]), int(spans.columns[piece]), int(spans.tokens[piece])
        whole = framed(documents.corpus, int(spans.documents[piece]))
        if rows.isolated:
            whole = [*whole[: CONTEXT - 1], IDS.sep] if len(whole) > CONTEXT else whole
        first = int(spans.first[piece])
        place = slice(column, column + tokens)
        token_ids[row, place] = whole[first : first + tokens]
        numbers[row, place] = seen_in_row[row] if rows.isolated else 0
        positions[row, place] = range(tokens) if rows.isolated else range(column, column + tokens)
        seen_in_row[row] += 1
    for row, column, target in masks(batch):
        assert target == token_ids[row, column] and target not in IDS.never_predicted
        token_ids[row, column] = int(batch.token_ids[row, column])
    assert batch.token_ids.tolist() == token_ids.tolist()
    assert batch.plan.doc_ids.tolist() == numbers.tolist()
    assert batch.plan.positions.tolist() == positions.tolist()
    assert batch.real_tokens == rows.real_tokens == int((batch.plan.positions >= 0).sum())
    assert batch.predicted_tokens == int((batch.targets != -100).sum()) > 0
    assert batch.gather.indices.shape == batch.targets.shape and len(batch.targets) % 8 == 0
    assert len(batch.targets) < batch.predicted_tokens + 8 and batch.gather.queries.shape[1] <= CONTEXT
    assert len({(row, column) for row, column, _ in masks(batch)}) == batch.predicted_tokens


@given(st.integers(1, 96), st.data())
def test_rows_in_buckets_are_few_sizes_and_never_more_than_a_micro_batch_has(most: int, data: st.DataObject) -> None:
    """65 rows are 65 and not 80."""
    sizes = PaddingBuckets(most, CONTEXT, BERT.rate, 20.0)
    needed = data.draw(st.integers(0, most))
    assert max(1, needed) <= sizes.rows(needed) <= most
    assert len({sizes.rows(count) for count in range(most + 1)}) <= 7


@packings
def test_fixed_sizes_are_few_and_drop_no_target(packing: PackingWord) -> None:
    documents = small_documents(400)
    shapes = PaddingBuckets(8, CONTEXT, BERT.rate, float(documents.framed_lengths.mean()))
    sizes = Counter()
    for rows in StepIterator(documents, stage(CONTEXT, 8, steps=200), packing, seed=0):
        batch, exact = (collate(rows, documents.corpus, BERT, sizes=kind) for kind in (shapes, ExactSizes()))
        assert list(masks(batch)) == list(masks(exact))
        sizes[batch.token_ids.shape, batch.gather.queries.shape, batch.targets.shape] += 1
    assert len({rows for (rows, _), _, _ in sizes}) <= 4
    assert len(sizes) <= 12 and sum(count for _, count in sizes.most_common(4)) >= 150


@given(packing=st.sampled_from(PACKINGS), seed=st.integers(0, 100), fixed=st.booleans())
@settings(max_examples=40)
def test_one_run_of_tokens_holds_what_rows_hold(packing: PackingWord, seed: int, fixed: bool) -> None:
    documents = small_documents(50, seed=seed)
    rows = next(StepIterator(documents, stage(CONTEXT, 6), packing, seed=seed))
    shapes = PaddingBuckets(6, CONTEXT, BERT.rate, float(documents.framed_lengths.mean())) if fixed else ExactSizes()
    batch, by_row = (collate(rows, documents.corpus, BERT, sizes=shapes, varlen=varlen) for varlen in (True, False))
    assert list(masks(batch)) == list(masks(by_row)) and torch.equal(batch.targets, by_row.targets)
    assert batch.plan.cu_seqlens is not None and by_row.plan.cu_seqlens is None and batch.gather.cu_seqlens is not None
    flat = batch.plan.doc_ids.flatten()
    owner = torch.bucketize(torch.arange(len(flat)), batch.plan.cu_seqlens, right=True)
    for first, last in pairwise(batch.plan.cu_seqlens.tolist()):
        assert len(set(flat[first:last].tolist())) <= 1 and last - first <= CONTEXT
    asking = torch.bucketize(torch.arange(len(batch.targets)), batch.gather.cu_seqlens, right=True)
    assert torch.equal(asking, owner[batch.gather.indices])
    assert len(batch.plan.cu_seqlens) == len(batch.gather.cu_seqlens)


@packings
def test_masks_do_not_depend_on_the_micro_batch(packing: PackingWord) -> None:
    documents = small_documents(60)
    rows = next(StepIterator(documents, stage(CONTEXT, 20), packing, seed=0))
    whole = collate(rows, documents.corpus, BERT)
    parts = list(micro_batches(rows, 3))
    batches = [collate(part, documents.corpus, BERT) for part in parts]
    places = [predicted_places(part, batch) for part, batch in zip(parts, batches, strict=True)]
    assert set.union(*places) == predicted_places(rows, whole)
    assert torch.equal(torch.cat([batch.token_ids for batch in batches]), whole.token_ids)


def test_masks_do_not_depend_on_whether_documents_are_cut() -> None:
    documents = small_documents(60)
    padded = next(StepIterator(documents, stage(CONTEXT, 60), "padded", seed=0))
    in_padded = predicted_places(padded, collate(padded, documents.corpus, BERT))
    steps = StepIterator(documents, stage(CONTEXT, 1, steps=10**6), "packed_across_documents", seed=0)
    in_across: set[tuple[int, int, int]] = set()
    while steps.state()["streams"][0]["document"] < 60:
        rows = next(steps)
        in_across |= predicted_places(rows, collate(rows, documents.corpus, BERT))
    assert len(in_padded) > 100
    assert in_padded <= in_across


def test_padded_and_packed_predict_the_same_tokens_of_an_epoch() -> None:
    documents = all_documents(corpus_of(realistic_lengths(WINDOW_DOCUMENTS, 20)))
    padded = join_rows(list(StepIterator(documents, stage(CONTEXT, WINDOW_DOCUMENTS // 4, steps=4), "padded", seed=0)))
    window = next(StepIterator(documents, stage(CONTEXT, WINDOW_DOCUMENTS), "padded", seed=0))
    packed = next(StepIterator(documents, stage(CONTEXT, window.count), "packed", seed=0))
    assert sorted(packed.spans.documents.tolist()) == sorted(padded.spans.documents.tolist())
    assert packed.spans.documents.tolist() != padded.spans.documents.tolist()
    both = [predicted_places(rows, collate(rows, documents.corpus, BERT)) for rows in (padded, packed)]
    assert both[0] == both[1] and len(both[0]) > 1000


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("rows_per_micro_batch", [1, 4, 5])
def test_ranks_share_a_step_in_equally_many_micro_batches(ranks: int, rows_per_micro_batch: int) -> None:
    documents = small_documents(100)
    rows = next(StepIterator(documents, stage(CONTEXT, 13), "padded", seed=0))
    shares = [list(micro_batches(rows, rows_per_micro_batch, rank=rank, ranks=ranks)) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    parts = [part for share in shares for part in share]
    assert sum(part.count for part in parts) == rows.count
    assert max(part.count for part in parts) <= rows_per_micro_batch
    assert max(part.count for share in shares for part in share) <= -(-rows.count // len(parts))
    documents_of = [number for part in parts for number in part.spans.documents.tolist()]
    assert sorted(documents_of) == sorted(rows.spans.documents.tolist())
    batches = [collate(part, documents.corpus, BERT, sizes=ExactSizes(rows_per_micro_batch)) for part in parts]
    assert {batch.token_ids.shape for batch in batches} == {(rows_per_micro_batch, CONTEXT)}
    whole = collate(rows, documents.corpus, BERT)
    assert sum(batch.predicted_tokens for batch in batches) == whole.predicted_tokens
    assert sum(batch.real_tokens for batch in batches) == whole.real_tokens


def test_an_empty_micro_batch_is_filler() -> None:
    documents = small_documents()
    rows = next(StepIterator(documents, stage(CONTEXT, 4), "packed", seed=0))
    batch = collate(rows[4:8], documents.corpus, BERT, sizes=ExactSizes(4))
    assert batch.real_tokens == batch.predicted_tokens == 0
    assert (batch.plan.doc_ids == -1).all() and (batch.targets == -100).all() and (batch.token_ids == IDS.pad).all()


@packings
def test_each_step_draws_one_subset_with_its_share(packing: PackingWord) -> None:
    documents = small_documents(200, mean=60)
    steps = StepIterator(documents, stage(CONTEXT, 2, steps=800, mixture=MIXTURE), packing, seed=0)
    draws = []
    before = steps.state()["streams"]
    for rows in steps:
        after = steps.state()["streams"]
        (drawn,) = [number for number in range(3) if before[number] != after[number]]
        assert int(rows.spans.framed_lengths.min()) >= min(MIXTURE[drawn].minimum_tokens, CONTEXT)
        draws.append(drawn)
        before = after
    for number, subset in enumerate(MIXTURE):
        deviation = np.sqrt(subset.share * (1 - subset.share) / 800)
        assert abs(draws.count(number) / 800 - subset.share) < 4 * deviation


def test_a_subset_without_documents_is_refused_before_training() -> None:
    too_long = (Subset(minimum_tokens=0, share=0.5), Subset(minimum_tokens=10**6, share=0.5))
    with pytest.raises(ValueError, match=r"no document has 1000000 tokens, the longest has \d+"):
        StepIterator(small_documents(), stage(CONTEXT, 4, mixture=too_long), "padded", seed=0)


@packings
def test_seed_and_stage_decide_the_order_and_nothing_else_does(packing: PackingWord) -> None:
    documents = small_documents()
    recipe = stage(CONTEXT, 4)
    first = fields(next(StepIterator(documents, recipe, packing, seed=0)))
    assert fields(next(StepIterator(documents, recipe, packing, seed=0))) == first
    assert fields(next(StepIterator(documents, recipe, packing, seed=1))) != first
    assert fields(next(StepIterator(documents, recipe, packing, seed=0, stage_number=1))) != first


def evaluation(documents: Documents, rows: int) -> list[tuple[list[int], list[int]]]:
    """(tokens with masks, targets) of each held-out document as evaluated, in a stable order."""
    found = []
    packed = heldout_rows(documents.truncated(CONTEXT), CONTEXT)
    for batch in heldout_batches(packed, documents.corpus, rows):
        assert 0 < len(batch.token_ids) <= rows, "no row is padding alone"
        targets = torch.full_like(batch.token_ids, -1)
        for row, column, target in masks(batch):
            assert batch.token_ids[row, column] == IDS.mask
            targets[row, column] = target
        for row in range(len(batch.token_ids)):
            for number in range(int(batch.plan.doc_ids[row].max()) + 1):
                here = batch.plan.doc_ids[row] == number
                found.append((batch.token_ids[row, here].tolist(), targets[row, here].tolist()))
    return sorted(found)


def test_held_out_documents_and_masks_are_fixed_by_their_text_alone() -> None:
    documents = small_documents(50)
    corpus = documents.corpus
    backwards = list(reversed(range(50)))
    flat = [framed(corpus, number)[1:-1] for number in backwards]
    other = replace(
        corpus,
        lengths=corpus.lengths[backwards],
        text_hashes=corpus.text_hashes[backwards],
        shards=(np.array([token for ids in flat for token in ids], dtype=np.uint16),),
    )
    expected = evaluation(documents, rows=4)
    assert len(expected) == 50
    assert evaluation(all_documents(other), rows=7) == expected
    predicted = sum(target >= 0 for _, targets in expected for target in targets)
    tokens = sum(len(token_ids) - 2 for token_ids, _ in expected)
    assert abs(predicted / tokens - 0.15) < 4 * np.sqrt(0.15 * 0.85 / tokens)
