"""Claims of the tokenizers: same bytes in every process, specials never from text, BERT's and LLaMA's frames."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from neobert.data.tokenizers import (
    BERT_SPECIALS,
    ROBERTA_SPECIALS,
    TRAINERS,
    TextTokenizer,
    load_tokenizer,
    longest_first,
    train_bpe,
    train_wordpiece,
    with_frequent_characters,
    wrap_tokenizer,
)
from neobert.errors import DamagedFile, MissingData
from tests.support.small_corpora import texts, with_ids

REPOSITORY = Path(__file__).resolve().parents[2]
SIZE = 330


@pytest.fixture(scope="module", params=sorted(TRAINERS))
def trained(request: pytest.FixtureRequest) -> TextTokenizer:
    return TRAINERS[request.param](texts(400), SIZE)


def test_two_processes_with_different_hash_seeds_train_the_same_bytes() -> None:
    program = (
        "from neobert.data.tokenizers import TRAINERS\nfrom tests.support.small_corpora import texts\n"
        f"for train in TRAINERS.values(): print(train(texts(400), {SIZE}).tokenizer.to_str(pretty=True))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(REPOSITORY)}
    there = subprocess.check_output([sys.executable, "-c", program], env=environment, cwd=REPOSITORY, text=True)
    assert there == "".join(f"{train(texts(400), SIZE).tokenizer.to_str(pretty=True)}\n" for train in TRAINERS.values())


def test_trained_sizes_are_equal_and_ids_are_dense(trained: TextTokenizer) -> None:
    vocabulary = trained.tokenizer.get_vocab(with_added_tokens=True)
    assert sorted(vocabulary.values()) == list(range(SIZE))
    assert trained.vocabulary_size == SIZE


FLAGS: list[dict[str, bool]] = [
    {"special": False},
    {"special": False, "normalized": True},
    {"special": False, "single_word": True, "lstrip": True},
]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_special_tokens_are_not_read_from_text_whatever_the_flags_of_the_file(
    trained: TextTokenizer, flags: dict[str, bool]
) -> None:
    content = json.loads(trained.content)
    for token in content["added_tokens"]:
        token.update(flags)
    flagged = wrap_tokenizer(Tokenizer.from_str(json.dumps(content)), "a foreign file")
    names = BERT_SPECIALS if trained.opens_second is False else ROBERTA_SPECIALS
    hostile = [f"the {name} cat{name}{name.lower()} {name.upper()}" for name in names.names]
    assert not {number for ids in trained.encode(hostile) for number in ids} & set(trained.ids.never_predicted[:4])
    assert flagged.ids == trained.ids and flagged.is_changed and not trained.is_changed
    assert flagged.encode([*hostile, *texts(50)]) == trained.encode([*hostile, *texts(50)])


@pytest.mark.parametrize("added", [True, False])
def test_special_tokens_that_are_words_of_the_vocabulary_are_not_read_from_text(*, added: bool) -> None:
    """A pre-tokenizer of spaces leaves the names whole, and normalization may make one of other characters."""
    vocabulary = {word: number for number, word in enumerate([*BERT_SPECIALS.names, "the", "cat"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.WhitespaceSplit()
    if added:
        words.add_special_tokens(list(BERT_SPECIALS.names))
    tokenizer = wrap_tokenizer(words, "a tokenizer of words")
    (ids,) = tokenizer.encode(["the [MASK] cat [SEP] [CLS] [PAD] ［MASK］ the"])
    assert [number for number in ids if number != tokenizer.ids.unk] == [
        vocabulary[word] for word in ["the", "cat", "the"]
    ]
    assert tokenizer.is_changed


def test_a_saved_tokenizer_loads_to_the_same_ids(trained: TextTokenizer, tmp_path: Path) -> None:
    trained.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.ids == trained.ids
    assert loaded.encode(texts(50, seed=9)) == trained.encode(texts(50, seed=9))
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_unknown_characters_become_bytes_in_bpe_and_come_back() -> None:
    tokenizer = train_bpe(texts(400), SIZE)
    (ids,) = tokenizer.encode(["the cat 漢字 é"])
    assert tokenizer.ids.unk not in ids
    assert tokenizer.tokenizer.decode(ids) == "the cat 漢字 é"


def test_wordpiece_lower_cases_and_bpe_keeps_case() -> None:
    wordpiece, bpe = train_wordpiece(texts(400), SIZE), train_bpe(texts(400), SIZE)
    assert wordpiece.encode(["CAT"]) == wordpiece.encode(["cat"])
    assert bpe.encode(["CAT"]) != bpe.encode(["cat"])


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_a_vocabulary_below_the_characters_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="choose at least"):
        TRAINERS[name](texts(50), 20)


@pytest.mark.parametrize("largest", [SIZE, 40_000])
def test_an_embedding_has_a_row_for_the_largest_id_however_few_tokens_there_are(
    trained: TextTokenizer, largest: int
) -> None:
    gapped = with_ids(trained, lambda number: largest if number == SIZE - 10 else number)
    assert len(gapped.tokenizer.get_vocab()) == SIZE and gapped.vocabulary_size == largest + 1
    gapped.require_rows(largest + 1)
    with pytest.raises(ValueError, match=f"has ids up to {largest} but .* raise it to at least {largest + 1}"):
        gapped.require_rows(SIZE)
    known = set(gapped.tokenizer.get_vocab().values())
    assert set(range(gapped.ids.first_text_id, gapped.ids.end_text_id)) <= known - set(gapped.ids.never_predicted)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(4, 60))
def test_pairs_are_cut_as_the_tokenizers_library_cuts_them(first: int, second: int, budget: int) -> None:
    reference = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    reference.pre_tokenizer = pre_tokenizers.Whitespace()
    reference.enable_truncation(budget, strategy="longest_first")
    ids = reference.encode("a " * first, "b " * second).ids
    assert longest_first(first, second, budget) == (ids.count(0), ids.count(1))


def test_frames_have_the_specials_of_their_family() -> None:
    wordpiece, bpe = train_wordpiece(texts(100), SIZE), train_bpe(texts(100), SIZE)
    cls, sep = wordpiece.ids.cls, wordpiece.ids.sep
    assert wordpiece.frame([10, 11], max_tokens=9) == [cls, 10, 11, sep]
    assert wordpiece.frame([10, 11], [12], max_tokens=9) == [cls, 10, 11, sep, 12, sep]
    cls, sep = bpe.ids.cls, bpe.ids.sep
    assert bpe.frame([10, 11], [12], max_tokens=9) == [cls, 10, 11, sep, cls, 12, sep]
    assert bpe.frame(list(range(10, 20)), list(range(20, 22)), max_tokens=9) == [cls, 10, 11, 12, sep, cls, 20, 21, sep]
    with pytest.raises(ValueError, match="no room"):
        bpe.frame([10], [11], max_tokens=4)


def test_a_folder_without_or_with_a_torn_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="no tokenizer at"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(DamagedFile, match="not readable as a tokenizer"):
        load_tokenizer(tmp_path)


def test_rare_characters_are_replaced_where_the_texts_are() -> None:
    """A second list of them would take gigabytes."""
    read = ["aab", "abc", "a☃"]
    assert with_frequent_characters(read, 2) is read and read == ["aab", "ab ", "a "]
