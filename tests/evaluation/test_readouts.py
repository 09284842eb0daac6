"""Readouts: every model is asked the same, sums are those of text after text, and only what was learned helps."""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional

from neobert.data.batches import Batch
from neobert.data.synthetic import corpus_documents
from neobert.data.task_files import PARADIGMS, MinimalPair
from neobert.data.tokenizers import TextTokenizer, train_bpe, train_wordpiece
from neobert.errors import MissingData, RunFailed
from neobert.evaluation import readouts
from neobert.evaluation.items import (
    DOCUMENTS,
    ENOUGH_CHARACTERS_PER_TOKEN,
    Items,
    Stretch,
    choose_documents,
    choose_stretches,
    cut_stretches,
    survey,
)
from neobert.evaluation.readouts import (
    ASKED,
    MeasuredModel,
    Question,
    measure,
    number_of_masks,
    read_losses,
)
from neobert.model.attention import whole_rows_plan
from neobert.processes import Stopped, StopRequest
from neobert.runs.records import pack_numbers, unpack_numbers
from tests.support.small_models import FORMS, language_model

CONTEXT = 32
CPU = torch.device("cpu")
NEVER = StopRequest()
TEXTS = tuple(corpus_documents("web", documents=400))


@pytest.fixture(scope="module")
def tokenizers() -> Mapping[str, TextTokenizer]:
    return {"wordpiece": train_wordpiece(TEXTS, 220), "bpe": train_bpe(TEXTS, 420)}  # words are of several tokens


@pytest.fixture(scope="module")
def items() -> Items:
    stretches = cut_stretches(survey(iter(TEXTS)))
    return Items({"web": choose_stretches(stretches)}, {"web": broken_sentences(stretches)})


def broken_sentences(stretches: Sequence[Stretch]) -> list[MinimalPair]:
    """A pair of each paradigm: beginnings of stretches, and the same in reverse order."""
    begins = [" ".join(stretch.text.split()[:6]) for stretch in stretches]
    return [
        MinimalPair(begin, " ".join(begin.split()[::-1]), paradigm)
        for begin, paradigm in zip(begins, PARADIGMS, strict=False)
    ]


def subject_of(tokenizer: TextTokenizer, form: str = "NeoBERT form", seed: int = 0) -> MeasuredModel:
    size = tokenizer.vocabulary_size
    model = language_model(CONTEXT, seed, vocabulary_size=size, **FORMS[form]).eval()  # type: ignore[arg-type]
    return MeasuredModel(model, tokenizer, CONTEXT, "fp32", CPU)


def asked_by(
    subject: MeasuredModel, read: Any, own: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Question], readouts.Measured]:
    """The questions of a readout, and what it measured."""
    seen: list[Question] = []
    honest = MeasuredModel.sum_losses

    def listening(
        self: MeasuredModel, questions: Iterable[Question], owners: int, stop: StopRequest
    ) -> NDArray[np.float64]:
        def noted() -> Iterator[Question]:
            for question in questions:
                seen.append(question)
                yield question

        return honest(self, noted(), owners, stop)

    with monkeypatch.context() as listened:
        listened.setattr(MeasuredModel, "sum_losses", listening)
        measured = read(subject, own, NEVER)
    return seen, measured


# What is asked


def test_items_are_those_of_the_text_whatever_the_order_of_documents() -> None:
    """Neither a model nor a tokenizer is in the draw; only the text is."""
    shuffled = list(TEXTS)
    random.Random(1).shuffle(shuffled)
    drawn = []
    for texts in (TEXTS, shuffled):
        stretches = cut_stretches(survey(iter(texts)))
        drawn.append(choose_stretches(stretches, 2000))
    assert drawn[0] == drawn[1]
    few, many = choose_stretches(stretches, 500), choose_stretches(stretches, 2000)
    assert set(few) < set(many) < set(stretches)


def test_held_out_text_is_what_no_run_trains_on() -> None:
    from neobert.data.shards import heldout_bound, text_hash

    hashes = np.array([text_hash(text) for text in TEXTS], dtype=np.uint64)
    heldout = survey(iter(TEXTS))
    assert set(heldout) == set(hashes[hashes <= heldout_bound(hashes)].tolist())
    most = sum(map(len, heldout.values())) // 3
    fewer = survey(iter(TEXTS), most)
    assert list(fewer) == sorted(heldout)[: len(fewer)], "those with the smallest hashes"
    assert most <= sum(map(len, fewer.values())) < most + max(map(len, heldout.values()))


def test_stretches_cover_every_word_once() -> None:
    long = " ".join(TEXTS)
    stretches = cut_stretches({7: long})
    assert " ".join(each.text for each in stretches) == long and len(stretches) > 5
    assert all(long[each.begin :].startswith(each.text) for each in stretches)


# What is summed


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("readout", ASKED)
def test_packed_sums_are_those_of_one_text_after_the_other(
    readout: Any,
    form: str,
    tokenizers: Mapping[str, TextTokenizer],
    items: Items,
    documents: Sequence[Stretch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = subject_of(tokenizers["wordpiece"], form)
    choose, read = ASKED[readout]
    own = documents if readout == "perplexity" else choose(items)["web"][:12]
    questions, _ = asked_by(subject, read, own, monkeypatch)
    assert max(len(question.token_ids) for question in questions) <= CONTEXT
    owners = 1 + max(question.owner for question in questions)
    expected = np.zeros(owners)
    for question in questions:
        token_ids = torch.from_numpy(question.token_ids)[None]
        with torch.no_grad():
            logits = subject.model(token_ids, whole_rows_plan(token_ids))[0, question.places]
        losses = functional.cross_entropy(logits, torch.from_numpy(question.targets), reduction="sum")
        expected[question.owner] += losses.item()
    monkeypatch.setitem(readouts.BATCH_TOKENS, "cpu", 100)
    sums = subject.sum_losses(questions, owners, NEVER)
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)


def test_questions_with_one_input_share_it_and_equal_ones_tie(
    tokenizers: Mapping[str, TextTokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(tokenizers["wordpiece"])
    computed: list[int] = []
    honest = readouts.batch_losses

    def listening(model: Any, batch: Batch, *others: Any) -> Any:
        computed.append(batch.real_tokens)
        return honest(model, batch, *others)

    monkeypatch.setattr(readouts, "batch_losses", listening)
    words = [
        subject.hide([10, 11, 12, 13, third, 15, 16], np.array([4]), owner) for owner, third in enumerate((20, 21))
    ]
    other = subject.hide([10, 11, 12, 13, 20, 15, 16], np.array([3]), 2)
    again = [replace(question, owner=question.owner + 3) for question in (*words, other)]
    sums = subject.sum_losses([*words, other, *again], 6, NEVER)
    assert computed == [2 * len(other.token_ids)]
    assert sums[0] != sums[1] and (sums[:3] == sums[3:]).all()


def test_a_loss_that_is_no_number_fails_and_a_request_stops(
    tokenizers: Mapping[str, TextTokenizer], items: Items
) -> None:
    subject = subject_of(tokenizers["wordpiece"])
    asked = StopRequest()
    asked.request()
    with pytest.raises(Stopped):
        read_losses(subject, items.stretches["web"], asked)
    with torch.no_grad():
        subject.model.decoder.bias.fill_(math.nan)
    with pytest.raises(RunFailed, match="not finite"):
        read_losses(subject, items.stretches["web"], NEVER)


def test_a_corpus_without_anything_to_ask_is_left_out_and_nothing_but_such_is_refused(
    tokenizers: Mapping[str, TextTokenizer], items: Items
) -> None:
    """Unknown tokens are never predicted."""
    subject, cyrillic = subject_of(tokenizers["wordpiece"]), [Stretch(1, 0, "это дом на реке")]
    both = Items({"web": items.stretches["web"][:2], "other": cyrillic})
    assert measure("loss", both, subject, NEVER).keys() == {"web"}
    with pytest.raises(MissingData, match="nothing to ask for the readout loss"):
        measure("loss", Items({"other": cyrillic}), subject, NEVER)


def test_masks_are_as_many_as_there_is_little_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readouts, "READ_BYTES", 1000)
    counts = [number_of_masks([Stretch(1, 0, "x" * size)]) for size in (2000, 1000, 400, 100)]
    assert counts == [1, 1, 2, 4]


def test_numbers_come_back_and_others_are_refused() -> None:
    numbers = np.array([1.5, 0.0, 7.25])
    assert unpack_numbers(pack_numbers(numbers, "<f4"), "<f4", 3).tolist() == numbers.tolist()
    with pytest.raises(ValueError, match="does not hold 4 numbers"):
        unpack_numbers(pack_numbers(numbers, "<f4"), "<f4", 4)
    for damaged in ("", "AAAA", "%"):
        with pytest.raises(ValueError):
            unpack_numbers(damaged, "<f4", 1)


# Pseudo-perplexity


@pytest.fixture(scope="module")
def documents() -> list[Stretch]:
    """Documents of several hundred words, one of which is too short for most lengths."""
    long = [" ".join(TEXTS[first : first + 12]) for first in range(0, 120, 12)]
    return choose_documents(dict(enumerate([*long, TEXTS[0][:30]])), CONTEXT)


def test_perplexity_has_the_same_documents_at_every_length_and_few_tokens_of_each(
    tokenizers: Mapping[str, TextTokenizer], documents: Sequence[Stretch], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(tokenizers["wordpiece"])
    questions, measured = asked_by(subject, readouts.read_perplexity, documents, monkeypatch)
    lengths = readouts.perplexity_lengths(CONTEXT)
    assert list(measured.groups) == list(map(str, lengths)) and lengths[-1] == CONTEXT
    count = len(measured.numerators) // len(lengths)
    assert count == 10 and max(measured.denominators) <= readouts.POSITIONS
    texts: dict[int, list[int]] = {}
    for question in questions:
        assert len(question.places) == 1 and question.token_ids[question.places] == subject.ids.mask
        whole = question.token_ids.copy()
        whole[question.places] = question.targets
        assert texts.setdefault(question.owner, whole.tolist()) == whole.tolist()
    for owner, text in texts.items():
        longest = texts[len(texts) - count + owner % count]
        assert len(text) == lengths[owner // count] and text[:-1] == longest[: len(text) - 1]
    by_unit = (measured.numerators / measured.denominators).reshape(len(lengths), -1)
    assert list(measured.groups.values()) == pytest.approx(by_unit.mean(axis=1).tolist())


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary(
    tokenizers: Mapping[str, TextTokenizer], documents: Sequence[Stretch]
) -> None:
    subject = subject_of(tokenizers["wordpiece"])
    torch.nn.init.zeros_(subject.model.decoder.weight)
    torch.nn.init.zeros_(subject.model.decoder.bias)
    measured = readouts.read_perplexity(subject, documents, NEVER)
    uniform = math.log(subject.tokenizer.vocabulary_size)
    assert list(measured.groups.values()) == pytest.approx([uniform] * len(measured.groups), rel=1e-5)


def test_lengths_that_too_few_documents_reach_are_left_out(
    tokenizers: Mapping[str, TextTokenizer], documents: Sequence[Stretch]
) -> None:
    subject = subject_of(tokenizers["wordpiece"])
    short = [replace(document, text=document.text[:40]) for document in documents]
    measured = readouts.read_perplexity(subject, [*documents[:5], *short[5:]], NEVER)
    assert measured.groups and max(map(int, measured.groups)) < CONTEXT
    with pytest.raises(MissingData, match="nothing to ask for the readout perplexity"):
        measure("perplexity", Items(documents={"web": documents[:1]}), subject, NEVER)


def test_documents_are_those_that_are_long_enough_with_the_smallest_hashes() -> None:
    """If these are too few, the longest of the others follow."""
    enough = ENOUGH_CHARACTERS_PER_TOKEN * 10
    texts = {number: "x" * (enough + number if number % 2 else number % 60) for number in range(150)}
    chosen = choose_documents(texts, 10)
    assert [document.document for document in chosen] == list(range(1, 2 * DOCUMENTS, 2))
    assert all(len(document.text) == enough for document in chosen)
    few = choose_documents({number: text for number, text in texts.items() if number < 100}, 10)
    assert [document.document for document in few[:50]] == list(range(1, 100, 2))
    assert [len(document.text) for document in few[50:]] == sorted((len(each.text) for each in few[50:]), reverse=True)
