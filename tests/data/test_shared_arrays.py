"""What the processes of a machine share of a large corpus: memory, and the same numbers as each would compute."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from neobert.data import shards
from neobert.data.manifest import MANIFEST
from neobert.data.shards import DOCUMENT, Shard, TokenizedCorpus, documents_name, open_shards, split_corpus, tokens_name
from neobert.errors import DamagedFile
from neobert.files import checksummed, json_bytes, sha256_of
from tests.support.small_corpora import IDS

PRIVATE_BYTES = """
import re, sys
from pathlib import Path
import numpy
from neobert.data.shards import open_shards, split_corpus

def private() -> int:
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = private()
corpus = open_shards(Path(sys.argv[1]), verify=False)
training, _ = split_corpus(corpus)
fitted = training.at_least(0).truncated(1024)
first = corpus.starts[fitted.numbers[:8]], corpus.text_hashes[fitted.numbers[:8]]
print(private() - before)
"""


def write_corpus(folder: Path, documents: int, parts: int = 2, seed: int = 0) -> Path:
    """A corpus of random documents of 0 to 2 tokens, in shards."""
    folder.mkdir()
    drawn, records = np.random.default_rng(seed), []
    for number, count in enumerate(map(len, np.array_split(np.arange(documents), parts))):
        table = np.empty(count, dtype=DOCUMENT)
        table["length"] = drawn.integers(0, 3, count)
        table["text_bytes"] = drawn.integers(1, 99, count)
        table["text_hash"] = drawn.integers(0, 2**64, count, dtype=np.uint64)
        tokens = np.full(table["length"].sum(), IDS.first_text_id, np.uint16)
        np.save(folder / documents_name(number), table)
        (folder / tokens_name(number)).write_bytes(tokens.tobytes())
        files = {name: sha256_of(folder / name) for name in (tokens_name(number), documents_name(number))}
        records.append(asdict(Shard(count, count, len(tokens), files)))
    manifest = {"special_ids": asdict(IDS), "shards": records}
    (folder / MANIFEST).write_bytes(json_bytes(checksummed(manifest)))
    return folder


def arrays(corpus: TokenizedCorpus) -> list[np.ndarray]:
    training, heldout = split_corpus(corpus)
    sides = (training.numbers, training.lengths, heldout.numbers, heldout.lengths)
    return [corpus.lengths, corpus.text_bytes, corpus.text_hashes, corpus.starts, *sides]


def assert_same(found: TokenizedCorpus, expected: TokenizedCorpus) -> None:
    for own, other in zip(arrays(found), arrays(expected), strict=True):
        assert own.dtype == other.dtype
        np.testing.assert_array_equal(own, other)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus", 1000)


@pytest.fixture
def private(folder: Path) -> TokenizedCorpus:
    """The corpus as a small one is opened."""
    return open_shards(folder)


@pytest.fixture
def _all_large(monkeypatch: pytest.MonkeyPatch, private: TokenizedCorpus) -> None:
    monkeypatch.setattr(shards, "LEAST_DOCUMENTS", 0)


def kept(folder: Path) -> list[str]:
    return sorted(path.stem.rpartition("-")[2] for path in folder.glob("columns-*.npy"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_rank_has_eight_private_bytes_a_document(tmp_path: Path) -> None:
    """The lengths fitted to its context; seven other arrays of eight bytes are in the page cache, once a machine."""
    documents = 2 * shards.LEAST_DOCUMENTS
    write_corpus(tmp_path / "corpus", documents)
    command = [sys.executable, "-c", PRIVATE_BYTES, str(tmp_path / "corpus")]
    for _ in range(2):  # the first one writes the files
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert kept(tmp_path / "corpus") == ["documents", "starts", "training"]
    assert 7 < int(found.stdout) / documents < 10


def test_a_small_corpus_has_no_further_files(private: TokenizedCorpus, folder: Path) -> None:
    arrays(private)
    assert not kept(folder) and private.shared is None


@pytest.mark.usefixtures("_all_large")
def test_shared_arrays_have_the_numbers_of_private_ones(private: TokenizedCorpus, folder: Path) -> None:
    for verify in (True, False, True):
        assert_same(open_shards(folder, verify=verify), private)
    assert kept(folder) == ["documents", "starts", "training"]
    side, _ = split_corpus(open_shards(folder))
    with pytest.raises(ValueError, match="read-only"):
        side.lengths[0] = 0


@pytest.mark.usefixtures("_all_large")
def test_arrays_of_other_content_are_not_read(folder: Path, tmp_path: Path) -> None:
    arrays(open_shards(folder))
    other = write_corpus(tmp_path / "other", 999)
    for path in folder.glob("columns-*.npy"):
        (other / path.name).write_bytes(path.read_bytes())
    assert open_shards(other, verify=False).documents == 999


@pytest.mark.usefixtures("_all_large")
def test_in_a_folder_that_cannot_be_written_each_process_has_its_own(
    private: TokenizedCorpus, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("neobert.data.shards.sync_file", refuse)
    assert_same(open_shards(folder), private)
    assert not kept(folder) and not list(folder.glob("*.tmp-*"))


@pytest.mark.usefixtures("_all_large")
def test_a_damaged_corpus_is_refused_before_arrays_are_made(folder: Path) -> None:
    (folder / documents_name(1)).write_bytes(b"")
    with pytest.raises(DamagedFile):
        open_shards(folder)
    assert not kept(folder)
