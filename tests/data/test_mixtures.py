"""Claims of mixtures: shares in expectation, an order that only seed and step decide, and clean held-out text."""

import json
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.data.batches import HELDOUT_MASKING, collate, micro_batches
from neobert.data.mixtures import join_corpora, training_sides
from neobert.data.shards import split_corpus
from neobert.data.streams import STREAMS, PackingWord, StepIterator, read_by_corpus
from neobert.model.heads import IGNORED_TARGET
from neobert.recipe import Subset
from tests.support.small_corpora import corpus_of, realistic_lengths, stage

CONTEXT, ROWS = 32, 12
CORPORA = {name: corpus_of(realistic_lengths(60, 20, seed), seed) for seed, name in enumerate("abc")}
SIDES = training_sides(CORPORA)

packings = st.sampled_from(sorted(STREAMS))
mixtures = st.lists(st.tuples(st.sampled_from([None, "b", "c"]), st.integers(1, 9)), min_size=1, max_size=4).filter(
    lambda parts: any(corpus for corpus, _ in parts)
)
Parts = list[tuple[str | None, int]]


def steps(parts: Parts, packing: PackingWord, seed: int, count: int = 40) -> StepIterator:
    """The rows of a mixture whose subsets have these corpora (None: a) and weights."""
    total = sum(weight for _, weight in parts)
    mixture = tuple(Subset(minimum_tokens=0, share=weight / total, corpus=corpus) for corpus, weight in parts)
    recipe = stage(CONTEXT, ROWS, steps=count, mixture=mixture)
    return StepIterator(SIDES["a"], recipe, packing, seed=seed, corpora=SIDES)


def content(rows: Any) -> list[Any]:
    return [rows.count, *(getattr(rows.spans, name).tolist() for name in vars(rows.spans))]


@settings(deadline=None, max_examples=60)
@given(mixtures, packings, st.integers(0, 2**31))
def test_shares_hold_in_expectation_and_all_that_is_read_is_counted(
    parts: Parts, packing: PackingWord, seed: int
) -> None:
    iterator, found, tokens = steps(parts, packing, seed), dict.fromkeys("abc", 0), 0
    ends = np.cumsum([corpus.documents for corpus in CORPORA.values()])
    for rows in iterator:
        owners = np.searchsorted(ends, rows.spans.documents, side="right")
        by_row = dict(zip(rows.spans.rows.tolist(), owners.tolist(), strict=True))
        assert (owners == [by_row[row] for row in rows.spans.rows.tolist()]).all(), "a row has one corpus"
        for owner in owners.tolist() if packing == "padded" else by_row.values():
            found["abc"[owner]] += 1
        tokens += rows.real_tokens
    shares, units = iterator.stage.shares("a"), 40 * ROWS
    assert sum(found.values()) == units
    for name, number in found.items():
        share = shares.get(name, 0.0)
        assert abs(number / units - share) <= 6 * np.sqrt(share * (1 - share) / units)
    read = read_by_corpus(iterator.stage, "a", iterator.state())
    assert read.keys() == shares.keys() and sum(each["tokens"] for each in read.values()) == tokens
    if packing == "padded":
        assert {name: each["documents"] for name, each in read.items()} == {name: found[name] for name in read}


@settings(deadline=None, max_examples=60)
@given(mixtures, packings, st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))
def test_ranks_micro_batches_and_resumption_change_nothing(
    parts: Parts, packing: PackingWord, seed: int, done: int, ranks: int, most_rows: int
) -> None:
    whole = steps(parts, packing, seed)
    state = [whole.state() for _ in islice(whole, done)][-1]
    resumed = steps(parts, packing, seed)
    resumed.restore(json.loads(json.dumps(state)))
    for ours, theirs in islice(zip(whole, resumed, strict=True), 6):
        assert content(ours) == content(theirs) and whole.state() == resumed.state()
    shares = [list(micro_batches(theirs, most_rows, rank=rank, ranks=ranks)) for rank in range(ranks)]
    order = [share for number in range(len(shares[0])) for share in (each[number] for each in shares)]
    assert list(chain.from_iterable(share.spans.keys.tolist() for share in order)) == ours.spans.keys.tolist()
    split = [collate(share, SIDES["a"].corpus, HELDOUT_MASKING) for share in order]
    targets = [target for batch in split for target in batch.targets.tolist() if target != IGNORED_TARGET]
    whole_step = collate(ours, SIDES["a"].corpus, HELDOUT_MASKING)
    assert targets == [target for target in whole_step.targets.tolist() if target != IGNORED_TARGET]


def test_a_weight_changes_what_is_read_and_so_does_the_seed() -> None:
    first = content(next(steps([(None, 1), ("b", 1)], "packed", 0)))
    assert content(next(steps([(None, 1), ("b", 1)], "packed", 0))) == first
    assert content(next(steps([(None, 1), ("b", 3)], "packed", 0))) != first
    assert content(next(steps([(None, 1), ("c", 1)], "packed", 0))) != first
    assert content(next(steps([(None, 1), ("b", 1)], "packed", 1))) != first


def test_joined_corpora_are_those_that_were_joined() -> None:
    joined = join_corpora(list(CORPORA.values()))
    assert joined.tokens == sum(corpus.tokens for corpus in CORPORA.values())
    number = CORPORA["a"].documents + 7
    read = np.empty(int(joined.lengths[number]), dtype=np.int64)
    joined.copy(joined.starts[number : number + 1], joined.lengths[number : number + 1], read, np.array([0]))
    first = int(CORPORA["b"].lengths[:7].sum())
    assert read.tolist() == np.concatenate(CORPORA["b"].shards)[first : first + len(read)].tolist()
    assert join_corpora([CORPORA["a"]]) is CORPORA["a"], "one corpus stays what it is"
    alone = training_sides({"a": CORPORA["a"]})["a"]
    assert alone.numbers.tolist() == split_corpus(CORPORA["a"])[0].numbers.tolist()


def test_a_text_that_is_held_out_of_one_corpus_is_trained_on_in_none() -> None:
    first = CORPORA["a"]
    second = replace(CORPORA["b"], text_hashes=np.concatenate([first.text_hashes[:30], CORPORA["b"].text_hashes[30:]]))
    sides = training_sides({"a": first, "b": second})
    for corpus in (first, second):
        heldout = split_corpus(corpus)[1]
        hashes = corpus.text_hashes[heldout.numbers]
        for side in sides.values():
            assert not np.isin(side.corpus.text_hashes[side.numbers], hashes).any()
    both = replace(corpus_of([5] * 2), text_hashes=np.array([5, 9], dtype=np.uint64))
    other = replace(corpus_of([5] * 3), text_hashes=np.array([9, 10, 11], dtype=np.uint64))
    with pytest.raises(ValueError, match="every text of corpus first is held out of another corpus of the mixture"):
        training_sides({"first": both, "second": other})
