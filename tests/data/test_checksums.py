"""Whichever byte of a stored file changes, its readers notice, or read what was written."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.data.pairs import Pair
from neobert.data.shards import open_shards, prepare
from neobert.data.tokenizers import TOKENIZER_FILE, TextTokenizer, kept_tokenizer, train_wordpiece
from neobert.embeddings.pairs import encode_pairs, open_pairs, save_pairs
from neobert.errors import DamagedFile
from neobert.glue.encoding import encode_task, load_encoded, save_encoded
from neobert.glue.tasks import TASKS
from tests.support.small_corpora import texts

SOME = settings(max_examples=30, deadline=None)
PLACES = st.floats(0, 1, exclude_max=True)
CHANGES = st.integers(1, 255)
KEYS = {"schema", "origins", "special_ids", "vocabulary_size", "texts", "documents", "tokens", "shards"}


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return train_wordpiece(texts(60), 200)


def flip(path: Path, place: float, change: int) -> None:
    """Change one byte as a disk does, behind the back of who remembers size and time."""
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= change
    path.unlink()
    path.write_bytes(content)


def noticed_or_equal(read: Callable[[], object], expected: object) -> None:
    try:
        found = read()
    except DamagedFile:
        return
    assert found == expected


def pair_arrays(folder: Path) -> list[object]:
    pairs = open_pairs(folder)
    arrays = [array for part in (pairs.queries, pairs.documents, pairs.negatives) for array in vars(part).values()]
    return [pairs.counts, *(np.asarray(array).tolist() for array in (*arrays, pairs.first_negatives))]


@given(st.data(), PLACES, CHANGES)
@SOME
def test_encoded_pairs(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: TextTokenizer, data: st.DataObject, place: float, change: int
) -> None:
    folder = tmp_path_factory.mktemp("pairs") / "mine"
    pairs = [Pair(query, document, (query,)) for query, document in zip(texts(6), texts(6, seed=1), strict=True)]
    save_pairs(folder, encode_pairs(pairs, tokenizer, 32))
    expected = pair_arrays(folder)
    flip(data.draw(st.sampled_from(sorted(folder.iterdir()))), place, change)
    noticed_or_equal(lambda: pair_arrays(folder), expected)


@given(PLACES, CHANGES)
@SOME
def test_encoded_tasks(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: TextTokenizer, place: float, change: int
) -> None:
    path = tmp_path_factory.mktemp("task") / "cola"
    split = {"sentence": texts(6), "label": [0, 1] * 3}
    save_encoded(path, encode_task(TASKS["cola"], {"train": split, "validation": split}, tokenizer, 32))

    def arrays() -> object:
        encoded = load_encoded(path)
        return encoded.task, [
            (name, split.token_ids.tolist(), split.offsets.tolist(), split.labels.tolist())
            for name, split in encoded.splits.items()
        ]

    expected = arrays()
    flip(path, place, change)
    noticed_or_equal(arrays, expected)


@given(st.data(), PLACES, CHANGES)
@SOME
def test_tokenised_corpora(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: TextTokenizer, data: st.DataObject, place: float, change: int
) -> None:
    folder = tmp_path_factory.mktemp("corpus") / "c"
    prepare(texts(40), tokenizer, folder, origins={}, shard_tokens=300)

    def read() -> object:
        corpus = open_shards(folder)
        tokens = [shard.tolist() for shard in corpus.shards]
        manifest = {key: value for key, value in corpus.manifest.items() if key in KEYS}  # a checksum's flipped name
        return corpus.ids, manifest, tokens, corpus.lengths.tolist(), corpus.text_hashes.tolist()

    expected = read()
    flip(data.draw(st.sampled_from(sorted(folder.iterdir()))), place, change)
    noticed_or_equal(read, expected)


@given(st.data(), PLACES, CHANGES)
@SOME
def test_trained_tokenizers_are_trained_again(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: TextTokenizer, data: st.DataObject, place: float, change: int
) -> None:
    folder = tmp_path_factory.mktemp("tokenizers") / "wordpiece"
    expected = kept_tokenizer(folder, lambda: tokenizer).content
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    flip(path, place, change)
    assert kept_tokenizer(folder, lambda: tokenizer).content == expected
    assert (folder / TOKENIZER_FILE).read_bytes() == expected
    assert kept_tokenizer(folder, _never).content == expected


def _never() -> TextTokenizer:
    raise AssertionError("a whole tokenizer is not trained again")
