"""Words and pieces: each word is read at its first piece, whatever a tokenizer does with spaces and with characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from neobert.data.tokenizers import train_bpe, train_wordpiece, wrap_tokenizer
from neobert.glue.encoding import UNREAD, frame_words, join_words

TEXTS = ["the cat sat on the mat, and a café naïve señor said: don't go to 中文 3.14 times-out"] * 3 + [
    "abcde é ñ 0 . , ' -"
]
MOST = 64


def subwords(pre_tokenizer, normalizer=None):
    """A BPE tokenizer in RoBERTa's format."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel) else []
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return wrap_tokenizer(tokenizer, "a test's")


TOKENIZERS = {
    "wordpiece": train_wordpiece(TEXTS, 200),
    "bpe with byte fallback": train_bpe(TEXTS, 400),
    "byte level with prefix space": subwords(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "byte level without": subwords(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "metaspace everywhere": subwords(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace never": subwords(pre_tokenizers.Metaspace(prepend_scheme="never")),
    "metaspace of the normalizer": subwords(
        pre_tokenizers.Split("\u2581", "merged_with_next"), normalizers.Sequence([normalizers.Replace(" ", "\u2581")])
    ),
    "pieces across words": subwords(pre_tokenizers.Split("e", "isolated")),
}
"""Spaces before words are dropped, kept, marked or merged into pieces of several words."""

LETTERS = "abcdehtn0.,'-éñ中文ß\u0301\u200b\x00"
ANY_WORDS = st.lists(st.text(LETTERS + " \u00a0", max_size=7), min_size=1, max_size=12)
WORDS = st.lists(st.text("abcdehtn0.,'-éñ", min_size=1, max_size=7), min_size=1, max_size=12)


def places_of(words, tokenizer, most=MOST):
    (framed,), (places,) = frame_words([words], tokenizer, most)
    return framed.token_ids, places


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(words=ANY_WORDS, most=st.integers(3, 20) | st.just(MOST))
def test_a_word_is_read_at_its_first_piece_or_has_none(name, words, most):
    """Checked from the text alone: which word the first character of a piece that is no space belongs to."""
    tokenizer = TOKENIZERS[name]
    token_ids, places = places_of(words, tokenizer, most)
    text, _ = join_words(words)
    owner = [owns for number, word in enumerate(words) for owns in (*[number] * len(word), None)]
    ((_, offsets),) = tokenizer.frame_with_offsets([text], max_tokens=most)
    assert len(offsets) == len(token_ids) <= most and len(places) == len(words)
    expected = [UNREAD] * len(words)
    for place, (begin, end) in reversed(list(enumerate(offsets))):
        characters = [character for character in range(begin, end) if not text[character].isspace()]
        if begin < end and (word := owner[[*characters, end][0]]) is not None:
            expected[word] = place
    assert places == expected
    read = [place for place in places if place != UNREAD]
    assert read == sorted(set(read)), "two words never share a piece"
    assert all(0 < place < len(token_ids) - 1 for place in read), "never at [CLS] or [SEP]"


@pytest.mark.parametrize("name", ["wordpiece", "byte level with prefix space", "metaspace everywhere"])
@settings(max_examples=60, deadline=None)
@given(words=WORDS)
def test_where_words_stand_alone_the_library_finds_the_same_pieces(name, words):
    """Of these tokenizers a word has the same pieces in a text and alone, so `tokenizers` can be asked word by word."""
    tokenizer = TOKENIZERS[name]
    token_ids, places = places_of(words, tokenizer, 256)
    apart = tokenizer.tokenizer.encode(words, is_pretokenized=True, add_special_tokens=False)
    assert token_ids[1:-1] == apart.ids
    firsts = {word: place for place, word in reversed(list(enumerate(apart.word_ids, start=1)))}
    assert places == [firsts.get(word, UNREAD) for word in range(len(words))]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_are_tokenised_as_in_pre_training(name):
    tokenizer = TOKENIZERS[name]
    token_ids, _ = places_of(["the", "cat", "sat"], tokenizer)
    assert token_ids[1:-1] == tokenizer.encode(["the cat sat"])[0]
