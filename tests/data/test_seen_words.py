"""Claims of words seen: parts of a document add up to it, rows alone decide, and names are those of BabyLM."""

from itertools import islice
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.data.seen_words import kept_steps, words_by_step
from neobert.data.shards import all_documents, document_words, prepare
from neobert.data.streams import STREAMS, PackingWord, StepIterator
from neobert.data.tokenizers import train_wordpiece
from tests.support.small_corpora import corpus_of, realistic_lengths, stage, texts

CONTEXT = 16
CORPUS = corpus_of([0, *realistic_lengths(90, 20)])
WORDS = np.maximum(1, CORPUS.lengths * 3 // 4).astype(np.int32)
packings = st.sampled_from(sorted(STREAMS))


def rows_of(packing: PackingWord, seed: int, steps: int, long_documents: str = "split") -> StepIterator:
    recipe = stage(CONTEXT, 8, steps=steps)
    return StepIterator(all_documents(CORPUS), recipe, packing, seed=seed, long_documents=long_documents)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["padded", "packed"]), st.integers(0, 2**31))
def test_the_passages_of_an_epoch_have_all_words(packing: PackingWord, seed: int) -> None:
    """A document without a token has no word that anybody could see."""
    passages = len(all_documents(CORPUS).split(CONTEXT))
    iterator = rows_of(packing, seed, 4 * passages)
    seen = np.zeros(len(WORDS), dtype=np.int64)
    (stream,) = iterator.streams
    rows = stream.pack(0, passages, 0)
    assert words_by_step([rows], CORPUS, WORDS).tolist() == [WORDS[CORPUS.lengths > 0].sum()]
    np.add.at(seen, rows.spans.documents, rows.spans.framed_lengths - 2)
    assert (seen == CORPUS.lengths).all()


@settings(deadline=None, max_examples=20)
@given(packings, st.sampled_from(["cut", "split"]), st.integers(0, 2**31), st.integers(1, 39))
def test_words_are_those_of_the_visible_tokens_and_only_the_rows_decide(
    packing: PackingWord, long_documents: str, seed: int, begun: int
) -> None:
    words = words_by_step(rows_of(packing, seed, 40, long_documents), CORPUS, WORDS)
    expected = []
    for rows in rows_of(packing, seed, 40, long_documents):
        spans, step = rows.spans, 0
        for number, first, tokens, framed, begin in zip(
            spans.documents, spans.first, spans.tokens, spans.framed_lengths, spans.begins, strict=True
        ):
            visible = [place - 1 + begin for place in range(first, first + tokens) if 0 < place < framed - 1]
            share = WORDS[number] / max(1, CORPUS.lengths[number])
            step += len(visible) * share
        expected.append(step)
        assert abs(words_by_step([rows], CORPUS, WORDS)[0] - step) <= len(spans.rows), "each is rounded down once"
    resumed = rows_of(packing, seed, 40, long_documents)
    before = list(islice(resumed, begun))
    again = rows_of(packing, seed, 40, long_documents)
    again.restore(resumed.state())
    assert words_by_step([*before, *again], CORPUS, WORDS).tolist() == words.tolist()


def test_names_and_numbers_are_those_of_babylms_pipeline() -> None:
    """`STRICT_SMALL_FAST_REVISIONS` and `OTHER_FAST_REVISIONS` of its collate_preds.py."""
    small = [f"chck_{number}M" for number in (*range(1, 10), *range(10, 101, 10))]
    strict = [f"chck_{number}M" for number in (*range(1, 10), *range(10, 100, 10), *range(100, 1001, 100))]
    words = np.arange(1, 1001) * 1_000_000
    assert list(kept_steps(words[:100], 1_000_000, 0)) == small
    kept = kept_steps(words, 1_000_000, 0)
    assert list(kept) == strict and kept["chck_70M"] == 70
    assert kept_steps(words[:7] + 5, 1_000_000, 0)["chck_1M"] == 1, "the first step with at least so many"


@settings(deadline=None)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.integers(1, 400), st.integers(0, 2000))
def test_stages_go_on_counting(added: list[int], unit: int, cut: int) -> None:
    words = np.cumsum(added)
    cut = min(cut, len(added) - 1)
    parts = dict(kept_steps(words[:cut], unit, 0)) if cut else {}
    before = int(words[cut - 1]) if cut else 0
    parts |= {name: cut + step for name, step in kept_steps(words[cut:] - before, unit, before).items()}
    assert parts == kept_steps(words, unit, 0)
    for name, step in parts.items():
        mark = int(name.removeprefix("chck_"))
        assert words[step - 1] >= mark and (step == 1 or words[step - 2] < mark)


def test_words_are_counted_when_a_corpus_is_tokenised(tmp_path: Path) -> None:
    read = [*texts(30), "two\u00a0words", "  three\nof them\t", " ", "\u200b"]
    prepare(
        iter(read), train_wordpiece(texts(200), 256), tmp_path / "corpus", origins={"corpus": "c"}, shard_tokens=200
    )
    kept = [text for text in read if text.strip()]
    assert document_words(tmp_path / "corpus").tolist() == [len(text.split()) for text in kept]
