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

SOME = settings(max_examples=30)
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


def written_pairs(folder: Path, tokenizer: TextTokenizer) -> Callable[[], object]:
    pairs = [Pair(query, document, (query,)) for query, document in zip(texts(6), texts(6, seed=1), strict=True)]
    save_pairs(folder, encode_pairs(pairs, tokenizer, 32))

    def read() -> object:
        found = open_pairs(folder)
        arrays = [array for part in (found.queries, found.documents, found.negatives) for array in vars(part).values()]
        return [found.counts, *(np.asarray(array).tolist() for array in (*arrays, found.first_negatives))]

    return read


def written_task(folder: Path, tokenizer: TextTokenizer) -> Callable[[], object]:
    split = {"sentence": texts(6), "label": [0, 1] * 3}
    save_encoded(folder / "cola", encode_task(TASKS["cola"], {"train": split, "validation": split}, tokenizer, 32))

    def read() -> object:
        encoded = load_encoded(folder / "cola")
        return encoded.task, [
            (name, split.token_ids.tolist(), split.offsets.tolist(), split.labels.tolist())
            for name, split in encoded.splits.items()
        ]

    return read


def written_corpus(folder: Path, tokenizer: TextTokenizer) -> Callable[[], object]:
    prepare(texts(40), tokenizer, folder, origins={}, shard_tokens=300)

    def read() -> object:
        corpus = open_shards(folder)
        tokens = [shard.tolist() for shard in corpus.shards]
        manifest = {key: value for key, value in corpus.manifest.items() if key in KEYS}  # a checksum's flipped name
        return corpus.ids, manifest, tokens, corpus.lengths.tolist(), corpus.text_hashes.tolist()

    return read


@pytest.mark.parametrize("write", [written_pairs, written_task, written_corpus])
@given(st.data(), PLACES, CHANGES)
@SOME
def test_a_changed_byte_is_noticed_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: TextTokenizer,
    write: Callable[[Path, TextTokenizer], Callable[[], object]],
    data: st.DataObject,
    place: float,
    change: int,
) -> None:
    folder = tmp_path_factory.mktemp("changed") / "data"
    read = write(folder, tokenizer)
    expected = read()
    flip(data.draw(st.sampled_from(sorted(folder.iterdir()))), place, change)
    try:
        found = read()
    except DamagedFile:
        return
    assert found == expected


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
